//! The sandbox of a server: what it gives up once it serves.
//!
//! A server reads requests of programs that nobody trusts, and as root it holds every capability. So
//! it keeps the capabilities that serving needs, gains none by executing a program (it executes none),
//! cannot be traced by its user's other processes, reaches no files but those of DIR and a few of its
//! own, and makes the system calls of a list. Why it is so: `docs/adr/0024-sandbox-of-the-server.md`
//! and `docs/adr/0035-files-that-a-server-reaches.md`.
//!
//! # What happens to a call that is not listed
//!
//! It fails with EPERM; it is said on standard error, counted, and shown by `status`. A call that is
//! newer than the list fails with ENOSYS, as on an older kernel, so that the C library falls back.

mod calls;
mod domain;
mod duties;
mod helper;
mod names;
mod privileges;
mod refused;

use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use anyhow::Context;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter_all_threads, sock_filter,
};
use serde_json::{Value, json};
use tollgate_view::Callers;

pub(crate) use domain::Places;
pub(crate) use duties::Duties;
pub(crate) use helper::{Ender, Looker, Mounter, NotUnmounted, of_this_process as looker};

use crate::cli::SandboxMode;
use crate::{files, messages};
use domain::Domain;

/// What a server has given up so far.
#[derive(Debug)]
pub(crate) struct Sandbox {
    mode: SandboxMode,
    duties: Duties,
    /// Why it is off.
    reason: Option<&'static str>,
    /// Looks at callers for a server that is confined to its files.
    looker: Option<Arc<Looker>>,
    /// Why it is not confined to its files although it is on.
    not_confined: Option<String>,
    /// Why system calls are not restricted although it is on.
    not_filtered: OnceLock<String>,
}

impl Sandbox {
    /// Gives privileges up, and all files but those in `directories` and `places`. Before the first thread,
    /// as they belong to each thread.
    ///
    /// # Errors
    /// When the kernel does not take them.
    pub(crate) fn begin(
        mode: SandboxMode,
        duties: Duties,
        directories: &[BorrowedFd<'_>],
        places: &Places,
    ) -> anyhow::Result<Self> {
        let of = |mode, reason| Self {
            mode,
            duties,
            reason,
            looker: None,
            not_confined: None,
            not_filtered: OnceLock::new(),
        };
        let without = |reason| of(SandboxMode::Off, Some(reason));
        if mode == SandboxMode::Off {
            return Ok(without("asked for"));
        }
        if architecture().is_none() {
            return Ok(without("the list of system calls is for x86-64 and AArch64"));
        }
        let mut sandbox = of(mode, None);
        // The looker looks at what the domain keeps from this process, and so is not in it.
        let confined = Domain::new(directories, places)
            .and_then(|domain| Ok((domain, Looker::start(files::asked_for())?)));
        let duties = Duties { looks: confined.is_err(), ..duties };
        privileges::give_up(duties).context("--sandbox: privileges cannot be given up")?;
        match confined {
            Ok((domain, looker)) => {
                domain.enter().context("--sandbox: files cannot be given up")?;
                sandbox.looker = Some(looker.for_this_process());
            }
            Err(error) => {
                let reason = messages::in_words(&error);
                messages::warn(&format!("the server reaches all files of its user: {reason}"));
                sandbox.not_confined = Some(reason);
            }
        }
        Ok(sandbox)
    }

    /// Who looks at callers, if this process may not.
    pub(crate) fn callers(&self) -> Option<Arc<dyn Callers>> {
        self.looker.clone().map(|looker| looker as Arc<dyn Callers>)
    }

    /// From now on, every thread makes the calls of the list only. When all that is done once is
    /// done. A kernel that does not take the filter (some containers) does not keep the view from
    /// being served: it is said here and by `status`.
    pub(crate) fn complete(&self) {
        if self.mode != SandboxMode::Off
            && let Err(error) = self.filter()
        {
            let reason = messages::in_words(&error);
            messages::warn(&format!("the server keeps all system calls: {reason}"));
            // It is completed once.
            let _ = self.not_filtered.set(reason);
        }
    }

    fn filter(&self) -> anyhow::Result<()> {
        refused::answer(self.mode == SandboxMode::Strict)
            .context("--sandbox: no signal handler")?;
        let program = program(self.duties)?;
        apply_filter_all_threads(&program).context("--sandbox: the filter is not taken")
    }

    /// For `status`.
    pub(crate) fn report(&self) -> Value {
        let mode = match self.mode {
            SandboxMode::On => "on",
            SandboxMode::Strict => "strict",
            SandboxMode::Off => "off",
        };
        let (count, last) = refused::count();
        json!({
            "mode": mode,
            "reason": self.reason,
            "files_not_restricted": self.not_confined,
            "system_calls_not_restricted": self.not_filtered.get(),
            "refused_calls": count,
            "last_refused_call": last.map(|number| {
                names::of(number).map_or_else(|| number.to_string(), str::to_owned)
            }),
        })
    }
}

fn architecture() -> Option<TargetArch> {
    match std::env::consts::ARCH {
        "x86_64" => Some(TargetArch::x86_64),
        "aarch64" => Some(TargetArch::aarch64),
        _ => None,
    }
}

/// The newest call that was known when the list was made (Linux 6.18).
const NEWEST: u32 = 469;

/// The filter. Before the list come calls that are answered as by a kernel that lacks them: those
/// that are newer than the list, and clone3, whose flags a filter cannot see. The C library makes a
/// thread by clone then.
fn program(duties: Duties) -> anyhow::Result<BpfProgram> {
    let architecture = architecture().context("--sandbox: not for this architecture")?;
    let list = SeccompFilter::new(
        calls::allowed(duties)?,
        SeccompAction::Trap,
        SeccompAction::Allow,
        architecture,
    )?;
    let clone3 = u32::try_from(libc::SYS_clone3).context("clone3")?;
    let mut program = vec![
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, NEWEST, 1, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, clone3, 0, 1),
        instruction(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned(),
            0,
            0,
        ),
    ];
    program.extend(BpfProgram::try_from(list)?);
    Ok(program)
}

/// One instruction of classic BPF; `then` and `otherwise` are instructions to skip.
fn instruction(code: u32, k: u32, then: u8, otherwise: u8) -> sock_filter {
    let code = u16::try_from(code).expect("codes of instructions have 16 bits");
    sock_filter { code, jt: then, jf: otherwise, k }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Output};

    use std::os::fd::AsFd;

    use super::*;

    /// Runs [`in_a_sandbox`] in a process of its own: there is no way back.
    fn run_in(mode: &str) -> Output {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "sandbox::tests::in_a_sandbox", "--nocapture"]);
        command.env("SANDBOX", mode).output().unwrap()
    }

    /// Not a test: what the others run.
    #[test]
    #[ignore = "a program for the other tests"]
    fn in_a_sandbox() {
        let mode = match std::env::var("SANDBOX").as_deref() {
            Ok("on") => SandboxMode::On,
            Ok("strict") => SandboxMode::Strict,
            _ => return,
        };
        let sandbox = {
            let root = std::fs::File::open("/").unwrap();
            Sandbox::begin(mode, Duties::default(), &[root.as_fd()], &Places::default()).unwrap()
        };
        sandbox.complete();
        // A thread, and its end, are on the list; a connection is not.
        assert_eq!(std::thread::spawn(|| 5).join().unwrap(), 5);
        let connect = || std::os::unix::net::UnixStream::connect("/none").unwrap_err();
        println!("{:?} {:?}", connect().raw_os_error(), connect().raw_os_error());
        println!("{}", sandbox.report());
        // Newer than the list, and one whose flags cannot be seen.
        for call in [i64::from(NEWEST) + 1, libc::SYS_clone3] {
            #[expect(unsafe_code, reason = "no library has these calls")]
            // SAFETY: the filter answers the calls.
            let result = unsafe { libc::syscall(call, 0, 0, 0, 0) };
            assert_eq!((result, std::io::Error::last_os_error().raw_os_error()), (-1, Some(38)));
        }
    }

    #[test]
    fn a_call_that_is_not_listed_fails_and_is_said_and_counted() {
        let output = run_in("on");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("Some(1) Some(1)"), "{output:?}");
        assert!(said.contains("\"last_refused_call\":\"socket\""), "{said}");
        assert!(said.contains("\"refused_calls\":2"), "{said}");
        let warned = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(warned.matches("refused this server the system call socket (").count(), 1);
    }

    #[test]
    fn a_call_that_is_not_listed_ends_a_strict_server_that_has_said_it() {
        let output = run_in("strict");
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("system call socket ("));
    }
}

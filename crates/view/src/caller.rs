//! Who a caller is, as far as the kernel says.
//!
//! FUSE tells the *thread* that asks, by its id. Its executable is what `/proc/<tid>/exe` names.
//! Two things keep an id from being believed after another thread got it:
//!
//! * While a request that somebody waits for is unanswered, its thread stays in the kernel, also
//!   when it is killed, and so does its id. It cannot change its program meanwhile either: an
//!   `execve` by another thread of the process waits for this one.
//! * For the others (readahead, write-back), a pidfd is held while `/proc` is read, and asked
//!   afterwards whether the thread still lives. If it does, the id was its own all the time.
//!
//! Nothing is cached: a thread can run another program at any time, and whoever wants to know
//! whether it did has to ask as much as is asked here (its start time stays the same).
//!
//! # What it is worth
//!
//! An executable tells which program file a process was started from, not who wrote the code it
//! runs:
//!
//! * Whoever may ptrace a process of an allowed program, or start it with `LD_PRELOAD`, plug-ins, a
//!   debugger or a script, acts under its name. A script's executable is its interpreter.
//! * In a user namespace of its own a process may mount a file of its own over `/usr/bin/node` and
//!   run that, or rename itself by `PR_SET_MM_MAP`. The path is one of the caller's mount
//!   namespace.
//! * A copy of a program under another path is another executable, so a rule that refuses one
//!   program does not stop who wants to get by.
//! * A descriptor outlives the question: who opened a file may pass it on, or run another program.
//!
//! It is a fence against accidents and against programs that do not set out to get over it, and it
//! tells the audit log who it was. Rules about users and paths are what holds.
//!
//! A program whose file was removed or replaced while it runs has ` (deleted)` at the end of its
//! path, and so is no longer the one that a rule names. The path is not looked up by the server: it
//! could lead into this very view, or into a file system whose server never answers.

use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

/// `PIDFD_THREAD` (Linux 6.9): the thread need not lead its process.
const PIDFD_THREAD: u32 = OFlags::EXCL.bits();
/// `PROC_SUPER_MAGIC`
const PROC_MAGIC: u32 = 0x9fa0;
/// Looks at a system call that often: its thread may still be on its way to sleep.
const LOOKS: usize = 5;
/// Longest path in bytes that the kernel gives for an executable.
const MAX_PATH_LEN: usize = 4096;

/// Looks at callers: what the kernel tells only those who might trace them. A server that may not
/// has another process look.
pub trait Callers: Send + Sync {
    /// The executable of thread `tid`, or `None` when it cannot be told: a kernel thread, one of
    /// another pid namespace (id 0), one that is gone, or that may have been another in the
    /// meantime.
    fn executable(&self, tid: u32) -> Option<Arc<[u8]>>;

    /// The system call that thread `tid` waits in, as `/proc/<tid>/syscall` has it.
    fn system_call(&self, tid: u32) -> Option<Vec<u8>>;

    /// Whether thread `tid` is in the user namespace of this process.
    fn is_of_this_user_namespace(&self, tid: u32) -> bool;
}

/// Looks at callers in `/proc`.
#[derive(Debug)]
pub struct ProcCallers {
    /// `/proc` as it was at the start; `None` if there is none, so that no caller is known.
    proc: Option<OwnedFd>,
}

impl Callers for ProcCallers {
    fn executable(&self, tid: u32) -> Option<Arc<[u8]>> {
        self.executable_and(tid, || {})
    }

    fn system_call(&self, tid: u32) -> Option<Vec<u8>> {
        for _ in 0..LOOKS {
            let line = std::fs::read(format!("/proc/{tid}/syscall")).ok()?;
            if !line.starts_with(b"running") {
                return Some(line);
            }
            std::thread::yield_now();
        }
        None
    }

    fn is_of_this_user_namespace(&self, tid: u32) -> bool {
        let number = |path: &str| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
        let own = number("/proc/self/ns/user");
        own.is_some() && number(&format!("/proc/{tid}/ns/user")) == own
    }
}

impl Default for ProcCallers {
    fn default() -> Self {
        let proc = open_proc()
            .inspect_err(|error| tracing::warn!(%error, "no /proc: executables are not known"));
        Self { proc: proc.ok() }
    }
}

impl ProcCallers {
    /// `meanwhile` runs between taking hold of the thread and reading what it runs.
    fn executable_and(&self, tid: u32, meanwhile: impl FnOnce()) -> Option<Arc<[u8]>> {
        let proc = self.proc.as_ref()?.as_fd();
        let pid = Pid::from_raw(i32::try_from(tid).ok()?)?;
        let pidfd =
            rustix::process::pidfd_open(pid, PidfdFlags::from_bits_retain(PIDFD_THREAD)).ok()?;
        meanwhile();
        let exe = read_exe(proc, tid).ok()?;
        is_alive(pidfd.as_fd()).then_some(exe)
    }
}

fn open_proc() -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let proc = rustix::fs::openat(CWD, c"/proc", flags, Mode::empty())?;
    let magic = rustix::fs::fstatfs(&proc)?.f_type;
    // A file system made to look like it could tell anything.
    if u32::try_from(magic) == Ok(PROC_MAGIC) { Ok(proc) } else { Err(Errno::NOENT) }
}

fn read_exe(proc: BorrowedFd<'_>, tid: u32) -> Result<Arc<[u8]>, Errno> {
    // Ten digits, the rest, and the NUL that C wants.
    let mut name = [0_u8; 16];
    write!(&mut name[..], "{tid}/exe").map_err(|_| Errno::NAMETOOLONG)?;
    let name = std::ffi::CStr::from_bytes_until_nul(&name).map_err(|_| Errno::NAMETOOLONG)?;
    let mut path = [MaybeUninit::<u8>::uninit(); MAX_PATH_LEN];
    let (path, _) = rustix::fs::readlinkat_raw(proc, name, &mut path)?;
    if path.len() == MAX_PATH_LEN {
        return Err(Errno::NAMETOOLONG);
    }
    Ok(Arc::from(&*path))
}

/// Whether the thread behind a pidfd has not ended.
fn is_alive(pidfd: BorrowedFd<'_>) -> bool {
    let mut poll = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    rustix::event::poll(&mut poll, Some(&Timespec::default())) == Ok(0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    fn sleeper(program: &str) -> Child {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match Command::new(program).arg("60").stdout(Stdio::null()).spawn() {
                // A child that another test forked has the copy open for writing until it executes.
                Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                    assert!(Instant::now() < deadline, "{program} stays busy");
                    std::thread::sleep(Duration::from_millis(1));
                }
                child => return child.unwrap(),
            }
        }
    }

    fn end(child: &mut Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// A child runs this program until it has called `execve`.
    #[track_caller]
    fn wait_for(lookup: &ProcCallers, tid: u32, wanted: &[u8]) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while lookup.executable(tid).as_deref() != Some(wanted) {
            assert!(Instant::now() < deadline, "{:?}", lookup.executable(tid));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn real(path: &str) -> Vec<u8> {
        std::fs::canonicalize(path).unwrap().as_os_str().as_bytes().to_vec()
    }

    #[test]
    fn every_thread_has_the_executable_of_its_process() {
        let lookup = ProcCallers::default();
        let own = std::env::current_exe().unwrap();
        let tid = || u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        assert_eq!(lookup.executable(tid()).as_deref(), Some(own.as_os_str().as_bytes()));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| lookup.executable(tid()));
            assert_eq!(other.join().unwrap().as_deref(), Some(own.as_os_str().as_bytes()));
        });
    }

    #[test]
    fn another_process_is_known_while_it_lives() {
        let lookup = ProcCallers::default();
        let mut child = sleeper("/bin/sleep");
        wait_for(&lookup, child.id(), &real("/bin/sleep"));
        child.kill().unwrap();
        // A zombie still has its id, but runs nothing.
        let deadline = Instant::now() + Duration::from_secs(10);
        while lookup.executable(child.id()).is_some() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert_eq!(lookup.executable(child.id()), None);
    }

    #[test]
    fn a_thread_that_ends_in_between_is_not_believed() {
        let lookup = ProcCallers::default();
        let mut child = sleeper("/bin/sleep");
        wait_for(&lookup, child.id(), &real("/bin/sleep"));
        let id = child.id();
        assert_eq!(lookup.executable_and(id, || end(&mut child)), None);
    }

    /// The id goes to another process, which runs something, between the two looks.
    #[test]
    fn a_reused_id_is_not_believed() {
        let lookup = ProcCallers::default();
        let last_pid = "/proc/sys/kernel/ns_last_pid";
        let mut first = sleeper("/bin/sleep");
        wait_for(&lookup, first.id(), &real("/bin/sleep"));
        let id = first.id();
        let mut second = None;
        let found = lookup.executable_and(id, || {
            end(&mut first);
            for _ in 0..1000 {
                if std::fs::write(last_pid, (id - 1).to_string()).is_err() {
                    break;
                }
                let mut child = sleeper("/bin/sleep");
                if child.id() == id {
                    second = Some(child);
                    break;
                }
                end(&mut child);
            }
        });
        let Some(mut second) = second else {
            println!(
                "not shown: the id {id} could not be given again (no CAP_CHECKPOINT_RESTORE?)"
            );
            return;
        };
        assert_eq!(found, None);
        wait_for(&lookup, id, &real("/bin/sleep"));
        end(&mut second);
    }

    #[test]
    fn another_program_is_noticed() {
        let lookup = ProcCallers::default();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read x; exec sleep 60"]).stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        wait_for(&lookup, child.id(), &real("/bin/sh"));
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        wait_for(&lookup, child.id(), &real("/bin/sleep"));
        end(&mut child);
    }

    #[test]
    fn a_removed_program_is_not_the_one_that_a_rule_names() {
        let lookup = ProcCallers::default();
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("tool");
        std::fs::copy("/bin/sleep", &copy).unwrap();
        let mut child = sleeper(copy.to_str().unwrap());
        wait_for(&lookup, child.id(), copy.as_os_str().as_bytes());
        std::fs::remove_file(&copy).unwrap();
        let name = [copy.as_os_str().as_bytes(), b" (deleted)"].concat();
        assert_eq!(lookup.executable(child.id()).as_deref(), Some(&name[..]));
        end(&mut child);
    }

    #[test]
    fn nobody_has_no_executable() {
        let lookup = ProcCallers::default();
        for tid in [0, u32::MAX, i32::MAX.cast_unsigned()] {
            assert_eq!(lookup.executable(tid), None);
        }
        // Where this is the first pid namespace, 2 is a kernel thread.
        if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
            assert_eq!(lookup.executable(2), None);
        }
    }
}

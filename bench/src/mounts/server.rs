//! The servers that are compared, each a child process with a mount.
#![expect(
    unsafe_code,
    reason = "a child asks for a signal at its parent's death before it executes; no crate here \
              wraps the C library's call for another process's CPU clock"
)]

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Signal, set_parent_process_death_signal};

/// How long a server may take to mount, and to end after its mount is gone.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);

/// A running server. Dropping it unmounts, and ends the process.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    mount_point: PathBuf,
}

/// The programs that serve views.
#[derive(Debug, Clone)]
pub(crate) struct Launcher {
    /// The `tollgate` binary.
    tollgate: PathBuf,
}

impl Launcher {
    /// Finds the `tollgate` binary beside this program, building it if cargo is there to do so;
    /// `TOLLGATE_BIN` names another one.
    ///
    /// # Errors
    /// If there is none, or it cannot be built.
    pub(crate) fn new() -> Result<Launcher> {
        let tollgate = match std::env::var_os("TOLLGATE_BIN") {
            Some(path) => path.into(),
            None => build_tollgate()?,
        };
        ensure!(tollgate.is_file(), "there is no tollgate binary at {}", tollgate.display());
        Ok(Launcher { tollgate })
    }

    /// The `tollgate` binary.
    pub(crate) fn binary(&self) -> &Path {
        &self.tollgate
    }

    /// Starts `tollgate mount ARGUMENTS LOWER` at `mount_point`; `max_descriptors` is the limit of
    /// the server's process.
    ///
    /// # Errors
    /// If nothing is mounted, with what the server said.
    pub(crate) fn tollgate<A: AsRef<OsStr>>(
        &self,
        arguments: &[A],
        lower: &Path,
        mount_point: &Path,
        max_descriptors: Option<u64>,
    ) -> Result<Server> {
        let mut command = match max_descriptors {
            None => Command::new(&self.tollgate),
            Some(limit) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", &format!("ulimit -n {limit} && exec \"$@\""), "sh"]);
                shell.arg(&self.tollgate);
                shell
            }
        };
        command.env("TOLLGATE_POLICY", "none").arg("mount").args(arguments).arg(lower);
        Server::start(command, mount_point)
    }

    /// Starts the peer (this program, as `bench serve-peer`) at `mount_point`.
    ///
    /// # Errors
    /// As [`Launcher::tollgate`].
    pub(crate) fn peer(threads: usize, lower: &Path, mount_point: &Path) -> Result<Server> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve-peer", "--threads", &threads.to_string()]).arg(lower);
        Server::start(command, mount_point)
    }
}

/// Threads of a server that is told how many: one per CPU, at least two.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, |cpus| cpus.get().max(2))
}

impl Server {
    /// Runs `command` with the mount point as its last argument, and waits for the mount.
    ///
    /// # Errors
    /// If nothing is mounted within ten seconds, with what the server said.
    pub(crate) fn start(mut command: Command, mount_point: &Path) -> Result<Server> {
        std::fs::create_dir_all(mount_point)?;
        let before = std::fs::metadata(mount_point)?.dev();
        let log = mount_point.with_extension("log");
        let output = File::create(&log)?;
        // A process group of its own: Ctrl-C is for the benchmark, which then unmounts.
        command.arg(mount_point).process_group(0);
        end_with_parent(&mut command);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
        let mut server = Server { child, mount_point: mount_point.to_owned() };
        let deadline = Instant::now() + PATIENCE;
        while !is_mounted(mount_point, before)? {
            let ended = server.child.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                bail!("{command:?} mounted nothing ({ended:?}); it said: {}", said.trim());
            }
            sleep(POLL);
        }
        Ok(server)
    }

    /// Resident memory in bytes.
    pub(crate) fn resident_bytes(&self) -> Result<u64> {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).map(str::parse::<u64>);
        match kib {
            Some(Ok(kib)) => Ok(kib * 1024),
            _ => bail!("{path} has no VmRSS"),
        }
    }

    /// CPU time of the process so far, of threads that have ended too.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        let mut clock = 0;
        // SAFETY: `clock` is writable for the length of the call, and the call keeps no reference.
        let refused =
            unsafe { libc::clock_getcpuclockid(self.child.id().cast_signed(), &raw mut clock) };
        ensure!(refused == 0, "process {} has no CPU clock", self.child.id());
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is writable for the length of the call.
        ensure!(unsafe { libc::clock_gettime(clock, &raw mut time) } == 0, "the server is gone");
        let (seconds, ns) = (time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec)?);
        Ok(Duration::new(seconds, ns))
    }

    /// What the server said, if it is gone though nobody unmounted it.
    fn said_at_early_end(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        let log = self.mount_point.with_extension("log");
        let said = std::fs::read_to_string(log).unwrap_or_default();
        Some(format!("{status}; it said: {}", said.trim()))
    }

    fn end(&mut self) {
        if let Some(said) = self.said_at_early_end() {
            eprintln!("the server of {} ended early: {said}", self.mount_point.display());
        }
        for _ in 0..20 {
            match unmount(&self.mount_point, UnmountFlags::empty()) {
                Err(rustix::io::Errno::BUSY) => sleep(POLL * 10),
                _ => break,
            }
        }
        // Still busy: out of the way at least. Not mounted (any more): nothing happens.
        let _ = unmount(&self.mount_point, UnmountFlags::DETACH);
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            sleep(POLL);
        }
        eprintln!("the server of {} did not end; killed", self.mount_point.display());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether `mount_point` is not of the device `before` any more. Into a user's mount not even root
/// may look.
fn is_mounted(mount_point: &Path, before: u64) -> Result<bool> {
    match std::fs::metadata(mount_point) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(true),
        other => Ok(other?.dev() != before),
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Has the child get SIGTERM, at which every server unmounts, should this process be killed.
fn end_with_parent(command: &mut Command) {
    let ask = || Ok(set_parent_process_death_signal(Some(Signal::TERM))?);
    // SAFETY: between fork and exec, only async-signal-safe calls are allowed. `ask` makes one raw
    // system call (prctl) and converts its error number; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(ask) };
}

/// Builds the binary in this program's own profile, so that a stale one is never measured. Without
/// cargo or sources, takes the one that lies beside this program.
fn build_tollgate() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let directory = own.parent().context("this program has no directory")?;
    let tollgate = directory.join("tollgate");
    let sources = directory.ancestors().find(|up| up.join("crates/fuse/Cargo.toml").is_file());
    let Some(sources) = sources else { return Ok(tollgate) };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(sources).args(["build", "--quiet", "--package", "tollgate"]);
    if directory.ends_with("release") {
        build.arg("--release");
    }
    match build.status() {
        Ok(status) => ensure!(status.success(), "{build:?} failed: {status}"),
        Err(error) if tollgate.is_file() => {
            eprintln!("cargo cannot be run ({error}); measuring {} as it is", tollgate.display());
        }
        Err(error) => return Err(error).context("cannot run cargo to build tollgate"),
    }
    Ok(tollgate)
}

//! An ordinary user, whose server registers files by the broker.
#![expect(unsafe_code, reason = "a mount namespace for this program, and groups of its children")]

use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{CWD, FileType, Gid, Mode, Uid, mknodat};
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::mounts::Server;

/// `nobody`, and the group of that number: fusermount3 insists on a user with a name.
pub(super) const NOBODY: u32 = 65534;
/// The file that keeps CPUs awake while it is held.
pub(super) const LATENCY: &str = "/dev/cpu_dma_latency";
/// The group that may write it here, of a number that Debian gives to nobody.
const MEMBERS: u32 = 65533;
/// How long the broker may take to listen.
const PATIENCE: Duration = Duration::from_secs(5);

/// A user without privilege, with a copy of the program and a broker of root.
#[derive(Debug)]
pub(super) struct User {
    /// A directory that the user can reach, and in which root alone writes.
    base: PathBuf,
    broker: Child,
    /// Besides the user's own.
    groups: Vec<Gid>,
}

impl User {
    /// With `binary` as the user's program; what the user needs is made in `base`. One who is
    /// `awake` is in the group that may write [`LATENCY`].
    ///
    /// # Errors
    /// If no broker can be started.
    pub(super) fn new(base: PathBuf, binary: &Path, awake: bool) -> Result<User> {
        std::fs::create_dir_all(base.join("run"))?;
        lchown(base.join("run"), Some(NOBODY), Some(NOBODY))?;
        std::fs::copy(binary, base.join("tollgate")).context("the program cannot be copied")?;
        let mut broker = Command::new(binary);
        broker.arg("broker").arg("--socket").arg(base.join("broker.sock")).process_group(0);
        let broker = broker.stdin(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let groups = awake.then_some(Gid::from_raw(MEMBERS)).into_iter().collect();
        let user = User { base, broker, groups };
        let start = Instant::now();
        while !user.base.join("broker.sock").exists() {
            ensure!(start.elapsed() < PATIENCE, "the broker does not start");
            sleep(Duration::from_millis(5));
        }
        Ok(user)
    }

    /// Makes `command` one of the user's.
    pub(super) fn dress(&self, command: &mut Command) {
        let groups = self.groups.clone();
        // SAFETY: between fork and exec the closure makes system calls alone, and allocates nothing.
        unsafe { command.pre_exec(move || Ok(become_user(&groups)?)) };
        command.env("XDG_RUNTIME_DIR", self.base.join("run")).env("HOME", self.base.join("run"));
    }

    /// Mounts a view of `lower` as a user does: by fusermount3, files registered by the broker.
    pub(super) fn mount(
        &self,
        arguments: &[String],
        lower: &Path,
        mount_point: &Path,
        further: &[OsString],
    ) -> Result<Server> {
        std::fs::create_dir_all(mount_point)?;
        lchown(mount_point, Some(NOBODY), Some(NOBODY))?;
        let mut command = Command::new(self.base.join("tollgate"));
        self.dress(&mut command);
        command.env("TOLLGATE_POLICY", "none").arg("mount").args(arguments).args(further);
        command.arg("--broker").arg(self.base.join("broker.sock")).arg(lower).current_dir("/");
        Server::start(command, mount_point)
    }

    /// Runs `work` on a thread of the user's, whom alone the kernel lets into the user's mount.
    pub(super) fn on_a_thread<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        let as_user = || {
            become_user(&self.groups)?;
            work()
        };
        // Ids are each thread's own, and this one ends with them.
        let done = std::thread::scope(|scope| scope.spawn(as_user).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = self.broker.kill();
        let _ = self.broker.wait();
    }
}

/// Makes the calling thread one of the user's. What is left of a process after fork is one thread.
fn become_user(groups: &[Gid]) -> rustix::io::Result<()> {
    let (gid, uid) = (Gid::from_raw(NOBODY), Uid::from_raw(NOBODY));
    rustix::thread::set_thread_groups(groups)?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)
}

/// Gives everything in `directory` to the user.
pub(super) fn hand_over(directory: &Path) -> Result<()> {
    lchown(directory, Some(NOBODY), Some(NOBODY))?;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => hand_over(&entry.path())?,
            false => lchown(entry.path(), Some(NOBODY), Some(NOBODY))?,
        }
    }
    Ok(())
}

/// Lets everybody open /dev/fuse, as distributions have it, and if a column is `awake`, its user
/// write [`LATENCY`]. Where the machine's own are root's alone, this program and its children get
/// others, in a mount namespace of their own: before anything is mounted.
///
/// # Errors
/// If there is no such device, or no such namespace can be had.
pub(super) fn open_devices(base: &Path, awake: bool) -> Result<()> {
    const FUSE: &str = "/dev/fuse";
    let mode = std::fs::metadata(FUSE).context("no /dev/fuse")?.permissions().mode();
    let mut nodes = Vec::new();
    if mode & 0o006 != 0o006 {
        nodes.push((FUSE, node(base, FUSE, 0o666)?));
    }
    if awake {
        let own = node(base, LATENCY, 0o660)?;
        lchown(&own, None, Some(MEMBERS))?;
        nodes.push((LATENCY, own));
    }
    if nodes.is_empty() {
        return Ok(());
    }
    // SAFETY: the flags unshare no memory and no descriptors, only the thread's view of mounts, root
    // and working directory; children and threads that it starts from now on are to inherit it.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) }?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    nodes.into_iter().try_for_each(|(device, own)| Ok(mount_bind(&own, device)?))
}

/// A node in `base` for the device that `path` is.
fn node(base: &Path, path: &str, mode: u32) -> Result<PathBuf> {
    let device = std::fs::metadata(path).with_context(|| format!("no {path}"))?.rdev();
    let node = base.join(path.trim_start_matches("/dev/"));
    mknodat(CWD, &node, FileType::CharacterDevice, Mode::empty(), device)?;
    std::fs::set_permissions(&node, PermissionsExt::from_mode(mode))?;
    Ok(node)
}

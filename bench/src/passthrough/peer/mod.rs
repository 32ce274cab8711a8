//! The peer: a passthrough server on the `fuser` crate, as its documentation says to write one.
//!
//! It does what is needed for the same results as Tollgate's passthrough column, and no more:
//!
//! - every inode that the kernel knows holds an `O_PATH` descriptor, so no path is ever walked;
//! - a backing id is registered when a file is opened, and shared while the file is open (one inode
//!   must have one id), as in fuser's own example;
//! - FLUSH is left to fuser's default answer, `ENOSYS`, which the kernel takes as "never ask
//!   again";
//! - the INIT flags that matter are taken: `HANDLE_KILLPRIV_V2` (without it each passthrough write
//!   asks for `security.capability`), parallel directory operations, readdirplus, atomic `O_TRUNC`,
//!   symlink caching, asynchronous direct I/O, 1 MiB requests;
//! - time to live, thread count, and one cloned device per thread are the same as Tollgate's.
//!
//! What it leaves out: any policy, creating files as the caller, lower file systems below the root
//! directory's own device, and a bound on its descriptors.

mod files;
mod inodes;
mod operations;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use fuser::{Config, MountOption, Session, SessionACL, SessionUnmounter};
use rustix::fs::Mode;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use inodes::Inodes;

/// How long the kernel may keep names and attributes: Tollgate's default.
const TTL: Duration = Duration::from_secs(1);

/// The file system.
#[derive(Debug)]
struct Peer {
    inodes: Inodes,
    files: files::Files,
}

/// Serves `source` at `mount_point` with `threads` threads until it is unmounted.
///
/// # Errors
/// If `source` cannot be opened or the mount is refused.
pub fn serve(source: &Path, mount_point: &Path, threads: usize) -> Result<()> {
    // The kernel has applied the caller's umask already.
    rustix::process::umask(Mode::empty());
    let inodes = Inodes::open(source).with_context(|| format!("{}", source.display()))?;
    let peer = Peer { inodes, files: files::Files::default() };
    let mut config = Config::default();
    config.acl = SessionACL::All;
    config.n_threads = Some(threads);
    config.clone_fd = threads > 1;
    config.mount_options = vec![
        MountOption::FSName("peer".to_owned()),
        MountOption::Subtype("fuser-peer".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
    ];
    let mut session = Session::new(peer, mount_point, &config)
        .with_context(|| format!("cannot mount at {}", mount_point.display()))?;
    unmount_on_signal(session.unmount_callable())?;
    session.run().context("the session ended with an error")
}

/// Ends the session from a thread of its own at SIGINT or SIGTERM (the benchmark was killed).
fn unmount_on_signal(mut unmounter: SessionUnmounter) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if signals.forever().next().is_some()
            && let Err(error) = unmounter.unmount()
        {
            eprintln!("cannot unmount: {error}");
        }
    })?;
    Ok(())
}

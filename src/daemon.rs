//! Going into the background with a ready signal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use rustix::pipe::PipeFlags;
use rustix::process::WaitOptions;

use crate::escape::shown;
use crate::messages;
use crate::sys::{self, Forked};

/// What the server sends when it serves.
const READY: &[u8] = b"ready\n";
/// Longest error text in bytes that is passed on.
const ERROR_MAX_BYTES: u64 = 16 << 10;

/// Which process comes back from [`split`].
#[derive(Debug)]
pub(crate) enum Side {
    /// The one that was started; the server is ready.
    Starter,
    /// The server to be, in a session of its own, with `/` as its working directory.
    Server(ReadyPipe),
}

/// The server's end of a pipe to the starter. The starter takes a pipe that is closed without a
/// message for the death of the server.
#[derive(Debug)]
pub(crate) struct ReadyPipe(File);

impl ReadyPipe {
    /// The server serves: the starter may end.
    pub(crate) fn ready(mut self) {
        // The starter may be gone by now, and needs no message then.
        let _ = self.0.write_all(READY);
    }

    /// The server cannot serve: the starter shows why.
    pub(crate) fn failed(mut self, error: &anyhow::Error) {
        let _ = self.0.write_all(messages::in_words(error).as_bytes());
    }
}

/// Forks a server off, and in the starter waits for it to be ready.
///
/// # Errors
/// In the starter, what the server failed with.
pub(crate) fn split(log: Option<&Path>) -> anyhow::Result<Side> {
    let output = open_output(log)?;
    let (read, write) =
        rustix::pipe::pipe_with(PipeFlags::CLOEXEC).context("cannot make a pipe")?;
    match sys::fork().context("cannot fork")? {
        Forked::Parent(child) => {
            drop((write, output));
            let _ = rustix::process::waitpid(Some(child), WaitOptions::empty());
            wait(&mut File::from(read)).map(|()| Side::Starter)
        }
        Forked::Child => {
            drop(read);
            let pipe = ReadyPipe(File::from(write));
            if let Err(error) = leave(&output) {
                pipe.failed(&error);
                sys::exit_now(1);
            }
            Ok(Side::Server(pipe))
        }
    }
}

fn open_output(log: Option<&Path>) -> anyhow::Result<OwnedFd> {
    let path = log.unwrap_or(Path::new("/dev/null"));
    let cannot = || format!("log file `{}` cannot be opened", shown(path));
    refuse_anothers_link(path).with_context(cannot)?;
    // A FIFO that nobody reads would be waited for.
    let file = File::options()
        .append(true)
        .create(log.is_some())
        .mode(0o600)
        .custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK)
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ENXIO) => anyhow!("it is a FIFO that nobody reads, or a socket"),
            _ => error.into(),
        })
        .with_context(cannot)?;
    let flags = rustix::fs::fcntl_getfl(&file).with_context(cannot)?;
    rustix::fs::fcntl_setfl(&file, flags - rustix::fs::OFlags::NONBLOCK).with_context(cannot)?;
    Ok(file.into())
}

/// A symbolic link of somebody else may lead to a file that this user may change, and they may not.
fn refuse_anothers_link(path: &Path) -> anyhow::Result<()> {
    let Ok(meta) = std::fs::symlink_metadata(path) else { return Ok(()) };
    let own = rustix::process::geteuid().as_raw();
    if meta.is_symlink() && ![own, 0].contains(&meta.uid()) {
        bail!(
            "it is a symbolic link of another user (number {}); name the file itself",
            meta.uid()
        );
    }
    Ok(())
}

fn wait(pipe: &mut File) -> anyhow::Result<()> {
    let mut said = Vec::new();
    pipe.take(ERROR_MAX_BYTES).read_to_end(&mut said).context("cannot read from the server")?;
    if said == READY {
        return Ok(());
    }
    if said.is_empty() {
        bail!("the server died before it was ready");
    }
    Err(anyhow!("{}", String::from_utf8_lossy(&said)))
}

/// A session of its own, without a terminal to get one back, and nothing of the starter's held.
fn leave(output: &OwnedFd) -> anyhow::Result<()> {
    rustix::process::setsid().context("setsid")?;
    if let Forked::Parent(_) = sys::fork().context("cannot fork")? {
        sys::exit_now(0);
    }
    rustix::process::chdir("/").context("cannot change to `/`")?;
    let input = File::open("/dev/null").context("/dev/null")?;
    rustix::stdio::dup2_stdin(input.as_fd()).context("dup2")?;
    rustix::stdio::dup2_stdout(output.as_fd()).context("dup2")?;
    rustix::stdio::dup2_stderr(output.as_fd()).context("dup2")?;
    Ok(())
}

/// Reports to the service manager that the server is ready (`sd_notify(3)`), if one wants to know.
pub(crate) fn notify_manager() {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = notify(&address) {
        messages::warn(&format!(
            "NOTIFY_SOCKET: the service manager cannot be notified: {error:#}"
        ));
    }
}

fn notify(address: &std::ffi::OsStr) -> anyhow::Result<()> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    let address = match address.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(address)?,
    };
    let text = format!("READY=1\nMAINPID={}", std::process::id());
    UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address)?;
    Ok(())
}

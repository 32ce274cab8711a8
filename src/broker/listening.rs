//! The socket that the broker listens at: its own, or one that systemd hands over.

use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, ensure};
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketType};

/// The first descriptor that systemd hands over (`SD_LISTEN_FDS_START`).
const FIRST_HANDED_OVER: i32 = 3;

/// The socket, and where it is in words.
///
/// # Errors
/// When the socket handed over is of another kind, or none can be made at `path`.
pub(super) fn socket(path: &Path) -> anyhow::Result<(OwnedFd, String)> {
    if let Some(socket) = handed_over() {
        check(&socket)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).context("fcntl")?;
        return Ok((socket, "the socket that systemd handed over".to_owned()));
    }
    let shown = path.display();
    let socket = tollgate_broker::listener(path)
        .with_context(|| format!("cannot listen at `{shown}` (--socket)"))?;
    Ok((socket, format!("`{shown}`")))
}

/// sd_listen_fds(3).
fn handed_over() -> Option<OwnedFd> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID")? != std::process::id() || number("LISTEN_FDS")? == 0 {
        return None;
    }
    #[expect(unsafe_code, reason = "a descriptor by its number")]
    // SAFETY: by the protocol of socket activation the descriptor is open and this process's own;
    // nothing else in it has taken it, because this runs once, before any other descriptor is made.
    Some(unsafe { OwnedFd::from_raw_fd(FIRST_HANDED_OVER) })
}

fn check(socket: &OwnedFd) -> anyhow::Result<()> {
    let fault = "the socket handed over must be a listening Unix socket of sequential packets \
                 (ListenSequentialPacket=)";
    let kind = sockopt::socket_type(socket).context(fault)?;
    let family = sockopt::socket_domain(socket).context(fault)?;
    let listens = sockopt::socket_acceptconn(socket).context(fault)?;
    let fits = kind == SocketType::SEQPACKET && family == AddressFamily::UNIX && listens;
    ensure!(fits, "{fault}");
    Ok(())
}

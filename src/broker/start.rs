//! How `tollgate broker` begins: its options, and the socket that it listens at.

use std::os::fd::{FromRawFd, OwnedFd};

use anyhow::{Context, ensure};
use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::cli::BrokerArgs;

/// Serves until it is ended.
///
/// # Errors
/// When it cannot listen, privilege is missing, or the process cannot be confined.
pub(crate) fn run(args: &BrokerArgs) -> anyhow::Result<()> {
    // Before there is a socket, which nobody would remove.
    ensure!(super::may_register(), "it has to be started as root, in no user namespace of its own");
    let group = args.user_group.as_deref().map(group_id).transpose()?;
    let listener = listener(args)?;
    let served = tollgate_broker::serve(listener, group, args.max_files as usize);
    match served.context("it cannot be confined")? {}
}

fn group_id(name: &str) -> anyhow::Result<u32> {
    let group = uzers::get_group_by_name(name);
    group.map(|group| group.gid()).with_context(|| {
        format!("--user-group `{name}`: there is no such group (`getent group` lists them)")
    })
}

/// The socket that systemd hands over (sd_listen_fds(3)), or one of its own. No other descriptor
/// besides the standard streams stays open.
#[expect(unsafe_code, reason = "descriptors by their numbers")]
fn listener(args: &BrokerArgs) -> anyhow::Result<OwnedFd> {
    let own = std::process::id().to_string();
    let handed_over = std::env::var("LISTEN_PID").is_ok_and(|pid| pid == own);
    let first = if handed_over { 4 } else { 3 };
    // SAFETY: this program has no descriptor open yet but those that it was started with.
    let rc = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    ensure!(rc == 0, "what it was started with cannot be closed (close_range)");
    if !handed_over {
        let at = args.socket.display();
        if args.socket == std::path::Path::new(tollgate_broker::DEFAULT_SOCKET) {
            // It lies beside root's control sockets, whose directory root alone may enter at first.
            crate::control::directory().prepare_for_all()?;
        }
        return tollgate_broker::listener(&args.socket)
            .with_context(|| format!("it cannot listen at `{at}` (--socket)"));
    }
    // SAFETY: by the protocol of socket activation the descriptor is open and this process's own;
    // nothing else in it has taken it, because this runs once, before any other descriptor is made.
    let socket = unsafe { OwnedFd::from_raw_fd(3) };
    let fits = sockopt::socket_type(&socket) == Ok(SocketType::SEQPACKET)
        && sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX)
        && sockopt::socket_acceptconn(&socket) == Ok(true);
    ensure!(fits, "the socket must listen for sequential packets (ListenSequentialPacket=)");
    Ok(socket)
}

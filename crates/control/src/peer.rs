//! Who is at the other end of a connection.

#![expect(unsafe_code, reason = "rustix reads SO_PEERCRED into a pid that cannot be 0")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec};

/// A client, as the kernel knows it since it connected. Both ids are those of this process's
/// namespaces.
#[derive(Clone, Copy, Debug)]
pub struct Peer<'c> {
    /// Its user id.
    pub uid: u32,
    /// Its process id; `None` for a process that this process's pid namespace does not see. By now it may
    /// be another process's: see [`Peer::still_has_pid`].
    pub pid: Option<u32>,
    connection: &'c UnixStream,
}

impl<'c> Peer<'c> {
    pub(crate) fn new(Credentials { uid, pid }: Credentials, connection: &'c UnixStream) -> Self {
        Self { uid, pid, connection }
    }

    /// Whether the process that connected has not ended: then what was looked up by [`Peer::pid`] before this
    /// call is that process's, and not of another one that has got its number. A process can hand its
    /// connection to others and end. Before Linux 6.5, which cannot tell, this is true of every process that has
    /// a pid here.
    #[must_use]
    pub fn still_has_pid(&self) -> bool {
        self.pid.is_some()
            && match process(self.connection) {
                Ok(process) => !has_ended(&process),
                // The kernel does not know the option.
                Err(error) => error.raw_os_error() == Some(libc::ENOPROTOOPT),
            }
    }
}

/// Who is at the other end of a connection: of a client, when it connected, of a server, when it began
/// to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) uid: u32,
    pub(crate) pid: Option<u32>,
}

impl Credentials {
    /// # Errors
    /// The kernel does not know the peer, or cannot name its user in our user namespace.
    pub(crate) fn of(stream: &UnixStream) -> io::Result<Self> {
        let credentials = credentials(stream)?;
        if !is_certain(credentials.uid) {
            let text = "its user does not exist in this user namespace";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        // The kernel gives 0 for a process that our pid namespace does not see.
        let pid = u32::try_from(credentials.pid).ok().filter(|&pid| pid != 0);
        Ok(Self { uid: credentials.uid, pid })
    }

    /// Whether a server that runs as `server` serves this client.
    pub(crate) fn may_ask(&self, server: u32) -> bool {
        self.uid == 0 || self.uid == server
    }

    /// Whether a client that runs as `client` trusts this server.
    pub(crate) fn may_serve(&self, client: u32) -> bool {
        client == 0 || self.uid == 0 || self.uid == client
    }
}

pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn credentials(stream: &UnixStream) -> io::Result<libc::ucred> {
    let credentials = MaybeUninit::<libc::ucred>::zeroed();
    let credentials = option(stream, libc::SO_PEERCRED, credentials)?;
    // SAFETY: three integers, which hold any value; they were zeroed and then written by the
    // kernel.
    Ok(unsafe { credentials.assume_init() })
}

/// A descriptor of the process at the other end, which stays that process's when its number is given to
/// another one.
fn process(stream: &UnixStream) -> io::Result<OwnedFd> {
    let number = option(stream, libc::SO_PEERPIDFD, MaybeUninit::<RawFd>::new(-1))?;
    // SAFETY: an integer, which was initialised.
    let number = unsafe { number.assume_init() };
    if number < 0 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: the call has made this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// An option of the socket, read over `value`.
fn option<T>(
    stream: &UnixStream,
    name: libc::c_int,
    mut value: MaybeUninit<T>,
) -> io::Result<MaybeUninit<T>> {
    let size = size_of::<T>();
    let mut len = libc::socklen_t::try_from(size).expect("a few bytes");
    // SAFETY: `value` is valid for writes of `len` bytes, and `len` is a valid length.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            value.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    assert_eq!(len as usize, size, "the option has one size");
    Ok(value)
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(rustix::event::poll(&mut fds, Some(&at_once)), Ok(0))
}

/// A user that our user namespace does not map appears as the overflow user, who may also exist.
fn is_certain(uid: u32) -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let overflow = read("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(65_534);
    uid != overflow || maps_every_user(&read("/proc/self/uid_map"))
}

fn maps_every_user(uid_map: &str) -> bool {
    let words: Vec<_> = uid_map.split_whitespace().collect();
    words == ["0", "0", "4294967295"]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no Unix sockets")]
    fn both_ends_of_a_pair_are_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let own = Credentials { uid: own_uid(), pid: Some(std::process::id()) };
        assert_eq!(Credentials::of(&one).unwrap(), own);
        assert!(Peer::new(own, &one).still_has_pid());
        assert!(!Peer::new(Credentials { pid: None, ..own }, &one).still_has_pid());
    }

    #[test]
    fn only_root_and_the_same_user_are_served_and_trusted() {
        let peer = |uid| Credentials { uid, pid: None };
        for (client, server, served, trusted) in [
            (1000, 1000, true, true),
            (0, 1000, true, true),
            (1000, 0, false, true),
            (1000, 1001, false, false),
            (0, 0, true, true),
        ] {
            assert_eq!(peer(client).may_ask(server), served, "{client} asks {server}");
            assert_eq!(peer(server).may_serve(client), trusted, "{client} trusts {server}");
        }
    }

    #[test]
    fn only_a_map_of_all_users_names_the_overflow_user_for_certain() {
        assert!(maps_every_user("         0          0 4294967295\n"));
        assert!(!maps_every_user("      1000       1000          1\n"));
        assert!(!maps_every_user(" 0 100000 65536\n 65536 0 1\n"));
    }
}

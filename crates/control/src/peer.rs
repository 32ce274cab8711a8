//! Who is at the other end of a connection.

#![expect(unsafe_code, reason = "rustix reads SO_PEERCRED into a pid that cannot be 0")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// The process at the other end, as the kernel knows it: of a client when it connected, of a server
/// when it began to listen. Both ids are those of this process's namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its user id.
    pub uid: u32,
    /// Its process id; `None` for a process that this process's pid namespace does not see.
    pub pid: Option<u32>,
}

impl Peer {
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
    let mut credentials = MaybeUninit::<libc::ucred>::zeroed();
    let size = size_of::<libc::ucred>();
    let mut len = libc::socklen_t::try_from(size).expect("a few bytes");
    // SAFETY: `credentials` is valid for writes of `len` bytes, and `len` is a valid length.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            credentials.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    assert_eq!(len as usize, size, "SO_PEERCRED has one size");
    // SAFETY: three integers, which hold any value; they were zeroed and then written by the
    // kernel.
    Ok(unsafe { credentials.assume_init() })
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
        let own = Peer { uid: own_uid(), pid: Some(std::process::id()) };
        assert_eq!(Peer::of(&one).unwrap(), own);
    }

    #[test]
    fn only_root_and_the_same_user_are_served_and_trusted() {
        let peer = |uid| Peer { uid, pid: None };
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

//! The namespaces of a fence, as descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, ensure};
use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// In the order in which they are entered: the right to enter the process and network namespaces
/// belongs to the outer user namespace, the right to the mounts to the inner one.
const KINDS: [LinkNameSpaceType; 6] = [
    LinkNameSpaceType::User,
    LinkNameSpaceType::ProcessID,
    LinkNameSpaceType::Network,
    LinkNameSpaceType::User,
    LinkNameSpaceType::InterProcessCommunication,
    LinkNameSpaceType::Mount,
];

/// Descriptors for [`KINDS`]. One that is shared with whoever joins stands for itself, and is
/// entered without effect, or left out where only its owner could enter it.
#[derive(Debug)]
pub(crate) struct Namespaces(Vec<OwnedFd>);

/// The user namespace of the calling process.
pub(crate) fn user() -> anyhow::Result<OwnedFd> {
    open("user")
}

fn open(name: &str) -> anyhow::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open(format!("/proc/self/ns/{name}"), flags, Mode::empty())
        .with_context(|| format!("--session: the namespace `{name}` cannot be handed on"))
}

impl Namespaces {
    /// Those of the calling process, in the user namespace inside of `outer`.
    pub(crate) fn of_this_process(outer: OwnedFd) -> anyhow::Result<Self> {
        let mut all = vec![outer];
        for name in ["pid", "net", "user", "ipc", "mnt"] {
            all.push(open(name)?);
        }
        Ok(Self(all))
    }

    /// What came in a message.
    pub(crate) fn received(fds: Vec<OwnedFd>) -> anyhow::Result<Self> {
        ensure!(fds.len() == KINDS.len(), "--session: the wrong number of namespaces came");
        Ok(Self(fds))
    }

    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd).collect()
    }

    /// Takes the calling process, which has one thread, into them. Its children are in the process
    /// namespace.
    pub(super) fn enter(&self) -> anyhow::Result<()> {
        for (fd, kind) in self.0.iter().zip(KINDS) {
            if is_own(fd, kind)? {
                continue;
            }
            move_into_link_name_space(fd.as_fd(), Some(kind))
                .with_context(|| format!("--session: cannot enter the {kind:?} namespace"))?;
        }
        Ok(())
    }
}

/// Whether this process is in it already; entering its own user namespace would be refused.
fn is_own(fd: &OwnedFd, kind: LinkNameSpaceType) -> anyhow::Result<bool> {
    let name = match kind {
        LinkNameSpaceType::User => "user",
        LinkNameSpaceType::Network => "net",
        LinkNameSpaceType::ProcessID => "pid_for_children",
        LinkNameSpaceType::InterProcessCommunication => "ipc",
        _ => "mnt",
    };
    let (theirs, own) = (rustix::fs::fstat(fd)?, rustix::fs::stat(format!("/proc/self/ns/{name}")));
    Ok(own.is_ok_and(|own| (own.st_dev, own.st_ino) == (theirs.st_dev, theirs.st_ino)))
}

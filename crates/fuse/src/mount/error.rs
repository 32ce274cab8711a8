//! What can go wrong with a mount, and what to do about it.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why mounting or unmounting failed. The texts leave out what `source()` says: print the chain.
#[derive(Debug, Error)]
pub enum MountError {
    /// There is no FUSE here.
    #[error(
        "/dev/fuse cannot be used (load the module with modprobe fuse, or give the container the \
         device)"
    )]
    NoDevice {
        /// The system's error.
        source: io::Error,
    },
    /// Neither privilege nor helper.
    #[error(
        "mounting at {} is not permitted ({why}); run as root, in a user namespace with a mount \
         namespace of its own, or install fusermount3 (package fuse3)",
        path.display()
    )]
    NotPermitted {
        /// The mount point.
        path: PathBuf,
        /// What was refused.
        why: &'static str,
    },
    /// As [`MountError::NotPermitted`], of an unmount.
    #[error(
        "unmounting {} is not permitted ({why}); run as root, or install fusermount3 (package fuse3), \
         which unmounts what the same user has mounted",
        path.display()
    )]
    UnmountNotPermitted {
        /// The mount point.
        path: PathBuf,
        /// What was refused.
        why: &'static str,
    },
    /// Another mount covers it.
    #[error("another file system is mounted over the one at {}; unmount that first", path.display())]
    Covered {
        /// The mount point.
        path: PathBuf,
    },
    /// The mount point cannot be used.
    #[error("{} is no place to mount", path.display())]
    NoMountPoint {
        /// The mount point.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The mount point is no directory.
    #[error("{} is not a directory; a directory tree is mounted on a directory", path.display())]
    NotADirectory {
        /// The mount point.
        path: PathBuf,
    },
    /// It is mounted already.
    #[error("a Tollgate view is already mounted at {}; unmount it first", path.display())]
    AlreadyMounted {
        /// The mount point.
        path: PathBuf,
    },
    /// A mount whose server is gone.
    #[error(
        "{} is a mount whose server is gone (Transport endpoint is not connected); unmount it \
         first",
        path.display()
    )]
    Stale {
        /// The mount point.
        path: PathBuf,
    },
    /// It is in use.
    #[error("{} is in use; end what works there, or unmount lazily", path.display())]
    Busy {
        /// The mount point.
        path: PathBuf,
    },
    /// Nothing is there to be unmounted.
    #[error(
        "there is no {}: it was removed, or it or a directory above it was renamed; what was mounted \
         there may be at another place now (/proc/self/mountinfo)",
        path.display()
    )]
    Gone {
        /// The path.
        path: PathBuf,
    },
    /// It is not mounted.
    #[error("{} is not a mount point", path.display())]
    NotMounted {
        /// The path.
        path: PathBuf,
    },
    /// An option that cannot be expressed.
    #[error("mount option {option} is {value:?}, but must be {allowed}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What would be right.
        allowed: &'static str,
    },
    /// `fusermount3` failed.
    #[error("fusermount3 failed at {}: {message}", path.display())]
    Helper {
        /// The mount point.
        path: PathBuf,
        /// What it said.
        message: String,
    },
    /// Anything else.
    #[error("mounting or unmounting {} failed", path.display())]
    System {
        /// The mount point.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    #[test]
    fn a_text_and_its_cause_say_different_things() {
        let source = || io::Error::from_raw_os_error(22);
        let path = PathBuf::from("/mnt");
        for error in [
            MountError::NoDevice { source: source() },
            MountError::NoMountPoint { path: path.clone(), source: source() },
            MountError::System { path, source: source() },
        ] {
            let cause = error.source().unwrap().to_string();
            assert!(!error.to_string().contains(&cause), "{error}");
        }
    }
}

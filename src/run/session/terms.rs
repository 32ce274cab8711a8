//! What the second `run` of a session has to know of the first.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::Context;
use rustix::fs::{MemfdFlags, SealFlags};
use serde::{Deserialize, Serialize};

use crate::any_path;

/// As JSON, in a file: a message has a maximum, and there may be any number of paths here.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Terms {
    /// The directory of the view.
    #[serde(with = "any_path")]
    pub(crate) dir: PathBuf,
    /// `--user` of the first.
    pub(crate) user: Option<String>,
    /// The sockets at which the servers answer that user.
    pub(crate) control: Option<String>,
    pub(crate) fenced: bool,
    /// Nothing of the fence may be missing.
    pub(crate) whole_fence: bool,
    pub(crate) own_network: bool,
    /// Variables by which programs find the proxy.
    pub(crate) proxy: Vec<(String, String)>,
    /// Those of the limits.
    #[serde(with = "any_path::list")]
    pub(crate) cgroups: Vec<PathBuf>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) processes: Option<u64>,
    /// What CMD gets besides DIR, to read or to write.
    #[serde(with = "any_path::list")]
    pub(crate) shown: Vec<PathBuf>,
    /// What of that CMD writes to.
    #[serde(with = "any_path::list")]
    pub(crate) writable: Vec<PathBuf>,
}

impl Terms {
    /// A file without a name that holds them, and that nobody changes any more.
    pub(super) fn to_file(&self) -> anyhow::Result<OwnedFd> {
        let json = serde_json::to_vec(self)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL;
        let file = rustix::fs::memfd_create(c"tollgate-session", flags)?;
        let mut file = File::from(file);
        file.write_all(&json)?;
        let all = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, all)?;
        Ok(file.into())
    }

    /// What such a file holds.
    pub(super) fn of_file(file: OwnedFd) -> anyhow::Result<Self> {
        let file = File::from(file);
        let length = usize::try_from(file.metadata()?.len()).context("it is too long")?;
        let mut json = vec![0; length];
        // Others read it meanwhile, by the same description.
        file.read_exact_at(&mut json, 0)?;
        Ok(serde_json::from_slice(&json)?)
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn terms_of_any_length_are_read_by_each_and_changed_by_nobody() {
        let path = |number| PathBuf::from(format!("/{}/{number}", "x".repeat(4000)));
        let terms = Terms {
            dir: "/dir".into(),
            user: None,
            control: None,
            fenced: true,
            whole_fence: false,
            own_network: false,
            proxy: Vec::new(),
            cgroups: Vec::new(),
            memory_bytes: None,
            processes: None,
            shown: Vec::new(),
            writable: (0..500).map(path).collect(),
        };
        let file = terms.to_file().unwrap();
        for _ in 0..2 {
            let read = Terms::of_file(file.try_clone().unwrap()).unwrap();
            assert_eq!((read.dir, read.writable), (terms.dir.clone(), terms.writable.clone()));
        }
        let file = File::from(file);
        for change in [file.write_at(b"x", 0).map(drop), file.set_len(0), file.set_len(1 << 30)] {
            assert_eq!(change.unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
    }
}

//! What CMD wrote to its copy of the home directory, and that is gone.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::Context;
use rustix::fs::{AtFlags, Dir, FileType};

use super::home::Copy;
use crate::escape::escaped;

/// Names in a home directory that programs write by the way, and whose loss is none.
const CACHES: &[&str] = &[
    ".bash_history",
    ".bun",
    ".cache",
    ".cargo",
    ".config",
    ".conda",
    ".deno",
    ".gradle",
    ".java",
    ".lesshst",
    ".local",
    ".m2",
    ".node-gyp",
    ".node_repl_history",
    ".npm",
    ".nuget",
    ".nv",
    ".pnpm-store",
    ".pyenv",
    ".python_history",
    ".rustup",
    ".viminfo",
    ".wget-hsts",
    ".yarn",
    ".zsh_history",
    "go",
];
/// Most names that are told.
const TOLD_MAX: usize = 6;

/// What CMD writes to its copy.
#[derive(Debug)]
pub(crate) struct Written {
    top: OwnedFd,
    /// What was there, and when each copied file was last changed.
    before: BTreeMap<String, Option<(i64, u64)>>,
}

impl Written {
    /// Remembers how the copy is, before CMD starts.
    pub(super) fn watch(copy: Copy) -> anyhow::Result<Self> {
        let Copy { top, files } = copy;
        let entries = Dir::read_from(&top).context("cannot list the private home directory")?;
        let before = entries.flatten().map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_file = files.iter().any(|file| file.as_os_str() == name.as_str());
            let time = if is_file { changed(&top, &name) } else { None };
            (name, time)
        });
        let before = before.collect();
        Ok(Self { top, before })
    }

    fn is_new(&self, name: &str) -> bool {
        match self.before.get(name) {
            None => true,
            Some(None) => false,
            Some(time) => changed(&self.top, name) != *time,
        }
    }
}

fn changed(top: &OwnedFd, name: &str) -> Option<(i64, u64)> {
    let stat = rustix::fs::statat(top, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some((stat.st_mtime, stat.st_mtime_nsec))
}

/// What was written, in words; `None` if it was nothing that somebody could miss.
pub(crate) fn told(written: &Written, home: &Path) -> Option<String> {
    let mut names: Vec<String> = Vec::new();
    for entry in Dir::read_from(&written.top).ok()?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if CACHES.contains(&name.as_str()) || !written.is_new(&name) {
            continue;
        }
        let slash = if entry.file_type() == FileType::Directory { "/" } else { "" };
        names.push(format!("{}{slash}", escaped(&home.join(&name).to_string_lossy())));
    }
    names.sort();
    let more = names.len().saturating_sub(TOLD_MAX);
    names.truncate(TOLD_MAX);
    let list = names.join(", ");
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| {
        format!(
            "what CMD changed in its private copy of the home directory is gone: {list}{more}; \
             keep such changes with `--allow PATH:rw`"
        )
    })
}

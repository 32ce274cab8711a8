//! Files for an archive, and the archives that a Debian package is made of: two tar archives in an
//! ar archive.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, ensure};
use flate2::{Compression, GzBuilder};
use tar::{EntryType, Header};

/// One file, directory or link to be installed.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Relative to the root, without a slash at the start.
    pub(crate) path: String,
    pub(crate) kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    /// Content, and the permissions.
    File(Vec<u8>, u32),
    Directory,
    /// A symbolic link and its target.
    Link(String),
}

impl Entry {
    pub(crate) fn file(path: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), kind: Kind::File(content.into(), 0o644) }
    }

    pub(crate) fn program(path: impl Into<String>, content: Vec<u8>) -> Self {
        Self { path: path.into(), kind: Kind::File(content, 0o755) }
    }

    pub(crate) fn directory(path: impl Into<String>) -> Self {
        Self { path: path.into(), kind: Kind::Directory }
    }

    pub(crate) fn link(path: impl Into<String>, target: &str) -> Self {
        Self { path: path.into(), kind: Kind::Link(target.to_owned()) }
    }

    /// Bytes on the disk.
    pub(crate) fn size(&self) -> usize {
        match &self.kind {
            Kind::File(content, _) => content.len(),
            Kind::Directory | Kind::Link(_) => 0,
        }
    }
}

/// How archives are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    /// Of all that is in them, in seconds since 1970.
    pub(crate) time: u64,
    /// From 1, fast, to 9, small.
    pub(crate) level: u32,
}

/// A compressed tar archive of `entries` and the directories above them, all of root.
///
/// # Errors
/// When a name is too long for a tar archive.
pub(crate) fn tar_gz(entries: &[Entry], form: Form) -> anyhow::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for directory in directories(entries) {
        append(&mut archive, &Entry::directory(directory), form)?;
    }
    for entry in entries.iter().filter(|entry| !matches!(entry.kind, Kind::Directory)) {
        append(&mut archive, entry, form)?;
    }
    gzip(&archive.into_inner()?, form)
}

/// Every directory on the way to an entry, each after the one that it lies in.
fn directories(entries: &[Entry]) -> std::collections::BTreeSet<String> {
    let mut directories = std::collections::BTreeSet::new();
    for entry in entries {
        let path = Path::new(&entry.path);
        let own = usize::from(!matches!(entry.kind, Kind::Directory));
        let above = path.ancestors().skip(own).filter_map(Path::to_str);
        directories.extend(above.filter(|path| !path.is_empty()).map(str::to_owned));
    }
    directories
}

fn append(archive: &mut tar::Builder<Vec<u8>>, entry: &Entry, form: Form) -> anyhow::Result<()> {
    let mut header = Header::new_gnu();
    let (kind, mode, slash): (_, _, &str) = match &entry.kind {
        Kind::File(_, mode) => (EntryType::Regular, *mode, ""),
        Kind::Directory => (EntryType::Directory, 0o755, "/"),
        Kind::Link(_) => (EntryType::Symlink, 0o777, ""),
    };
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(form.time);
    header.set_uid(0);
    header.set_gid(0);
    header.set_username("root").context("username")?;
    header.set_groupname("root").context("groupname")?;
    let path = format!("./{}{slash}", entry.path);
    let added = match &entry.kind {
        Kind::File(content, _) => {
            header.set_size(u64::try_from(content.len())?);
            archive.append_data(&mut header, &path, &content[..])
        }
        Kind::Directory => archive.append_data(&mut header, &path, std::io::empty()),
        Kind::Link(target) => archive.append_link(&mut header, &path, target),
    };
    added.with_context(|| format!("`{path}` does not fit into a tar archive"))
}

/// Compressed, without a time or a name in it.
///
/// # Errors
/// None that memory does not give.
pub(crate) fn gzip(bytes: &[u8], form: Form) -> anyhow::Result<Vec<u8>> {
    let mut writer = GzBuilder::new().mtime(0).write(Vec::new(), Compression::new(form.level));
    writer.write_all(bytes)?;
    Ok(writer.finish()?)
}

/// An ar archive in the form of deb(5): names of at most 16 bytes, contents at even offsets.
///
/// # Errors
/// When a name is too long.
pub(crate) fn ar(members: &[(&str, Vec<u8>)], form: Form) -> anyhow::Result<Vec<u8>> {
    let mut archive = b"!<arch>\n".to_vec();
    for (name, content) in members {
        ensure!(name.len() <= 16, "`{name}` is too long for an ar archive: at most 16 bytes");
        let (time, size) = (form.time, content.len());
        writeln!(archive, "{name:<16}{time:<12}{:<6}{:<6}{:<8}{size:<10}`", 0, 0, "100644")?;
        archive.extend(content);
        if size % 2 == 1 {
            archive.push(b'\n');
        }
    }
    Ok(archive)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: Form = Form { time: 7, level: 9 };

    #[test]
    fn an_ar_archive_has_the_form_that_deb_describes() {
        let archive =
            ar(&[("debian-binary", b"2.0".to_vec()), ("b", b"x".to_vec())], FORM).unwrap();
        let expected = "!<arch>\n\
            debian-binary   7           0     0     100644  3         `\n2.0\n\
            b               7           0     0     100644  1         `\nx\n";
        assert_eq!(String::from_utf8(archive).unwrap(), expected);
        assert!(ar(&[("a-name-of-17-byte", Vec::new())], FORM).is_err());
    }

    #[test]
    fn directories_come_before_what_lies_in_them() {
        let entries = [Entry::file("usr/bin/x", "x"), Entry::directory("etc/x")];
        let all: Vec<_> = directories(&entries).into_iter().collect();
        assert_eq!(all, ["etc", "etc/x", "usr", "usr/bin"]);
    }
}

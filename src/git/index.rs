//! git's index: which files are tracked. The format is that of gitformat-index(5), versions 2 to 4.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, bail, ensure};

use crate::files;

/// Bytes of an entry before the name of its object, which is followed by its flags.
const BEFORE_OBJECT: usize = 40;
/// Where the mode of an entry is, and what of it says that it is a repository.
const MODE: usize = 24;
const KIND: u32 = 0o170_000;
const REPOSITORY: u32 = 0o160_000;
const EXTENDED: u16 = 0x4000;
const NAME_LEN: u16 = 0x0fff;
const SKIP_WORKTREE: u16 = 0x4000;
/// Largest index that is read, in bytes: more than two million files.
const MAX_LEN: u64 = 256 << 20;

/// Most bytes of a path, and of all of them. Version 4 names only what a path does not share with the one before it, so that
/// a small file could stand for more than there is memory.
const MAX_PATH_LEN: usize = 4096;
const MAX_PATHS_LEN: usize = 256 << 20;

/// A tracked file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tracked {
    /// Relative to the top of the working tree.
    pub(crate) path: Vec<u8>,
    /// git leaves the file of the working tree alone.
    pub(crate) skip_worktree: bool,
    /// Another repository, of which a commit is recorded.
    pub(crate) is_repository: bool,
}

/// Reads an index whose objects have names of `name_len` bytes; none means that nothing is tracked.
///
/// # Errors
/// When the file cannot be read or is not an index of a known form.
pub(super) fn tracked(file: &Path, name_len: usize) -> anyhow::Result<Vec<Tracked>> {
    let shown = file.display();
    let bytes = match files::read_at_most(file, MAX_LEN) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) if error.kind() == ErrorKind::FileTooLarge => {
            bail!("git index `{shown}` is larger than 256 MiB")
        }
        other => other.with_context(|| format!("git index `{shown}`"))?,
    };
    let read = || -> anyhow::Result<Vec<Tracked>> {
        let (mut entries, extensions) = entries(&bytes, name_len)?;
        if let Some(shared) = shared(extensions, name_len) {
            let base = file.with_file_name(format!("sharedindex.{shared}"));
            let base = files::read_at_most(&base, MAX_LEN)
                .with_context(|| format!("`{}`", base.display()))?;
            // Those that were taken out since count as well: it is not said here which they are.
            let (mut all, _) = self::entries(&base, name_len)?;
            let new: HashSet<_> = entries.iter().map(|one| one.path.as_slice()).collect();
            all.retain(|one| !new.contains(one.path.as_slice()));
            entries.extend(all);
        }
        Ok(entries)
    };
    read().with_context(|| format!("git index `{shown}` cannot be understood"))
}

/// Where an index has only what was changed since another one was written (`core.splitIndex`): the
/// name of that one.
fn shared(mut extensions: &[u8], name_len: usize) -> Option<String> {
    loop {
        let size = usize::try_from(number(extensions, 4).ok()?).ok()?;
        let data = extensions.get(8..)?.get(..size)?;
        if extensions.starts_with(b"link") {
            let name = data.get(..name_len).filter(|name| name.iter().any(|byte| *byte != 0))?;
            return Some(name.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        extensions = &extensions[8 + size..];
    }
}

/// The entries of an index.
///
/// # Errors
/// When the bytes are not an index of a known form.
pub(super) fn parse(bytes: &[u8], name_len: usize) -> anyhow::Result<Vec<Tracked>> {
    Ok(entries(bytes, name_len)?.0)
}

/// The same, and what follows them.
fn entries(bytes: &[u8], name_len: usize) -> anyhow::Result<(Vec<Tracked>, &[u8])> {
    ensure!(bytes.get(..4) == Some(b"DIRC"), "it does not begin with DIRC");
    let version = number(bytes, 4)?;
    ensure!((2..=4).contains(&version), "version {version}; known: 2 to 4");
    let count = number(bytes, 8)?;
    let mut entries: Vec<Tracked> = Vec::new();
    let before_flags = BEFORE_OBJECT + name_len;
    let mut at = 12;
    let mut paths_len = 0;
    for _ in 0..count {
        let flags = short(bytes, at + before_flags)?;
        let is_repository = number(bytes, at + MODE)? & KIND == REPOSITORY;
        let mut name_at = at + before_flags + 2;
        let mut skip_worktree = false;
        if flags & EXTENDED != 0 {
            skip_worktree = short(bytes, name_at)? & SKIP_WORKTREE != 0;
            name_at += 2;
        }
        let mut path = Vec::new();
        if version == 4 {
            let removed = variable(bytes, &mut name_at)?;
            let before = entries.last().map_or(&[][..], |last| &last.path);
            let kept = before.len().checked_sub(removed).context("a name shorter than nothing")?;
            path.extend(&before[..kept]);
        }
        let rest = bytes.get(name_at..).context("it ends within a name")?;
        let length = rest.iter().position(|byte| *byte == 0).context("a name without an end")?;
        ensure!(
            version == 4 || flags & NAME_LEN == NAME_LEN || usize::from(flags & NAME_LEN) == length,
            "a name is not as long as it says"
        );
        path.extend(&rest[..length]);
        paths_len += path.len();
        ensure!(path.len() <= MAX_PATH_LEN, "a path of more than {MAX_PATH_LEN} bytes");
        ensure!(paths_len <= MAX_PATHS_LEN, "its paths take more than {} MiB", MAX_PATHS_LEN >> 20);
        at = match version {
            4 => name_at + length + 1,
            // Padded with 1 to 8 zero bytes to a multiple of 8, counted from the entry's start.
            _ => at + (name_at + length - at) / 8 * 8 + 8,
        };
        entries.push(Tracked { path, skip_worktree, is_repository });
    }
    // One that replaces another of a shared index has no name.
    entries.retain(|one| !one.path.is_empty());
    Ok((entries, bytes.get(at..).unwrap_or_default()))
}

fn short(bytes: &[u8], at: usize) -> anyhow::Result<u16> {
    let two = bytes.get(at..at + 2).context("it ends within an entry")?;
    Ok(u16::from_be_bytes([two[0], two[1]]))
}

fn number(bytes: &[u8], at: usize) -> anyhow::Result<u32> {
    let four = bytes.get(at..at + 4).context("it ends within its head")?;
    Ok(u32::from_be_bytes([four[0], four[1], four[2], four[3]]))
}

/// A number in the encoding of version 4: seven bits a byte, one added for each that follows.
fn variable(bytes: &[u8], at: &mut usize) -> anyhow::Result<usize> {
    let mut value = 0usize;
    loop {
        let byte = *bytes.get(*at).context("it ends within a number")?;
        *at += 1;
        value = value.checked_mul(128).context("a number is too large")? + usize::from(byte & 127);
        if byte & 128 == 0 {
            return Ok(value);
        }
        value += 1;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::process::Command;

    use super::*;
    use crate::git::Repository;

    fn git(dir: &Path, arguments: &[&str]) -> bool {
        let output = Command::new("git").arg("-C").arg(dir).args(arguments).output();
        output.is_ok_and(|output| output.status.success())
    }

    /// How git may name objects, and the bytes of such a name.
    const FORMATS: [(&str, usize); 2] = [("sha1", 20), ("sha256", 32)];

    /// A new repository; `None` without a git that knows the format.
    fn repository(format: &str) -> Option<(tempfile::TempDir, Repository)> {
        let dir = tempfile::tempdir().unwrap();
        if !git(dir.path(), &["init", "-q", "--object-format", format]) {
            eprintln!("skipped: no git that knows {format}");
            return None;
        }
        let repository = Repository::at(dir.path()).unwrap();
        Some((dir, repository))
    }

    #[test]
    fn each_version_that_git_writes_is_read() {
        for (format, _) in FORMATS {
            if let Some((dir, repository)) = repository(format) {
                each_version_is_read(dir.path(), &repository);
            }
        }
    }

    fn each_version_is_read(dir: &Path, repository: &Repository) {
        let long = format!("d/{}", "n".repeat(200));
        let names = [".env", "a", "d/b", "d/bc", long.as_str()];
        std::fs::create_dir(dir.join("d")).unwrap();
        for name in names {
            std::fs::write(dir.join(name), name).unwrap();
        }
        assert!(git(dir, &["add", "-A"]));
        for version in ["2", "3", "4"] {
            assert!(git(dir, &["update-index", "--index-version", version]));
            assert!(git(dir, &["update-index", "--skip-worktree", ".env"]));
            let entries = repository.tracked().unwrap();
            let paths: Vec<_> = entries.iter().map(|one| one.path.as_slice()).collect();
            assert_eq!(paths, names.map(str::as_bytes), "version {version}");
            let skipped: Vec<_> = entries.iter().map(|one| one.skip_worktree).collect();
            assert_eq!(skipped, [true, false, false, false, false], "version {version}");
        }
    }

    #[test]
    fn an_index_that_is_split_is_read_whole() {
        for (format, name_len) in FORMATS {
            if let Some((dir, repository)) = repository(format) {
                a_split_index_is_read_whole(dir.path(), &repository, name_len);
            }
        }
    }

    fn a_split_index_is_read_whole(dir: &Path, repository: &Repository, name_len: usize) {
        for name in ["a", "b", "c"] {
            std::fs::write(dir.join(name), name).unwrap();
        }
        assert!(git(dir, &["add", "-A"]));
        assert!(git(dir, &["update-index", "--split-index"]));
        std::fs::write(dir.join("b"), "other").unwrap();
        std::fs::write(dir.join("d"), "d").unwrap();
        assert!(git(dir, &["add", "-A"]));
        let index = dir.join(".git/index");
        assert!(
            parse(&std::fs::read(&index).unwrap(), name_len).unwrap().len() < 4,
            "it is not split"
        );
        let mut paths: Vec<_> =
            repository.tracked().unwrap().into_iter().map(|one| one.path).collect();
        paths.sort();
        assert_eq!(paths, [b"a", b"b", b"c", b"d"]);
    }

    /// An entry of version 4.
    fn shared_entry(removed: u8, name: &[u8]) -> Vec<u8> {
        [&[0; 62][..], &[removed], name, b"\0"].concat()
    }

    /// An index of version 4 with entries of these paths, other repositories.
    pub(in crate::git) fn of_repositories<P: AsRef<[u8]>>(paths: &[P]) -> Vec<u8> {
        let number = u32::try_from(paths.len()).unwrap();
        let mut index = [&b"DIRC\0\0\0\x04"[..], &number.to_be_bytes()].concat();
        let mut before = 0;
        for path in paths.iter().map(AsRef::as_ref) {
            let mut entry = shared_entry(u8::try_from(before).unwrap(), path);
            entry[MODE..MODE + 4].copy_from_slice(&REPOSITORY.to_be_bytes());
            index.extend(entry);
            before = path.len();
        }
        index
    }

    /// Each of one against each of the other would be forty thousand million.
    #[test]
    fn a_split_index_of_many_files_is_read_whole() {
        const FILES: usize = 200_000;
        let dir = tempfile::tempdir().unwrap();
        let named = |from: usize| {
            let names = (from..from + FILES).map(|number| format!("{number:07}"));
            of_repositories(&names.collect::<Vec<_>>())
        };
        let link = [&b"link\0\0\0\x14"[..], &[0xab; 20]].concat();
        let (index, shared) = ("index".to_owned(), format!("sharedindex.{}", "ab".repeat(20)));
        std::fs::write(dir.path().join(&index), [named(FILES - 1), link].concat()).unwrap();
        std::fs::write(dir.path().join(shared), named(0)).unwrap();
        let read = tracked(&dir.path().join(index), 20).unwrap();
        let mut paths: Vec<_> = read.iter().map(|one| one.path.as_slice()).collect();
        assert_eq!(paths.len(), 2 * FILES - 1);
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), 2 * FILES - 1);
    }

    #[test]
    fn paths_that_take_more_memory_than_files_have_names_are_refused() {
        let head = |entries: u32| [&b"DIRC\0\0\0\x04"[..], &entries.to_be_bytes()].concat();
        let of = |len: usize, further: usize| {
            let mut index = head(u32::try_from(further).unwrap() + 1);
            index.extend(shared_entry(0, &vec![b'a'; len]));
            for _ in 0..further {
                index.extend(shared_entry(0, b""));
            }
            parse(&index, 20)
        };
        assert_eq!(of(MAX_PATH_LEN, 2).unwrap().len(), 3);
        let refused = of(MAX_PATH_LEN + 1, 2).unwrap_err().to_string();
        assert!(refused.contains("4096"), "{refused}");
        let refused = of(MAX_PATH_LEN, MAX_PATHS_LEN / MAX_PATH_LEN).unwrap_err().to_string();
        assert!(refused.contains("256 MiB"), "{refused}");
    }

    #[test]
    fn what_is_no_index_is_refused() {
        for bytes in [&b""[..], b"DIRC", b"DIRC\0\0\0\x09\0\0\0\0", b"DIRC\0\0\0\x02\0\0\0\x01abc"]
        {
            assert!(parse(bytes, 20).is_err(), "{bytes:?}");
        }
        assert!(tracked(Path::new("/no/such/index"), 20).unwrap().is_empty());
    }
}

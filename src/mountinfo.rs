//! `/proc/self/mountinfo`: which mounts there are.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// The file system type of a view.
pub(crate) const VIEW: &str = "fuse.tollgate";

/// One mount of this mount namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountInfo {
    /// Names the mount, until it is unmounted.
    pub(crate) id: u64,
    /// The one that it was mounted in, or onto.
    pub(crate) parent: u64,
    /// `major:minor` of the file system.
    pub(crate) device: String,
    /// The directory of the file system that is mounted.
    pub(crate) root: PathBuf,
    /// Where it is mounted.
    pub(crate) point: PathBuf,
    /// Type of the file system, with its subtype.
    pub(crate) kind: String,
    /// Options of the file system, each as it was given: there may be commas in them.
    pub(crate) options: Vec<OsString>,
}

impl MountInfo {
    /// The second part of `device`; of a view, the number of its connection in /sys/fs/fuse.
    pub(crate) fn minor_number(&self) -> Option<u32> {
        self.device.split_once(':')?.1.parse().ok()
    }

    /// Whether `other`, read at another time, is this mount: where it is may have changed meanwhile. The
    /// id alone does not tell, as the next mount may get that of one which is gone.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.id, &self.device, &self.kind) == (other.id, &other.device, &other.kind)
    }

    /// A mount of a file system without options, for tests.
    #[cfg(test)]
    pub(crate) fn example(id: u64, device: &str, root: &str, point: &str) -> Self {
        let (device, root, point) = (device.to_owned(), root.into(), point.into());
        let (kind, options) = ("ext4".to_owned(), Vec::new());
        Self { id, parent: 0, device, root, point, kind, options }
    }
}

/// Every mount, in the order in which they were made.
///
/// # Errors
/// When /proc is not mounted; the message says so.
pub(crate) fn read() -> anyhow::Result<Vec<MountInfo>> {
    read_of("self").with_context(|| {
        if Path::new("/proc/self").exists() {
            "cannot read /proc/self/mountinfo"
        } else {
            "/proc is not mounted here, and tollgate needs it: `mount -t proc proc /proc`"
        }
    })
}

/// The same as the process `pid` sees it: in its mount namespace, and below its root.
///
/// # Errors
/// Those of read(2).
pub(crate) fn read_of(pid: &str) -> std::io::Result<Vec<MountInfo>> {
    let text = std::fs::read(format!("/proc/{pid}/mountinfo"))?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// The mount that covers exactly `point`, if one does: of several the later one, as far as none of them was
/// mounted onto it. One that was made earlier can have been moved onto another one.
pub(crate) fn at<'a>(mounts: &'a [MountInfo], point: &Path) -> Option<&'a MountInfo> {
    let there = mounts.iter().filter(|mount| mount.point == point);
    let onto = there.clone().filter(|mount| mount.parent != mount.id).map(|mount| mount.parent);
    let covered: HashSet<u64> = onto.collect();
    there.rev().find(|mount| !covered.contains(&mount.id))
}

/// The mount that `path`, absolute and without symbolic links, lies in.
pub(crate) fn covering<'a>(mounts: &'a [MountInfo], path: &Path) -> Option<&'a MountInfo> {
    let over = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    at(mounts, &over.max_by_key(|mount| mount.point.components().count())?.point)
}

fn parse(line: &[u8]) -> Option<MountInfo> {
    let mut words = line.split(|byte| *byte == b' ');
    let id = text(words.next()?)?.parse().ok()?;
    let parent = text(words.next()?)?.parse().ok()?;
    let device = text(words.next()?)?;
    let root = path(words.next()?);
    let point = path(words.next()?);
    // Options and any number of optional fields, ended by a dash.
    let mut rest = words.skip_while(|word| *word != b"-").skip(1);
    let kind = text(rest.next()?)?;
    // After the source. A comma that belongs to an option is escaped, so they are taken apart first.
    let options = rest.nth(1).unwrap_or_default().split(|byte| *byte == b',');
    let options = options.map(|option| path(option).into_os_string()).collect();
    Some(MountInfo { id, parent, device, root, point, kind, options })
}

fn text(word: &[u8]) -> Option<String> {
    String::from_utf8(word.to_vec()).ok()
}

/// Undoes the kernel's octal escapes for space, tab, newline and backslash, and in options the comma.
fn path(word: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, after)) = rest.split_first() {
        match octal(rest) {
            Some(byte) => {
                bytes.push(byte);
                rest = &rest[4..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

fn octal(text: &[u8]) -> Option<u8> {
    let [b'\\', digits @ ..] = text.get(..4)? else { return None };
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_with_its_escapes() {
        let line =
            b"36 35 98:0 /mnt1 /a\\040b\\134c rw,noatime master:1 shared:2 - fuse.tollgate x rw";
        let mount = parse(line).unwrap();
        assert_eq!(mount.parent, 35);
        assert_eq!(mount.id, 36);
        assert_eq!(mount.device, "98:0");
        assert_eq!(mount.minor_number(), Some(0));
        assert_eq!(mount.root, Path::new("/mnt1"));
        assert_eq!(mount.point, Path::new("/a b\\c"));
        assert_eq!(mount.kind, "fuse.tollgate");
        assert_eq!(mount.options, ["rw"]);
    }

    #[test]
    fn a_comma_in_an_option_does_not_end_it() {
        let line = br"36 35 0:9 / /a rw - overlay x rw,lowerdir+=/lo\054d\134e,upperdir=/u";
        assert_eq!(parse(line).unwrap().options, ["rw", r"lowerdir+=/lo,d\e", "upperdir=/u"]);
    }

    #[test]
    fn a_broken_line_is_none() {
        for line in [&b""[..], b"1 2", b"x 1 2 3 4 - ext4", b"36 35 98:0 / /a rw"] {
            assert_eq!(parse(line), None);
        }
    }

    #[test]
    fn the_mount_on_top_is_told_by_what_it_was_mounted_onto() {
        let top = |point: &str, listed: &[(u64, u64, &str)]| {
            let mount = |&(id, parent, point)| {
                let mount = MountInfo::example(id, "8:1", "/", point);
                MountInfo { parent, ..mount }
            };
            let mounts: Vec<_> = listed.iter().map(mount).collect();
            let inside = covering(&mounts, &Path::new(point).join("file")).unwrap().id;
            assert_eq!(at(&mounts, Path::new(point)).unwrap().id, inside);
            inside
        };
        assert_eq!(top("/a", &[(1, 1, "/"), (2, 3, "/a"), (3, 1, "/a")]), 2);
        assert_eq!(top("/a", &[(1, 1, "/"), (3, 1, "/a"), (4, 3, "/a")]), 4);
        let mixed = [(2, 4, "/a"), (9, 1, "/b"), (3, 1, "/a"), (8, 3, "/a/c"), (4, 3, "/a")];
        assert_eq!(top("/a", &mixed), 2);
        // Something was mounted over the directory above, with another one at the same path in it.
        let stacks = [(2, 1, "/a"), (3, 2, "/a/b"), (4, 3, "/a/b"), (5, 1, "/a"), (6, 5, "/a/b")];
        assert_eq!(top("/a/b", &stacks), 6);
        assert_eq!(top("/", &[(5, 5, "/"), (6, 5, "/")]), 6);
    }

    #[test]
    fn this_machine_has_proc() {
        let mounts = read().unwrap();
        assert_eq!(at(&mounts, Path::new("/proc")).unwrap().kind, "proc");
    }
}

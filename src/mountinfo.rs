//! `/proc/self/mountinfo`: which mounts there are.

use std::collections::HashMap;
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
        Self { id, device, root, point, kind: "ext4".to_owned(), options: Vec::new() }
    }
}

/// Every mount: of two on the same point, the later one is seen.
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
    let listed: Vec<_> = text.split(|byte| *byte == b'\n').filter_map(parse).collect();
    Ok(in_order(&listed))
}

/// The kernel lists mounts as they were made. One that was made earlier can have been moved onto another one:
/// that is its parent then, and comes first here. Each mount is given with the id of its parent.
fn in_order(listed: &[(MountInfo, u64)]) -> Vec<MountInfo> {
    let mut at_point = HashMap::<&Path, Vec<usize>>::new();
    for (index, (mount, _)) in listed.iter().enumerate() {
        at_point.entry(&mount.point).or_default().push(index);
    }
    let mut order: Vec<usize> = (0..listed.len()).collect();
    for places in at_point.into_values().filter(|places| places.len() > 1) {
        // How many of those at its point are beneath a mount.
        let depth = |index: &usize| {
            let mut below = listed[*index].1;
            for depth in 0..places.len() {
                let parent = places.iter().find(|other| listed[**other].0.id == below);
                let Some(parent) = parent.filter(|parent| *parent != index) else { return depth };
                below = listed[*parent].1;
            }
            places.len()
        };
        let mut sorted = places.clone();
        sorted.sort_by_cached_key(depth);
        places.iter().zip(sorted).for_each(|(place, index)| order[*place] = index);
    }
    order.into_iter().map(|index| listed[index].0.clone()).collect()
}

/// The mount that covers exactly `point`, if one does.
pub(crate) fn at<'a>(mounts: &'a [MountInfo], point: &Path) -> Option<&'a MountInfo> {
    mounts.iter().rev().find(|mount| mount.point == point)
}

/// The mount that `path`, absolute and without symbolic links, lies in.
pub(crate) fn covering<'a>(mounts: &'a [MountInfo], path: &Path) -> Option<&'a MountInfo> {
    let over = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    over.max_by_key(|mount| mount.point.components().count())
}

/// With the id of its parent.
fn parse(line: &[u8]) -> Option<(MountInfo, u64)> {
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
    Some((MountInfo { id, device, root, point, kind, options }, parent))
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
        let (mount, parent) = parse(line).unwrap();
        assert_eq!(parent, 35);
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
        assert_eq!(parse(line).unwrap().0.options, ["rw", r"lowerdir+=/lo,d\e", "upperdir=/u"]);
    }

    #[test]
    fn a_broken_line_is_none() {
        for line in [&b""[..], b"1 2", b"x 1 2 3 4 - ext4", b"36 35 98:0 / /a rw"] {
            assert_eq!(parse(line), None);
        }
    }

    #[test]
    fn what_was_moved_onto_a_later_mount_comes_after_it() {
        let order = |listed: &[(u64, u64, &str)]| -> Vec<u64> {
            let mount = |&(id, parent, point)| (MountInfo::example(id, "8:1", "/", point), parent);
            let listed: Vec<_> = listed.iter().map(mount).collect();
            in_order(&listed).iter().map(|mount| mount.id).collect()
        };
        assert_eq!(order(&[(1, 1, "/"), (2, 3, "/a"), (3, 1, "/a")]), [1, 3, 2]);
        assert_eq!(order(&[(1, 1, "/"), (3, 1, "/a"), (4, 3, "/a")]), [1, 3, 4]);
        // Others stay where they are.
        let listed = [(2, 4, "/a"), (9, 1, "/b"), (3, 1, "/a"), (8, 3, "/a/c"), (4, 3, "/a")];
        assert_eq!(order(&listed), [3, 9, 4, 8, 2]);
        // In a namespace whose root has another mount beneath that does not show.
        assert_eq!(order(&[(5, 5, "/"), (6, 5, "/"), (7, 99, "/x")]), [5, 6, 7]);
    }

    #[test]
    fn this_machine_has_proc() {
        let mounts = read().unwrap();
        assert_eq!(at(&mounts, Path::new("/proc")).unwrap().kind, "proc");
    }
}

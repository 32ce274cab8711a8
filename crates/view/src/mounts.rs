//! Mounts below DIR that show a second time what DIR shows.
//!
//! A bind mount of a directory of DIR inside DIR gives its files a second path, of which the policy
//! knows nothing. What is mounted is found in /proc/self/mountinfo when a lookup comes upon a mount
//! point, so that one made later is found as well. Such a place cannot be entered; neither can a
//! file system that takes two spellings of a name for one.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// File systems that do not tell upper case from lower case.
const CASELESS: &[&str] = &[
    "vfat", "msdos", "exfat", "ntfs", "ntfs3", "fuseblk", "cifs", "smb3", "hfs", "hfsplus", "affs",
];

/// The type of a view. One that lies inside DIR most likely shows DIR; looking would make this
/// server wait for itself.
const VIEW: &str = "fuse.tollgate";

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    id: u64,
    /// The one that it was mounted in, or onto.
    parent: u64,
    device: String,
    /// The directory of the file system that is mounted.
    root: PathBuf,
    point: PathBuf,
    kind: String,
}

impl Mount {
    /// Where it is.
    pub(crate) fn point(&self) -> &Path {
        &self.point
    }
}

/// Why a mount is not entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// What it shows, another mount shows as well.
    SecondPath {
        other: PathBuf,
    },
    Caseless {
        kind: String,
    },
    /// The view is of a copy of DIR's mounts, and in the table another one is there, or none.
    Changed,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::SecondPath { other } => write!(
                f,
                "it is a second path to files of `{}`, and the policy cannot judge them by both; \
                 unmount it",
                other.display()
            ),
            Self::Caseless { kind } => write!(
                f,
                "its file system ({kind}) takes `A` and `a` for one name, and the policy does not"
            ),
            Self::Changed => f.write_str(
                "the view is of a copy of the mounts that there were at the start, and what is mounted \
                 at this place has changed since",
            ),
        }
    }
}

/// The mounts of this process's namespace.
pub(crate) fn read() -> Result<Vec<Mount>, Errno> {
    let text = std::fs::read("/proc/self/mountinfo").map_err(|_| Errno::IO)?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// A mount, and where it was at some time.
pub(crate) struct MountPoint {
    id: u64,
    point: PathBuf,
}

impl MountPoint {
    /// `None` where the mount `id` is not in the table.
    pub(crate) fn of(id: u64) -> Option<Self> {
        let mount = read().ok()?.into_iter().find(|mount| mount.id == id)?;
        Some(Self { id, point: mount.point })
    }

    pub(crate) fn is_where_it_was(&self) -> bool {
        Self::of(self.id).is_some_and(|now| now.point == self.point)
    }
}

/// Whether a file system of this type takes two spellings of a name for one.
pub(crate) fn is_caseless(kind: &str) -> bool {
    CASELESS.contains(&kind)
}

/// The type of the mount `id`.
pub(crate) fn kind_of(mounts: &[Mount], id: u64) -> Option<&str> {
    mounts.iter().find(|mount| mount.id == id).map(|mount| mount.kind.as_str())
}

/// Why the mount `it`, found below DIR, may not be entered. DIR is `dir` in the mount `dir_id`.
///
/// # Errors
/// `EACCES` where DIR's mount is not in the table.
pub(crate) fn refused(
    mounts: &[Mount],
    it: &Mount,
    dir_id: u64,
    dir: &Path,
) -> Result<Option<Refused>, Errno> {
    let home = with_id(mounts, dir_id)?;
    if it.kind == VIEW {
        return Ok(Some(Refused::SecondPath { other: dir.to_owned() }));
    }
    if is_caseless(&it.kind) {
        return Ok(Some(Refused::Caseless { kind: it.kind.clone() }));
    }
    Ok(second_path(mounts, it, home, dir))
}

/// The mount `id`.
///
/// # Errors
/// `EACCES` for one that is not in the table: what it shows is not known.
pub(crate) fn with_id(mounts: &[Mount], id: u64) -> Result<&Mount, Errno> {
    mounts.iter().find(|mount| mount.id == id).ok_or(Errno::ACCESS)
}

/// The mounts below `dir`, with points relative to it.
pub(crate) fn below(mounts: &[Mount], dir: &Path) -> Vec<Mount> {
    let relative = |mount: &Mount| Some(mount.point.strip_prefix(dir).ok()?.to_owned());
    let below = mounts.iter();
    below.filter_map(|mount| Some(Mount { point: relative(mount)?, ..mount.clone() })).collect()
}

/// The mount that is seen at `point`, relative to `dir`, if it was there when `before` was [`below`] that.
/// The id alone does not tell: that of a mount which is gone is given to the next one.
pub(crate) fn still_at<'m>(
    mounts: &'m [Mount],
    dir: &Path,
    point: &Path,
    before: &[Mount],
) -> Option<&'m Mount> {
    let there = dir.join(point);
    let stacked: Vec<_> = mounts.iter().filter(|mount| mount.point == there).collect();
    // They are listed as they were made, and one that was made earlier can be on top.
    let is_covered = |it: &Mount| stacked.iter().any(|on| on.parent == it.id && on.id != it.id);
    let now = *stacked.iter().rev().find(|mount| !is_covered(mount))?;
    before.contains(&Mount { point: point.to_owned(), ..now.clone() }).then_some(now)
}

/// The same for what a view beside this one shows: of the directory `dir` in the mount `dir_id`.
pub(crate) fn refused_beside(
    mounts: &[Mount],
    it: &Mount,
    dir_id: u64,
    dir: &Path,
) -> Result<Option<Refused>, Errno> {
    let home = with_id(mounts, dir_id)?;
    // Its directory can be a mount in this one's, and is shown by that view.
    Ok(if it.id == home.id { None } else { second_path(mounts, it, home, dir) })
}

/// What the mount `it` shows of the directory `dir` in the mount `home`, or of what is mounted below.
fn second_path(mounts: &[Mount], it: &Mount, home: &Mount, dir: &Path) -> Option<Refused> {
    let below = dir.strip_prefix(&home.point).unwrap_or(Path::new(""));
    let shown_by_dir = home.root.join(below);
    let overlap = |device: &str, root: &Path| {
        it.device == device && (it.root.starts_with(root) || root.starts_with(&it.root))
    };
    if overlap(&home.device, &shown_by_dir) {
        return Some(Refused::SecondPath { other: dir.to_owned() });
    }
    let other = mounts.iter().find(|other| {
        other.id != it.id
            && other.id != home.id
            && other.point.starts_with(dir)
            && other.point != it.point
            && overlap(&other.device, &other.root)
    });
    other.map(|other| Refused::SecondPath { other: other.point.clone() })
}

/// The mounts below `dir` that may not be entered, with the reasons that `refused` has.
pub(crate) fn refused_below(
    mounts: &[Mount],
    dir: &Path,
    refused: impl Fn(&Mount) -> Option<Refused>,
) -> Vec<(PathBuf, Refused)> {
    let below = mounts.iter().filter(|mount| mount.point != dir && mount.point.starts_with(dir));
    below.filter_map(|mount| Some((mount.point.clone(), refused(mount)?))).collect()
}

/// `id parent major:minor root point options [tag...] - type ...`
fn parse(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|byte| *byte == b' ');
    let id = text(words.next()?)?.parse().ok()?;
    let parent = text(words.next()?)?.parse().ok()?;
    let device = text(words.next()?)?;
    let root = path(words.next()?);
    let point = path(words.next()?);
    let kind = text(words.skip_while(|word| *word != b"-").nth(1)?)?;
    Some(Mount { id, parent, device, root, point, kind })
}

fn text(word: &[u8]) -> Option<String> {
    String::from_utf8(word.to_vec()).ok()
}

/// Undoes the kernel's octal escapes for space, tab, newline and backslash.
fn path(word: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, after)) = rest.split_first() {
        let escaped = after.get(..3).filter(|_| *first == b'\\');
        let byte = escaped
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(id: u64, device: &str, root: &str, point: &str, kind: &str) -> Mount {
        let (root, point) = (root.into(), point.into());
        Mount { id, parent: 1, device: device.to_owned(), root, point, kind: kind.to_owned() }
    }

    #[test]
    fn second_paths_and_caseless_file_systems_are_refused() {
        let mounts = [
            mount(1, "8:1", "/", "/", "ext4"),
            mount(2, "8:1", "/home/p/vault", "/home/p/bind", "ext4"),
            mount(3, "8:1", "/cache", "/home/p/cache", "ext4"),
            mount(4, "8:1", "/home", "/home/p/up", "ext4"),
            mount(5, "8:2", "/", "/home/p/disk", "ext4"),
            mount(6, "8:2", "/sub", "/home/p/sub", "ext4"),
            mount(7, "8:3", "/", "/home/p/usb", "vfat"),
            mount(8, "8:1", "/home/p/vault", "/mnt", "ext4"),
        ];
        let dir = Path::new("/home/p");
        let refused = |id| refused(&mounts, with_id(&mounts, id).unwrap(), 1, dir).unwrap();
        let second = |other: &str| Some(Refused::SecondPath { other: other.into() });
        assert_eq!(refused(2), second("/home/p"));
        assert_eq!(refused(3), None);
        assert_eq!(refused(4), second("/home/p"));
        assert_eq!(refused(5), second("/home/p/sub"));
        assert_eq!(refused(6), second("/home/p/disk"));
        assert_eq!(refused(7), Some(Refused::Caseless { kind: "vfat".to_owned() }));
        assert!(with_id(&mounts, 99).is_err());
        assert!(super::refused(&mounts, &mounts[1], 99, dir).is_err());
        assert_eq!(
            refused_below(&mounts, dir, |it| super::refused(&mounts, it, 1, dir).ok()?).len(),
            5
        );
    }

    #[test]
    fn a_mount_is_still_there_as_long_as_the_same_is_at_its_place() {
        let at = |id, device: &str, root: &str, point: &str| mount(id, device, root, point, "ext4");
        let start = [
            at(1, "8:1", "/", "/"),
            at(2, "8:2", "/", "/home/p/disk"),
            at(4, "8:2", "/sub", "/home/p/sub"),
        ];
        let before = below(&start, Path::new("/home/p"));
        assert_eq!(before.len(), 2);
        let now = |mounts: &[Mount], dir: &str, point: &str| {
            still_at(mounts, Path::new(dir), Path::new(point), &before).map(|mount| mount.id)
        };
        assert_eq!(now(&start, "/home/p", "disk"), Some(2));
        assert_eq!(now(&start[..1], "/home/p", "disk"), None);
        // DIR was moved, or a directory in it.
        assert_eq!(now(&[at(2, "8:2", "/", "/home/q/disk")], "/home/q", "disk"), Some(2));
        assert_eq!(now(&[at(2, "8:2", "/", "/home/p/moved")], "/home/p", "moved"), None);
        // Others that were mounted there, with an id that was free by then.
        for (id, device, root) in [(3, "8:2", "/"), (2, "8:3", "/"), (4, "8:2", "/sub")] {
            assert_eq!(now(&[at(id, device, root, "/home/p/disk")], "/home/p", "disk"), None);
        }
        // Another one is on top, also if it was made earlier.
        let over = Mount { parent: 2, ..at(3, "8:3", "/", "/home/p/disk") };
        for table in [[start[1].clone(), over.clone()], [over, start[1].clone()]] {
            assert_eq!(now(&table, "/home/p", "disk"), None);
        }
    }

    #[test]
    fn a_line_is_read_with_its_escapes() {
        let line = b"36 1 98:0 /a\\040b /c\\134d rw master:1 - ext3 /dev/x rw";
        assert_eq!(parse(line), Some(mount(36, "98:0", "/a b", "/c\\d", "ext3")));
        assert_eq!(parse(b"36 35"), None);
    }
}

//! The kernel's table of mounts.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Whether the topmost mount at `path` (canonical) is of type `fuse.SUBTYPE`.
pub(super) fn is_ours(path: &Path, subtype: &str) -> bool {
    let is_it = |kind: &[u8]| kind.strip_prefix(b"fuse.") == Some(subtype.as_bytes());
    kind_at(&read(), path.as_os_str().as_bytes()).is_some_and(is_it)
}

/// Whether the topmost mount at `path` (canonical) is a FUSE file system.
pub(super) fn is_fuse(path: &Path) -> bool {
    kind_at(&read(), path.as_os_str().as_bytes()).is_some_and(is_fuse_kind)
}

/// Where a FUSE file system is mounted that has this id.
pub(super) fn fuse_point(id: u64) -> Option<PathBuf> {
    let table = read();
    let line = lines(&table).find(|line| line.id == id && is_fuse_kind(line.kind))?;
    Some(OsString::from_vec(line.point).into())
}

fn is_fuse_kind(kind: &[u8]) -> bool {
    kind == b"fuse" || kind.starts_with(b"fuse.")
}

/// The mounts that the calling thread sees; none if it sees no table.
fn read() -> Vec<u8> {
    std::fs::read("/proc/thread-self/mountinfo").unwrap_or_default()
}

/// The type of the topmost mount at `path`: the last line, since mounts are listed in their order.
fn kind_at<'t>(table: &'t [u8], path: &[u8]) -> Option<&'t [u8]> {
    lines(table).filter(|line| line.point == path).last().map(|line| line.kind)
}

struct Line<'t> {
    id: u64,
    point: Vec<u8>,
    kind: &'t [u8],
}

fn lines(table: &[u8]) -> impl Iterator<Item = Line<'_>> {
    table.split(|&b| b == b'\n').filter_map(parse)
}

/// `id parent major:minor root POINT options [tag...] - TYPE ...`.
fn parse(line: &[u8]) -> Option<Line<'_>> {
    let mut fields = line.split(|&b| b == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let point = unescape(fields.nth(3)?);
    fields.find(|&field| field == b"-")?;
    Some(Line { id, point, kind: fields.next()? })
}

/// The table writes space, tab, newline and backslash as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut left = field;
    while let Some((&byte, after)) = left.split_first() {
        let escaped = after.first_chunk().filter(|_| byte == b'\\').and_then(octal);
        out.push(escaped.unwrap_or(byte));
        left = if escaped.is_some() { &after[3..] } else { after };
    }
    out
}

fn octal(digits: &[u8; 3]) -> Option<u8> {
    let text = std::str::from_utf8(digits).ok()?;
    u8::from_str_radix(text, 8).ok()
}

/// `path` with its parent made canonical: a stale mount cannot be looked into itself.
pub(super) fn canonical_parent(path: &Path) -> io::Result<PathBuf> {
    let trimmed: PathBuf = path.components().collect();
    let Some(name) = trimmed.file_name() else { return trimmed.canonicalize() };
    if name.as_bytes() == b".." {
        return trimmed.canonicalize();
    }
    let parent = match trimmed.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Ok(parent.canonicalize()?.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n\
        30 22 0:40 / /mnt/a\\040b rw shared:7 master:2 - fuse.tollgate /src rw,user_id=0\n\
        31 22 0:41 / /mnt/a\\040b rw - tmpfs none rw\n\
        32 22 0:42 / /mnt/c\\134d rw - fuse.tollgate x rw\n";

    #[test]
    fn the_topmost_mount_counts() {
        assert_eq!(kind_at(TABLE, b"/mnt/a b"), Some(&b"tmpfs"[..]));
        assert_eq!(kind_at(TABLE, b"/mnt/c\\d"), Some(&b"fuse.tollgate"[..]));
        assert_eq!(kind_at(TABLE, b"/mnt"), None);
    }

    #[test]
    fn an_unfinished_escape_stays() {
        assert_eq!(unescape(b"a\\04"), b"a\\04");
        assert_eq!(unescape(b"\\0400"), b" 0");
        assert_eq!(unescape(b"\\999"), b"\\999");
    }
}

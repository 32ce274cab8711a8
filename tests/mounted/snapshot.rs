//! What a tree looks like, for comparing two of them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A line for each entry below a directory, by its path.
pub(crate) type Snapshot = BTreeMap<String, String>;

/// Describes everything below `root`: type, mode, owner, links, size, content, extended attributes.
pub(crate) fn take(root: &Path) -> Snapshot {
    let mut snapshot = Snapshot::new();
    visit(root, root, &mut snapshot);
    snapshot
}

fn visit(root: &Path, path: &Path, snapshot: &mut Snapshot) {
    let stat = fs::symlink_metadata(path).unwrap();
    let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().escape_ascii().to_string();
    let content = if stat.is_symlink() {
        format!("{:?}", fs::read_link(path).unwrap())
    } else if stat.is_file() {
        digest(&fs::read(path).unwrap())
    } else {
        String::new()
    };
    // The size of a directory is the file system's own affair.
    let size = if stat.is_dir() { 0 } else { stat.size() };
    let line = format!(
        "{:o} {}:{} links {} size {size} rdev {} {} {:?}",
        stat.mode(),
        stat.uid(),
        stat.gid(),
        stat.nlink(),
        stat.rdev(),
        content,
        attributes(path)
    );
    snapshot.insert(name, line);
    if stat.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            visit(root, &entry.unwrap().path(), snapshot);
        }
    }
}

fn attributes(path: &Path) -> BTreeMap<String, String> {
    let mut names = vec![0_u8; 64 << 10];
    let length = rustix::fs::llistxattr(path, &mut names).unwrap_or(0);
    names[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let name = String::from_utf8_lossy(name).into_owned();
            let mut value = vec![0_u8; 64 << 10];
            let length = rustix::fs::lgetxattr(path, &name, &mut value).unwrap();
            (name, digest(&value[..length]))
        })
        .collect()
}

/// Length, checksum and beginning, for a readable difference.
fn digest(bytes: &[u8]) -> String {
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{}:{sum:016x}:{}", bytes.len(), bytes[..bytes.len().min(24)].escape_ascii())
}

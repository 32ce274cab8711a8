//! Names of one thing, and globs that match one name.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::audit::read::Known;
use crate::escape;

/// Names of one thing: `(old, new)`.
pub(super) type Names = BTreeSet<(String, String)>;

/// Most names in the path of a glob; see `docs/policy.md`.
pub(super) const MAX_COMPONENTS: usize = 62;

/// In the place of a byte that is not UTF-8. No path has it.
const BYTE: char = '\0';
/// One such byte: it counts as a character that is none of all that there are.
const ANY_BYTE: &str = "[!\u{1}-\u{10ffff}]";

/// The path of something that was refused, as far as a glob can tell it. The glob may match more paths,
/// and does match this one: a byte that is not UTF-8 stands for all such bytes, and a slash at the end
/// for the rest of a path that was cut.
pub(super) fn of_refused(known: &Known) -> String {
    let mut path = String::new();
    for chunk in known.bytes.utf8_chunks() {
        path.push_str(chunk.valid());
        path.extend(chunk.invalid().iter().map(|_| BYTE));
    }
    if known.is_cut {
        // A part of a character, perhaps.
        path.truncate(path.trim_end_matches(BYTE).len());
    }
    match path.match_indices('/').nth(MAX_COMPONENTS - 1) {
        // What is below is matched, too.
        Some((end, _)) => path.truncate(end),
        None if known.is_cut => path.push('/'),
        None => {}
    }
    path
}

/// A path in a comment.
pub(super) fn shown(known: &Known) -> String {
    let end = if known.is_cut { "..." } else { "" };
    match &known.bytes[..] {
        b"" => "DIR itself".to_owned(),
        bytes => escape::shown(Path::new(OsStr::from_bytes(bytes))) + end,
    }
}

/// As [`literal`], for what is refused: a name in DIR itself is meant at any depth, which is safe, and not
/// warned of.
pub(super) fn at_any_depth(path: &str) -> String {
    let deep = if path.contains('/') { "" } else { "**/" };
    deep.to_owned() + &literal(path)
}

/// A glob that matches the path, and what is below it.
pub(super) fn literal(path: &str) -> String {
    let mut glob = String::with_capacity(path.len());
    // At the beginning they look as if they meant something else, which `check` warns of.
    if path.starts_with(['!', '~', '$']) {
        glob.push('\\');
    }
    let (whole, is_cut) = path.strip_suffix('/').map_or((path, false), |begin| (begin, true));
    for char in whole.chars() {
        if char == BYTE {
            glob.push_str(ANY_BYTE);
            continue;
        }
        if matches!(char, '*' | '?' | '[' | ']' | '{' | '}' | '\\') {
            glob.push('\\');
        }
        glob.push(char);
    }
    if is_cut {
        glob.push('*');
    }
    glob
}

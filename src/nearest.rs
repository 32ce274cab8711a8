//! What was probably meant, where a name does not exist.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::escape::shown;

/// Names of a directory that are compared.
const MAX_NAMES: usize = 10_000;

/// `; did you mean PATH?` for a path that does not exist, if a similar one does; else nothing.
pub(crate) fn path(missing: &Path) -> String {
    similar_path(missing, |_| true).map(|path| said(&shown(&path))).unwrap_or_default()
}

/// The same for what is to be a file.
pub(crate) fn file(missing: &Path) -> String {
    let similar = similar_path(missing, Path::is_file).filter(|path| path.is_file());
    similar.map(|path| said(&shown(&path))).unwrap_or_default()
}

/// The same for a path below `dir` that is to be named from there.
pub(crate) fn path_below(dir: &Path, missing: &Path) -> String {
    let similar = similar_path(&dir.join(missing), |_| true);
    let below = similar.as_deref().and_then(|similar| similar.strip_prefix(dir).ok());
    below.map(|path| said(&shown(path))).unwrap_or_default()
}

/// `; did you mean WORD?` for a word that is not among those that are allowed.
pub(crate) fn word<'w>(unknown: &str, allowed: impl IntoIterator<Item = &'w str>) -> String {
    best(unknown, allowed.into_iter()).map(said).unwrap_or_default()
}

fn said(what: &str) -> String {
    format!("; did you mean `{what}`?")
}

/// The path that `missing` may have been meant for. Its last part `fits`.
fn similar_path(missing: &Path, fits: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let parts: Vec<_> = missing.components().collect();
    // The first part that is not there, in the last directory that is.
    for count in 1..=parts.len() {
        let upto: PathBuf = parts[..count].iter().collect();
        match std::fs::symlink_metadata(&upto) {
            Ok(_) => continue,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            // Whether it is there is not known: of a path that is too long, for one.
            Err(_) => return None,
        }
        let name = upto.file_name().and_then(OsStr::to_str)?;
        let directory = match upto.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let is_last = count == parts.len();
        let entries = std::fs::read_dir(&directory).ok()?.flatten().take(MAX_NAMES);
        let entries = entries.filter(|entry| !is_last || fits(&entry.path()));
        let names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        let meant = upto.with_file_name(best(name, names.iter().map(String::as_str))?);
        let whole = parts[count..].iter().fold(meant.clone(), |path, part| path.join(part));
        return Some(if whole.exists() { whole } else { meant });
    }
    None
}

/// The most similar one, if it is similar enough for a typing mistake: something of it is the same.
fn best<'w>(word: &str, among: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let length = word.chars().count();
    let limit = (length / 3).clamp(1, 3).min(length.saturating_sub(1));
    let (low, mut nearest) = (word.to_lowercase(), None);
    for one in among {
        let distance = distance(&low, &one.to_lowercase());
        if distance <= limit && nearest.is_none_or(|(_, known)| distance < known) {
            nearest = Some((one, distance));
        }
    }
    nearest.map(|(one, _)| one)
}

/// Letters to put in, to leave out, to exchange, or to swap with their neighbour.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<_>, Vec<_>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![(0..=other.len()).collect::<Vec<_>>()];
    for i in 1..=one.len() {
        let mut row = vec![i];
        for j in 1..=other.len() {
            let exchanged = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
            let mut least = exchanged.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_mistake_finds_the_path_and_another_word_does_not() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("project/src")).unwrap();
        std::fs::write(dir.path().join("policy.toml"), "").unwrap();
        let of = |name: &str| {
            let said = path(&dir.path().join(name));
            said.replace(dir.path().to_str().unwrap(), "D")
        };
        assert_eq!(of("porject"), "; did you mean `D/project`?");
        assert_eq!(of("porject/src"), "; did you mean `D/project/src`?");
        assert_eq!(of("porject/new"), "; did you mean `D/project`?");
        assert_eq!(of("Policy.tml"), "; did you mean `D/policy.toml`?");
        assert_eq!(of("something-else"), "");
        assert_eq!(of(&"project/../".repeat(500)), "");
        assert_eq!(path(Path::new("/")), "");
        std::fs::create_dir(dir.path().join("v")).unwrap();
        assert_eq!((of("-"), of("x")), Default::default());
        let file_of = |name: &str| file(&dir.path().join(name));
        assert!(file_of("policy.tml").ends_with("/policy.toml`?"));
        assert_eq!((file_of("projec"), file_of("projec/policy.toml")), Default::default());
        assert_eq!(word("agnet", ["agent", "node"]), "; did you mean `agent`?");
        assert_eq!(word("x", ["agent"]), "");
    }

    #[test]
    fn distances_count_mistakes() {
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("abc", "acb"), 1);
        assert_eq!(distance("abc", "abcd"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "ab"), 2);
    }
}

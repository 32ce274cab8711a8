//! Policy files.

use std::io::Read;
use std::path::Path;

use crate::accounts::Accounts;
use crate::files;
use crate::nearest;
use crate::presets::Preset;
use anyhow::{anyhow, bail};
use tollgate_policy::{MAX_TEXT_LEN, Policy, PolicyFile};

/// Reads a policy.
///
/// # Errors
/// When the file cannot be read, or with file, line and column of what is wrong in it.
pub(crate) fn parse(file: &Path) -> anyhow::Result<Policy> {
    parse_all(file).map(|all| all.policy)
}

/// Reads a policy, and those of its `[[view]]`s.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_all(file: &Path) -> anyhow::Result<PolicyFile> {
    let shown = crate::escape::shown(file);
    let text = read(file).map_err(|error| {
        let reason = crate::messages::in_words(&error);
        anyhow!("policy `{shown}` cannot be read: {reason}{}", remedy(file, &error))
    })?;
    PolicyFile::parse_with(&text, &shown, &Accounts)
        .map_err(|error| anyhow!("policy is wrong\n{error}"))
}

/// A file that is not there may have been meant for a preset, or for another file.
fn remedy(file: &Path, error: &anyhow::Error) -> String {
    let missing = error.root_cause().downcast_ref::<std::io::Error>();
    if missing.is_none_or(|error| error.kind() != std::io::ErrorKind::NotFound) {
        return String::new();
    }
    let presets = || Preset::ALL.into_iter().map(Preset::name).chain(["none"]);
    // A word in the configuration has its directory before it.
    let word = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let bare = file.to_str().is_some_and(|name| !name.contains('/'));
    let similar = nearest::word(word, presets());
    let similar = if similar.is_empty() { nearest::file(file) } else { similar };
    if !similar.is_empty() || !bare || word.contains('.') {
        return similar;
    }
    format!("; built-in policies: {}", presets().collect::<Vec<_>>().join(", "))
}

/// The text of a regular file of at most 4 MiB and a byte, without waiting for the writer of a FIFO.
///
/// # Errors
/// When it cannot be read, or is none.
pub(crate) fn read(file: &Path) -> anyhow::Result<String> {
    let opened = files::open(file)?;
    if !opened.metadata()?.is_file() {
        bail!("it is not a regular file");
    }
    let limit = MAX_TEXT_LEN as u64 + 1;
    let mut bytes = Vec::new();
    opened.take(limit).read_to_end(&mut bytes)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let before = error.as_bytes()[..at].iter();
        let line = 1 + before.filter(|byte| **byte == b'\n').count();
        anyhow!("line {line} is not UTF-8 (byte {at} of the file)")
    })
}

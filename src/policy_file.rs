//! Policy files.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::accounts::Accounts;
use crate::files;
use crate::nearest;
use crate::presets::Preset;
use anyhow::{anyhow, bail, ensure};
use tollgate_policy::{MAX_TEXT_LEN, PolicyFile};

/// Where a file was found that nobody named. Whoever may write there could make it a link to any file of
/// the user, and an error would show lines of that: a link to one outside is refused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundIn<'a> {
    pub(crate) dir: &'a Path,
    /// What to do if a file outside is meant.
    pub(crate) remedy: &'static str,
}

impl<'a> FoundIn<'a> {
    /// A policy that was found in `dir`.
    pub(crate) fn policy(dir: &'a Path) -> Self {
        Self { dir, remedy: "name it with `--policy`" }
    }

    /// Tests that were found in `dir`, and the policy that they are about.
    pub(crate) fn tests(dir: &'a Path) -> Self {
        Self { dir, remedy: "name the tests, `tollgate test .tollgate.tests.toml`" }
    }

    /// Refuses what does not lie in the directory: `place` is its path, without links.
    ///
    /// # Errors
    /// It lies elsewhere, or the directory is not there.
    pub(crate) fn must_hold(self, place: &Path) -> anyhow::Result<()> {
        let dir = std::fs::canonicalize(self.dir)?;
        ensure!(
            place.starts_with(&dir),
            "it leads out of `{}`, to `{}`, and nobody named it; put something in its place, or {}",
            crate::escape::shown(&dir),
            crate::escape::shown(place),
            self.remedy
        );
        Ok(())
    }
}

/// Reads a policy, and those of its `[[view]]`s; with where it was found if nobody named it.
///
/// # Errors
/// When the file cannot be read, or was found and leads out of there, or with file, line and column
/// of what is wrong in it.
pub(crate) fn parse_all(file: &Path, found: Option<FoundIn<'_>>) -> anyhow::Result<PolicyFile> {
    let shown = crate::escape::shown(file);
    let text = read(file, found).map_err(|error| {
        let reason = crate::messages::in_words(&error);
        anyhow!("policy `{shown}` cannot be read: {reason}{}", remedy(file, &error))
    })?;
    // It would allow everything.
    ensure!(
        !text.is_empty(),
        "policy `{shown}` is empty, as a file is that could not be written or is being saved; write \
         rules, or `default = \"passthrough\"` to allow everything"
    );
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
/// When it cannot be read, or is none; and when it was found and leads out of there.
pub(crate) fn read(file: &Path, found: Option<FoundIn<'_>>) -> anyhow::Result<String> {
    let opened = files::open(file)?;
    if let Some(found) = found {
        stays_in(found, file, &opened)?;
    }
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

/// Refuses a file to which a link led out of the directory. The one that is open is asked where it is, as
/// the link may be another by now.
fn stays_in(found: FoundIn<'_>, file: &Path, opened: &File) -> anyhow::Result<()> {
    let place = std::fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd()))
        .or_else(|_| std::fs::canonicalize(file))?;
    found.must_hold(&place)
}

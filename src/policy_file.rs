//! Policy files.

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::messages;
use anyhow::{Context, anyhow, bail};
use tollgate_policy::{MAX_TEXT_LEN, Policy};

/// Reads a policy and prints its warnings.
///
/// # Errors
/// When the file cannot be read, or with file, line and column of what is wrong in it.
pub(crate) fn load(file: &Path) -> anyhow::Result<Policy> {
    let policy = parse(file)?;
    for warning in policy.warnings() {
        messages::warn(&format!("{}: {warning}", file.display()));
    }
    Ok(policy)
}

/// Reads a policy.
///
/// # Errors
/// As [`load`].
pub(crate) fn parse(file: &Path) -> anyhow::Result<Policy> {
    let shown = file.display().to_string();
    let text = read(file).with_context(|| format!("policy `{shown}` cannot be read"))?;
    Policy::parse(&text, &shown).map_err(|error| anyhow!("policy is wrong\n{error}"))
}

fn read(file: &Path) -> anyhow::Result<String> {
    // Opening a FIFO would wait for a writer.
    let opened = std::fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(file)?;
    if !opened.metadata()?.is_file() {
        bail!("it is not a regular file");
    }
    let limit = MAX_TEXT_LEN as u64 + 1;
    let mut bytes = Vec::new();
    opened.take(limit).read_to_end(&mut bytes)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow!("it is not UTF-8 (byte {at})")
    })
}

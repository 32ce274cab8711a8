//! `tollgate status`: what servers report, and how it is shown.

mod report;
mod text;

use std::path::Path;

use anyhow::bail;
use serde_json::Value;

pub(crate) use report::{Report, VERSION, keep_awake, negotiated, transport};

use crate::cli::StatusArgs;
use crate::{control, umount};

/// Runs `tollgate status`.
///
/// # Errors
/// When MNT is given and no server of this user shows there.
pub(crate) fn run(args: &StatusArgs) -> anyhow::Result<()> {
    let mut reports = control::reports()?;
    if let Some(mnt) = &args.mnt {
        let path = std::fs::canonicalize(mnt).unwrap_or_else(|_| mnt.clone());
        reports.retain(|report| shows_at(report, &path));
        if reports.is_empty() {
            bail!("no server of this user shows at `{}`; {}", mnt.display(), hint(mnt));
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    } else if reports.is_empty() {
        println!("no server of this user runs");
    } else {
        let texts: Vec<_> = reports.iter().map(text::text).collect();
        print!("{}", texts.join("\n"));
    }
    Ok(())
}

fn shows_at(report: &Value, path: &Path) -> bool {
    report["mount_point"].as_str().is_some_and(|point| Path::new(point) == path)
}

fn hint(mnt: &Path) -> String {
    if umount::is_dead(mnt) {
        "its server is dead: clean up with `tollgate umount`".to_owned()
    } else {
        "`tollgate status` lists those that run".to_owned()
    }
}

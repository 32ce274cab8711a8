//! The file that keeps a plan: a version, the processor it was measured on, the rows.

use std::fs;
use std::io;
use std::path::Path;

use crate::machine::Machine;
use crate::plan::ClearPlan;

/// First line of the file. A change of what is measured changes the number.
const VERSION: &str = "# tollgate-hugepage plan, version 1";
/// A file longer than this is not one of ours.
const MOST_BYTES: u64 = 64 << 10;

/// The plan in the file: `None` when there is no file, a note when it is of no use.
pub(super) fn load(path: &Path, machine: &Machine) -> Result<Option<ClearPlan>, String> {
    let note = |why: String| format!("{} is not used: {why}", path.display());
    let text = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(note(error.to_string())),
        Ok(facts) if facts.len() > MOST_BYTES => {
            return Err(note(format!("{} bytes", facts.len())));
        }
        Ok(_) => fs::read_to_string(path).map_err(|error| note(error.to_string()))?,
    };
    let rest = text.strip_prefix(VERSION).ok_or_else(|| note("another version".into()))?;
    let (key, rows) = rest.trim_start().split_once('\n').unwrap_or((rest, ""));
    if key != key_line(machine) {
        return Err(note("measured on another processor or microcode".into()));
    }
    let mut plan = ClearPlan::detected_on(machine);
    plan.set(rows).map_err(|error| note(error.to_string()))?;
    Ok(Some(plan))
}

/// Writes the plan to a file of its own and moves it into place, so that no reader sees half of it.
pub(super) fn save(path: &Path, plan: &ClearPlan, machine: &Machine) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let draft = path.with_extension(format!("{}.tmp", std::process::id()));
    fs::write(&draft, format!("{VERSION}\n{}\n{plan}", key_line(machine)))?;
    fs::rename(&draft, path).inspect_err(|_| {
        // The draft is of no use to anyone; that it stays is no worse than the failed move.
        let _ = fs::remove_file(&draft);
    })
}

fn key_line(machine: &Machine) -> String {
    format!("# {}", machine.cpu_key())
}

//! The file that keeps a plan: a version, the processor it was measured on, what was out of the
//! ordinary, the rows.
//!
//! Its directory may be one that others can write to. So the file is opened without following a
//! link and without waiting for the other end of a FIFO; it must be a regular file of this user (or
//! root) that nobody else can write; and a new one gets a name that cannot be guessed before it is
//! moved into place.

use std::collections::hash_map::RandomState;
use std::fs::{DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::machine::Machine;
use crate::plan::ClearPlan;
use crate::sys;

/// First line of the file. A change of what is measured changes the number.
const VERSION: &str = "# tollgate-hugepage plan, version 2";
/// Starts a line with a note.
const NOTE: &str = "# note: ";
/// A file longer than this is not one of ours.
const MOST_BYTES: u64 = 64 << 10;
/// Permissions that others must not have: to write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// A plan from a file, and what was out of the ordinary when it was measured.
pub(super) struct Kept {
    pub(super) plan: ClearPlan,
    pub(super) notes: Vec<String>,
}

/// The plan in the file: `None` when there is no file, a note when it is of no use.
pub(super) fn load(path: &Path, machine: &Machine) -> Result<Option<Kept>, String> {
    let note = |why: String| format!("{} is not used: {why}", path.display());
    let text = match read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(note(error.to_string())),
        Ok(text) => text,
    };
    let rest = text.strip_prefix(VERSION).ok_or_else(|| note("another version".into()))?;
    let (key, rows) = rest.trim_start().split_once('\n').unwrap_or((rest, ""));
    if key != key_line(machine) {
        return Err(note("measured on another processor or microcode".into()));
    }
    let mut plan = ClearPlan::detected_on(machine);
    plan.set(rows).map_err(|error| note(error.to_string()))?;
    let notes = rows.lines().filter_map(|line| line.strip_prefix(NOTE));
    let notes = notes.map(|text| format!("when the plan was measured: {text}")).collect();
    Ok(Some(Kept { plan, notes }))
}

fn read(path: &Path) -> io::Result<String> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::other("it is a symbolic link"),
        _ => error,
    })?;
    let facts = file.metadata()?;
    let refused = |why: String| Err(io::Error::other(why));
    if !facts.is_file() {
        return refused("it is not a regular file".into());
    }
    if facts.uid() != sys::effective_user() && facts.uid() != 0 {
        return refused(format!("it belongs to user {}", facts.uid()));
    }
    if facts.mode() & WRITABLE_BY_OTHERS != 0 {
        return refused(format!("others may write to it (mode {:o})", facts.mode() & 0o7777));
    }
    let mut text = String::new();
    file.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        return refused(format!("it is longer than {MOST_BYTES} bytes"));
    }
    Ok(text)
}

/// Writes the plan and its notes to a file of its own and moves it into place, so that no reader
/// sees half of it.
pub(super) fn save(
    path: &Path,
    plan: &ClearPlan,
    notes: &[String],
    machine: &Machine,
) -> io::Result<()> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    if let Some(directory) = directory {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let notes: String =
        notes.iter().map(|note| format!("{NOTE}{}\n", note.replace('\n', " "))).collect();
    let text = format!("{VERSION}\n{}\n{notes}{plan}", key_line(machine));
    let (mut file, draft) = draft(path)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| std::fs::rename(&draft, path));
    written.inspect_err(|_| {
        // The draft is of no use to anyone; that it stays is no worse than the failed move.
        let _ = std::fs::remove_file(&draft);
    })
}

/// A new file beside `path`, under a name that nobody can have prepared.
fn draft(path: &Path) -> io::Result<(File, PathBuf)> {
    // Keyed with random numbers of the kernel.
    let random = RandomState::new().build_hasher().finish();
    let draft = path.with_extension(format!("{random:016x}.tmp"));
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    Ok((options.open(&draft)?, draft))
}

fn key_line(machine: &Machine) -> String {
    format!("# {}", machine.cpu_key())
}

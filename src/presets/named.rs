//! The files that a command line names, and that git runs with it.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::budget::Budget;
use super::places::beneath;
use crate::files;
use crate::git::{self, FILLED_IN, Role, Setting, Word};

/// Largest hook that is read, in bytes.
const MAX_LEN: u64 = 1 << 20;
/// Paths that are looked at for one command line, or script.
const MAX_LOOKED_AT: usize = 2048;
/// Directories that are looked in for what one command line names.
const MAX_PLACES: usize = 16;
/// Commands that change the directory, as `cd`, that are looked at: each asks for up to a hundred names.
const MAX_CHANGES: usize = 1024;
/// Words that are looked at behind one.
const MAX_FILLED_IN: usize = 6;
/// Shells, which take any file for a script; of other interpreters a missing one is told by its name.
const SHELLS: [&str; 8] = [".", "source", "sh", "bash", "dash", "zsh", "ksh", "fish"];
/// Ends of names of files that an interpreter runs.
const SCRIPTS: [&str; 16] = [
    "sh", "bash", "py", "pl", "rb", "js", "cjs", "mjs", "ts", "php", "lua", "awk", "sed", "jq",
    "mk", "fish",
];
/// Directories whose files are built or fetched: an installation or a build replaces them.
const BUILT: [&str; 7] = ["node_modules", "target", "build", "dist", "out", ".venv", "venv"];

/// Names of hooks, for the case that a directory of hooks is all of DIR: githooks(5).
pub(super) const HOOKS: [&str; 28] = [
    "applypatch-msg",
    "pre-applypatch",
    "post-applypatch",
    "pre-commit",
    "pre-merge-commit",
    "prepare-commit-msg",
    "commit-msg",
    "post-commit",
    "pre-rebase",
    "post-checkout",
    "post-merge",
    "pre-push",
    "pre-receive",
    "update",
    "proc-receive",
    "post-receive",
    "post-update",
    "reference-transaction",
    "push-to-checkout",
    "pre-auto-gc",
    "post-rewrite",
    "sendemail-validate",
    "fsmonitor-watchman",
    "p4-changelist",
    "p4-prepare-changelist",
    "p4-post-changelist",
    "p4-pre-submit",
    "post-index-change",
];

/// The files that a command line, or a script, names.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) paths: Vec<PathBuf>,
    /// Whether it was looked at to its end.
    pub(super) whole: bool,
}

impl Files {
    const NONE: Self = Self { paths: Vec::new(), whole: true };
    const NOT_READ: Self = Self { paths: Vec::new(), whole: false };
}

/// The files that a setting has git start or hand to a program, where `top` is the directory that
/// git starts it in. One that is not there counts if it would be run.
pub(super) fn by_setting(setting: &Setting, top: &Path, budget: &Budget) -> Files {
    let Some(line) = setting.command() else { return Files::NONE };
    // Some programs are started without a shell, by a path that may have blanks.
    let whole = has_slash(line).then(|| top.join(OsStr::from_bytes(line)));
    let mut found: Vec<_> = whole.into_iter().filter(|path| path.is_file()).collect();
    let mut looked_at = 0;
    let words = git::words(line);
    let Some(places) = entered(&words, &[top.to_owned()], budget) else {
        return Files { paths: found, whole: false };
    };
    for (word, command) in with_commands(&words) {
        for path in paths(word).iter().flat_map(|path| places.iter().map(move |at| at.join(path))) {
            looked_at += 1;
            if looked_at > MAX_LOOKED_AT || !budget.look_at(&path) {
                return Files { paths: found, whole: false };
            }
            let is_meant = match std::fs::metadata(&path) {
                Ok(meta) if !meta.is_file() => false,
                // An alias may show or edit any file.
                Ok(meta) => {
                    word.role != Role::Argument
                        || !setting.is_alias()
                        || meta.permissions().mode() & 0o111 != 0
                        || is_script(&path)
                }
                Err(_) => would_be_run(word, command) && !will_be_built(&path, top),
            };
            if is_meant {
                found.push(path);
            }
        }
    }
    Files { paths: found, whole: true }
}

/// Whether a file of this name would be run as soon as it is there. `command`: the one that the word
/// stands behind.
fn would_be_run(word: &Word, command: &[u8]) -> bool {
    let text = word.text.as_slice();
    let is_option = text.starts_with(b"-") || text.contains(&b'=');
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"._+-".contains(byte);
    let is_script_here = || {
        word.role == Role::Script
            && text.iter().all(is_of_name)
            && (SHELLS.iter().any(|shell| shell.as_bytes() == command)
                || is_script(Path::new(OsStr::from_bytes(text))))
    };
    word.role != Role::Argument && !is_option && (has_slash(text) || is_script_here())
}

/// Each word with the last name of the command that it stands behind.
fn with_commands(words: &[Word]) -> impl Iterator<Item = (&Word, &[u8])> {
    let mut command: &[u8] = b"";
    words.iter().map(move |word| {
        if word.role == Role::Command {
            command = word.text.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        }
        (word, command)
    })
}

/// The files that the shell script `hook` runs, there or not; none of what is no shell script, and of what another
/// user keeps to itself outside of `dir`.
pub(super) fn by_hook(hook: &Path, top: &Path, dir: &Path, budget: &Budget) -> Files {
    if !budget.look_at(hook) {
        return Files::NOT_READ;
    }
    let text = match shell_script(hook, budget) {
        Ok(text) => text,
        Err(error) if is_of_others(hook, dir, &error) => return Files::NONE,
        Err(error) if files::is_unread(&error) => return Files::NOT_READ,
        Err(_) => return Files::NONE,
    };
    if text.len() as u64 > MAX_LEN {
        return Files::NOT_READ;
    }
    let directory = std::fs::canonicalize(hook).ok();
    let directory = directory.as_deref().and_then(Path::parent).unwrap_or(top);
    let words = git::words(&text);
    let Some(places) = entered(&words, &[top.to_owned(), directory.to_owned()], budget) else {
        return Files::NOT_READ;
    };
    let run = with_commands(&words).filter(|(word, _)| word.role != Role::Argument);
    let (mut found, mut looked_at) = (Vec::new(), 0);
    for (word, command) in run {
        for path in paths(word).iter().flat_map(|path| places.iter().map(move |at| at.join(path))) {
            looked_at += 1;
            if looked_at > MAX_LOOKED_AT || !budget.look_at(&path) {
                return Files { paths: found, whole: false };
            }
            let is_run = match std::fs::metadata(&path) {
                Ok(meta) => meta.is_file() && !is_built(&path, top),
                // `[ -f x ] && . x`.
                Err(_) => would_be_run(word, command) && !will_be_built(&path, top),
            };
            if is_run {
                found.push(path);
            }
        }
    }
    Files { paths: found, whole: true }
}

/// Whether a hook is not read as another user has closed it, outside of `dir`: no shell of this user reads it either.
fn is_of_others(hook: &Path, dir: &Path, error: &io::Error) -> bool {
    let place = std::fs::canonicalize(hook).unwrap_or_else(|_| hook.to_owned());
    error.kind() == io::ErrorKind::PermissionDenied
        && beneath(dir, &place).is_none()
        && !files::is_closed_by_own(&place)
        // A confined server may not read what others could.
        && rustix::fs::access(&place, Access::READ_OK).is_err()
}

/// The directories that commands may be started in: those given, and those that `cd` leads to, there or not.
/// None where there are more of it than are looked at.
fn entered(words: &[Word], from: &[PathBuf], budget: &Budget) -> Option<Vec<PathBuf>> {
    let mut places = from.to_vec();
    let changes = |word: &Word| {
        word.role == Role::Command && matches!(word.text.as_slice(), b"cd" | b"pushd" | b"chdir")
    };
    let changing = words.iter().enumerate().filter(|(_, word)| changes(word));
    for (number, (at, command)) in changing.enumerate() {
        if number == MAX_CHANGES || budget.is_spent() {
            return None;
        }
        // Between it and its word stand those of a command that is filled in.
        for word in words[at + 1..].iter().take(MAX_FILLED_IN) {
            let paths = paths(word);
            let next = paths.iter().flat_map(|path| places.iter().map(move |at| at.join(path)));
            let is_there = |path: &PathBuf| budget.look_at(path) && path.is_dir();
            let next: Vec<_> = next.filter(is_there).take(MAX_PLACES).collect();
            places.extend(next);
            places.truncate(MAX_PLACES);
        }
        let named = words[at + 1..].iter().filter(|word| word.level == command.level);
        let mut named = named.take_while(|word| word.role == Role::Argument);
        let named = named.find(|word| !word.text.starts_with(b"-"));
        let paths = named.map(paths).unwrap_or_default();
        let next = paths.iter().flat_map(|path| places.iter().map(move |at| at.join(path)));
        let is_missing = |path: &PathBuf| budget.look_at(path) && path.symlink_metadata().is_err();
        let missing: Vec<_> = next.filter(is_missing).collect();
        places.extend(missing);
        places.truncate(MAX_PLACES);
    }
    Some(places)
}

/// The text of a file that a shell reads, empty for others; of a longer one the first bytes, one more than
/// [`MAX_LEN`].
fn shell_script(file: &Path, budget: &Budget) -> io::Result<Vec<u8>> {
    if file.extension() == Some(OsStr::new("sample")) {
        return Ok(Vec::new());
    }
    let text = files::read_head(file, MAX_LEN + 1)?;
    let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    // Without a first line that names an interpreter, a shell reads it.
    let is_shell = !first.starts_with(b"#!") || first.windows(2).any(|two| two == b"sh");
    let is_read = is_shell && !text.contains(&0);
    // What has no words takes less time.
    budget.has_read(if is_read { text.len() } else { text.len() / 16 });
    Ok(if is_read { text } else { Vec::new() })
}

/// The paths that a word may stand for.
fn paths(word: &Word) -> Vec<PathBuf> {
    let text = word.text.as_slice();
    let mut found = Vec::new();
    let mut add = |path: &[u8]| {
        let home = path.strip_prefix(b"~/").zip(std::env::var_os("HOME"));
        found.push(match home {
            Some((rest, home)) => Path::new(&home).join(OsStr::from_bytes(rest)),
            None => PathBuf::from(OsStr::from_bytes(path)),
        });
    };
    // `--file=x`, `NAME=x`.
    let value = text.iter().position(|byte| *byte == b'=').map(|at| &text[at + 1..]);
    for text in [Some(text), value].into_iter().flatten() {
        // `$(dirname "$0")/x`: what is filled in is the top, or where the script lies.
        let filled_in = text.iter().rposition(|byte| *byte == FILLED_IN);
        let path: &[u8] = match filled_in {
            Some(at) => text[at + 1..].strip_prefix(b"/").unwrap_or_default(),
            // The name of a program in `PATH`.
            None if word.role == Role::Command && !has_slash(text) => b"",
            None => text,
        };
        if !path.is_empty() {
            add(path);
        }
    }
    found
}

fn has_slash(text: &[u8]) -> bool {
    text.contains(&b'/')
}

fn is_script(path: &Path) -> bool {
    let end = path.extension().and_then(OsStr::to_str);
    end.is_some_and(|end| SCRIPTS.contains(&end))
}

fn is_built(path: &Path, top: &Path) -> bool {
    let inside = path.strip_prefix(top).unwrap_or(path);
    inside.components().any(|part| BUILT.iter().any(|name| part.as_os_str() == *name))
}

/// Whether what is not there will be fetched or built: an installation must be able to make it.
fn will_be_built(path: &Path, top: &Path) -> bool {
    let inside = path.strip_prefix(top).unwrap_or(path);
    is_built(path, top) || inside.components().any(|part| part.as_os_str() == "vendor")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};

    use super::*;

    /// Opening a FIFO would wait for its writer, and CMD can put one in the place of a hook at any moment.
    #[test]
    fn a_hook_that_becomes_a_fifo_meanwhile_holds_up_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let (hook, fifo) = (dir.path().join("pre-commit"), dir.path().join("fifo"));
        std::fs::write(&hook, "tools/x\n").unwrap();
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let (sender, receiver) = channel();
        let (looked_at, top) = (hook.clone(), dir.path().to_owned());
        std::thread::spawn(move || {
            let look = |_| drop(by_hook(&looked_at, &top, &top, &Budget::default()));
            (0..20_000).for_each(look);
            sender.send(())
        });
        let begun = std::time::Instant::now();
        while receiver.try_recv().is_err() {
            assert!(begun.elapsed() < Duration::from_secs(30), "it waits for a writer");
            renameat_with(CWD, &hook, CWD, &fifo, RenameFlags::EXCHANGE).unwrap();
        }
    }
}

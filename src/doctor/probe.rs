//! A real view over DIR, in a mount namespace that ends with it: what works there, and how files
//! are read.

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use super::check::{Check, State};
use crate::control;

/// Entries that are looked at for a file to read.
const MAX_LOOKED_AT: usize = 2000;

pub(super) fn checks(dir: &Path) -> Vec<Check> {
    const NAME: &str = "a view of DIR";
    let output = match try_view(dir) {
        Ok(output) => output,
        Err(error) => return vec![Check::broken(NAME, format!("cannot be tried: {error}"))],
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let Ok(report) = serde_json::from_slice::<Value>(&output.stdout) else {
        return vec![Check::broken(NAME, last_reason(&said))];
    };
    let mut checks = vec![Check::ok(NAME, "`tollgate run` shows it to a command")];
    checks.push(passthrough(&report, &said));
    checks.push(watch(&report));
    checks.extend(notes(&said));
    checks
}

/// Runs this program through a view of DIR that allows everything.
fn try_view(dir: &Path) -> std::io::Result<Output> {
    Command::new(std::env::current_exe()?)
        .args(["run", "--policy", "none", "--small-files", "passthrough"])
        .arg(dir)
        .arg("--")
        .arg(std::env::current_exe()?)
        .arg("doctor-probe")
        .arg(dir)
        .stdin(Stdio::null())
        .output()
}

/// In the view: reads the first file that can be read, and prints what the server says of it.
///
/// # Errors
/// When no server of this view can be asked.
pub(crate) fn inside(dir: &Path) -> anyhow::Result<()> {
    let read = first_file(dir).and_then(|file| read_one(&file).then_some(file));
    let reports = control::reports().unwrap_or_default();
    let server = own_server(&reports, dir);
    let read = read.map(|file| file.to_string_lossy().into_owned());
    println!("{}", json!({"read": read, "server": server}));
    Ok(())
}

/// Of several servers over DIR, that of this view is the last one that started.
fn own_server<'r>(reports: &'r [Value], dir: &Path) -> Option<&'r Value> {
    reports.iter().rfind(|report| report["kind"] == "run" && control::is_path(&report["dir"], dir))
}

fn first_file(dir: &Path) -> Option<PathBuf> {
    let mut waiting = std::collections::VecDeque::from([dir.to_owned()]);
    let mut left = MAX_LOOKED_AT;
    while let Some(directory) = waiting.pop_front() {
        for entry in std::fs::read_dir(directory).ok().into_iter().flatten().flatten() {
            left = left.checked_sub(1)?;
            match entry.file_type() {
                Ok(kind) if kind.is_file() && entry.metadata().is_ok_and(|it| it.len() > 0) => {
                    return Some(entry.path());
                }
                Ok(kind) if kind.is_dir() => waiting.push_back(entry.path()),
                _ => {}
            }
        }
    }
    None
}

fn read_one(file: &Path) -> bool {
    let opened = std::fs::File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(file);
    opened.is_ok_and(|mut file| file.read(&mut [0]).is_ok())
}

fn passthrough(report: &Value, said: &str) -> Check {
    const NAME: &str = "passthrough";
    const EFFECT: &str = "files are read and written by tollgate, slower";
    let counts = &report["server"]["view"]["counts"];
    let count = |key: &str| counts[key].as_u64().unwrap_or(0);
    let who = if rustix::process::geteuid().is_root() { "root" } else { "this user" };
    let reason = said.lines().find_map(|line| {
        let rest = line.split_once("not available: passthrough (")?.1;
        Some(rest.rsplit_once(");").map_or(rest, |(reason, _)| reason).to_owned())
    });
    if let Some(reason) = reason {
        let remedy = "run tollgate as root, or have root enable the broker: `systemctl enable --now \
                      tollgate-broker.socket`";
        return Check::without(NAME, format!("not for {who}: {reason}"), EFFECT).mended_by(remedy);
    }
    if count("open_passthrough") > 0 {
        return Check::ok(NAME, format!("for {who}: a file of DIR was read so"));
    }
    if count("open_fallback") > 0 {
        let found = "the kernel refused to register a file of DIR's file system";
        return Check::without(NAME, found, EFFECT)
            .mended_by("put DIR on a local file system (not FUSE, not a stack of overlays)");
    }
    Check::note(NAME, format!("for {who}, as far as it can be told: no file of DIR was read"))
}

fn watch(report: &Value) -> Check {
    const NAME: &str = "watching DIR";
    let server = &report["server"];
    match server["view"]["watch"]["on"].as_bool() {
        Some(true) => Check::ok(NAME, "changes made outside of the view are seen at once"),
        Some(false) => {
            let listed = server["view"]["unavailable"].as_array();
            let why = listed.into_iter().flatten().find_map(|one| {
                one["feature"].as_str()?.contains("watch").then(|| one["reason"].as_str())?
            });
            Check::without(
                NAME,
                why.unwrap_or("off").to_owned(),
                "names and attributes are cached for a second; changes from outside show later",
            )
            .mended_by("a larger fs.fanotify.max_user_groups if the user has as many (EMFILE)")
        }
        None => Check::note(NAME, "the server could not be asked"),
    }
}

/// What the start said beside what has a line of its own.
fn notes(said: &str) -> Vec<Check> {
    let own = ["not available: passthrough", "not available: watch", "no policy was named"];
    said.lines()
        .filter_map(|line| line.strip_prefix("tollgate: "))
        .filter_map(|line| line.strip_prefix("warning: ").or_else(|| line.strip_prefix("note: ")))
        .filter(|line| !own.iter().any(|known| line.starts_with(known)))
        .map(|line| Check { state: State::Note, ..Check::ok("said at the start", line) })
        .collect()
}

/// The failure, without notes before it.
fn last_reason(said: &str) -> String {
    let lines: Vec<_> = said.lines().filter(|line| !line.contains("tollgate: note: ")).collect();
    match lines[..] {
        [] => "the command printed nothing".to_owned(),
        _ => lines.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_counts_decides_about_passthrough() {
        let state = |count: Value, said: &str| {
            let report = json!({"server": {"view": {"counts": count}}});
            passthrough(&report, said).state
        };
        assert_eq!(state(json!({"open_passthrough": 1}), ""), State::Ok);
        assert_eq!(state(json!({"open_fallback": 1}), ""), State::Without);
        assert_eq!(state(json!({}), ""), State::Note);
        let said = "tollgate: note: not available: passthrough (it needs a (big) thing); files are";
        let check = passthrough(&json!({}), said);
        assert!(check.found.ends_with("it needs a (big) thing"), "{check:?}");
    }

    #[test]
    fn the_server_of_the_view_is_found_by_a_directory_of_any_bytes() {
        use std::os::unix::ffi::OsStrExt;
        for name in [&b"/d"[..], b"/d\xff"] {
            let dir = Path::new(std::ffi::OsStr::from_bytes(name));
            let run = |pid| json!({"kind": "run", "pid": pid, "dir": dir.to_string_lossy()});
            let mount = json!({"kind": "mount", "pid": 3, "dir": dir.to_string_lossy()});
            let reports = [run(1), run(2), mount, json!({"kind": "run", "dir": "/other"})];
            assert_eq!(own_server(&reports, dir), Some(&run(2)));
        }
    }

    #[test]
    fn a_file_is_found_below_empty_directories_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("link")).unwrap();
        assert_eq!(first_file(dir.path()), None);
        std::fs::write(dir.path().join("a/b/f"), "x").unwrap();
        let file = first_file(dir.path()).unwrap();
        assert!(file.ends_with("a/b/f") && read_one(&file));
        assert!(!read_one(&dir.path().join("link")));
    }
}

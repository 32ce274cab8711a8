//! Views that were unmounted here while another mount namespace had them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::harness::can_mount;

/// Longest time for a server to end.
const PATIENCE: Duration = Duration::from_secs(20);

fn tollgate(arguments: &[&str], paths: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(arguments).args(paths).output().unwrap()
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn reports(mnt: &Path) -> Vec<serde_json::Value> {
    let output = tollgate(&["status", "--json"], &[mnt]);
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// Held while there is one: that of another test would have copies of the mounts of this one.
pub(crate) fn the_only_namespace() -> MutexGuard<'static, ()> {
    static ONLY: Mutex<()> = Mutex::new(());
    ONLY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process in a mount namespace of its own, with copies of all mounts. It ends with its standard
/// input.
pub(crate) fn another_namespace() -> Child {
    let mut other = Command::new("unshare");
    other.args(["-m", "sh", "-c", "echo copied; read end"]);
    let mut other = other.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut copied = String::new();
    BufReader::new(other.stdout.as_mut().unwrap()).read_line(&mut copied).unwrap();
    assert_eq!(copied, "copied\n");
    other
}

#[test]
fn who_keeps_a_view_that_is_unmounted_is_named_and_the_next_view_comes_first() {
    if !can_mount() {
        return;
    }
    let _only = the_only_namespace();
    let base = tempfile::tempdir().unwrap();
    let base = base.path().canonicalize().unwrap();
    let (dir, mnt) = (base.join("dir"), base.join("mnt"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::create_dir(&mnt).unwrap();
    let mount = || said(&tollgate(&["mount", "--daemon", "--policy", "none"], &[&dir, &mnt]));
    mount();
    let first = reports(&mnt);
    assert!(first[0]["mounted_elsewhere"].is_null(), "{first:?}");
    let by_dir = tollgate(&["status"], &[&dir]);
    let hint = format!("it is the directory that is shown at `{}`", mnt.display());
    assert!(String::from_utf8_lossy(&by_dir.stderr).contains(&hint), "{by_dir:?}");
    let mut other = another_namespace();
    let note = said(&tollgate(&["umount"], &[&mnt]));
    assert!(note.contains(&format!("process {} (sh) still has it", other.id())), "{note:?}");
    let left = reports(&mnt);
    assert_eq!(left[0]["mounted_elsewhere"][0]["pid"], other.id());
    let text = tollgate(&["status"], &[&mnt]).stdout;
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(text.contains(&format!("unmounted  here; process {} (sh)", other.id())), "{text}");

    mount();
    let both = reports(&mnt);
    assert_eq!(both.len(), 2, "{both:?}");
    assert!(
        both[0]["mounted_elsewhere"].is_null() && both[0]["pid"] != first[0]["pid"],
        "{both:?}"
    );
    let metrics = tollgate(&["status", "--metrics"], &[&mnt]);
    assert!(metrics.status.success(), "{metrics:?}");
    // Its mounts go with the process.
    drop(other.stdin.take());
    other.wait().unwrap();
    let note = said(&tollgate(&["umount"], &[&mnt]));
    assert!(!note.contains("still has it"), "{note:?}");
}

#[test]
fn native_directories_of_a_view_that_is_unmounted_here_are_still_there_elsewhere() {
    if !can_mount() {
        return;
    }
    let _only = the_only_namespace();
    let base = tempfile::tempdir().unwrap();
    let base = base.path().canonicalize().unwrap();
    let (dir, mnt, policy) = (base.join("dir"), base.join("mnt"), base.join("policy.toml"));
    std::fs::create_dir_all(dir.join("target")).unwrap();
    std::fs::create_dir(&mnt).unwrap();
    std::fs::write(&policy, "[[rule]]\npath = 'target'\naction = 'native'\n").unwrap();
    said(&tollgate(&["mount", "--daemon", "--policy"], &[&policy, &dir, &mnt]));
    let mut other = another_namespace();
    said(&tollgate(&["umount"], &[&mnt]));
    let left = reports(&mnt);
    assert_eq!(left[0]["native"], serde_json::json!(["target"]), "{left:?}");
    let missing = left[0]["view"]["unavailable"].to_string();
    assert!(!missing.contains("native directory"), "{missing}");
    // Not with one that is mounted at its place by now.
    std::fs::write(&policy, "default = 'read-only'\n").unwrap();
    said(&tollgate(&["mount", "--daemon", "--policy"], &[&policy, &dir, &mnt]));
    let pid = left[0]["pid"].as_u64().unwrap();
    let both = reports(&mnt);
    let first = both.iter().find(|report| report["pid"] == pid).unwrap();
    assert_eq!(first["native"], serde_json::json!(["target"]), "{both:?}");
    said(&tollgate(&["umount"], &[&mnt]));

    let mut there = Command::new("nsenter");
    there.args(["-m", "-t", &other.id().to_string(), env!("CARGO_BIN_EXE_tollgate"), "umount"]);
    said(&there.arg(&mnt).output().unwrap());
    let begun = Instant::now();
    while !reports(&mnt).is_empty() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(reports(&mnt).is_empty(), "the server goes on");
    drop(other.stdin.take());
    other.wait().unwrap();
}

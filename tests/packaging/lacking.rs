//! What a machine lacks is said, with what would help, and is an error.

use std::process::{Command, Output};

use crate::mounting::can_mount;

/// Runs a script in a mount namespace of its own, with `$T` for the program, in a directory with a
/// project `p`.
fn script(script: &str) -> Output {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(home.path().join("p")).unwrap();
    std::fs::create_dir_all(home.path().join("mnt")).unwrap();
    Command::new("timeout")
        .args(["-s", "KILL", "60", "unshare", "-m", "sh", "-c", script])
        .env("T", env!("CARGO_BIN_EXE_tollgate"))
        .current_dir(home.path())
        .output()
        .unwrap()
}

fn all(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_demo_that_can_show_no_view_fails() {
    if !can_mount() {
        return;
    }
    let output = script("mount --bind /dev/null /dev/fuse && exec $T demo --no-speed");
    let said = all(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("No view can be mounted here"), "{said}");
    assert!(said.contains("`tollgate doctor` says what is missing"), "{said}");
}

#[test]
fn a_missing_proc_is_named_with_the_remedy() {
    if !can_mount() {
        return;
    }
    for (command, code) in
        [("run --policy none p -- true", 125), ("mount --policy none p mnt", 1), ("umount mnt", 1)]
    {
        let output = script(&format!("mount -t tmpfs t /proc && exec $T {command}"));
        let said = all(&output);
        assert_eq!(output.status.code(), Some(code), "{command}: {said}");
        assert!(said.contains("/proc is not mounted here"), "{command}: {said}");
        assert!(said.contains("`mount -t proc proc /proc`"), "{command}: {said}");
    }
    let said = all(&script("mount -t tmpfs t /proc && exec $T doctor p"));
    assert!(said.contains("remedy: mount -t proc proc /proc"), "{said}");
}

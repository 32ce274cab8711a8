//! Files that everybody may read are not judged anew for each open, but for each change of what decides.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::harness::{View, as_user};
use crate::small::view;

const CLOSED: &str =
    "[[rule]]\npath = ['closed/**', 'later/**']\noperation = 'read'\naction = 'deny'\n";
const FILES: &[(&str, &str)] = &[
    ("open/a", "text"),
    ("open/b", "text"),
    ("open/c", "text"),
    ("dir/sub/a", "text"),
    ("closed/x", "-"),
];

fn is_refused(path: &Path) -> bool {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => true,
        text => {
            assert_eq!(text.unwrap(), "text");
            false
        }
    }
}

/// Longer than two changes can have one change time.
const APART: Duration = Duration::from_millis(50);

/// At once, and when its times are old enough to tell.
fn stays_refused(path: &Path) -> bool {
    let at_once = is_refused(path);
    std::thread::sleep(APART);
    at_once && (0..3).all(|_| is_refused(path))
}

/// Opens a file so often that all is known of it.
#[track_caller]
fn know(view: &View, path: &str) {
    std::thread::sleep(APART);
    (0..3).for_each(|_| assert!(!is_refused(&view.at(path)), "{path}"));
}

fn known(policy: &str) -> Option<View> {
    let view = view(policy, FILES)?;
    FILES[..4].iter().for_each(|(path, _)| know(&view, path));
    Some(view)
}

fn reload(view: &View, policy: &str) {
    fs::write(view.policy_file(), policy).unwrap();
    let mut reload = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    assert!(reload.arg("reload").arg(view.root()).status().unwrap().success());
}

#[test]
fn another_place_is_judged() {
    let Some(view) = known(CLOSED) else { return };
    fs::rename(view.at("open/a"), view.at("closed/a")).unwrap();
    assert!(stays_refused(&view.at("closed/a")), "it was moved in the view");
    know(&view, "dir/sub/a");
    fs::rename(view.at("dir"), view.at("later")).unwrap();
    assert!(stays_refused(&view.at("later/sub/a")), "a directory above it was");
    know(&view, "open/b");
    fs::rename(view.below("open/b"), view.below("closed/b")).unwrap();
    assert!(stays_refused(&view.at("closed/b")), "others moved it");
    know(&view, "open/c");
    fs::hard_link(view.below("open/c"), view.below("closed/c")).unwrap();
    assert!(stays_refused(&view.at("open/c")), "others gave it a further name");
    fs::remove_file(view.below("closed/c")).unwrap();
    know(&view, "open/c");
    fs::rename(view.below("closed/b"), view.below("open/b")).unwrap();
    know(&view, "open/b");
}

#[test]
fn another_policy_is_asked() {
    let Some(view) = known(CLOSED) else { return };
    reload(&view, "[[rule]]\npath = 'open/a'\naction = 'deny'\n");
    assert!(is_refused(&view.at("open/a")));
    assert!(!is_refused(&view.at("open/b")));
    reload(&view, CLOSED);
    assert!(!is_refused(&view.at("open/a")));
    reload(&view, "default = 'deny'\n");
    assert!(is_refused(&view.at("open/b")));
}

#[test]
fn rules_about_callers_are_asked_each_time() {
    let policy = "[[rule]]\npath = 'open/**'\nuid = 4321\naction = 'deny'\n";
    let Some(view) = known(policy) else { return };
    for dir in [view.root().parent().unwrap(), &view.below(""), &view.below("open")] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = view.at("open/a");
    assert!(as_user(4321, 4321, || is_refused(&path)), "by the rule about this user");
    assert!(!as_user(4322, 4322, || is_refused(&path)));
    assert!(!is_refused(&path));
}

//! Rules about what a file holds ask it once as long as it holds the same, and no longer.

use std::fs::{self, File, FileTimes};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::Command;

use crate::mapped::Map;
use crate::small::{settle, view};

const SECRET: &str = "token = secret\n";
const PLAIN: &str = "token = public\n";

fn about(path: &str, regex: &str) -> String {
    format!(
        "[[rule]]\npath = '{path}'\ncontent = {{ regex = '{regex}' }}\noperation = 'read'\n\
         action = 'deny'\n"
    )
}

fn is_refused(path: &Path) -> bool {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => true,
        text => {
            assert_eq!(text.unwrap(), PLAIN);
            false
        }
    }
}

/// As who wants that nobody notices.
fn write_with_old_times(path: &Path, text: &str) {
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    let mut file = File::create(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.set_times(FileTimes::new().set_modified(modified)).unwrap();
}

#[test]
fn what_a_file_holds_is_asked_again_once_it_changed() {
    let files = [("a", PLAIN), ("below", PLAIN), ("through", PLAIN)];
    let Some(view) = view(&about("**", "= secret"), &files) else { return };
    for _ in 0..3 {
        assert!(["a", "below", "through"].iter().all(|name| !is_refused(&view.at(name))));
    }
    write_with_old_times(&view.below("below"), SECRET);
    assert!(is_refused(&view.at("below")), "others wrote it");
    write_with_old_times(&view.at("through"), SECRET);
    assert!(is_refused(&view.at("through")), "it was written through the view");
    fs::rename(view.below("below"), view.below("a")).unwrap();
    assert!(is_refused(&view.at("a")), "another file has its name");
    fs::write(view.below("a"), PLAIN).unwrap();
    assert!(!is_refused(&view.at("a")), "it may be read again");
}

#[test]
fn what_somebody_can_write_unnoticed_is_asked_each_time() {
    let Some(view) = view(&about("**", "= secret"), &[("a", PLAIN)]) else { return };
    let file = File::options().read(true).write(true).open(view.below("a")).unwrap();
    let mapping = Map::new(&file, PLAIN.len(), true, true).unwrap();
    // The page is there to be written: no later store is noticed, nor changes the times.
    mapping.write(0, b"t");
    settle(&[&view.below("a")]);
    let before = fs::metadata(view.below("a")).unwrap().modified().unwrap();
    assert!(!is_refused(&view.at("a")));
    mapping.write(0, SECRET.as_bytes());
    assert!(is_refused(&view.at("a")), "it was stored through a mapping");
    assert_eq!(fs::metadata(view.below("a")).unwrap().modified().unwrap(), before);
}

#[test]
fn other_rules_ask_for_themselves() {
    let policy = about("a*", "= secret") + &about("b*", "= public");
    let Some(view) = view(&policy, &[("a", PLAIN), ("a2", PLAIN)]) else { return };
    assert!(!is_refused(&view.at("a")) && !is_refused(&view.at("a2")));
    fs::rename(view.at("a2"), view.at("b")).unwrap();
    assert!(is_refused(&view.at("b")), "by the rule about its new name");
    fs::write(view.policy_file(), about("a*", "= public")).unwrap();
    let mut reload = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    assert!(reload.arg("reload").arg(view.root()).status().unwrap().success());
    assert!(is_refused(&view.at("a")), "by the rule that followed the other");
}

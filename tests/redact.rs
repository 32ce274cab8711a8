//! `tollgate redact test`: what it prints, and that it prints no secret.

use std::process::{Command, Output};

const TEXT: &str =
    "a\ndb: postgres://app:xK9-tr33@db/main\nk ghp_0123456789abcdefghijABCDEFGHIJ012345\n";

fn redact(arguments: &[&str], name: &str, text: &str) -> Output {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join(name);
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["redact", "test"]).args(arguments).arg(file).output().unwrap()
}

fn out(output: &Output) -> &str {
    assert!(output.status.success(), "{output:?}");
    std::str::from_utf8(&output.stdout).unwrap()
}

#[test]
fn each_secret_is_named_with_its_place_and_never_printed() {
    let output = redact(&[], "app.yaml", TEXT);
    let shown = out(&output);
    assert!(
        shown.contains("app.yaml:2:20: url-password, 8 bytes: db: postgres://app:********@"),
        "{shown}"
    );
    assert!(shown.contains("app.yaml:3:7: token (GitHub), 36 bytes: k ghp_****"), "{shown}");
    assert!(shown.contains("2 secrets, 44 bytes masked"), "{shown}");
    assert!(!shown.contains("tr33") && !shown.contains("0123"), "{shown}");
}

#[test]
fn a_line_shows_no_secret_of_another_kind_either() {
    let text = "k ghp_0123456789abcdefghijABCDEFGHIJ012345 postgres://app:xK9-tr33@db/main\n";
    let output = redact(&["--detector", "url-password"], "a", text);
    let shown = out(&output);
    assert!(shown.contains("1 secret, 8 bytes masked"), "{shown}");
    assert!(!shown.contains("0123") && !shown.contains("tr33"), "{shown}");
}

#[test]
fn detectors_are_chosen_by_option_and_by_name_of_file() {
    assert!(out(&redact(&["--detector", "jwt"], "a", TEXT)).contains("0 secrets"));
    assert_eq!(out(&redact(&["--masked"], ".env.local", "A=b c\n")), "A=***\n");
    assert_eq!(out(&redact(&["--masked"], "env", "A=b c\n")), "A=b c\n");
    assert_eq!(out(&redact(&["--masked", "--regex", "x=b."], "env", "A=b c\n")), "A=**c\n");
    let json = redact(&["--json"], "a", TEXT);
    let json: serde_json::Value = serde_json::from_str(out(&json)).unwrap();
    assert_eq!(json["masked_bytes"], 44);
    assert_eq!(json["found"][1]["kind"], "GitHub");
}

#[test]
fn wrong_input_is_refused_with_the_reason() {
    let failed = redact(&["--regex", "x=a+"], "a", "");
    assert_eq!(failed.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("no maximum length"));
    let failed = redact(&["--detector", "tokens"], "a", "");
    assert!(String::from_utf8_lossy(&failed.stderr).contains("url-password"));
    let mut missing = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let failed = missing.args(["redact", "test", "/nowhere/x"]).output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("/nowhere/x"));
}

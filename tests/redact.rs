//! Redaction from outside: `tollgate redact test`, and what a view tells of what it masked. No secret
//! is ever printed.

#[path = "support/mounting.rs"]
mod mounting;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

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

/// Counted by detector, in `status` while the view is there, and in the log for each file.
#[test]
fn a_view_counts_what_it_masked() {
    if !mounting::can_mount() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    for dir in ["lower", "view"] {
        fs::create_dir(at(dir)).unwrap();
    }
    let policy = "[[rule]]\nname = 'masked'\npath = '**'\nkind = 'file'\naction = 'redact'\n\
                  detectors = ['token', 'url-password']\n\
                  regexes = { ids = 'id-[0-9]{4}' }\n";
    fs::write(at("policy.toml"), policy).unwrap();
    fs::write(at("lower/two"), TEXT).unwrap();
    fs::write(at("lower/own"), "id-1234 and id-5678\n").unwrap();
    fs::write(at("lower/none"), "nothing to be masked\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["mount", "--audit"]).arg(at("audit.log"));
    command.arg("--policy").arg(at("policy.toml")).arg(at("lower")).arg(at("view"));
    let mut server = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.by_ref().any(|line| line.contains("ready")));
    // In pieces of five bytes: each secret lies in several requests.
    let in_pieces = |name: &str| {
        let mut file = fs::File::open(at("view").join(name)).unwrap();
        let (mut all, mut piece) = (Vec::new(), [0; 5]);
        loop {
            let length = file.read(&mut piece).unwrap();
            if length == 0 {
                return String::from_utf8(all).unwrap();
            }
            all.extend(&piece[..length]);
        }
    };
    let read = ["two", "own", "none"].map(in_pieces);
    let status = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.arg("status").args(more).arg(at("view")).output().unwrap()
    };
    let (json, text) = (status(&["--json"]), status(&[]));
    let umounted = Command::new("umount").arg(at("view")).status();
    lines.for_each(drop);
    server.wait().unwrap();
    assert!(umounted.unwrap().success());
    assert!(!read[0].contains("tr33") && !read[0].contains("0123"), "{read:?}");
    assert_eq!(read[1], "******* and *******\n");
    let counted = serde_json::json!({"token": 1, "url-password": 1});
    let json: serde_json::Value = serde_json::from_str(out(&json)).unwrap();
    let masked = &json[0]["view"]["masked"];
    let all = serde_json::json!({"token": 1, "url-password": 1, "regex": 2});
    assert_eq!((&masked["opens"], &masked["secrets"]), (&2.into(), &all));
    assert!(
        out(&text).contains("masked     regex 2, token 1, url-password 1, in 2 opens"),
        "{text:?}"
    );
    let log = fs::read_to_string(at("audit.log")).unwrap();
    let records = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let records: Vec<_> = records.filter(|record| record["operation"] == "masked").collect();
    let of =
        |name: &str| records.iter().filter(|record| record["path"] == name).collect::<Vec<_>>();
    assert_eq!((of("two").len(), of("own").len(), of("none").len()), (1, 1, 0), "{log}");
    assert_eq!((&of("two")[0]["masked"], &of("two")[0]["outcome"]), (&counted, &"done".into()));
    assert_eq!(of("own")[0]["masked"], serde_json::json!({"regex": 2}));
    assert!(!log.contains("tr33") && !log.contains("1234"), "{log}");
    let shown =
        Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("audit").arg(at("audit.log")).output();
    assert!(out(&shown.unwrap()).contains("token 1, url-password 1"));
}

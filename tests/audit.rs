//! `tollgate audit` and `tollgate learn` on stored logs. Nothing is mounted.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const RUN: &str = "5f0c21d7a93be846";

fn tollgate(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.env("LC_ALL", "C").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn record(second: u32, more: &str) -> String {
    format!("{{\"time\":\"2026-01-31T09:15:{second:02}.000000Z\",\"run\":\"{RUN}\",{more}}}\n")
}

/// A log of two files, and its path.
fn log() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let older = [
        record(1, r#""event":"start","dir":"/project","policy":"p.toml","policy_sha256":"ab""#),
        record(
            2,
            r#""event":"request","operation":"open","outcome":"passthrough","access":"read","uid":1,"pid":7,"exe":"/usr/bin/cat","path":"src/a.rs""#,
        ),
    ];
    let newer = [
        record(
            3,
            r#""event":"request","operation":"open","outcome":"refused","errno":"EACCES","uid":1,"pid":7,"exe":"/usr/bin/node","path":"keys/id_rsa","rule":"keys""#,
        ),
        record(
            4,
            r#""event":"repeated","count":41,"operation":"open","outcome":"refused","errno":"EACCES","uid":1,"pid":7,"exe":"/usr/bin/node","path":"keys/id_rsa","rule":"keys""#,
        ),
        record(
            5,
            r#""event":"request","operation":"rename","outcome":"done","uid":1,"pid":7,"path":"src/b.rs","to":"src/c.rs""#,
        ),
    ];
    std::fs::write(dir.path().join("log.1"), older.concat()).unwrap();
    std::fs::write(&path, newer.concat()).unwrap();
    (dir, path)
}

fn shown(path: &Path, options: &[&str]) -> String {
    let out = tollgate(&[&["audit", path.to_str().unwrap()], options].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    text(&out.stdout)
}

#[test]
fn rotated_files_come_first_and_totals_last() {
    let (_dir, log) = log();
    let shown = shown(&log, &[]);
    let lines: Vec<_> = shown.lines().collect();
    assert!(lines[0].contains("starts over /project, policy p.toml (ab)"), "{shown}");
    assert!(lines[1].contains("src/a.rs") && lines[1].contains("read, cat[7] uid 1"), "{shown}");
    assert!(lines[4].contains("src/b.rs -> src/c.rs"), "{shown}");
    assert_eq!(lines[5], "44 events, 1 run begun: refused 42, done 1, passthrough 1");
    assert_eq!(lines[6], "refused by rule: keys 42");
    assert!(!shown.contains('\x1b'), "colour where there is no terminal");
}

/// The soft limit of open files of who starts it holds for neither: all parts are open at once.
#[test]
fn a_log_of_more_parts_than_may_be_open_at_first_is_read() {
    const PARTS: u32 = 100;
    let (dir, log) = log();
    for number in 2..=PARTS {
        let path = if number == PARTS { "eldest" } else { "src/b" };
        let opened = record(0, &format!(r#""event":"request",{GRANTED}"{path}""#));
        std::fs::write(dir.path().join(format!("log.{number}")), opened).unwrap();
    }
    for command in ["audit", "learn"] {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -Sn 50; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_tollgate")]);
        let out = shell.env("LC_ALL", "C").arg(command).arg(&log).output().unwrap();
        let shown = text(&out.stdout);
        assert!(out.status.success(), "{command}: {}", text(&out.stderr));
        assert!(shown.contains("eldest") && shown.contains("keys/id_rsa"), "{command}: {shown}");
    }
}

/// Those that JSON may have as they are, too.
#[test]
fn control_characters_are_escapes_in_json() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let path = "a\u{9b}2J\u{7f}\u{fc}";
    std::fs::write(&log, record(1, &format!(r#""event":"request",{GRANTED}"{path}""#))).unwrap();
    let shown = shown(&log, &["--json"]);
    assert!(shown.contains("a\\u009b2J\\u007f\u{fc}"), "{shown}");
    let read: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(read["path"], path);
}

#[test]
fn conditions_leave_records_out() {
    let (_dir, log) = log();
    let paths = |options: &[&str]| {
        let json = shown(&log, &[&["--json"], options].concat());
        let lines =
            json.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.filter_map(|line| line["path"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(paths(&[]).len(), 4);
    assert_eq!(paths(&["--refused"]), ["keys/id_rsa", "keys/id_rsa"]);
    assert_eq!(paths(&["--rule", "keys"]).len(), 2);
    assert_eq!(paths(&["--path", "src/**"]), ["src/a.rs", "src/b.rs"]);
    assert_eq!(paths(&["--path", "**/c.rs"]), ["src/b.rs"]);
    assert_eq!(paths(&["--exe", "**/node"]).len(), 2);
    assert_eq!(paths(&["--since", "2026-01-31T09:15:05"]), ["src/b.rs"]);
    assert!(paths(&["--since", "1h"]).is_empty());
}

/// The end that a glob is about may be in what was cut off.
#[test]
fn a_path_that_is_cut_is_shown_where_it_might_fit() {
    let (_dir, log) = log();
    let long = format!("deep/{}", "x".repeat(1019));
    let more = format!(
        r#""event":"request","operation":"open","outcome":"refused","uid":1,"pid":7,"path":"{long}","path_length":1040"#
    );
    let bytes = r#""event":"request","operation":"open","outcome":"refused","uid":1,"pid":7,"path":"a\ufffd","path_hex":"61ff""#;
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::write(&log, text + &record(6, &more) + &record(7, bytes)).unwrap();
    let found = |glob: &str| {
        let out = tollgate(&["audit", log.to_str().unwrap(), "--json", "--path", glob]);
        assert!(out.status.success(), "{out:?}");
        let (shown, said) = (self::text(&out.stdout), self::text(&out.stderr));
        (shown.contains("deep/xxx"), said.contains("the rest might fit: 1 record"))
    };
    assert_eq!(found("**/id_rsa"), (true, true));
    assert_eq!(found("deep/*/id_rsa"), (true, true));
    assert_eq!(found("deep/**"), (true, false));
    assert_eq!(found("keys/**"), (false, false));
    let shows = |glob: &str| shown(&log, &["--json", "--path", glob]).contains("61ff");
    assert!(shows("a?") && !shows("b?"));
}

/// What is written later is shown as it comes, also behind a rotation, by the same conditions.
#[test]
fn a_log_is_followed_across_a_rotation() {
    let (_dir, log) = log();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("audit").arg(&log).args(["--follow", "--json", "--path", "new/**"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let open = |path: &str| {
        let more = format!(
            r#""event":"request","operation":"open","outcome":"passthrough","path":"{path}""#
        );
        record(9, &more)
    };
    let append = |text: &str| {
        let mut file = File::options().append(true).create(true).open(&log).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    };
    append(&(open("new/1") + &open("old/1")));
    // Starts and ends of runs are shown in any case.
    let mut next =
        || lines.by_ref().map(Result::unwrap).find(|line| line.contains("path")).unwrap();
    assert!(next().contains("new/1"));
    append(&open("new/2"));
    std::fs::rename(&log, log.with_extension("1")).unwrap();
    append(&open("new/3"));
    assert!(next().contains("new/2"));
    assert!(next().contains("new/3"));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_damaged_line_is_named_and_the_rest_is_shown() {
    let (_dir, log) = log();
    let mut bytes = std::fs::read(&log).unwrap();
    bytes.splice(0..0, *b"{\"time\":\"torn\n\xff\n");
    std::fs::write(&log, &bytes).unwrap();
    let out = tollgate(&["audit", log.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(1));
    let said = text(&out.stderr);
    assert!(said.contains("/log:1: not a record") && said.contains("/log:2: "), "{said}");
    assert!(said.contains("2 lines are damaged"), "{said}");
    assert!(text(&out.stdout).contains("44 events"), "{}", text(&out.stdout));
}

#[test]
fn wrong_conditions_are_refused_with_what_is_right() {
    let (_dir, log) = log();
    let log = log.to_str().unwrap();
    for (options, part) in [
        (["--since", "yesterday"], "write 30s, 10m, 2h or 3d"),
        (["--since", "2026-13-45"], "is no time: there is no month 13; write"),
        (["--path", "["], "--path `[`"),
        (["--exe", "{"], "--exe `{`"),
    ] {
        let out = tollgate(&[&["audit", log], &options[..]].concat());
        assert_eq!(out.status.code(), Some(1));
        assert!(text(&out.stderr).contains(part), "{}", text(&out.stderr));
    }
    let out = tollgate(&["audit", "/nowhere/log"]);
    assert!(text(&out.stderr).contains("audit log `/nowhere/log` cannot be read"));
}

#[test]
fn a_policy_is_learned_that_check_accepts() {
    let (dir, log) = log();
    let out = tollgate(&["learn", log.to_str().unwrap(), RUN]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let learned = text(&out.stdout);
    assert!(learned.contains("#   open keys/id_rsa: 42 times, by keys"), "{learned}");
    assert!(!learned.contains("\"keys/id_rsa\",\n]\noperation"), "{learned}");
    assert!(learned.contains("\"src/a.rs\",\n]\noperation = [\"read\"]"), "{learned}");
    assert!(learned.contains("\"src/c.rs\",\n]\noperation = [\"write\", \"create\"]"), "{learned}");
    let file = dir.path().join("learned.toml");
    std::fs::write(&file, learned).unwrap();
    let out = tollgate(&["check", file.to_str().unwrap()]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let out = tollgate(&["learn", log.to_str().unwrap(), "0000000000000000"]);
    assert!(text(&out.stderr).contains("is in none of the logs"));
}

/// In `mode = "audit"` a request has a record of what would have been, and one of what was done.
#[test]
fn what_would_have_been_refused_is_not_learned() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let open = |outcome: &str, path: &str| {
        let more = format!(
            r#""event":"request","operation":"open","outcome":"{outcome}","access":"read","uid":1,"pid":7,"path":"{path}""#
        );
        record(1, &more)
    };
    let lookup = |path: &str| open("would-refuse", path).replace("open", "lookup");
    let mut text = [
        open("would-refuse", "src/.env"),
        open("passthrough", "src/.env"),
        lookup("keys"),
        open("passthrough", "keys/id_rsa"),
    ]
    .concat();
    (0..30).for_each(|n| text += &open("passthrough", &format!("src/{n}")));
    (0..30).for_each(|n| text += &open("passthrough", &format!("doc/{n}")));
    std::fs::write(&log, &text).unwrap();
    let learned = || tollgate(&["learn", log.to_str().unwrap()]);
    let out = learned();
    assert!(out.status.success(), "{}", self::text(&out.stderr));
    let file = dir.path().join("learned.toml");
    std::fs::write(&file, &out.stdout).unwrap();
    std::fs::create_dir_all(dir.path().join("d")).unwrap();
    let file = file.to_str().unwrap();
    let asked = dir.path().join("d");
    let reads = |path: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["explain", "--operation", "read", "--exit-code", "--policy", file, path]);
        command.current_dir(&asked).output().unwrap().status.code() == Some(0)
    };
    assert!(reads("src/1") && reads("doc/1"), "{}", self::text(&out.stdout));
    assert!(!reads("src/.env") && !reads("keys/id_rsa"), "{}", self::text(&out.stdout));
    // Records without paths do not say what else is to be left out.
    let counted = r#""event":"repeated","count":9,"operation":"open","outcome":"would-refuse","access":"read","uid":1,"pid":7"#;
    std::fs::write(&log, text + &record(2, counted)).unwrap();
    let out = learned();
    assert_eq!(out.status.code(), Some(1));
    assert!(self::text(&out.stderr).contains("9 records of what would have been refused"));
}

/// One of them may have been of what another run granted.
#[test]
fn refusals_without_paths_are_not_taken_with_what_another_policy_granted() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let granted = record(1, &format!(r#""event":"request",{GRANTED}"s1""#));
    let counted = r#""event":"repeated","count":9,"operation":"open","outcome":"refused","errno":"EACCES","access":"read","uid":1,"pid":7"#;
    let counted = record(2, counted);
    let other = counted.replace(RUN, "0123456789abcdef");
    let reload = record(2, r#""event":"reload","dir":"/project""#);
    for (records, is_taken) in [
        (granted.clone() + &counted, true),
        (granted.clone() + &other, false),
        (granted.clone() + &reload + &counted, false),
    ] {
        std::fs::write(&log, records).unwrap();
        let out = tollgate(&["learn", log.to_str().unwrap()]);
        assert_eq!(out.status.success(), is_taken, "{out:?}");
        let said = text(&out.stderr).contains("9 refusals were counted without their paths");
        assert_eq!(said, !is_taken, "{out:?}");
    }
}

/// With `passthrough` the lower file would show: what is masked, or the bytes that are sealed.
#[test]
fn what_was_masked_or_sealed_is_not_learned() {
    let opened = |content: &str, path: &str| {
        let userspace = GRANTED.replace("passthrough", "userspace");
        format!(r#""content":"{content}",{userspace}"{path}""#)
    };
    let mut records = vec![
        opened("redacted", "a/masked"),
        opened("sealed", "a/.tmp"),
        r#""operation":"rename","outcome":"done","uid":1,"pid":7,"path":"a/.tmp","to":"a/sealed""#.into(),
        r#""operation":"damaged","outcome":"failed","errno":"EIO","uid":1,"pid":7,"path":"a/torn""#.into(),
        opened("watched", "a/watched"),
        r#""operation":"rename","outcome":"done","uid":1,"pid":7,"path":"a/watched","to":"a/moved""#.into(),
    ];
    records.extend((0..30).map(|n| format!(r#"{GRANTED}"a/{n}""#)));
    let learned = Learned::from(&records.iter().map(String::as_str).collect::<Vec<_>>());
    for path in ["a/masked", "a/.tmp", "a/sealed", "a/torn"] {
        let allowed = ["read", "write", "create"].map(|what| learned.allows(what, path));
        assert_eq!(allowed, [false; 3], "{path}: {}", learned.text);
    }
    assert!(learned.allows("read", "a/7") && learned.allows("write", "a/watched"));
    assert!(
        learned.text.contains("#   masked a/masked: 1 time, by the default\n"),
        "{}",
        learned.text
    );
    assert!(
        learned.text.contains("#   sealed a/.tmp: 1 time, by the default\n"),
        "{}",
        learned.text
    );
    assert!(!learned.allows("read", "a/moved"), "it was not read: {}", learned.text);
    for path in ["a/watched", "a/moved"] {
        let policy = learned.dir.path().join("learned.toml");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["explain", "--policy"]).arg(policy).arg(path);
        let out = command.current_dir(learned.dir.path().join("d")).output().unwrap();
        assert!(text(&out.stdout).contains("userspace"), "{path}: {out:?}\n{}", learned.text);
    }
}

/// The strictest name of a file decides, also one that nobody used.
#[test]
fn further_names_of_what_was_used_are_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let (log, top) = (dir.path().join("log"), dir.path().join("d"));
    std::fs::create_dir(&top).unwrap();
    for name in ["one", "both", "alone"] {
        std::fs::write(top.join(name), "x").unwrap();
    }
    std::fs::hard_link(top.join("one"), top.join("other")).unwrap();
    std::fs::hard_link(top.join("both"), top.join("both too")).unwrap();
    let start = record(1, &format!(r#""event":"start","dir":"{}""#, top.display()));
    let names = ["one", "both", "both too", "alone"];
    let used = names.map(|name| record(2, &format!(r#""event":"request",{GRANTED}"{name}""#)));
    std::fs::write(&log, start + &used.concat()).unwrap();
    let learned = text(&tollgate(&["learn", log.to_str().unwrap()]).stdout);
    let (_, told) = learned.split_once("not all names in DIR").expect(&learned);
    let told: Vec<_> = told.lines().skip(1).map_while(|line| line.strip_prefix("#   ")).collect();
    assert_eq!(told, ["one"], "{learned}");
}

#[test]
fn records_that_are_in_no_log_are_told_of() {
    const ENDLESS: &str = "1 run without an end in the logs, so something may be missing: a server \
                           goes on, was killed, or could not write.";
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let granted = record(1, &format!(r#""event":"request",{GRANTED}"a""#));
    let told = record(2, r#""event":"failed","count":7,"total":7"#);
    let end = |more: &str| record(3, &format!(r#""event":"stop","written":1,{more}"#));
    let (unwritten, dropped) = ("lost: the log could not be written", "dropped by the server");
    let cases = [
        (granted.clone() + &end(r#""dropped":0,"failed":0"#), vec![], vec![]),
        (
            granted.clone() + &told + &end(r#""dropped":0,"failed":7"#),
            vec![format!("7 records were {unwritten}")],
            vec!["7 records that could not be written"],
        ),
        (
            granted.clone() + &end(r#""dropped":3,"failed":9"#),
            vec![format!("3 records were {dropped}"), format!("9 records were {unwritten}")],
            vec!["3 records that were dropped", "9 records that could not be written"],
        ),
        (
            granted.clone() + &end(r#""dropped":1,"failed":1"#),
            vec![format!("1 record was {dropped}"), format!("1 record was {unwritten}")],
            vec!["1 record that was dropped", "1 record that could not be written"],
        ),
        // The end says how many in all.
        (
            granted.clone() + &told,
            vec![format!("at least 7 records were {unwritten}"), ENDLESS.to_owned()],
            vec!["7 records that could not be written", ENDLESS],
        ),
    ];
    for (records, viewed, said) in cases {
        std::fs::write(&log, &records).unwrap();
        let shown = shown(&log, &[]);
        let (_, last) = shown.split_once("begun: passthrough 1\n").expect(&shown);
        assert_eq!(last.lines().collect::<Vec<_>>(), viewed, "{shown}");
        let learned = text(&tollgate(&["learn", log.to_str().unwrap()]).stdout);
        let all = learned.lines().filter_map(|line| line.strip_prefix("# "));
        let about = |line: &&str| line.contains("something may be missing");
        let all = all.filter(about).map(|line| {
            let lacking = line.strip_prefix("The logs lack ");
            lacking
                .and_then(|rest| rest.strip_suffix(": something may be missing."))
                .unwrap_or(line)
        });
        assert_eq!(all.collect::<Vec<_>>(), said, "{learned}");
    }
}

/// A project whose log has a policy learned from it, and answers by that.
struct Learned {
    dir: tempfile::TempDir,
    text: String,
}

impl Learned {
    fn from(records: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (log, file) = (dir.path().join("log"), dir.path().join("learned.toml"));
        let lines = records.iter().map(|more| record(1, &format!(r#""event":"request",{more}"#)));
        std::fs::write(&log, lines.collect::<String>()).unwrap();
        let out = tollgate(&["learn", log.to_str().unwrap()]);
        assert!(out.status.success(), "{}", text(&out.stderr));
        std::fs::write(&file, &out.stdout).unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        Self { text: text(&out.stdout), dir }
    }

    /// Whether the policy allows it.
    fn allows(&self, operation: &str, path: impl AsRef<OsStr>) -> bool {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["explain", "--exit-code", "--operation", operation, "--policy"]);
        command.arg(self.dir.path().join("learned.toml")).arg(path);
        let out = command.current_dir(self.dir.path().join("d")).output().unwrap();
        match out.status.code() {
            Some(0) => true,
            Some(3) => false,
            _ => panic!("{out:?}\n{}", self.text),
        }
    }
}

const GRANTED: &str =
    r#""operation":"open","outcome":"passthrough","access":"read+write","uid":1,"pid":7,"path":"#;
const REFUSED: &str = r#""operation":"open","outcome":"refused","errno":"EACCES","access":"read","uid":1,"pid":7,"rule":"t","path":"#;

/// As before and after a reload that made the policy stricter.
#[test]
fn what_was_refused_at_one_time_is_not_learned_from_another() {
    let hidden = REFUSED.replace("open", "lookup");
    let move_of = |outcome: &str, from: &str, to: &str| {
        format!(r#""operation":"rename",{outcome},"uid":1,"pid":7,"path":"{from}","to":"{to}""#)
    };
    let records = [
        format!(r#"{GRANTED}".env""#),
        format!(r#"{GRANTED}"conf/key""#),
        format!(r#"{REFUSED}".env""#),
        format!(r#"{hidden}"conf""#),
        format!(r#"{GRANTED}"a""#),
        // Where a move would open more, it is copied.
        move_of(r#""outcome":"refused","errno":"EXDEV""#, "old", "new"),
        format!(r#"{GRANTED}"new""#),
        move_of(r#""outcome":"done""#, "old", "older"),
    ];
    let learned = Learned::from(&records.each_ref().map(String::as_str));
    assert!(learned.allows("read", "a") && learned.allows("write", "old"), "{}", learned.text);
    assert!(learned.allows("write", "new") && learned.allows("write", ".env"), "{}", learned.text);
    assert!(!learned.allows("read", ".env"), "{}", learned.text);
    assert!(!learned.allows("read", "conf/key"), "{}", learned.text);
    let both = "# Granted at one time and refused at another";
    let (_, said) = learned.text.split_once(both).expect(&learned.text);
    assert!(said.contains("#   read of .env\n"), "{}", learned.text);
    assert!(said.contains("#   read, write of conf/key\n"), "{}", learned.text);
}

/// `!` takes nothing back and `~` is no home in a policy, and whoever writes them so is warned.
#[test]
fn names_that_begin_as_other_things_do_are_learned_without_a_warning() {
    let records = ["!x", "~", "~/y", "$HOME/z", "a!"].map(|path| format!(r#"{GRANTED}"{path}""#));
    let refused = format!(r#"{REFUSED}"!key""#);
    let all = records.iter().map(String::as_str).chain([refused.as_str()]);
    let learned = Learned::from(&all.collect::<Vec<_>>());
    for path in ["!x", "~", "~/y", "$HOME/z", "a!"] {
        assert!(learned.allows("read", path), "{path}: {}", learned.text);
    }
    assert!(!learned.allows("read", "!key") && !learned.allows("read", "x"), "{}", learned.text);
    let file = learned.dir.path().join("learned.toml");
    let checked = tollgate(&["check", file.to_str().unwrap()]);
    assert_eq!((checked.status.success(), text(&checked.stderr).as_str()), (true, ""));
}

/// What is in it is another matter.
#[test]
fn what_a_directory_was_refused_is_not_learned_from_what_is_in_it() {
    let record = |operation: &str, outcome: &str, path: &str| {
        format!(r#""operation":"{operation}","outcome":{outcome},"uid":1,"pid":7,"path":"{path}""#)
    };
    let (done, refused) = (r#""done""#, r#""refused","errno":"EACCES""#);
    let made = r#""passthrough","access":"write""#;
    let records = [
        record("mkdir", done, "a"),
        record("chmod", done, "a"),
        record("create", made, "a/b/f"),
        record("mkdir", done, "a/b/c"),
        record("chmod", done, "a/b/c"),
        record("create", made, "a/b/c/d/e/f"),
        record("chmod", done, "a/b/c/d/e"),
        record("chmod", refused, "a/b"),
        record("mkdir", refused, "a/b"),
        record("rmdir", refused, "a/b/c/d"),
    ];
    let learned = Learned::from(&records.each_ref().map(String::as_str));
    for (path, writes, creates) in [
        ("a/", true, true),
        ("a/other/", true, true),
        ("a/b/", false, false),
        ("a/b/f", true, true),
        ("a/b/c/", true, true),
        ("a/b/c/d/", false, true),
        ("a/b/c/d/e/", true, true),
        ("a/b/c/d/e/f", true, true),
    ] {
        let allowed = ["write", "create"].map(|operation| learned.allows(operation, path));
        assert_eq!(allowed, [writes, creates], "{path}: {}", learned.text);
    }
}

#[test]
fn a_listing_that_was_refused_is_not_learned() {
    let refused =
        |operation: &str, path: &str| REFUSED.replace("open", operation) + &format!("\"{path}\"");
    let granted = format!(r#"{GRANTED}"src/a""#);
    let lists = |records: &[&str], path: &str| {
        let learned = Learned::from(&[&[granted.as_str()], records].concat());
        learned.allows("list", path)
    };
    let (of_docs, of_dir) = (refused("opendir", "docs"), refused("opendir", ""));
    let hidden = refused("lookup", "conf");
    let all = [of_docs.as_str(), hidden.as_str()];
    assert!(lists(&all, "src/") && lists(&all, "."));
    assert!(!lists(&all, "docs/") && !lists(&all, "conf/"));
    assert!(!lists(&[&of_dir], ".") && lists(&[&of_dir], "src/"));
}

/// Names are bytes: a glob for what was refused has to match the very name.
#[test]
fn a_refused_name_that_is_not_utf8_or_was_cut_stays_refused() {
    let refused = |path: &str, more: &str| format!(r#"{REFUSED}"{path}",{more}"#);
    let long = format!("deep/{}", "x".repeat(100));
    let records = [
        format!(r#"{GRANTED}"a""#),
        refused("l\u{fffd}", r#""path_hex":"6cff""#),
        refused("src/\u{fffd}\u{e9}\u{fffd}", r#""path_hex":"7372632fffc3a9fe""#),
        refused(&long, r#""path_length":1040"#),
        // A character is cut in two.
        refused("cut/\u{fffd}", r#""path_hex":"6375742fc3","path_length":1040"#),
        refused(&"n/".repeat(70), r#""path_length":1040"#),
    ];
    let learned = Learned::from(&records.each_ref().map(String::as_str));
    let d = learned.dir.path().join("d");
    for directory in ["src", "deep", "cut", "other"] {
        std::fs::create_dir(d.join(directory)).unwrap();
    }
    let follows = |name: &[u8]| {
        let link = d.join(OsStr::from_bytes(name));
        std::os::unix::fs::symlink("a", &link).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["explain", "--exit-code", "--operation", "read", "--dir"]).arg(&d);
        command.arg("--policy").arg(learned.dir.path().join("learned.toml")).arg(&link);
        let out = command.output().unwrap();
        assert!(matches!(out.status.code(), Some(0 | 3)), "{out:?}");
        out.status.success()
    };
    let (longer, other) = (format!("{long}yz"), format!("{}z", &long[..long.len() - 1]));
    let all = [&b"l\xff"[..], b"src/\xff\xc3\xa9\xfe", b"cut/\xc3\xbc", b"cut/\xc3\xa9z"];
    for name in all.into_iter().chain([longer.as_bytes()]) {
        assert!(!follows(name), "{}\n{}", name.escape_ascii(), learned.text);
    }
    for name in [&b"lx"[..], b"l", b"src/x\xc3\xa9y", b"other/l", other.as_bytes()] {
        assert!(follows(name), "{}\n{}", name.escape_ascii(), learned.text);
    }
    for said in
        ["open l\\xff: 1 time, by t\n", "open src/\\xffé\\xfe: 1 time,", "xx...: 1 time, by t\n"]
    {
        assert!(learned.text.contains(said), "{said}: {}", learned.text);
    }
}

/// A glob has 62 names at most.
#[test]
fn paths_that_no_glob_can_name_are_left_out() {
    let deep = "n/".repeat(70) + "file";
    let learned = Learned::from(&[
        &format!(r#"{GRANTED}"a""#),
        &format!(r#"{GRANTED}"{deep}""#),
        &format!(r#"{GRANTED}"a\ufffd","path_hex":"61ff""#),
    ]);
    assert!(learned.text.contains("# Left out: 2 records of paths that"), "{}", learned.text);
    assert!(learned.allows("read", "a") && !learned.allows("read", deep));
}

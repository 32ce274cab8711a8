//! Files that are sealed and exported, and what they keep.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::harness::{Mounted, Place, fails, ok};
use crate::mounting;

#[test]
fn files_are_sealed_checked_exported_and_keep_what_they_are() {
    let place = Place::new();
    let plan = place.path("vault/plan");
    let plain = fs::read(&plan).unwrap();
    fs::set_permissions(&plan, fs::Permissions::from_mode(0o640)).unwrap();
    let before = fs::metadata(&plan).unwrap();
    fails(&place.seal(&["convert", "--domain", "vault"]), &["name the files"]);
    let said = place.vault("convert", &["--dry-run"]);
    assert!(ok(&said).contains("2 files to be sealed"), "{said:?}");
    assert_eq!(fs::read(&plan).unwrap(), plain);
    assert!(ok(&place.vault("convert", &[])).contains("2 files sealed"));
    let bytes = fs::read(&plan).unwrap();
    assert!(bytes.starts_with(b"TGSEALED") && !bytes.windows(8).any(|text| text == b"the plan"));
    let after = fs::metadata(&plan).unwrap();
    let kept = |of: &fs::Metadata| (of.mode(), of.uid(), of.gid(), of.mtime(), of.mtime_nsec());
    assert_eq!(kept(&after), kept(&before));
    assert!(ok(&place.vault("convert", &[])).contains("2 files sealed already"));
    assert!(ok(&place.vault("check", &[])).contains("2 files good"));
    assert_eq!(place.exported(), plain);
    let json: serde_json::Value =
        serde_json::from_str(ok(&place.vault("check", &["--json"]))).unwrap();
    assert_eq!((&json["done"], json["wrong"].as_array().unwrap().len()), (&2.into(), 0));
    let left: Vec<_> = fs::read_dir(place.path("vault")).unwrap().collect();
    assert_eq!(left.len(), 2);
}

#[test]
fn an_export_names_what_is_no_file() {
    let place = Place::new();
    ok(&place.vault("convert", &[]));
    let to = tempfile::tempdir().unwrap();
    let export =
        |name: &str| place.vault("export", &["--to", to.path().join(name).to_str().unwrap()]);
    assert!(!all(&export("a")).contains("left out"));
    symlink("plan", place.path("vault/link")).unwrap();
    fs::create_dir_all(place.path("vault/hollow/inner")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        place.path("vault/pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    let said = export("b");
    assert!(ok(&said).contains("2 files written plain"), "{said:?}");
    let left = "left out: 1 symbolic link, 1 empty directory, 1 FIFO, socket or device";
    assert!(all(&said).contains(left), "{said:?}");
}

fn all(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whoever may write to DEST cannot have plain copies written elsewhere.
#[test]
fn an_export_follows_no_link_inside_its_destination() {
    let place = Place::new();
    ok(&place.vault("convert", &[]));
    let (to, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let named = place.path("vault/deep");
    fs::create_dir(&named).unwrap();
    fs::rename(place.path("vault/plan"), named.join("plan")).unwrap();
    symlink(elsewhere.path(), to.path().join("deep")).unwrap();
    let args = ["--to", to.path().to_str().unwrap()];
    fails(&place.vault("export", &args), &["deep is no directory", "symbolic links"]);
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    // DEST itself may be one, as the one who calls has named it.
    let link = elsewhere.path().join("link");
    fs::remove_file(to.path().join("deep")).unwrap();
    symlink(to.path(), &link).unwrap();
    let other = link.join("new");
    ok(&place.vault("export", &["--to", other.to_str().unwrap()]));
    assert!(to.path().join("new/deep/plan").is_file());
    let said = ["plan is there already", "remove it, or name another directory by --to"];
    fails(&place.vault("export", &["--to", other.to_str().unwrap()]), &said);
    let file = to.path().join("new/deep/plan");
    fails(&place.vault("export", &["--to", file.to_str().unwrap()]), &["--to names a directory"]);
}

/// By commands that only look, and by those that put a new file in its place.
#[test]
fn the_time_of_access_is_kept() {
    let place = Place::new();
    let long_ago = SystemTime::now() - Duration::from_secs(90_000);
    let plan = place.path("vault/plan");
    File::options()
        .write(true)
        .open(&plan)
        .unwrap()
        .set_times(fs::FileTimes::new().set_accessed(long_ago).set_modified(long_ago))
        .unwrap();
    let accessed = |path: &Path| fs::metadata(path).unwrap().accessed().unwrap();
    let before = accessed(&plan);
    let to = tempfile::tempdir().unwrap();
    let to = to.path();
    for (command, arguments) in [
        ("convert", &["--dry-run"][..]),
        ("convert", &[]),
        ("check", &[]),
        ("export", &["--to", to.to_str().unwrap()]),
        ("rotate", &[]),
    ] {
        ok(&place.vault(command, arguments));
        assert_eq!(accessed(&plan), before, "{command} {arguments:?}");
    }
    assert_eq!(accessed(&to.join("plan")), before);
}

#[test]
fn extended_attributes_are_kept() {
    let place = Place::new();
    let file = File::open(place.path("vault/plan")).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    match rustix::fs::fsetxattr(&file, "user.note", b"keep me", flags) {
        Err(rustix::io::Errno::OPNOTSUPP) => return,
        set => set.unwrap(),
    }
    drop(file);
    ok(&place.vault("convert", &[]));
    let mut value = [0; 20];
    let sealed = File::open(place.path("vault/plan")).unwrap();
    let length = rustix::fs::fgetxattr(&sealed, "user.note", &mut value[..]).unwrap();
    assert_eq!(&value[..length], b"keep me");
}

#[test]
fn holes_stay_holes() {
    let place = Place::new();
    let file = File::create(place.path("vault/sparse")).unwrap();
    file.set_len(1 << 40).unwrap();
    std::os::unix::fs::FileExt::write_at(&file, b"end", (1 << 40) - 3).unwrap();
    drop(file);
    ok(&place.vault("convert", &[]));
    assert!(fs::metadata(place.path("vault/sparse")).unwrap().blocks() < 1000);
    ok(&place.vault("check", &[]));
    let to = place.path("out");
    ok(&place.vault("export", &["--to", to.to_str().unwrap()]));
    let found = fs::metadata(to.join("sparse")).unwrap();
    assert!(found.len() == 1 << 40 && found.blocks() < 1000, "{found:?}");
}

/// Exactly what the rules say, each file for the domain of its rule; and back.
#[test]
fn a_policy_says_which_files_are_sealed_and_for_what() {
    let place = Place::new();
    for name in ["notes/deep/a", "notes/public.md", "open/b", "vault/hidden", "vault/masked"] {
        let path = place.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
    let rule =
        |path: &str, rest: &str| format!("[[rule]]\npath = '{path}'\nkind = 'file'\n{rest}\n");
    let policy = [
        rule("vault/hidden", "action = 'hide'"),
        rule("vault/masked", "action = 'redact'"),
        rule("notes/*.md", "action = 'passthrough'"),
        rule("notes/**", "action = 'seal'\ndomain = 'notes'"),
        rule("vault/**", "action = 'seal'\ndomain = 'vault'"),
        rule("*.toml", "action = 'seal'\ndomain = 'vault'"),
    ];
    fs::write(place.path("p.toml"), policy.concat()).unwrap();
    let by_policy = |command: &[&str]| {
        let said = place.seal(&[command, &["--policy", "p.toml"]].concat());
        (ok(&said).to_owned(), String::from_utf8_lossy(&said.stderr).into_owned())
    };
    let all = |name: &str| fs::read(place.path(name)).unwrap();
    let said = by_policy(&["convert", "--dry-run"]);
    assert_eq!(said.0, "3 files to be sealed\n5 files left out\n", "{}", said.1);
    assert_eq!(by_policy(&["convert"]).0, "3 files sealed\n5 files left out\n");
    assert_eq!(
        by_policy(&["convert"]).0,
        "0 files sealed\n3 files sealed already\n5 files left out\n"
    );
    for name in ["vault/plan", "vault/empty", "notes/deep/a"] {
        assert!(all(name).starts_with(b"TGSEALED"), "{name}");
    }
    for name in ["notes/public.md", "open/b", "vault/hidden", "vault/masked"] {
        assert_eq!(all(name), name.as_bytes());
    }
    assert_eq!(by_policy(&["check"]).0, "3 files good\n5 files left out\n");
    ok(&place.seal(&["check", "--domain", "notes", "notes/deep"]));
    ok(&place.seal(&["check", "--domain", "vault", "vault/plan"]));
    by_policy(&["rotate"]);
    let to = tempfile::tempdir().unwrap();
    let exported = by_policy(&["export", "--to", to.path().to_str().unwrap()]);
    assert_eq!(exported.0, "3 files written plain\n5 files left out\n");
    assert_eq!(fs::read(to.path().join("notes/deep/a")).unwrap(), b"notes/deep/a");
    assert!(!to.path().join("open").exists());
    // What is plain though its rule says `seal`.
    fs::write(place.path("vault/new"), "plain").unwrap();
    fails(&place.seal(&["check", "--policy", "p.toml"]), &["vault/new", "is plain"]);
    fs::write(place.path("none.toml"), "default = 'passthrough'\n").unwrap();
    fails(
        &place.seal(&["convert", "--policy", "none.toml"]),
        &["none.toml", "no rule", "--domain"],
    );
    for wrong in [&["check", "--policy", "p.toml", "--domain", "vault"][..], &["check", "vault"]] {
        assert_eq!(place.seal(wrong).status.code(), Some(2));
    }
}

/// As a view does.
#[test]
fn a_rule_that_only_records_hides_no_file_that_is_to_be_sealed() {
    let place = Place::new();
    let policy = "[[rule]]\npath = 'vault/plan'\naction = 'hide'\nmode = 'audit'\n\
                  [[rule]]\npath = 'vault/**'\nkind = 'file'\naction = 'seal'\ndomain = 'vault'\n";
    fs::write(place.path("p.toml"), policy).unwrap();
    let said = place.seal(&["convert", "--dry-run", "--policy", "p.toml"]);
    assert_eq!(ok(&said), "2 files to be sealed\n1 file left out\n");
}

/// They are those by which `run` shows it.
#[test]
fn the_directory_of_a_view_is_sealed_by_the_rules_of_that() {
    let place = Place::new();
    let seal = |table: &str, path: &str, domain: &str| {
        format!(
            "[[{table}]]\npath = '{path}'\nkind = 'file'\naction = 'seal'\ndomain = '{domain}'\n"
        )
    };
    let view = format!("[[view]]\ndir = '{}'\n", place.path("vault").to_str().unwrap());
    let policy = seal("rule", "**", "all") + &view + &seal("view.rule", "plan", "plans");
    fs::write(place.path("p.toml"), policy).unwrap();
    ok(&place.bare(&["init", "--new-key-file", &place.key(), "vault"]));
    let named = ["--policy", "p.toml", "--dir", "vault"];
    let by_policy = |command: &[&str]| place.seal(&[command, &named].concat());
    let said = by_policy(&["convert", "--dry-run"]);
    assert_eq!(ok(&said), "1 file to be sealed\n1 file left out\n");
    assert_eq!(ok(&by_policy(&["convert"])), "1 file sealed\n1 file left out\n");
    ok(&place.seal(&["check", "--dir", "vault", "--domain", "plans", "vault/plan"]));
}

/// A path that leads through a descriptor of the program says nothing to anybody else.
#[test]
fn a_directory_that_is_read_only_is_named_by_its_files() {
    if !mounting::can_mount() {
        return;
    }
    let place = Place::new();
    let vault = place.path("vault");
    let _bound = Mounted::new(vault.clone(), &["--bind", vault.to_str().unwrap()]);
    let said = Command::new("mount").args(["-o", "remount,bind,ro"]).arg(&vault).output().unwrap();
    assert!(said.status.success(), "{said:?}");
    let said = place.vault("convert", &[]);
    fails(&said, &["vault/plan: no file can be made beside it", "Read-only file system"]);
    assert!(!String::from_utf8_lossy(&said.stderr).contains("/proc/"), "{said:?}");
}

/// Two names that differ in a byte that is not UTF-8 are shown as two.
#[test]
fn names_that_are_not_text_can_be_told_apart() {
    let place = Place::new();
    let name = |byte: u8| OsString::from_vec(vec![b'a', byte]);
    for byte in [0xfe, 0xff] {
        fs::write(place.path("vault").join(name(byte)), "plain").unwrap();
    }
    let said = place.vault("check", &[]);
    fails(&said, &["vault/a\\xfe: is plain", "vault/a\\xff: is plain"]);
    let said = place.vault("check", &["--json"]);
    let json: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    let wrong = json["wrong"].as_array().unwrap();
    let hex = wrong.iter().filter_map(|file| file["file_hex"].as_str());
    assert_eq!(hex.collect::<Vec<_>>(), ["7661756c742f61fe", "7661756c742f61ff"], "{json}");
}

#[test]
fn files_that_cannot_be_replaced_stay_as_they_are() {
    let place = Place::new();
    fs::hard_link(place.path("vault/plan"), place.path("vault/same")).unwrap();
    for more in [&["--dry-run"][..], &[]] {
        let said = place.vault("convert", more);
        fails(&said, &["vault/plan", "vault/same", "2 names", "2 files could not be done"]);
    }
    fs::remove_file(place.path("vault/same")).unwrap();
    let held = File::options().append(true).open(place.path("vault/plan")).unwrap();
    for more in [&["--dry-run"][..], &[]] {
        let said = place.vault("convert", more);
        fails(&said, &["vault/plan", "open for writing elsewhere"]);
    }
    assert!(fs::read(place.path("vault/plan")).unwrap().starts_with(b"the plan"));
    drop(held);
    std::os::unix::fs::symlink("plan", place.path("vault/link")).unwrap();
    ok(&place.vault("convert", &[]));
    assert!(fs::symlink_metadata(place.path("vault/link")).unwrap().is_symlink());
    fails(
        &place.seal(&["convert", "--domain", "vault", "vault/link"]),
        &["vault/link", "symbolic link"],
    );
    fails(&place.seal(&["convert", "--domain", "vault", "vault/plam"]), &["vault/plam"]);
}

#[test]
fn a_file_that_is_named_twice_is_visited_once() {
    let place = Place::new();
    std::os::unix::fs::symlink("vault", place.path("way")).unwrap();
    let paths = ["vault", "vault/plan", "./vault/../vault", "way/plan", "way/", "."];
    let run = |command: &[&str]| {
        let output = place.seal(&[command, &["--domain", "vault"], &paths].concat());
        ok(&output).to_owned()
    };
    assert_eq!(run(&["convert"]), "2 files sealed\n");
    assert_eq!(run(&["rotate"]), "2 files sealed anew, epoch 2\n");
    assert_eq!(run(&["check"]), "2 files good\n");
    let to = tempfile::tempdir().unwrap();
    assert_eq!(run(&["export", "--to", to.path().to_str().unwrap()]), "2 files written plain\n");
}

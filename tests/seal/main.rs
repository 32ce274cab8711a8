//! `tollgate seal` from outside: keyrings, files, and everything that can be wrong with them.

#[path = "../support/mounting.rs"]
mod mounting;
mod moved;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, StatxFlags};
use tempfile::TempDir;

/// A directory with a keyring that a key file and a passphrase open, and files below `vault`.
struct Place {
    dir: TempDir,
    keys: TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { dir: tempfile::tempdir().unwrap(), keys: tempfile::tempdir().unwrap() };
        fs::create_dir(place.path("vault")).unwrap();
        fs::write(place.path("vault/plan"), b"the plan ".repeat(3000)).unwrap();
        fs::write(place.path("vault/empty"), b"").unwrap();
        let dir = place.dir.path().to_str().unwrap();
        ok(&place.bare(&["init", "--new-key-file", &place.key(), dir]));
        place
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    fn key(&self) -> String {
        self.keys.path().join("key").to_str().unwrap().to_owned()
    }

    /// A file for a passphrase.
    fn word(&self, name: &str, text: &str) -> String {
        let path = self.keys.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn bare(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        for name in ["TOLLGATE_SEAL_KEY_FILE", "TOLLGATE_SEAL_PASSPHRASE_FILE"] {
            command.env_remove(name);
        }
        command.env_remove("CREDENTIALS_DIRECTORY").current_dir(self.dir.path());
        command.arg("seal").args(arguments);
        command
    }

    fn seal(&self, arguments: &[&str]) -> Output {
        self.bare(&[arguments, &["--key-file", &self.key()]].concat())
    }

    fn vault(&self, command: &str, arguments: &[&str]) -> Output {
        let domain = ["--domain", "vault", "vault"];
        self.seal(&[&[command][..], &domain, arguments].concat())
    }

    /// What a kill leaves beside the files, where the keyring is on another mount: the path.
    fn left_behind(&self, random: &str, content: &[u8]) -> PathBuf {
        let path = self.path("vault/half");
        fs::write(&path, content).unwrap();
        let wanted = StatxFlags::INO | StatxFlags::BTIME;
        let found = rustix::fs::statx(CWD, &path, AtFlags::empty(), wanted).unwrap();
        let born = found.stx_btime.tv_sec * 1_000_000_000 + i64::from(found.stx_btime.tv_nsec);
        let named = format!("vault/.tollgate-sealing-{random}-{:x}-{born:x}", found.stx_ino);
        fs::rename(path, self.path(&named)).unwrap();
        self.path(&named)
    }

    fn exported(&self) -> Vec<u8> {
        let to = tempfile::tempdir().unwrap();
        ok(&self.vault("export", &["--to", to.path().to_str().unwrap()]));
        fs::read(to.path().join("plan")).unwrap()
    }
}

fn ok(output: &Output) -> &str {
    assert!(output.status.success(), "{output:?}");
    std::str::from_utf8(&output.stdout).unwrap()
}

/// Fails with status 1, and says all of `texts`.
fn fails(output: &Output, texts: &[&str]) {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(texts.iter().all(|text| said.contains(text)), "{texts:?} in {said}");
}

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

#[test]
fn recipients_come_and_go_and_passphrases_change_without_touching_files() {
    let place = Place::new();
    ok(&place.vault("convert", &[]));
    let sealed = fs::read(place.path("vault/plan")).unwrap();
    let (one, two) = (place.word("one", "horse\n"), place.word("two", "battery\n"));
    let cheap = ["--memory-mib", "1"];
    let add = ["add", "--name", "anna", "--new-passphrase-file", &one];
    ok(&place.seal(&[&add[..], &cheap].concat()));
    fails(&place.seal(&[&add[..], &cheap].concat()), &["`anna` is taken"]);
    let with = |file: &str| {
        place.bare(&["check", "--domain", "vault", "vault", "--passphrase-file", file])
    };
    ok(&with(&one));
    let passwd =
        ["passwd", "--name", "anna", "--passphrase-file", &one, "--new-passphrase-file", &two];
    ok(&place.bare(&[&passwd[..], &cheap].concat()));
    ok(&with(&two));
    fails(&with(&one), &["passphrase", ".tollgate-seal", "1 recipient", "rejected"]);
    fails(
        &place.seal(&["add", "--remove", "ben"]),
        &["no recipient `ben`", "the keyring has owner, anna"],
    );
    let nobody = ["passwd", "--name", "ben", "--new-passphrase-file", &one];
    fails(&place.seal(&nobody), &["no recipient `ben`", "the keyring has owner, anna"]);
    ok(&place.seal(&["add", "--remove", "anna"]));
    fails(&place.seal(&["add", "--remove", "owner"]), &["`owner` is the last recipient"]);
    assert_eq!(fs::read(place.path("vault/plan")).unwrap(), sealed);
}

/// A job has no terminal: the options that take its place are named as the command has them.
#[test]
fn without_a_terminal_options_are_named() {
    let place = Place::new();
    fs::create_dir(place.path("new")).unwrap();
    let check = &["check", "--domain", "vault", "vault"][..];
    for (arguments, options) in [
        (&["init", "new"][..], "--new-passphrase-file or --new-key-file"),
        (check, "--seal-passphrase-file or --seal-key-file"),
    ] {
        let mut command = Command::new("setsid");
        command.args(["--wait", env!("CARGO_BIN_EXE_tollgate"), "seal"]).args(arguments);
        for name in ["TOLLGATE_SEAL_KEY_FILE", "TOLLGATE_SEAL_PASSPHRASE_FILE"] {
            command.env_remove(name);
        }
        command.env_remove("CREDENTIALS_DIRECTORY").current_dir(place.dir.path());
        fails(&command.output().unwrap(), &["no terminal", options]);
    }
}

#[test]
fn rotation_seals_anew_and_goes_on_where_it_was_ended() {
    let place = Place::new();
    ok(&place.vault("convert", &[]));
    let plain = place.exported();
    let old = fs::read(place.path("vault/plan")).unwrap();
    assert!(ok(&place.vault("rotate", &[])).contains("2 files sealed anew, epoch 2"));
    assert_ne!(fs::read(place.path("vault/plan")).unwrap(), old);
    assert_eq!(place.exported(), plain);
    // As a kill between two files leaves it: one of the old epoch, and a file not complete.
    fs::write(place.path("vault/plan"), old).unwrap();
    let half = place.left_behind("0123456789abcXYZ", b"TGSEALED half");
    let said = place.vault("rotate", &[]);
    assert!(ok(&said).contains("1 file sealed anew, epoch 2"), "{said:?}");
    assert!(!half.exists());
    assert_eq!(place.exported(), plain);
}

/// As damage, or a hand that wrote without the view, leaves them.
#[test]
fn what_should_be_sealed_and_is_plain_is_named_by_every_command() {
    let place = Place::new();
    ok(&place.vault("convert", &[]));
    let policy = "[[rule]]\npath = 'vault/**'\nkind = 'file'\naction = 'seal'\ndomain = 'vault'\n";
    fs::write(place.path("p.toml"), policy).unwrap();
    fs::write(place.path("vault/cut"), "").unwrap();
    fs::write(place.path("vault/over"), "over").unwrap();
    let to = tempfile::tempdir().unwrap();
    let to = |name: &str| to.path().join(name).to_str().unwrap().to_owned();
    let named = ["vault/cut", "vault/over", "is plain", "2 files could not be done"];
    let done = |said: &Output| String::from_utf8_lossy(&said.stdout).into_owned();
    let said = place.vault("rotate", &[]);
    fails(&said, &named);
    assert_eq!(done(&said), "2 files sealed anew, epoch 2\n");
    let said = place.vault("export", &["--to", &to("a")]);
    fails(&said, &named);
    assert_eq!(done(&said), "2 files written plain\n");
    fails(&place.seal(&["rotate", "--policy", "p.toml"]), &named);
    fails(&place.seal(&["export", "--policy", "p.toml", "--to", &to("b")]), &named);
    // A domain alone does not say which of all files are its own.
    let all = place.seal(&["rotate", "--domain", "vault"]);
    let left = "3 plain files left out; `tollgate seal check` names each\n";
    assert_eq!(ok(&all), format!("2 files sealed anew, epoch 4\n{left}"));
    // As the view has it until its first commit.
    let made = File::create(place.path("vault/cut")).unwrap();
    fails(&place.vault("rotate", &[]), &["vault/cut", "open for writing", "vault/over"]);
    drop(made);
}

#[test]
fn files_of_the_newest_epoch_are_counted() {
    let place = Place::new();
    ok(&place.vault("convert", &[]));
    let old = fs::read(place.path("vault/plan")).unwrap();
    ok(&place.vault("rotate", &[]));
    fs::write(place.path("vault/plan"), old).unwrap();
    let said = place.vault("rotate", &[]);
    assert!(ok(&said).ends_with("1 file sealed anew, epoch 2\n1 file of that epoch already\n"));
}

/// A file with several names keeps the key that it has, and does not keep others from a new one.
#[test]
fn a_hard_link_is_named_by_each_rotation_and_ends_none() {
    let place = Place::new();
    ok(&place.vault("convert", &[]));
    fs::hard_link(place.path("vault/empty"), place.path("same")).unwrap();
    for epoch in [2, 3] {
        let said = place.vault("rotate", &[]);
        fails(&said, &["vault/empty", "2 names", "1 file could not be done"]);
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert_eq!(said, format!("1 file sealed anew, epoch {epoch}\n"));
    }
    ok(&place.vault("check", &[]));
    fs::remove_file(place.path("same")).unwrap();
    let said = place.vault("rotate", &[]);
    assert!(ok(&said).contains("going on with epoch 3"), "{said:?}");
    assert!(ok(&said).contains("1 file sealed anew, epoch 3"), "{said:?}");
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

#[test]
fn what_is_damaged_is_named_and_the_others_go_on() {
    let place = Place::new();
    ok(&place.vault("convert", &[]));
    let good = fs::read(place.path("vault/plan")).unwrap();
    let damage = |what: &str, bytes: Vec<u8>, said: &str| {
        fs::write(place.path("vault/plan"), bytes).unwrap();
        let output = place.vault("check", &[]);
        fails(&output, &["vault/plan", said, "1 file could not be done"]);
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 file good"), "{what}");
    };
    let changed = |at: usize, bytes: &[u8]| {
        let mut all = good.clone();
        all[at..at + bytes.len()].copy_from_slice(bytes);
        all
    };
    damage("a flipped bit", changed(8192 + 5, &[good[8197] ^ 1]), "block 0 is not authentic");
    damage("a cut file", good[..good.len() - 5000].to_vec(), "not authentic");
    let mut swapped = changed(8192, &good[12288..16384]);
    swapped[12288..16384].copy_from_slice(&good[8192..12288]);
    damage("swapped blocks", swapped, "2 blocks; the first");
    // All that lies behind the headers, so the map, too: which would name 85.
    damage("the map", changed(8192, &vec![7; good.len() - 8192]), "7 blocks; the first");
    let mut version = changed(8, &[9]);
    version[4096 + 8] = 9;
    damage("an unknown version", version, "version 9");
    let mut header = changed(60, &[1]);
    header[4096 + 60] = 1;
    damage("both headers", header, "no header is authentic");
    let empty = fs::read(place.path("vault/empty")).unwrap();
    damage("a header of another file", changed(0, &empty[..160]), "headers of two files");
    damage("plain where sealed is expected", b"plain".to_vec(), "is plain");
    fs::write(place.path("vault/plan"), &good).unwrap();
    let other = ["check", "--domain", "other", "vault/plan"];
    fails(&place.seal(&other), &["vault/plan", "wrong policy domain"]);
    let to = place.path("out");
    let to = to.to_str().unwrap();
    fs::write(place.path("vault/plan"), changed(8197, &[good[8197] ^ 1])).unwrap();
    fails(&place.vault("export", &["--to", to]), &["block 0"]);
    assert!(!Path::new(to).join("plan").exists() && Path::new(to).join("empty").exists());
}

/// Nothing that can be read is wrong: it is said so, and what makes it whole again.
#[test]
fn what_is_wrong_beside_the_content_is_named_as_such() {
    let place = Place::new();
    ok(&place.vault("convert", &[]));
    let plain = place.exported();
    for name in ["vault/plan", "vault/empty"] {
        let good = fs::read(place.path(name)).unwrap();
        for at in [0, 4096] {
            let mut bytes = good.clone();
            bytes[at + 60] ^= 1;
            fs::write(place.path(name), bytes).unwrap();
            let said = place.vault("check", &[]);
            fails(&said, &[name, "content is good", "copies of its header", "rotate"]);
            assert_eq!(String::from_utf8_lossy(&said.stdout), "1 file good\n");
        }
        fs::write(place.path(name), [&good[..], b"more"].concat()).unwrap();
        let said = place.vault("check", &["--json"]);
        fails(&said, &[]);
        let json: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
        let (wrong, damaged) = (&json["wrong"][0]["error"], &json["wrong"][0]["damaged"]);
        assert!(wrong.as_str().unwrap().contains("4 bytes that belong to nothing"), "{json}");
        assert_eq!(damaged, false);
        fs::write(place.path(name), good).unwrap();
    }
    for (name, at) in [("vault/plan", 4096), ("vault/empty", 0)] {
        let mut bytes = [&fs::read(place.path(name)).unwrap()[..], b"more"].concat();
        bytes[at + 60] ^= 1;
        fs::write(place.path(name), bytes).unwrap();
    }
    fails(&place.vault("check", &[]), &["vault/plan", "vault/empty", "2 files could not be done"]);
    ok(&place.vault("rotate", &[]));
    assert!(ok(&place.vault("check", &[])).contains("2 files good"));
    assert_eq!(place.exported(), plain);
}

/// The keyring has no room for a further epoch.
#[test]
fn a_rotation_that_has_no_room_leaves_nothing() {
    if !mounting::can_mount() {
        return;
    }
    let place = Place::new();
    let full = Mounted::new(place.path("full"), &["-t", "tmpfs", "-o", "size=64k", "none"]);
    let at = |name: &str| full.0.join(name);
    fs::copy(place.path(".tollgate-seal"), at(".tollgate-seal")).unwrap();
    let _ = fs::write(at("filler"), vec![7; 1 << 20]);
    let here = ["--dir", full.0.to_str().unwrap()];
    let ring = fs::read(at(".tollgate-seal")).unwrap();
    let said = place.seal(&[&["rotate", "--domain", "vault"], &here[..]].concat());
    fails(&said, &[".tollgate-seal`", "No space left"]);
    assert!(!at(".tollgate-seal.new").exists());
    assert_eq!(fs::read(at(".tollgate-seal")).unwrap(), ring);
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

/// Something is mounted there as long as it lives.
struct Mounted(PathBuf);

impl Mounted {
    fn new(at: PathBuf, what: &[&str]) -> Mounted {
        fs::create_dir_all(&at).unwrap();
        let said = Command::new("mount").args(what).arg(&at).output().unwrap();
        assert!(said.status.success(), "{said:?}");
        Mounted(at)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
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
fn wrong_keys_and_keyrings_are_refused_with_the_reason() {
    let place = Place::new();
    let check =
        |more: &[&str]| place.bare(&[&["check", "--domain", "vault", "vault"][..], more].concat());
    fails(&check(&["--key-file", "/nowhere/key"]), &["key file `/nowhere/key`", "No such file"]);
    let short = place.word("short", "0123");
    fails(&check(&["--key-file", &short]), &["has 4 bytes; at least 32"]);
    let other = place.word("other", &"x".repeat(64));
    fails(&check(&["--key-file", &other]), &["key file", "1 recipient", "rejected"]);
    fails(&check(&["--passphrase-file", &place.word("no", "\n")]), &["is empty"]);
    fails(&check(&["--passphrase-file", "/dev"]), &["not a regular file"]);
    let both = check(&["--passphrase-file", &short, "--key-file", &short]);
    assert_eq!(both.status.code(), Some(2));
    let dir = place.dir.path().to_str().unwrap();
    fails(&place.bare(&["init", "--new-key-file", &place.key(), dir]), &["keyring", "already"]);
    let ring = fs::read_to_string(place.path(".tollgate-seal")).unwrap();
    let damage = |text: &str, said: &[&str]| {
        fs::write(place.path(".tollgate-seal"), text).unwrap();
        fails(&place.vault("check", &[]), said);
    };
    damage("hello", &["line 1 of the keyring"]);
    damage(&ring.replace("epoch 1", "epoch one"), &["line 3", "`one` is not a number"]);
    damage(&ring.replace("keyring 1", "keyring 2"), &["line 1"]);
    fs::remove_file(place.path(".tollgate-seal")).unwrap();
    fails(&place.vault("check", &[]), &["no keyring", "tollgate seal init", "`--dir`"]);
}

/// The environment names the key where the command line does not; a credential of systemd, too.
#[test]
fn keys_come_from_the_environment_and_from_systemd() {
    let place = Place::new();
    let run = |name: &str, value: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.env_remove("TOLLGATE_SEAL_KEY_FILE").env_remove("CREDENTIALS_DIRECTORY");
        command.args(["seal", "add", "--name", "x", "--new-key-file", "k", "--json"]);
        command.current_dir(place.dir.path()).env(name, value).output().unwrap()
    };
    let said = run("TOLLGATE_SEAL_KEY_FILE", &place.key());
    let json: serde_json::Value = serde_json::from_str(ok(&said)).unwrap();
    assert_eq!(json["recipients"], serde_json::json!(["owner", "x"]));
    ok(&place.seal(&["add", "--remove", "x"]));
    fs::copy(place.key(), place.keys.path().join("tollgate-seal-key")).unwrap();
    ok(&run("CREDENTIALS_DIRECTORY", place.keys.path().to_str().unwrap()));
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
fn the_keyring_and_what_opens_it_are_never_sealed() {
    let place = Place::new();
    let ring = fs::read(place.path(".tollgate-seal")).unwrap();
    fs::copy(place.key(), place.path("vault/own.key")).unwrap();
    let key = fs::read(place.key()).unwrap();
    let own = |named: &[&str]| {
        let key = ["--key-file", "vault/own.key"];
        place.bare(&[&["convert", "--domain", "vault"][..], &key, named].concat())
    };
    fails(&own(&["vault", ".tollgate-seal"]), &["`.tollgate-seal` is a keyring"]);
    fs::hard_link(place.path(".tollgate-seal"), place.path("other-name")).unwrap();
    fails(&own(&["other-name"]), &["`other-name` is the keyring"]);
    fs::remove_file(place.path("other-name")).unwrap();
    fails(&own(&["./vault/own.key"]), &["`./vault/own.key` is what opens the keyring"]);
    let said = own(&["vault"]);
    assert!(ok(&said).contains("2 files sealed"), "{said:?}");
    assert!(String::from_utf8_lossy(&said.stderr).contains("`vault/own.key`"), "{said:?}");
    assert_eq!(fs::read(place.path("vault/own.key")).unwrap(), key);
    assert_eq!(fs::read(place.path(".tollgate-seal")).unwrap(), ring);
    // What a variable names is kept, too, where an option names another.
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["seal", "convert", "--domain", "vault", "vault", "--key-file", &place.key()]);
    command.env("TOLLGATE_SEAL_PASSPHRASE_FILE", "vault/own.key").current_dir(place.dir.path());
    assert!(ok(&command.output().unwrap()).contains("2 files sealed already"));
    assert_eq!(fs::read(place.path("vault/own.key")).unwrap(), key);
}

#[test]
fn what_is_not_in_the_directory_of_the_keyring_is_refused() {
    let place = Place::new();
    let away = place.word("away", "not to be sealed");
    let away_dir = place.keys.path().to_str().unwrap();
    std::os::unix::fs::symlink(away_dir, place.path("way")).unwrap();
    for path in [&away, away_dir, "way/away", "..", "way/"] {
        let dir = fs::canonicalize(place.dir.path()).unwrap();
        let said = [format!("`{path}` is not in"), dir.to_str().unwrap().to_owned()];
        for command in ["convert", "rotate"] {
            let output = place.seal(&[command, "--domain", "vault", "vault", path]);
            fails(&output, &[&said[0], &said[1]]);
        }
    }
    assert_eq!(fs::read(&away).unwrap(), b"not to be sealed");
    assert!(fs::read(place.path("vault/plan")).unwrap().starts_with(b"the plan"));
    ok(&place.seal(&["convert", "--domain", "vault", "--dir", "vault/..", "./vault/plan"]));
}

#[test]
fn passwd_changes_the_passphrase_given_and_no_key_file() {
    let place = Place::new();
    let [anna, ben, new] =
        ["anna", "ben", "new"].map(|name| place.word(name, &format!("horse of {name}\n")));
    let to = |word| ["--memory-mib", "1", "--new-passphrase-file", word];
    let ring = || fs::read_to_string(place.path(".tollgate-seal")).unwrap();
    let before = ring();
    let refused = ["recipient `owner` has a key file", "seal add"];
    fails(&place.seal(&[&["passwd"][..], &to(&new)].concat()), &refused);
    for name in ["anna", "ben"] {
        let word = if name == "anna" { &anna } else { &ben };
        ok(&place.seal(&[&["add", "--name", name][..], &to(word)].concat()));
    }
    let (all, by_ben) = (ring(), ["passwd", "--passphrase-file", &ben]);
    fails(&place.seal(&[&["passwd", "--name", "owner"][..], &to(&new)].concat()), &refused);
    fails(&place.seal(&[&["passwd"][..], &to(&new)].concat()), &["--name", "owner, anna, ben"]);
    fails(&place.bare(&[&by_ben[..], &["--new-key-file", "k"]].concat()), &["`add` a key file"]);
    assert!(!place.path("k").exists());
    assert_eq!(ring(), all);
    let said = place.bare(&[&by_ben[..], &to(&new)].concat());
    assert!(ok(&said).contains("the passphrase of `ben` is changed"), "{said:?}");
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let (all, now) = (lines(&all), lines(&ring()));
    let kept = |name: &str| {
        let line = |of: &[String]| of.iter().find(|line| line.contains(name)).cloned().unwrap();
        line(&all) == line(&now)
    };
    assert_eq!(
        ["owner", "anna", "ben"].map(|name| kept(&format!(" {name} "))),
        [true, true, false]
    );
    assert!(lines(&before).iter().all(|line| now.contains(line)));
    let check =
        |more: &[&str]| place.bare(&[&["export", "--domain", "vault", "--to", "o"], more].concat());
    ok(&check(&["--passphrase-file", &new]));
    fails(&check(&["--passphrase-file", &ben]), &["rejected"]);
    ok(&check(&["--passphrase-file", &anna]));
    ok(&check(&["--key-file", &place.key()]));
}

#[test]
fn what_only_looks_removes_nothing() {
    let place = Place::new();
    let apart = place.path(".tollgate-seal.new");
    let replaced = apart.join(".tollgate-sealing-dddddddddddddddd");
    let leave = || {
        fs::create_dir_all(&apart).unwrap();
        fs::write(&replaced, b"replaced").unwrap();
        place.left_behind("cccccccccccccccc", b"TGSEALED half")
    };
    let left = leave();
    assert!(ok(&place.vault("convert", &["--dry-run"])).contains("2 files to be sealed"));
    assert!(left.exists() && replaced.exists());
    assert!(ok(&place.vault("convert", &[])).contains("2 files sealed"));
    assert!(!left.exists() && !apart.exists());
    let left = leave();
    assert!(ok(&place.vault("check", &[])).contains("2 files good"));
    assert!(ok(&place.seal(&["check", "--domain", "vault"])).contains("2 files good"));
    place.exported();
    assert!(left.exists() && replaced.exists());
}

#[test]
fn a_key_file_that_nobody_named_is_not_sealed() {
    let place = Place::new();
    let other = place.path("vault/other.key");
    let name = other.to_str().unwrap();
    ok(&place.seal(&["add", "--name", "other", "--new-key-file", name]));
    let bytes = fs::read(&other).unwrap();
    let said = place.vault("convert", &[]);
    assert!(ok(&said).contains("2 files sealed"), "{said:?}");
    let notes = String::from_utf8_lossy(&said.stderr);
    assert!(notes.contains("other.key` is a key file of the keyring"), "{notes}");
    assert_eq!(fs::read(&other).unwrap(), bytes);
    assert_eq!(
        ok(&place.vault("convert", &[])),
        "0 files sealed\n2 files sealed already\n1 file left out\n"
    );
    // It is the only thing that opens the keyring in the end.
    ok(&place.bare(&["check", "--domain", "vault", "--key-file", name, "vault/plan"]));
}

#[test]
fn only_what_the_program_left_behind_is_removed() {
    let place = Place::new();
    let at = |end: &str| place.path(&format!("vault/.tollgate-sealing-{end}"));
    let [own, long, bare, linked] =
        ["mine", "0123456789abcdef.txt", "MyNotesOfAugust1", "aaaaaaaaaaaaaaaa"].map(at);
    // As a copy has it of what a kill left.
    let [zeros, empty, other] =
        ["dddddddddddddddd", "eeeeeeeeeeeeeeee", "ffffffffffffffff-1-2"].map(at);
    for file in [&own, &long, &bare, &linked, &other] {
        fs::write(file, b"mine").unwrap();
    }
    fs::write(&zeros, [0; 99]).unwrap();
    fs::write(&empty, b"").unwrap();
    fs::hard_link(&linked, place.path("second")).unwrap();
    let left = place.left_behind("cccccccccccccccc", b"TGSEALED half");
    let said = place.vault("convert", &[]);
    fails(&said, &["aaaaaaaaaaaaaaaa", "2 names", "1 file could not be done"]);
    assert_eq!(String::from_utf8_lossy(&said.stdout), "8 files sealed\n");
    assert!(!left.exists());
    fs::remove_file(&linked).unwrap();
    // Sealed, they look as those of the program do.
    let held = place.left_behind("bbbbbbbbbbbbbbbb", b"TGSEALED");
    let holder = File::options().append(true).open(&held).unwrap();
    let said = place.vault("rotate", &[]);
    assert!(ok(&said).contains("8 files sealed anew"), "{said:?}");
    let notes = String::from_utf8_lossy(&said.stderr);
    assert_eq!(notes.matches("` is left as it is: somebody has it open").count(), 1, "{notes}");
    assert!(notes.contains("sealing-bbbbbbbbbbbbbbbb-") && held.exists(), "{notes}");
    drop(holder);
    assert!(ok(&place.vault("rotate", &[])).contains("8 files sealed anew"));
    assert!(!held.exists());
    let to = tempfile::tempdir().unwrap();
    ok(&place.vault("export", &["--to", to.path().to_str().unwrap()]));
    let plain = |path: &Path| fs::read(to.path().join(path.file_name().unwrap())).unwrap();
    for file in [&own, &long, &bare, &other] {
        assert_eq!(plain(file), b"mine");
    }
    assert_eq!((plain(&zeros), plain(&empty)), (vec![0; 99], vec![]));
}

/// A view seals them as any others.
#[test]
fn a_file_is_looked_at_although_its_name_begins_as_those_of_the_program() {
    let place = Place::new();
    let at = |end: &str| place.path(&format!("vault/.tollgate-sealing-{end}"));
    fs::write(at("abc"), b"a secret").unwrap();
    assert!(ok(&place.vault("convert", &[])).contains("3 files sealed"));
    assert!(ok(&place.vault("check", &[])).contains("3 files good"));
    assert!(ok(&place.vault("rotate", &[])).contains("3 files sealed anew, epoch 2"));
    let to = tempfile::tempdir().unwrap();
    let to = |name: &str| to.path().join(name);
    ok(&place.vault("export", &["--to", to("a").to_str().unwrap()]));
    assert_eq!(fs::read(to("a/.tollgate-sealing-abc")).unwrap(), b"a secret");
    for name in ["plain", "ffffffffffffffff", "ffffffffffffffff-1-2-3-4"] {
        fs::write(at(name), b"plain").unwrap();
        let named = [name, "is plain", "1 file could not be done"];
        fails(&place.vault("check", &[]), &named);
        fails(&place.vault("export", &["--to", to(name).to_str().unwrap()]), &named);
        assert_eq!(fs::read(at(name)).unwrap(), b"plain");
        fs::remove_file(at(name)).unwrap();
    }
    let mut damaged = fs::read(at("abc")).unwrap();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(at("abc"), damaged).unwrap();
    fails(&place.vault("check", &[]), &["sealing-abc", "1 file could not be done"]);
}

/// It cannot be told what is to become of it: a file of somebody, put in the place of one that was replaced
/// when the command was killed, and that is gone by now.
#[test]
fn what_is_somebodys_is_named_until_it_is_moved() {
    let place = Place::new();
    ok(&place.vault("convert", &[]));
    let left = place.path(".tollgate-seal.new/.tollgate-sealing-aaaaaaaaaaaaaaaa-1-2-3-4");
    fs::create_dir(left.parent().unwrap()).unwrap();
    fs::write(&left, "somebody's").unwrap();
    for _ in 0..2 {
        let said = place.vault("rotate", &[]);
        fails(&said, &["another program", "that is gone", "1 file could not be done"]);
        assert_eq!(fs::read(&left).unwrap(), b"somebody's");
    }
    fs::rename(&left, place.path("vault/back")).unwrap();
    ok(&place.vault("convert", &[]));
    ok(&place.vault("rotate", &[]));
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

#[test]
fn costs_out_of_range_are_named_in_words() {
    let place = Place::new();
    let word = place.word("one", "horse\n");
    let new = ["--memory-mib", "1", "--new-passphrase-file", &word];
    ok(&place.seal(&[&["add", "--name", "anna"][..], &new].concat()));
    let ring = fs::read_to_string(place.path(".tollgate-seal")).unwrap();
    let ring = ring.replace("anna 1024 3 4", "anna 4194304 3 4");
    fs::write(place.path(".tollgate-seal"), ring).unwrap();
    let output = place.bare(&["check", "--domain", "vault", "--passphrase-file", &word]);
    fails(&output, &["Argon2id with 4194304 KiB of memory, 3 passes and 4 lanes"]);
}

#[test]
fn the_log_of_a_view_names_the_file_that_is_damaged() {
    if !mounting::can_mount() {
        return;
    }
    let place = Place::new();
    let names = ["vault/pl\u{1b}an", "vault/two"];
    fs::rename(place.path("vault/plan"), place.path(names[0])).unwrap();
    ok(&place.vault("convert", &[]));
    let mut bytes = fs::read(place.path(names[0])).unwrap();
    bytes[8197] ^= 1;
    fs::write(place.path(names[0]), bytes).unwrap();
    fs::write(place.path(names[1]), "plain").unwrap();
    let (policy, view) = (place.keys.path().join("p.toml"), tempfile::tempdir().unwrap());
    let rule =
        "name = 'vault'\npath = 'vault/**'\nkind = 'file'\naction = 'seal'\ndomain = 'vault'";
    fs::write(&policy, format!("[[rule]]\n{rule}\n")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("mount").arg("--policy").arg(&policy).args(["--seal-key-file", &place.key()]);
    command.arg(place.dir.path()).arg(view.path()).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut server = command.spawn().unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.by_ref().any(|line| line.contains("ready")));
    let read = names.map(|name| fs::read(view.path().join(name)).map_err(|it| it.raw_os_error()));
    let umounted = Command::new("umount").arg(view.path()).status();
    let said: Vec<String> = lines.collect();
    server.wait().unwrap();
    assert!(umounted.unwrap().success());
    assert_eq!(read, [Err(Some(5)), Err(Some(5))]);
    for (what, path) in
        [("is damaged", "path=vault/pl\\x1ban"), ("cannot be read", "path=vault/two")]
    {
        assert!(said.iter().any(|line| line.contains(what) && line.contains(path)), "{said:?}");
    }
}

/// A FIFO would be waited for without end, a link lead elsewhere.
#[test]
fn a_keyring_that_is_no_regular_file_is_refused_at_once() {
    let place = Place::new();
    let ring = place.path(".tollgate-seal");
    fs::rename(&ring, place.path("ring")).unwrap();
    let refuses = |what: &str| {
        for command in ["check", "rotate", "add"] {
            let program = env!("CARGO_BIN_EXE_tollgate");
            let mut limited = Command::new("timeout");
            limited.args(["-s", "KILL", "60", program, "seal", command, "--key-file"]);
            limited.arg(place.key()).current_dir(place.dir.path());
            match command {
                "add" => limited.args(["--name", "b", "--new-key-file", &place.key()]),
                _ => limited.args(["--domain", "vault"]),
            };
            fails(&limited.output().unwrap(), &[".tollgate-seal", what]);
        }
    };
    assert!(Command::new("mkfifo").arg(&ring).status().unwrap().success());
    refuses("not a regular file");
    fs::remove_file(&ring).unwrap();
    fs::create_dir(&ring).unwrap();
    refuses("not a regular file");
    fs::remove_dir(&ring).unwrap();
    std::os::unix::fs::symlink("ring", &ring).unwrap();
    refuses("symbolic link");
}

#[test]
fn a_name_that_cannot_be_had_makes_no_key_file_and_a_domain_has_a_name() {
    let place = Place::new();
    let new = place.keys.path().join("new");
    let add =
        |name: &str| place.seal(&["add", "--name", name, "--new-key-file", new.to_str().unwrap()]);
    let ring = fs::read_to_string(place.path(".tollgate-seal")).unwrap();
    let taken = ring.lines().find_map(|line| line.strip_prefix("key-file ")).unwrap();
    fails(&add(taken.split(' ').next().unwrap()), &["is taken", "already"]);
    fails(&add("a b"), &["`a b`", "blanks"]);
    fails(&add("n\nl"), &["`n\\nl`", "blanks"]);
    assert!(!new.exists());
    let unnamed = place.seal(&["convert", "--domain", "", "vault"]);
    assert_eq!(unnamed.status.code(), Some(2), "{unnamed:?}");
    assert!(fs::read(place.path("vault/plan")).unwrap().starts_with(b"the plan"));
}

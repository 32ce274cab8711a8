//! Keyrings, and the key files and passphrases that open them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use rustix::fs::XattrFlags;

use crate::harness::{Place, fails, ok};

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

/// Else the server of a user has no key any more once root has changed something.
#[test]
fn a_keyring_that_changes_keeps_its_owner_and_mode() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: files cannot be given to another user");
        return;
    }
    let place = Place::new();
    ok(&place.vault("convert", &[]));
    let ring = place.path(".tollgate-seal");
    std::os::unix::fs::chown(&ring, Some(4321), Some(4322)).unwrap();
    fs::set_permissions(&ring, fs::Permissions::from_mode(0o640)).unwrap();
    rustix::fs::setxattr(&ring, "user.note", b"kept", XattrFlags::empty()).unwrap();
    let word = place.word("one", "horse\n");
    let to = ["--memory-mib", "1", "--new-passphrase-file", &word];
    let (add, passwd) = (["add", "--name", "anna"], ["passwd", "--name", "anna"]);
    let commands = [
        place.vault("rotate", &[]),
        place.seal(&[&add[..], &to].concat()),
        place.seal(&[&passwd[..], &to].concat()),
        place.seal(&["add", "--remove", "anna"]),
    ];
    for done in commands {
        ok(&done);
        let now = fs::metadata(&ring).unwrap();
        assert_eq!((now.uid(), now.gid(), now.mode() & 0o7777), (4321, 4322, 0o640), "{done:?}");
        let mut note = [0; 4];
        rustix::fs::getxattr(&ring, "user.note", &mut note).unwrap();
        assert_eq!(&note, b"kept");
    }
    let before = fs::read(&ring).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-chown", env!("CARGO_BIN_EXE_tollgate"), "seal", "add"]);
    command.args(["--key-file", &place.key(), "--name", "ben"]).args(to);
    let refused = command.current_dir(place.dir.path()).output().unwrap();
    fails(&refused, &["keyring", "the owner cannot be kept"]);
    assert_eq!(fs::read(&ring).unwrap(), before);
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
    fails(&place.seal(&[&["passwd"][..], &to(&new)].concat()), &["--name`: anna, ben"]);
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
    assert_eq!(ok(&place.vault("check", &[])), "2 files good\n1 file left out\n");
    // It is the only thing that opens the keyring in the end.
    ok(&place.bare(&["check", "--domain", "vault", "--key-file", name, "vault/plan"]));
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

/// A keyring that is on the disk without the key that opens it would be lost with what is sealed.
#[test]
fn the_name_of_a_new_key_file_is_durable_before_the_keyring_is_made() {
    let place = Place::new();
    let key = place.keys.path().join("other");
    let log = place.keys.path().join("calls");
    let init = |dir: &str, inject: &str| {
        fs::create_dir(place.path(dir)).unwrap();
        let mut command = Command::new("strace");
        command.args(["-f", "-y", "-e", "trace=fsync,link,linkat,rename,renameat,renameat2", "-o"]);
        command.arg(&log).args(["-e", inject]).args([env!("CARGO_BIN_EXE_tollgate"), "seal"]);
        command.args(["init", "--new-key-file"]).arg(&key).arg(place.path(dir));
        command.output().unwrap()
    };
    let traced = Command::new("strace").args(["-o", "/dev/null", "true"]).status();
    if !traced.is_ok_and(|status| status.success()) {
        println!("skipped: no strace");
        return;
    }
    let told = init("one", "signal=none");
    ok(&told);
    let calls = fs::read_to_string(&log).unwrap();
    let keys = place.keys.path().canonicalize().unwrap();
    let synced = format!("<{}>", keys.to_str().unwrap());
    let at = |of: &dyn Fn(&str) -> bool| calls.lines().position(of);
    let is_key = |line: &str| !line.contains("fsync") && line.contains("/other\"");
    let named = at(&is_key).expect("a name");
    let durable = at(&|line| line.contains("fsync(") && line.contains(&synced));
    let ring = at(&|line| line.contains("/.tollgate-seal\"")).expect("a keyring");
    assert!(durable.is_some_and(|durable| (named..ring).contains(&durable)), "{calls}");
    // The file's own is the first.
    fs::remove_file(&key).unwrap();
    let failed = init("two", "inject=fsync:error=EIO:when=2");
    fails(&failed, &["key file", "/other", "error"]);
    assert!(!key.exists() && !place.path("two/.tollgate-seal").exists());
    // As of file systems whose directories need no sync.
    ok(&init("three", "inject=fsync:error=EINVAL:when=2"));
    assert!(key.exists() && place.path("three/.tollgate-seal").exists());
}

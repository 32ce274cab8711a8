//! Files that are damaged, or plain where they should be sealed.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::harness::{Place, fails, ok};
use crate::mounting;

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

/// It can be looked at there, and not be sealed.
#[test]
fn a_plain_file_elsewhere_is_not_said_to_be_sealed_by_convert_there() {
    let place = Place::new();
    ok(&place.vault("convert", &[]));
    let away = place.word("away", "plain");
    let to = tempfile::tempdir().unwrap();
    let to = to.path().join("to");
    for more in [&["check"][..], &["export", "--to", to.to_str().unwrap()]] {
        let said = place.seal(&[more, &["--domain", "vault", "vault", &away]].concat());
        let dir = fs::canonicalize(place.dir.path()).unwrap();
        let dir = format!("not in `{}`, the directory of the keyring", dir.display());
        fails(&said, &[&away, "is plain", &dir, "1 file could not be done"]);
        assert!(!String::from_utf8_lossy(&said.stderr).contains("seals it\n"), "{said:?}");
    }
    // A copy of a sealed file is one wherever it lies.
    let copy = place.keys.path().join("copy");
    fs::copy(place.path("vault/plan"), &copy).unwrap();
    ok(&place.seal(&["check", "--domain", "vault", copy.to_str().unwrap()]));
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

//! Files and directories that others move, cut or mount over while a command works on them, and commands
//! that are killed meanwhile.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{Place, fails, ok};

/// Ends what others do meanwhile, also where an assertion fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn ok_in_part(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

/// Somebody who may write in DIR puts a link in the place of a directory while its files are worked on. The
/// ways to a file are walked once, and through no link.
#[test]
fn what_a_link_leads_to_outside_stays_as_it_is() {
    const FILES: usize = 20;
    let place = Place::new();
    let outside = tempfile::tempdir().unwrap();
    let (inner, apart) = (place.path("vault/inner"), place.path("vault/apart"));
    fs::create_dir(&inner).unwrap();
    for n in 0..FILES {
        fs::write(inner.join(format!("f{n}")), format!("inside {n}")).unwrap();
        fs::write(outside.path().join(format!("f{n}")), format!("outside {n}")).unwrap();
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                fs::rename(&inner, &apart).unwrap();
                symlink(outside.path(), &inner).unwrap();
                fs::remove_file(&inner).unwrap();
                fs::rename(&apart, &inner).unwrap();
            }
        });
        for _ in 0..40 {
            place.vault("convert", &[]);
            place.vault("rotate", &[]);
        }
    });
    let all = fs::read_dir(outside.path()).unwrap().count();
    assert_eq!(all, FILES, "nothing came to lie outside");
    for n in 0..FILES {
        let content = fs::read_to_string(outside.path().join(format!("f{n}"))).unwrap();
        assert_eq!(content, format!("outside {n}"));
    }
    ok(&place.vault("convert", &[]));
    let to = tempfile::tempdir().unwrap();
    ok(&place.vault("export", &["--to", to.path().to_str().unwrap()]));
    for n in 0..FILES {
        let content = fs::read_to_string(to.path().join(format!("inner/f{n}"))).unwrap();
        assert_eq!(content, format!("inside {n}"));
    }
}

/// Each file is replaced in its own directory, whatever that is called by then.
#[test]
fn directories_that_are_exchanged_keep_their_files() {
    const FILES: usize = 20;
    let place = Place::new();
    let [one, other, between] = ["one", "other", "between"].map(|it| place.path("vault").join(it));
    for dir in [&one, &other] {
        fs::create_dir(dir).unwrap();
        let own = dir.file_name().unwrap().to_str().unwrap();
        (0..FILES).for_each(|n| fs::write(dir.join(format!("f{n}")), own).unwrap());
    }
    ok(&place.vault("convert", &[]));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                fs::rename(&one, &between).unwrap();
                fs::rename(&other, &one).unwrap();
                fs::rename(&between, &other).unwrap();
            }
        });
        for _ in 0..40 {
            place.vault("rotate", &[]);
        }
    });
    let to = tempfile::tempdir().unwrap();
    ok(&place.vault("export", &["--to", to.path().to_str().unwrap()]));
    for dir in ["one", "other"] {
        let files = fs::read_dir(to.path().join(dir)).unwrap().map(|file| file.unwrap().path());
        let contents: Vec<_> = files.map(|file| fs::read_to_string(file).unwrap()).collect();
        assert_eq!(contents.len(), FILES, "{dir}");
        assert!(contents.iter().all(|content| *content == contents[0]), "{dir}: {contents:?}");
    }
}

/// A directory that vanishes, or cannot be listed, is no reason to leave out the others.
#[test]
fn what_cannot_be_listed_is_named_and_the_others_go_on() {
    let place = Place::new();
    let is_over = AtomicBool::new(false);
    let passing = place.path("vault/passing");
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                fs::create_dir(&passing).unwrap();
                fs::remove_dir(&passing).unwrap();
            }
        });
        for _ in 0..40 {
            ok(&place.vault("convert", &[]));
            ok(&place.vault("check", &[]));
        }
    });
    // One with a path that is longer than one may be, and one that could be without end.
    for (name, count) in [("d".repeat(200), 25), ("e".to_owned(), 300)] {
        let script = "cd -P vault; for n in $(seq $1); do mkdir $0 && cd -P ./$0; done 2>/dev/null
            echo deep >file";
        let mut made = Command::new("sh");
        made.args(["-c", script, &name, &count.to_string()]).current_dir(place.dir.path());
        assert!(made.status().unwrap().success());
    }
    fs::write(place.path("vault/zz"), "after it").unwrap();
    let said = place.vault("convert", &[]);
    fails(&said, &["e/e: is 256 directories deep", "1 file could not be done"]);
    assert!(ok_in_part(&said).contains("2 files sealed\n"), "{said:?}");
    assert!(fs::read(place.path("vault/zz")).unwrap().starts_with(b"TGSEALED"), "{said:?}");
    let mut removed = Command::new("rm");
    removed.args(["-rf", "vault"]).current_dir(place.dir.path());
    assert!(removed.status().unwrap().success());
}

/// A header that is cut is damage: who seals such a file as a plain one hides it.
#[test]
fn a_sealed_file_that_is_cut_anywhere_is_no_plain_one() {
    let place = Place::new();
    ok(&place.vault("convert", &[]));
    for length in [8, 12, 159, 160, 5000] {
        fs::copy(place.path("vault/plan"), place.path("vault/cut")).unwrap();
        File::options().write(true).open(place.path("vault/cut")).unwrap().set_len(length).unwrap();
        // Where the header is whole, `check` alone looks at what follows.
        let commands = ["check", "convert", "rotate"];
        for command in &commands[..if length < 160 { 3 } else { 1 }] {
            let said = place.vault(command, &[]);
            fails(&said, &["vault/cut"]);
            let told = String::from_utf8_lossy(&said.stderr).into_owned();
            assert!(!told.contains("is plain"), "{length}, {command}: {told}");
        }
    }
}

/// Whenever they are killed: of the keyring no copy, and of an export no part stays under another name.
#[test]
fn a_kill_leaves_no_copy_of_the_keyring_and_no_plain_text() {
    let place = Place::new();
    fs::write(place.path("vault/large"), vec![b'x'; 8 << 20]).unwrap();
    ok(&place.vault("convert", &[]));
    let to = tempfile::tempdir().unwrap();
    let to_named = to.path().join("copies").to_str().unwrap().to_owned();
    for n in 0..60 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let key = ["--domain", "vault", "--key-file", &place.key()].map(str::to_owned);
        command.arg("seal").current_dir(place.dir.path());
        let _ = fs::remove_dir_all(&to_named);
        match n % 2 {
            0 => command.arg("rotate").args(key).arg("vault/empty"),
            _ => command.args(["export", "--to", &to_named]).args(key).arg("vault"),
        };
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(5 + n));
        child.kill().unwrap();
        child.wait().unwrap();
        let names = |dir: &Path| -> Vec<_> {
            let all = fs::read_dir(dir).into_iter().flatten();
            all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        let own = [".tollgate-seal", ".tollgate-seal.lock", ".tollgate-seal.new", "vault"];
        let others: Vec<_> = names(place.dir.path());
        assert!(others.iter().all(|name| own.contains(&name.as_str())), "{others:?}");
        let copies = names(Path::new(&to_named));
        let whole = ["plan", "empty", "large"];
        assert!(copies.iter().all(|name| whole.contains(&name.as_str())), "{copies:?}");
    }
    ok(&place.vault("rotate", &[]));
    assert!(!place.path(".tollgate-seal.new").exists());
}

/// Killed again and again at any moment: each file is whole at any time, and the work gets done.
#[test]
fn a_killed_rotation_leaves_every_file_whole() {
    let place = Place::new();
    for file in 0..40 {
        fs::write(place.path(&format!("vault/{file}")), [file; 50_000]).unwrap();
    }
    ok(&place.vault("convert", &[]));
    for pause in 0..12 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["seal", "rotate", "--domain", "vault", "vault", "--key-file", &place.key()]);
        let mut child = command.current_dir(place.dir.path()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(pause * 7));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(ok(&place.vault("check", &[])).contains("42 files good"));
    }
    ok(&place.vault("rotate", &[]));
    assert!(ok(&place.vault("check", &[])).contains("42 files good"));
    assert_eq!(fs::read_dir(place.path("vault")).unwrap().count(), 42);
    assert!(!place.path(".tollgate-seal.new").exists(), "what was not complete was left");
}

/// Killed again and again, until that came in its middle a few times.
#[test]
fn a_killed_conversion_leaves_every_file_plain_or_sealed() {
    let place = Place::new();
    let path = |file: u8| place.path(&format!("vault/{file}"));
    let begun = Instant::now();
    let (mut in_its_middle, mut pause) = (0, Duration::ZERO);
    while in_its_middle < 5 {
        assert!(begun.elapsed() < Duration::from_secs(120), "never killed in its middle");
        (0..40).for_each(|file| fs::write(path(file), [file; 50_000]).unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["seal", "convert", "--domain", "vault", "vault", "--key-file", &place.key()]);
        let mut child = command.current_dir(place.dir.path()).spawn().unwrap();
        std::thread::sleep(pause);
        child.kill().unwrap();
        child.wait().unwrap();
        let is_sealed = |file: &u8| {
            let bytes = fs::read(path(*file)).unwrap();
            let sealed = bytes.starts_with(b"TGSEALED");
            assert!(sealed || bytes == [*file; 50_000], "{file} is neither");
            sealed
        };
        let sealed: Vec<_> =
            (0..40).filter(is_sealed).map(|file| format!("vault/{file}")).collect();
        if sealed.is_empty() {
            pause += Duration::from_millis(2);
            continue;
        }
        in_its_middle += usize::from(sealed.len() < 40);
        pause = if sealed.len() < 40 { pause } else { pause / 2 };
        let names: Vec<_> = sealed.iter().map(String::as_str).collect();
        let checked = place.seal(&[&["check", "--domain", "vault"], &names[..]].concat());
        assert!(ok(&checked).contains("good"), "{checked:?}");
    }
    ok(&place.vault("convert", &[]));
    assert!(ok(&place.vault("check", &[])).contains("42 files good"));
    assert_eq!(fs::read_dir(place.path("vault")).unwrap().count(), 42);
    assert!(!place.path(".tollgate-seal.new").exists(), "what was not complete was left");
}

/// Builds and editors delete files while a tree is gone through.
#[test]
fn files_that_are_deleted_meanwhile_are_counted_and_no_failure() {
    let place = Place::new();
    let rule = "[[rule]]\npath = 'vault/**'\nkind = 'file'\naction = 'seal'\ndomain = 'vault'\n";
    fs::write(place.path("p.toml"), rule).unwrap();
    let by_domain = ["check", "--json", "--domain", "vault", "vault"];
    for check in [&by_domain[..], &["check", "--json", "--policy", "p.toml", "vault"]] {
        let names: Vec<_> = (0..400).map(|n| place.path(&format!("vault/f{n:03}"))).collect();
        names.iter().for_each(|name| fs::write(name, "content").unwrap());
        ok(&place.vault("convert", &[]));
        let deleting = std::thread::spawn(move || {
            for name in names.iter().rev() {
                fs::remove_file(name).unwrap();
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let said = place.seal(check);
        deleting.join().unwrap();
        let json: serde_json::Value = serde_json::from_str(ok(&said)).unwrap();
        assert!(json["wrong"].as_array().unwrap().is_empty(), "{json}");
    }
}

/// By then some files are done and the others are not: they are named, not counted as deleted.
#[test]
fn files_of_a_directory_that_is_moved_meanwhile_are_named() {
    let place = Place::new();
    let (vault, elsewhere) = (place.path("vault"), place.path("elsewhere"));
    let files = |of: &Path| (0..300).map(|n| of.join(format!("in/f{n:03}"))).collect::<Vec<_>>();
    fs::create_dir(vault.join("in")).unwrap();
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    let moves = [(&vault, &elsewhere), (&vault.join("in"), &place.path("further"))];
    let mut in_time = 0;
    for (from, to) in moves.iter().cycle().take(4) {
        files(&vault).iter().for_each(|file| fs::write(file, "content").unwrap());
        let first = &files(&vault)[0];
        let before = inode(first);
        let plain =
            || files(&vault).iter().filter(|file| fs::read(file).unwrap() == b"content").count();
        let key = place.key();
        let convert = ["convert", "--domain", "vault", "vault", "--key-file", &key];
        let mut converting = place.command(&convert);
        let converting = converting.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut converting = converting.spawn().unwrap();
        while inode(first) == before && converting.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        fs::rename(from, to).unwrap();
        let output = converting.wait_with_output().unwrap();
        fs::rename(to, from).unwrap();
        let (said, plain) = (String::from_utf8_lossy(&output.stderr), plain());
        in_time += usize::from(plain > 0);
        if plain == 0 {
            continue;
        }
        let is_named = |line: &&str| line.contains("/in/f") && line.contains("directory was moved");
        assert_eq!(said.lines().filter(is_named).count(), plain, "{said}");
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(!ok_in_part(&output).contains("deleted"), "{}", ok_in_part(&output));
    }
    assert!(in_time > 0, "all were done before the move, four times");
    // Moved elsewhere, or removed: nobody can tell.
    fs::remove_dir_all(vault.join("in")).unwrap();
    ok(&place.vault("convert", &[]));
}

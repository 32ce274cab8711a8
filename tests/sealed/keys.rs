//! Keys that change beside a live view.

use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use crate::harness::{Place, can_mount, eventually};

impl Place {
    /// `tollgate seal COMMAND` for the domain `vault`.
    pub(crate) fn seal_vault(&self, command: &str) -> std::process::Output {
        let (dir, below) = (self.below(""), self.below("vault"));
        let (dir, below) = (dir.to_str().unwrap(), below.to_str().unwrap());
        let key = self.key();
        self.seal(&[command, "--dir", dir, "--key-file", &key, "--domain", "vault", below])
    }

    /// The epoch in the header of a lower file.
    fn epoch(&self, path: &str) -> u32 {
        let mut bytes = [0; 4];
        let file = fs::File::open(self.below(path)).unwrap();
        file.read_exact_at(&mut bytes, 12).unwrap();
        u32::from_le_bytes(bytes)
    }
}

#[test]
fn files_that_are_sealed_anew_beside_a_live_view_go_on() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    {
        let view = place.mount(&[]);
        fs::write(view.at("vault/b"), "b".repeat(5000)).unwrap();
    }
    {
        let view = place.mount(&["--attr-timeout", "0"]);
        let mut held = fs::File::open(view.at("vault/b")).unwrap();
        let inode_held = held.metadata().unwrap().ino();
        for name in ["a", "in/c"] {
            fs::create_dir_all(view.at("vault/in")).unwrap();
            fs::write(view.at(&format!("vault/{name}")), name.repeat(5000)).unwrap();
        }
        // What was closed a moment ago is being committed, and left alone as long.
        eventually("all files have the new key", || {
            let done = place.seal_vault("rotate");
            done.status.success()
                && ["a", "b", "in/c"].iter().all(|name| place.epoch(&format!("vault/{name}")) > 1)
        });
        for name in ["a", "b", "in/c"] {
            let path = format!("vault/{name}");
            let inode = || fs::metadata(view.at(&path)).map(|metadata| metadata.ino()).ok();
            let below = fs::metadata(place.below(&path)).unwrap().ino();
            eventually("the view shows the new file", || inode() == Some(below));
            assert_eq!(fs::metadata(view.at(&path)).unwrap().len(), 5000 * name.len() as u64);
            assert_eq!(fs::read_to_string(view.at(&path)).unwrap(), name.repeat(5000));
        }
        // Who has the file of before open has it still, and may open it again.
        let now = held.metadata().unwrap();
        assert_eq!((now.ino(), now.len(), now.nlink()), (inode_held, 5000, 0));
        let mut text = String::new();
        held.read_to_string(&mut text).unwrap();
        assert_eq!(text, "b".repeat(5000));
        let again = format!("/proc/self/fd/{}", held.as_raw_fd());
        assert_eq!(fs::read_to_string(again).unwrap(), text);
        fs::write(view.at("vault/a"), "changed").unwrap();
        fs::write(view.at("vault/new"), "made with the new key").unwrap();
        assert_eq!(fs::read_to_string(view.at("vault/a")).unwrap(), "changed");
    }
    assert!(place.epoch("vault/new") > 1);
    assert!(place.is_good("vault"));
}

/// Else the next rotation would go on with this one, and make no new key.
#[test]
fn what_is_made_after_a_rotation_has_its_key() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    for epoch in 2..5 {
        let view = place.mount(&[]);
        let done = place.seal_vault("rotate");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success() && !said.contains("going on with"), "{said}");
        let name = format!("vault/made {epoch}");
        fs::write(view.at(&name), "new").unwrap();
        fs::File::open(view.at(&name)).unwrap().sync_all().unwrap();
        assert_eq!(place.epoch(&name), epoch);
    }
}

/// It came before its keyring, as it may where another program copies DIR.
#[test]
fn a_size_that_could_not_be_read_is_looked_for_again() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let elsewhere = place.base.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let (ring, plan) = (elsewhere.join(".tollgate-seal"), elsewhere.join("plan"));
    fs::copy(place.below(".tollgate-seal"), &ring).unwrap();
    fs::write(&plan, [7; 5000]).unwrap();
    let (dir, named, key) = (elsewhere.to_str().unwrap(), plan.to_str().unwrap(), place.key());
    for command in ["convert", "rotate"] {
        let of = ["--dir", dir, "--key-file", &key, "--domain", "vault", named];
        let done = place.seal(&[&[command][..], &of].concat());
        assert!(done.status.success(), "{done:?}");
    }
    let view = place.mount(&["--attr-timeout", "0"]);
    fs::copy(&plan, place.below("vault/plan")).unwrap();
    // Sizes are not remembered before.
    std::thread::sleep(Duration::from_secs(4));
    let size = || fs::metadata(view.at("vault/plan")).unwrap().len();
    assert_eq!(size(), fs::metadata(&plan).unwrap().len(), "no other is known");
    fs::copy(&ring, place.below(".tollgate-seal")).unwrap();
    assert_eq!(size(), 5000);
    assert_eq!(fs::read(view.at("vault/plan")).unwrap(), [7; 5000]);
}

/// It has other keys for the epochs that are in use: what is open could not be read any more.
#[test]
fn a_keyring_that_was_put_back_and_rotated_changes_nothing() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let ring = place.below(".tollgate-seal");
    let earlier = fs::read(&ring).unwrap();
    // A ring as `bytes`, rotated in a directory without files: else that is refused.
    let elsewhere = place.base.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let rotated = |bytes: &[u8]| {
        fs::write(elsewhere.join(".tollgate-seal"), bytes).unwrap();
        let (dir, key) = (elsewhere.to_str().unwrap(), place.key());
        let done = place.seal(&["rotate", "--dir", dir, "--key-file", &key, "--domain", "x"]);
        assert!(done.status.success(), "{done:?}");
        fs::read(elsewhere.join(".tollgate-seal")).unwrap()
    };
    let good = rotated(&earlier);
    fs::write(&ring, &good).unwrap();
    let view = place.mount(&[]);
    fs::write(view.at("vault/a"), "of epoch 2").unwrap();
    fs::File::open(view.at("vault/a")).unwrap().sync_all().unwrap();
    fs::write(&ring, rotated(&rotated(&earlier))).unwrap();
    fs::write(view.at("vault/b"), "beside another epoch 2").unwrap();
    fs::File::open(view.at("vault/b")).unwrap().sync_all().unwrap();
    assert_eq!((place.epoch("vault/a"), place.epoch("vault/b")), (2, 2));
    assert_eq!(fs::read_to_string(view.at("vault/a")).unwrap(), "of epoch 2");
    // A later state of the ring that is in use counts.
    fs::write(&ring, good).unwrap();
    assert!(place.seal_vault("rotate").status.success());
    fs::write(view.at("vault/c"), "of epoch 3").unwrap();
    fs::File::open(view.at("vault/c")).unwrap().sync_all().unwrap();
    assert_eq!(place.epoch("vault/c"), 3);
    drop(view);
    assert!(place.is_good("vault"));
}

/// However the key is named: it would open nothing any more.
#[test]
fn no_log_goes_to_a_key() {
    let place = Place::new();
    let key = fs::read(place.key()).unwrap();
    let (dir, mnt) = (place.below(""), place.base.path().join("mnt"));
    for option in ["--log", "--audit"] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["mount", "--daemon", "--policy", "none", option, &place.key()]);
        command.args([&dir, &mnt]).env("TOLLGATE_SEAL_KEY_FILE", place.key());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("the keyring is opened with"), "{said}");
    }
    assert_eq!(fs::read(place.key()).unwrap(), key);
}

/// The buffers and threads of such files are made after the sandbox is complete then: in the mode
/// `strict`, a call that it does not expect would end the server.
#[test]
fn a_reload_may_bring_the_first_rule_that_makes_bytes() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let policy = place.base.path().join("policy.toml");
    fs::write(&policy, "default = 'passthrough'\n").unwrap();
    fs::write(place.below("open/url"), "https://app:s3cret-word@host/").unwrap();
    let view = place.mount(&[]);
    assert_eq!(fs::read(view.at("open/url")).unwrap(), b"https://app:s3cret-word@host/");
    fs::write(&policy, "[[rule]]\npath = 'open/**'\nkind = 'file'\naction = 'redact'\n").unwrap();
    let mut reload = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let reloaded = reload.arg("reload").arg(view.at("")).output().unwrap();
    assert!(reloaded.status.success(), "{reloaded:?}");
    eventually("the rule holds", || {
        fs::read(view.at("open/url")).is_ok_and(|text| text == b"https://app:***********@host/")
    });
}

/// A small file that is only read has its pages in the kernel; what is seen comes through the view.
#[test]
fn a_reload_that_seals_names_the_files_that_are_open_plainly() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let policy = place.base.path().join("policy.toml");
    fs::write(&policy, "[[rule]]\npath = 'open/seen'\naction = 'userspace'\n").unwrap();
    let names = ["small", "written", "seen"];
    for name in names {
        fs::write(place.below("open").join(name), "plain").unwrap();
    }
    // A small file is served from the kernel's pages once it is settled.
    std::thread::sleep(std::time::Duration::from_secs(4));
    let view = place.mount(&[]);
    let at = |name| view.at("open").join(name);
    let _held = [
        fs::File::open(at("small")).unwrap(),
        fs::File::options().read(true).write(true).open(at("written")).unwrap(),
        fs::File::open(at("seen")).unwrap(),
    ];
    let seal = "[[rule]]\npath = 'open/**'\nkind = 'file'\naction = 'seal'\ndomain = 'x'\n";
    fs::write(&policy, seal).unwrap();
    let mut reload = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let reloaded = reload.arg("reload").arg(view.at("")).output().unwrap();
    let said = String::from_utf8(reloaded.stdout).unwrap();
    assert!(said.contains("3 of 3 open files cannot be taken back"), "{said}");
    assert!(names.iter().all(|name| said.contains(&format!("\n    open/{name}\n"))), "{said}");
}

/// Who opens it from then on gets `EIO`; who has it open goes on reading plain text.
#[test]
fn a_reload_that_seals_no_more_names_the_sealed_files_that_are_open() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    for name in ["vault/kept", "vault/let-go"] {
        fs::write(view.at(name), "plain").unwrap();
    }
    let _kept = fs::File::open(view.at("vault/kept")).unwrap();
    let mut held = fs::File::open(view.at("vault/let-go")).unwrap();
    let kept = "[[rule]]\nname = 'vault'\npath = 'vault/kept'\nkind = 'file'\naction = 'seal'\n";
    let policy = format!("{kept}domain = 'vault'\n");
    fs::write(place.base.path().join("policy.toml"), policy).unwrap();
    let mut reload = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let reloaded = reload.arg("reload").arg(view.at("")).output().unwrap();
    let said = String::from_utf8(reloaded.stdout).unwrap();
    assert!(said.contains("1 of 2 open files cannot be taken back"), "{said}");
    assert!(said.contains("\n    vault/let-go\n"), "{said}");
    let mut text = String::new();
    held.read_to_string(&mut text).unwrap();
    assert_eq!(text, "plain");
    assert!(fs::File::open(view.at("vault/let-go")).is_err());
}

//! The program as a helper of mount(8) and umount(8). Needs root and /dev/fuse: without, each test
//! says so and passes, unless `TOLLGATE_REQUIRE_MOUNT=1`.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

pub(crate) use crate::mounting::can_mount;

const POLICY: &str = "[[rule]]\nname = \"made\"\npath = \"made\"\naction = \"native\"\n\
                      [[rule]]\nname = \"env\"\npath = \"**/.env\"\naction = \"hide\"\n";

/// A directory to show, a policy, and the helpers that are to lie in /sbin.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        for directory in ["dir/made", "mnt", "sbin"] {
            std::fs::create_dir_all(place.path(directory)).unwrap();
        }
        for (name, text) in [
            ("dir/a", "plain\n"),
            ("dir/.env", "the planted one\n"),
            ("dir/made/b", "plain\n"),
            ("dir/program", "#!/bin/sh\necho it runs\n"),
            ("policy.toml", POLICY),
        ] {
            std::fs::write(place.path(name), text).unwrap();
        }
        for helper in ["mount.fuse.tollgate", "umount.fuse.tollgate"] {
            let link = place.path("sbin").join(helper);
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tollgate"), link).unwrap();
        }
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a script in a mount namespace of its own in which the helpers lie in /sbin. `$O` is
    /// what mount(8) needs in any case; what the script leaves mounted is unmounted.
    pub(crate) fn script(&self, script: &str) -> Output {
        let with_helpers = format!(
            "mount -t overlay helpers -o lowerdir=$PWD/sbin:/sbin /sbin\n\
             trap 'umount -l mnt 2>/dev/null' EXIT\n{script}"
        );
        let options = format!("policy={},log={}", self.shown("policy.toml"), self.shown("log"));
        Command::new("unshare")
            .args(["-m", "sh", "-c", &with_helpers])
            .env("LC_ALL", "C")
            .env("O", options)
            .current_dir(self.0.path())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    pub(crate) fn shown(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// What the server said, once it says that it has ended.
    fn log_after_the_end(&self) -> String {
        let start = std::time::Instant::now();
        loop {
            let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
            if log.contains("is unmounted") || start.elapsed().as_secs() > 20 {
                return log;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn mount_shows_a_view_and_umount_ends_its_server() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let output = place.script(
        "mount -t fuse.tollgate -o $O dir mnt && cat mnt/a && ls -A mnt && echo new >mnt/new && \
         cat mnt/made/b && findmnt -no FSTYPE,SOURCE mnt; umount mnt && ls -A mnt && echo gone",
    );
    let dir = place.shown("dir");
    let expected = format!("plain\na\nmade\nprogram\nplain\nfuse.tollgate {dir}\ngone\n");
    assert_eq!(out(&output), expected, "{}", err(&output));
    assert_eq!(std::fs::read_to_string(place.path("dir/new")).unwrap(), "new\n");
    let log = place.log_after_the_end();
    assert!(log.contains("is unmounted"), "{log}");
}

/// `mount -f` checks what a mount would, and changes nothing.
#[test]
fn a_fake_mount_checks_and_mounts_nothing() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    std::fs::remove_dir_all(place.path("dir/made")).unwrap();
    let policy = "[[rule]]\npath = \"made\"\naction = \"native\"\ncreate = true\n";
    std::fs::write(place.path("policy.toml"), policy).unwrap();
    let output = place.script(
        "fake() { mount -f -t fuse.tollgate -o \"$@\"; echo $?; findmnt mnt; }
         fake $O dir mnt; fake $O,ro dir mnt; ls dir log
         fake policy=/no/such/file dir mnt; fake polcy=/p dir mnt; fake audit=dir/log dir mnt
         fake $O missing mnt; fake $O dir dir
         mount -t fuse.tollgate -o $O dir mnt; mount -f -t fuse.tollgate -o $O dir mnt; echo $?
         cat mnt/a; umount mnt",
    );
    let said = err(&output);
    let codes: Vec<_> = out(&output).lines().map(str::to_owned).collect();
    assert_eq!(codes[..4], ["0", "0", "dir:", "a"].map(str::to_owned), "{codes:?} {said}");
    assert_eq!(codes[4..], ["program", "1", "1", "1", "1", "1", "0", "plain"], "{said}");
    for named in ["policy `/no/such/file`", "`polcy=/p` is not known", "lies inside DIR"] {
        assert!(said.contains(named), "{named}: {said}");
    }
    assert!(said.contains("cannot access 'log'") && said.contains("`missing` does not"), "{said}");
}

#[test]
fn fstab_is_enough() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let (dir, mnt, policy) = (place.shown("dir"), place.shown("mnt"), place.shown("policy.toml"));
    let line =
        format!("{dir} {mnt} fuse.tollgate policy={policy},ro,nofail,x-systemd.requires=a 0 0\n");
    std::fs::write(place.path("fstab"), line).unwrap();
    let output = place.script(
        "mount -T fstab mnt && cat mnt/a && touch mnt/new; mount -T fstab mnt; mount -a -T fstab; \
         umount mnt && ls -A mnt && echo gone",
    );
    assert_eq!(out(&output), "plain\ngone\n", "{}", err(&output));
    assert!(err(&output).contains("Read-only file system"), "{}", err(&output));
    assert!(err(&output).contains("already"), "{}", err(&output));
}

#[test]
fn options_of_a_mount_hold_in_native_directories_too() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let output = place.script(
        "chmod +x dir/program && cp dir/program dir/made/program\n\
         mount -t fuse.tollgate -o $O,ro,noexec,allow_other,source=shown dir mnt || exit\n\
         findmnt -rno SOURCE,OPTIONS mnt; touch mnt/x mnt/made/x; mnt/program; mnt/made/program\n\
         setpriv --reuid 65534 --clear-groups cat mnt/a\n\
         umount mnt && mount -t fuse.tollgate -o $O,noallow_other dir mnt || exit\n\
         setpriv --reuid 65534 --clear-groups cat mnt/a; mnt/program; umount mnt",
    );
    let said = err(&output);
    let lines: Vec<_> = out(&output).lines().map(str::to_owned).collect();
    assert!(lines[0].starts_with("shown ro,nosuid,nodev,noexec"), "{lines:?} {said}");
    assert!(lines[0].contains("allow_other"), "{lines:?}");
    // The temporary directory is its owner's alone, so another user gets there only if it may.
    assert_eq!(lines.last().unwrap(), "it runs", "{lines:?} {said}");
    assert_eq!(said.matches("Read-only file system").count(), 2, "{said}");
    assert_eq!(said.matches("program: Permission denied").count(), 2, "{said}");
}

#[test]
fn access_times_stay_with_noatime_and_change_without() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let old = "touch -a -d @1000 dir/a dir/made/b";
    let read = "mount -t fuse.tollgate -o $O$A dir mnt && cat mnt/a mnt/made/b >/dev/null && \
                umount mnt; stat -c %X dir/a dir/made/b";
    let output = place.script(&format!(
        "{old}; A=,noatime; {read}; {old}; A=,small_files=passthrough; {read}; \
         {old}; cat dir/a dir/made/b >/dev/null; stat -c %X dir/a dir/made/b"
    ));
    let times: Vec<bool> = out(&output).lines().map(|time| time == "1000").collect();
    assert_eq!(times.len(), 6, "{}", err(&output));
    assert_eq!(times[..2], [true, true]);
    assert_eq!(times[2..4], times[4..], "unlike in the directory itself");
}

#[test]
fn a_wrong_option_names_itself_and_nothing_is_mounted() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    for (options, named) in [
        ("polcy=/p", "mount option `polcy=/p` is not known; there are ro"),
        ("strictatime", "mount option `strictatime` is not possible: access times go by"),
        ("policy=/no/such/file", "policy `/no/such/file`"),
        ("threads=0", "expected a whole number from 1 to 256"),
        ("audit=dir/log", "lies inside DIR"),
    ] {
        let output = place
            .script(&format!("mount -t fuse.tollgate -o '{options}' dir mnt; echo $?; ls -A mnt"));
        let said = err(&output);
        assert!(said.contains(named), "{options}: {said}");
        let code = out(&output);
        assert!(code.lines().count() == 1 && code.trim() != "0", "{options}: {code}");
    }
}

//! Native directories that others move, directly in DIR: the mount does not go along to where other
//! rules hold.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::project::{all, can_mount, first_line, text, tollgate, until};

/// Each rule after the native one says something else about what comes to be there.
const POLICY: &str = "
    [[rule]]
    path = 'web/deep/out'
    action = 'native'
    [[rule]]
    path = 'denied'
    action = 'deny'
    [[rule]]
    path = 'kept/**'
    action = 'read-only'
    [[rule]]
    path = 'masked/**'
    action = 'redact'
    [[rule]]
    path = 'gone'
    action = 'hide'";

const SECRET: &str = "password: \"s3cret-Word-99\"\n";
const MASKED: &str = "password: \"**************\"\n";

/// Directories that rules are about, and what reading and writing a file in them comes to.
const PLACES: [(&str, &str); 4] =
    [("denied", "no, no"), ("kept", "raw, no"), ("masked", "masked, no"), ("gone", "no, no")];

/// What is moved: a directory above the native one, or that one itself; and what is then looked for
/// first.
const WAYS: [(&str, bool); 6] = [
    ("web", false),
    ("web", true),
    ("web/deep", false),
    ("web/deep", true),
    ("web/deep/out", false),
    ("web/deep/out", true),
];

struct Tree {
    home: tempfile::TempDir,
    /// Seconds for which the kernel believes names.
    timeout: &'static str,
}

impl Tree {
    fn new(policy: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("mnt")).unwrap();
        fs::write(home.path().join("policy.toml"), policy).unwrap();
        let tree = Self { home, timeout: "0.4" };
        fs::create_dir_all(tree.at("dir/web/deep/out")).unwrap();
        fs::write(tree.at("dir/web/deep/out/file"), "built\n").unwrap();
        tree
    }

    fn at(&self, name: &str) -> PathBuf {
        fs::canonicalize(self.home.path()).unwrap().join(name)
    }

    fn command(&self, what: &[&str], watch: &str) -> Command {
        // The other transport with each of the two ways to learn of changes.
        let transport = if watch == "off" { "devfuse" } else { "auto" };
        let mut command = tollgate();
        command.args(what).args(["--sandbox", "strict", "--watch", watch]);
        command.args(["--transport", transport, "--attr-timeout", self.timeout, "--policy"]);
        command.arg(self.at("policy.toml")).arg(self.at("dir")).current_dir(self.home.path());
        command
    }

    /// Moves `what`, so that a file is at `PLACE/file` that was in the native directory, or will be.
    /// Returns where it is, from DIR.
    fn exchange(&self, what: &str, place: &str) -> String {
        let rest = "web/deep/out".strip_prefix(what).unwrap().trim_start_matches('/');
        fs::create_dir(self.at("dir").join(place)).unwrap();
        let inside = format!("{place}/it");
        fs::rename(self.at("dir").join(what), self.at("dir").join(&inside)).unwrap();
        let file = Path::new(&inside).join(rest).join("file");
        fs::write(self.at("dir").join(&file), SECRET).unwrap();
        file.to_str().unwrap().to_owned()
    }

    /// Where something is mounted.
    fn mounts(&self) -> Vec<String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let points = mounts.lines().map(|line| line.split(' ').nth(4).unwrap().to_owned());
        points.filter(|point| Path::new(point).starts_with(self.at(""))).collect()
    }
}

/// A view at `mnt`, unmounted when the test ends, however it ends.
struct Mounted<'t>(&'t Tree);

impl<'t> Mounted<'t> {
    fn start(tree: &'t Tree, watch: &str) -> Self {
        let mut command = tree.command(&["mount", "--daemon"], watch);
        let output = command.arg(tree.at("mnt")).arg("--log").arg(tree.at("log")).output().unwrap();
        assert!(output.status.success(), "{}", all(&output));
        Self(tree)
    }

    fn umount(&self) -> std::process::Output {
        tollgate().arg("umount").arg(self.0.at("mnt")).output().unwrap()
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if !self.0.mounts().is_empty() {
            let _ = tollgate().args(["umount", "--lazy"]).arg(self.0.at("mnt")).output();
        }
    }
}

/// What comes of reading a file and of writing to it.
fn tried(file: &Path) -> String {
    let read = match fs::read_to_string(file) {
        Ok(text) if text == SECRET => "raw".to_owned(),
        Ok(text) if text == MASKED => "masked".to_owned(),
        Ok(text) => text,
        Err(_) => "no".to_owned(),
    };
    let written = fs::OpenOptions::new().append(true).open(file);
    format!("{read}, {}", if written.is_ok() { "yes" } else { "no" })
}

/// The same in CMD.
const TRIED: &str = "
    tried() {
        read=no; text=$(cat \"$1\") && read=$text
        case $read in *s3cret*) read=raw;; *'***'*) read=masked;; esac
        written=no; (: >>\"$1\") && written=yes
        echo \"$read, $written\"
    }";

fn start(tree: &Tree, watch: &str, script: &str) -> Child {
    let mut command = tree.command(&["run", "--quiet"], watch);
    command.args(["--", "sh", "-c", &format!("{TRIED}\n{script}")]).current_dir(tree.at("dir"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn no_mount_goes_along_when_a_directory_is_moved_beneath_a_mounted_view() {
    if !can_mount() {
        return;
    }
    for watch in ["off", "auto"] {
        for (number, (what, old_first)) in WAYS.into_iter().enumerate() {
            // Every second time all four rules, for one way each of them.
            for (place, expected) in PLACES.into_iter().skip(number % 2).step_by(2) {
                let case =
                    format!("--watch {watch}, {what} to {place}, old name first: {old_first}");
                let tree = Tree::new(POLICY);
                let view = Mounted::start(&tree, watch);
                let at = |name: &str| tree.at("mnt").join(name);
                let old = at("web/deep/out/file");
                assert_eq!(fs::read_to_string(&old).unwrap(), "built\n");
                assert_eq!(tree.mounts().len(), 2, "{case}");
                let file = tree.exchange(what, place);
                let look = || drop(fs::metadata(&old));
                if old_first {
                    look();
                }
                assert_eq!(tried(&at(&file)), expected, "{case}");
                assert_eq!(tried(&at(&file)), expected, "{case}");
                let stray = |point: &String| point.starts_with(at(place).to_str().unwrap());
                assert!(!tree.mounts().iter().any(stray), "{case}: {:?}", tree.mounts());
                until(&format!("{case}: the old name ends"), || fs::metadata(&old).is_err());
                // Also where nobody has looked for the old name since.
                until(&format!("{case}: umount"), || view.umount().status.success());
                assert_eq!(tree.mounts(), [""; 0], "{case}");
            }
        }
    }
}

#[test]
fn no_mount_goes_along_when_a_directory_is_moved_beneath_a_run() {
    if !can_mount() {
        return;
    }
    for watch in ["off", "auto"] {
        for (number, (what, old_first)) in WAYS.into_iter().enumerate() {
            let (place, expected) = PLACES[number % PLACES.len()];
            let case = format!("--watch {watch}, {what} to {place}, old name first: {old_first}");
            let tree = Tree::new(POLICY);
            let script = "
                cat web/deep/out/file >/dev/null; echo ready; read -r file
                $LOOK; tried \"$file\"; tried \"$file\"
                cut -d' ' -f5 /proc/self/mountinfo | grep -c \"$PLACE/it\"";
            let look = if old_first { "cat web/deep/out/file >/dev/null" } else { "true" };
            let script = script.replace("$LOOK", look).replace("$PLACE", place);
            let mut child = start(&tree, watch, &script);
            assert_eq!(first_line(&mut child), "ready", "{case}");
            let file = tree.exchange(what, place);
            writeln!(child.stdin.as_mut().unwrap(), "{file}").unwrap();
            let output = child.wait_with_output().unwrap();
            assert_eq!(text(&output.stdout), format!("{expected}\n{expected}\n0\n"), "{case}");
        }
    }
}

/// A view is unmounted although nobody has looked for the native directory since it was moved.
#[test]
fn a_view_is_unmounted_after_a_native_directory_was_moved() {
    if !can_mount() {
        return;
    }
    for (what, _) in WAYS.into_iter().step_by(2) {
        let tree = Tree::new(POLICY);
        let view = Mounted::start(&tree, "off");
        let file = tree.exchange(what, "denied");
        let _ = fs::metadata(tree.at("mnt").join(file));
        let output = view.umount();
        assert!(output.status.success(), "{what}: {}", all(&output));
        assert_eq!(tree.mounts(), [""; 0], "{what}");
    }
}

/// Whoever stands above it keeps it no longer than the kernel may believe names.
#[test]
fn who_stands_above_a_native_directory_loses_it_when_it_is_moved() {
    if !can_mount() {
        return;
    }
    for (watch, with_another) in [("off", false), ("off", true), ("auto", false), ("auto", true)] {
        let tree = Tree::new(POLICY);
        // It goes on looking, so that the directory it stands in is watched, but none above it.
        let script = "
            cd web/deep; for i in 1 2 3 4 5 6; do cat out/file >/dev/null; sleep 0.3; done
            echo ready
            while cat out/file >/dev/null; do sleep 0.05; done; echo lost";
        let mut child = start(&tree, watch, script);
        assert_eq!(first_line(&mut child), "ready");
        tree.exchange("web", "denied");
        if with_another {
            fs::create_dir_all(tree.at("dir/web/deep/out")).unwrap();
        }
        let (sender, lost) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            let line = first_line(&mut child);
            sender.send(()).unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            line
        });
        let in_time = lost.recv_timeout(crate::project::PATIENCE);
        assert!(in_time.is_ok(), "--watch {watch}, another: {with_another}");
        assert_eq!(waiter.join().unwrap(), "lost");
    }
}

/// Directories that are moved one after the other, while others look for the new name all the time.
#[test]
fn no_reader_of_the_new_name_overtakes_the_move() {
    const NATIVE: usize = 60;
    if !can_mount() {
        return;
    }
    let native: Vec<_> = (0..NATIVE).map(|number| format!("'p{number}/out'")).collect();
    let native = native.join(", ");
    let policy = format!(
        "[[rule]]\npath = [{native}]\naction = 'native'\n[[rule]]\npath = 'x*'\naction = 'deny'"
    );
    for watch in ["off", "auto"] {
        let mut tree = Tree::new(&policy);
        tree.timeout = "0.02";
        for number in 0..NATIVE {
            fs::create_dir_all(tree.at(&format!("dir/p{number}/out"))).unwrap();
            fs::write(tree.at(&format!("dir/p{number}/out/file")), SECRET).unwrap();
        }
        let view = Mounted::start(&tree, watch);
        assert_eq!(tree.mounts().len(), NATIVE + 1);
        let [current, tries, refused] = [0; 3].map(AtomicUsize::new);
        let read = || {
            loop {
                let number = current.load(Ordering::SeqCst);
                if number == NATIVE {
                    return None;
                }
                let file = tree.at(&format!("mnt/x{number}/out/file"));
                match fs::read_to_string(file) {
                    Ok(_) => {
                        // The other reader ends, and so does the wait for it.
                        current.store(NATIVE, Ordering::SeqCst);
                        return Some(number);
                    }
                    Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                        refused.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(_) => {}
                }
                if number % 2 == 0 {
                    let _ = fs::metadata(tree.at(&format!("mnt/p{number}/out/file")));
                }
                tries.fetch_add(1, Ordering::SeqCst);
            }
        };
        let leaks = std::thread::scope(|scope| {
            let readers = [scope.spawn(read), scope.spawn(read)];
            for number in 0..NATIVE {
                let from = tree.at(&format!("dir/p{number}"));
                let before = tries.load(Ordering::SeqCst);
                let ended = || current.load(Ordering::SeqCst) == NATIVE;
                until("others look", || ended() || tries.load(Ordering::SeqCst) >= before + 3);
                fs::rename(from, tree.at(&format!("dir/x{number}"))).unwrap();
                let then = refused.load(Ordering::SeqCst);
                let found = || refused.load(Ordering::SeqCst) >= then + 20;
                until("others find it", || ended() || found());
                if ended() {
                    break;
                }
                current.store(number + 1, Ordering::SeqCst);
            }
            readers.map(|reader| reader.join().unwrap())
        });
        assert_eq!(leaks, [None, None], "--watch {watch}");
        let moved = |point: &String| point.starts_with(tree.at("mnt/x").to_str().unwrap());
        assert!(!tree.mounts().iter().any(moved), "{:?}", tree.mounts());
        until("umount", || view.umount().status.success());
        assert_eq!(tree.mounts(), [""; 0]);
    }
}

/// A directory that came in place of a native one is as others are, and so are those above it.
#[test]
fn what_replaces_a_native_directory_can_be_moved_and_removed() {
    if !can_mount() {
        return;
    }
    for watch in ["off", "auto"] {
        let tree = Tree::new(POLICY);
        let _view = Mounted::start(&tree, watch);
        let at = |name: &str| tree.at("mnt").join(name);
        let busy = |result: std::io::Result<()>| result.unwrap_err().raw_os_error();
        assert_eq!(busy(fs::rename(at("web"), at("moved"))), Some(libc::EBUSY));
        tree.exchange("web/deep/out", "denied");
        fs::create_dir(tree.at("dir/web/deep/out")).unwrap();
        let new = |from: &str, to: &str| {
            until(&format!("--watch {watch}: {from} is renamed"), || {
                fs::rename(at(from), at(to)).is_ok()
            });
        };
        new("web/deep/out", "web/deep/other");
        new("web/deep", "web/moved");
        new("web", "there");
        fs::create_dir(at("web")).unwrap();
        fs::write(at("file"), "plain").unwrap();
        fs::create_dir_all(at("web/deep/out")).unwrap();
        fs::rename(at("file"), at("web/deep/out/file")).unwrap();
        fs::remove_dir_all(at("web")).unwrap();
        assert!(!tree.at("dir/web").exists());
        assert_eq!(tried(&at("denied/it/file")), "no, no");
    }
}

//! Other paths to the same files: bind mounts inside DIR, and file systems to which two spellings
//! are one name.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::UnmountFlags;
use tollgate_fuse::{Device, Running, Session};
use tollgate_view::WatchMode;

use crate::caseless::Caseless;
use crate::harness::{View, can_mount};

const SECRET: &str = "the secret";
const POLICY: &str = "[[rule]]\npath = ['vault', 'id_rsa']\naction = 'deny'\n";

/// Something mounted for the length of a test.
struct Bound(PathBuf);

impl Bound {
    fn bind(from: &Path, onto: &Path) -> Self {
        rustix::mount::mount_bind(from, onto).unwrap();
        Self(onto.to_owned())
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

struct Tree {
    base: tempfile::TempDir,
}

impl Tree {
    fn new() -> Self {
        let tree = Self { base: tempfile::tempdir().unwrap() };
        for path in ["dir/vault", "dir/bind", "dir/up", "dir/cache", "dir/again", "cache/sub"] {
            fs::create_dir_all(tree.at(path)).unwrap();
        }
        for (path, text) in [
            ("dir/vault/key", SECRET),
            ("dir/plain", "plain"),
            ("dir/file", ""),
            ("cache/sub/object", "object"),
        ] {
            fs::write(tree.at(path), text).unwrap();
        }
        tree
    }

    fn at(&self, path: &str) -> PathBuf {
        self.base.path().join(path)
    }

    fn bind(&self, from: &str, onto: &str) -> Bound {
        Bound::bind(&self.at(from), &self.at(onto))
    }
}

#[track_caller]
fn assert_kept(view: &View, ways: &[&str]) {
    for way in ways {
        let text = fs::read_to_string(view.at(way)).unwrap_or_default();
        assert_ne!(text, SECRET, "{way} tells it");
        assert!(fs::write(view.at(way), "changed").is_err(), "{way} can be written");
    }
}

#[test]
fn a_bind_mount_of_a_part_of_the_directory_is_not_entered() {
    if !can_mount() {
        return;
    }
    let tree = Tree::new();
    let _there_before = tree.bind("dir/vault", "dir/bind");
    let _above = tree.bind("dir", "dir/up");
    let view = View::of(&tree.at("dir"), POLICY, &[]);
    let ways = ["bind/key", "up/vault/key", "file"];
    assert_kept(&view, &ways[..2]);
    let _later = tree.bind("dir/vault/key", "dir/file");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_kept(&view, &ways);
    let names: Vec<_> =
        fs::read_dir(view.root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().any(|name| name == "bind") && names.iter().any(|name| name == "plain"));
    let missing = view.server_report()["view"]["unavailable"].to_string();
    assert!(missing.contains("dir/bind") && missing.contains("second path"), "{missing}");
    assert_eq!(fs::read_to_string(view.at("plain")).unwrap(), "plain");
    assert_eq!(fs::read_to_string(tree.at("dir/vault/key")).unwrap(), SECRET);
}

#[test]
fn mounts_of_other_trees_are_entered_once() {
    if !can_mount() {
        return;
    }
    // With a flag, the server works on a copy of the mounts.
    for options in [&[][..], &["--noexec"], &["--read-only"]] {
        let tree = Tree::new();
        let _cache = tree.bind("cache", "dir/cache");
        fs::hard_link(tree.at("cache/sub/object"), tree.at("cache/other")).unwrap();
        let view = View::of(&tree.at("dir"), POLICY, options);
        assert_eq!(fs::read_to_string(view.at("cache/sub/object")).unwrap(), "object");
        assert_eq!(fs::read_to_string(view.at("cache/other")).unwrap(), "object");
        drop(view);
        let _again = tree.bind("cache/sub", "dir/again");
        let view = View::of(&tree.at("dir"), POLICY, options);
        assert!(fs::read(view.at("again/object")).is_err());
        let missing = view.server_report()["view"]["unavailable"].to_string();
        assert!(missing.contains("dir/again") && missing.contains("second path"), "{missing}");
        // Without a policy about paths there is nothing to get around.
        drop(view);
        let view = View::of(&tree.at("dir"), "", options);
        assert_eq!(fs::read_to_string(view.at("again/object")).unwrap(), "object");
    }
}

/// The copy of the mounts keeps what was mounted at the start.
#[test]
fn on_a_copy_of_the_mounts_one_that_went_or_was_replaced_is_not_entered() {
    if !can_mount() {
        return;
    }
    let tree = Tree::new();
    let cache = tree.bind("cache", "dir/cache");
    let vault = tree.bind("dir/vault", "dir/again");
    let view = View::of(&tree.at("dir"), POLICY, &["--noexec"]);
    drop(cache);
    drop(vault);
    assert!(fs::read(view.at("cache/sub/object")).is_err());
    // It may get the number of one that is gone.
    let _other = tree.bind("cache", "dir/again");
    assert_kept(&view, &["again/key"]);
    // What is mounted since then is not on the copy.
    let _later = tree.bind("cache", "dir/up");
    assert_eq!(fs::read_dir(view.at("up")).unwrap().count(), 0);
    let missing = view.server_report()["view"]["unavailable"].to_string();
    for place in ["dir/again", "dir/up"] {
        let place = format!("what is mounted at `{}`", tree.at(place).display());
        assert!(missing.contains(&place) && missing.contains("has changed since"), "{missing}");
    }
}

#[test]
fn a_mount_on_a_copy_is_entered_wherever_the_directory_is_by_now() {
    if !can_mount() {
        return;
    }
    let tree = Tree::new();
    let _cache = tree.bind("cache", "dir/cache");
    let view = View::of(&tree.at("dir"), POLICY, &["--noexec"]);
    fs::rename(tree.at("dir"), tree.at("moved")).unwrap();
    let found = fs::read_to_string(view.at("cache/sub/object"));
    fs::rename(tree.at("moved"), tree.at("dir")).unwrap();
    assert_eq!(found.unwrap(), "object");
}

#[test]
fn a_policy_about_names_is_refused_where_spellings_do_not_count() {
    if !can_mount() {
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let Some(caseless) = Caseless::new(base.path()) else { return };
    let dir = caseless.dir();
    fs::create_dir(base.path().join("mnt")).unwrap();
    fs::write(base.path().join("policy.toml"), POLICY).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("mount").arg("--policy").arg(base.path().join("policy.toml"));
    let output = command.arg(dir).arg(base.path().join("mnt")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("case-insensitive"), "{said}");
    fs::create_dir(dir.join("vault")).unwrap();
    fs::write(dir.join("vault/secret"), SECRET).unwrap();
    let view = View::of(dir, "default = 'read-only'", &[]);
    assert_eq!(fs::read_to_string(view.at("VAULT/secret")).unwrap(), SECRET);
    // Nor does a reload bring one in.
    fs::write(view.policy_file(), POLICY).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("reload").arg(dir).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("case-insensitive"), "{said}");
}

/// A file system of FUSE on a block device, as ntfs-3g has one. Nothing but its type tells that spellings
/// do not count on it.
struct OnBlockDevice {
    dir: PathBuf,
    device: String,
    running: Option<Running>,
}

impl OnBlockDevice {
    /// Shows a new directory below `base`. `None`, which is said, where there is no loop device.
    fn new(base: &Path) -> Option<Self> {
        let (image, lower, dir) = (base.join("image"), base.join("lower"), base.join("dir"));
        fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
        fs::create_dir(&lower).unwrap();
        fs::create_dir(&dir).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
        let Some(made) = made.ok().filter(|output| output.status.success()) else {
            println!("skipped: no loop device can be made here");
            return None;
        };
        let device = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        let mut mounted = Self { dir, device, running: None };
        let fuse = Device::open().unwrap();
        let fd = fuse.as_fd().as_raw_fd();
        let options = format!("fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other");
        let options = std::ffi::CString::new(options).unwrap();
        let none = rustix::mount::MountFlags::empty();
        rustix::mount::mount(&*mounted.device, &mounted.dir, "fuseblk", none, &*options).unwrap();
        let config = tollgate_view::Config { watch: WatchMode::Off, ..Default::default() };
        let view =
            tollgate_view::View::open(fs::File::open(lower).unwrap().into(), config).unwrap();
        let session = Session::new(fuse, view.clone(), view.session_config(Some(2)));
        mounted.running = Some(session.start().unwrap());
        Some(mounted)
    }
}

impl Drop for OnBlockDevice {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
        drop(self.running.take());
        let _ = Command::new("losetup").args(["--detach", &self.device]).status();
    }
}

#[test]
fn a_policy_about_names_is_refused_by_the_type_of_the_file_system() {
    if !can_mount() {
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let Some(blocks) = OnBlockDevice::new(base.path()) else { return };
    fs::create_dir(base.path().join("mnt")).unwrap();
    fs::write(base.path().join("policy.toml"), POLICY).unwrap();
    for options in [&[][..], &["--noexec"], &["--read-only"], &["--noatime"]] {
        // One that starts all the same ends.
        let mut command = Command::new("timeout");
        command.args(["10", env!("CARGO_BIN_EXE_tollgate"), "mount", "--policy"]);
        command.arg(base.path().join("policy.toml")).args(options);
        let output = command.arg(&blocks.dir).arg(base.path().join("mnt")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let expected = "its file system (fuseblk) is case-insensitive";
        assert!(!output.status.success() && said.contains(expected), "{options:?}: {said}");
        // Nor does a reload bring one in.
        let view = View::of(&blocks.dir, "default = 'read-only'", options);
        fs::write(view.policy_file(), POLICY).unwrap();
        let mut reload = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let output = reload.arg("reload").arg(view.root()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{options:?}: {said}");
    }
}

/// The server of a file system that is mounted in DIR dies: `ls` shows the other names, and that one.
#[test]
fn a_directory_with_a_dead_mount_is_listed() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let policy = "[[rule]]\npath = 'x/hidden'\naction = 'hide'\n";
    for policy in ["", policy] {
        let view = View::with(policy, &[("x/file", "text"), ("x/dead/f", ""), ("x/hidden/f", "")]);
        let names = ["dead", "hidden"].map(|name| view.below(&format!("x/{name}")));
        let mut dead = Vec::new();
        for name in &names {
            let device = fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
            let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
            let options = std::ffi::CString::new(options).unwrap();
            let none = rustix::mount::MountFlags::empty();
            rustix::mount::mount("dead", name, "fuse", none, &*options).unwrap();
            dead.push(Bound(name.clone()));
        }
        let listed = |of: &Path| -> Vec<_> {
            let entries = fs::read_dir(of).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<_> = entries.collect();
            names.sort();
            names
        };
        let expected: &[&str] =
            if policy.is_empty() { &["dead", "file", "hidden"] } else { &["dead", "file"] };
        assert_eq!(listed(&view.at("x")), expected);
        assert_eq!(fs::read_to_string(view.at("x/file")).unwrap(), "text");
        let hidden = fs::metadata(view.at("x/hidden")).unwrap_err().raw_os_error();
        let expected = if policy.is_empty() { libc::ENOTCONN } else { libc::ENOENT };
        assert_eq!(hidden, Some(expected));
    }
}

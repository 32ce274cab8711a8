//! A caller that changes who it is between two requests of the same thread is judged as it is now:
//! what the server found out about a thread does not outlive a change of its identity.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::harness::{View, can_mount};

const USER: u32 = 4321;
const OTHER: u32 = 4322;
/// Attributes that the kernel keeps, so that its own checks go by what was true before.
const STALE: &[&str] = &["--attr-timeout", "60", "--watch", "off"];

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// The calling thread acts as `uid` with `groups`; the way back stays open.
fn act_as(uid: u32, groups: &[u32]) {
    let root = Uid::from_raw(0);
    rustix::thread::set_thread_res_uid(root, root, root).unwrap();
    let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
    rustix::thread::set_thread_groups(&groups).unwrap();
    let gid = Gid::from_raw(uid);
    rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
    rustix::thread::set_thread_res_uid(root, Uid::from_raw(uid), root).unwrap();
}

/// A thread of its own, which ends with whatever identity it has.
fn on_a_thread(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(work).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// A directory that everybody may change as far as the kernel knows, and in truth only `owner` and
/// the group [`OTHER`], with a file `f`.
fn closed_meanwhile(view: &View, name: &str, owner: u32) {
    let below = view.below(name);
    fs::create_dir(&below).unwrap();
    fs::write(below.join("f"), "text").unwrap();
    set_mode(&below, 0o777);
    fs::metadata(view.at(name).join("f")).unwrap();
    chown(&below, Some(owner), Some(OTHER)).unwrap();
    set_mode(&below, 0o770);
}

fn open_view(policy: &str) -> (tempfile::TempDir, View) {
    let dir = tempfile::tempdir().unwrap();
    set_mode(dir.path(), 0o777);
    let view = View::of(dir.path(), policy, STALE);
    set_mode(view.root().parent().unwrap(), 0o755);
    (dir, view)
}

#[test]
fn groups_and_user_ids_count_as_they_are_now() {
    if !can_mount() {
        return;
    }
    for policy in ["", "default = \"userspace\""] {
        let (_dir, view) = open_view(policy);
        let steps: [(&str, u32, &[u32], bool); 8] = [
            ("in the group", USER, &[OTHER], true),
            ("group left", USER, &[], false),
            ("in the group again", USER, &[OTHER], true),
            ("another group", USER, &[OTHER + 1], false),
            ("root", 0, &[], true),
            ("no longer root", USER, &[], false),
            ("a user whose own group it is", OTHER, &[], true),
            ("the user before", USER, &[], false),
        ];
        for (name, ..) in steps {
            closed_meanwhile(&view, name, 0);
        }
        on_a_thread(|| {
            for (name, uid, groups, may) in steps {
                act_as(uid, groups);
                let removed = fs::remove_file(view.at(name).join("f"));
                let refused = removed.as_ref().map_err(std::io::Error::kind);
                let expected = if may { Ok(&()) } else { Err(ErrorKind::PermissionDenied) };
                assert_eq!(refused, expected, "{name}, {policy}");
            }
        });
        for (name, .., may) in steps {
            assert_eq!(view.below(name).join("f").exists(), !may, "{name}, {policy}");
        }
    }
}

#[test]
fn capabilities_count_as_they_are_now() {
    if !can_mount() {
        return;
    }
    let (_dir, view) = open_view("");
    let steps =
        [("with", true), ("without", false), ("with again", true), ("without again", false)];
    for (name, _) in steps {
        closed_meanwhile(&view, name, USER);
    }
    on_a_thread(|| {
        act_as(0, &[]);
        let all = capabilities(None).unwrap();
        for (name, may) in steps {
            let mut sets = all;
            sets.effective.set(CapabilitySet::DAC_OVERRIDE, may);
            sets.effective.set(CapabilitySet::DAC_READ_SEARCH, may);
            set_capabilities(None, sets).unwrap();
            let removed = fs::remove_file(view.at(name).join("f"));
            assert_eq!(removed.is_ok(), may, "{name}: {removed:?}");
        }
        set_capabilities(None, all).unwrap();
    });
    for (name, may) in steps {
        assert_eq!(view.below(name).join("f").exists(), !may, "{name}");
    }
}

/// What is made belongs to whoever the thread is at that moment, with its group and umask.
#[test]
fn new_files_belong_to_whoever_the_thread_is_then() {
    if !can_mount() {
        return;
    }
    let (_dir, view) = open_view("");
    on_a_thread(|| {
        for round in 0..20 {
            for uid in [USER, 0, OTHER, USER] {
                act_as(uid, &[]);
                let name = format!("{round} {uid}");
                fs::write(view.at(&name), "text").unwrap();
                let made = fs::metadata(view.below(&name)).unwrap();
                assert_eq!((made.uid(), made.gid()), (uid, uid), "{name}");
                fs::remove_file(view.at(&name)).unwrap();
            }
        }
    });
}

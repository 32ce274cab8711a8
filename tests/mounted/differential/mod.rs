//! Each operation on a bare directory and on a view of one: the same results, the same errors, the
//! same tree afterwards. As root and as another user, over passthrough and through user space.

mod attributes;
mod files;
mod names;

use std::fmt::Debug;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use rustix::io::Errno;

use crate::harness::{View, as_user, can_mount};
use crate::snapshot;

/// What a scenario did and got, line by line.
#[derive(Default)]
struct Log(Vec<String>);

impl Log {
    /// Takes down the outcome of one operation, and hands on its value.
    fn note<T: Debug>(&mut self, what: &str, outcome: Result<T, Errno>) -> Option<T> {
        self.0.push(format!("{what}: {outcome:?}"));
        outcome.ok()
    }

    /// As [`Log::note`] for values that differ from run to run (descriptors).
    fn opened<T>(&mut self, what: &str, outcome: Result<T, Errno>) -> Option<T> {
        self.0.push(format!("{what}: {:?}", outcome.as_ref().map(|_| "open").map_err(|e| *e)));
        outcome.ok()
    }

    /// Takes down a value.
    fn value(&mut self, what: &str, value: impl Debug) {
        self.0.push(format!("{what} = {value:?}"));
    }
}

/// A name and what it does in an empty directory.
type Scenario = (&'static str, fn(&Path, &mut Log));

const PASSTHROUGH: &str = "";
const USERSPACE: &str = "default = 'userspace'";
const USER: u32 = 1234;

#[test]
fn root_gets_the_same_over_passthrough() {
    compare(PASSTHROUGH, 0);
}

#[test]
fn a_user_gets_the_same_over_passthrough() {
    compare(PASSTHROUGH, USER);
}

#[test]
fn root_gets_the_same_through_user_space() {
    compare(USERSPACE, 0);
}

#[test]
fn a_user_gets_the_same_through_user_space() {
    compare(USERSPACE, USER);
}

/// A directory that is there when a scenario begins.
const FOREIGN_GROUP: &str = "foreign-group";

fn compare(policy: &str, uid: u32) {
    if !can_mount() {
        return;
    }
    let bare = tempfile::tempdir().unwrap();
    fs::set_permissions(bare.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let view = View::new(policy);
    // The way to the mount point has to be open to others.
    fs::set_permissions(view.root().parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut differences = Vec::new();
    let tables = [files::SCENARIOS, names::SCENARIOS, attributes::SCENARIOS];
    for (name, scenario) in tables.into_iter().flatten() {
        let expected = play(&bare.path().join(name), uid, *scenario);
        let found = play(&view.at(name), uid, *scenario);
        differences.extend(differ(name, &expected, &found));
        let trees = [bare.path().join(name), view.at(name), view.below(name)];
        let [expected, found, below] = trees.map(|tree| lines(&snapshot::take(&tree)));
        differences.extend(differ(&format!("{name}, tree"), &expected, &found));
        differences.extend(differ(&format!("{name}, tree below"), &expected, &below));
    }
    assert!(differences.is_empty(), "differences:\n{}", differences.join("\n"));
}

fn play(dir: &Path, uid: u32, scenario: fn(&Path, &mut Log)) -> Vec<String> {
    fs::create_dir(dir).unwrap();
    chown(dir, Some(uid), Some(uid)).unwrap();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    // Of the user, and of a group that the user is not in, which only others can make it.
    let foreign = dir.join(FOREIGN_GROUP);
    fs::create_dir(&foreign).unwrap();
    chown(&foreign, Some(uid), Some(uid + 1)).unwrap();
    fs::set_permissions(&foreign, fs::Permissions::from_mode(0o2775)).unwrap();
    let mut log = Log::default();
    let mut run = || scenario(dir, &mut log);
    if uid == 0 {
        run();
    } else {
        as_user(uid, uid, run);
    }
    // What a link or an error says about where it is must not count.
    let dir = dir.to_str().unwrap();
    log.0.iter().map(|line| line.replace(dir, "DIR")).collect()
}

fn lines(snapshot: &snapshot::Snapshot) -> Vec<String> {
    snapshot.iter().map(|(path, line)| format!("{path}: {line}")).collect()
}

fn differ(name: &str, expected: &[String], found: &[String]) -> Vec<String> {
    let mut differences = Vec::new();
    for at in 0..expected.len().max(found.len()) {
        let none = "nothing".to_owned();
        let (bare, view) = (expected.get(at).unwrap_or(&none), found.get(at).unwrap_or(&none));
        if bare != view && !is_stricter(bare, view) {
            differences.push(format!("{name}\n  bare: {bare}\n  view: {view}"));
        }
    }
    differences
}

/// The one difference that is meant to be (`docs/conformance.md`): a change of a file's data takes
/// its set-id bits, also from root and from members of the group, whom the bare directory lets keep
/// them.
fn is_stricter(bare: &str, view: &str) -> bool {
    let mode = |line: &str| -> Option<u32> {
        line.strip_prefix("mode after ")?.split_once("Ok(")?.1.strip_suffix(')')?.parse().ok()
    };
    matches!((mode(bare), mode(view)), (Some(bare), Some(view)) if bare & !0o6000 == view)
}

//! One caller cannot take what the others need: descriptors and locks.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::harness::{View, as_user, can_mount};

const GREEDY: u32 = 4321;
const OTHER: u32 = 4322;
/// More than the view may have open.
const FILES: usize = 300;
const DESCRIPTORS: &str = "200";
const PATIENCE: Duration = Duration::from_secs(30);

/// A view with files that everybody may use.
fn open_view(policy: &str) -> (tempfile::TempDir, View) {
    let dir = tempfile::tempdir().unwrap();
    let all = |mode| fs::Permissions::from_mode(mode);
    fs::set_permissions(dir.path(), all(0o777)).unwrap();
    for n in 0..FILES {
        fs::write(dir.path().join(n.to_string()), "text").unwrap();
        fs::set_permissions(dir.path().join(n.to_string()), all(0o666)).unwrap();
    }
    let view = View::of(dir.path(), policy, &["--max-descriptors", DESCRIPTORS]);
    fs::set_permissions(view.root().parent().unwrap(), all(0o755)).unwrap();
    (dir, view)
}

fn open(view: &View, n: usize) -> Result<File, Errno> {
    let opened = File::options().read(true).write(true).open(view.at(&n.to_string()));
    opened.map_err(|error| Errno::from_io_error(&error).unwrap())
}

fn lock(view: &View, n: usize) -> Result<File, Errno> {
    let file = open(view, n)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// As many as `take` gives, and why there are no more.
fn all_of(take: impl Fn(usize) -> Result<File, Errno>) -> (Vec<File>, Option<Errno>) {
    let mut taken = Vec::new();
    for n in 0..FILES {
        match take(n) {
            Ok(file) => taken.push(file),
            Err(errno) => return (taken, Some(errno)),
        }
    }
    (taken, None)
}

/// The share called `of`: the user who was refused last.
fn last_refused(view: &View, of: &str) -> Option<u64> {
    let report = view.server_report();
    let shares = report["view"]["shares"].as_array().unwrap();
    let share = shares.iter().find(|share| share["of"] == of).unwrap();
    share["last_refused_uid"].as_u64()
}

#[test]
fn a_user_who_locks_all_it_can_leaves_locks_and_listings_to_others() {
    if !can_mount() {
        return;
    }
    let (_dir, view) = open_view("");
    let (held, refused) = as_user(GREEDY, GREEDY, || all_of(|n| lock(&view, n)));
    assert_eq!((held.len(), refused), (50, Some(Errno::NOLCK)), "a quarter of the descriptors");
    for user in [GREEDY, OTHER, 0] {
        as_user(user, user, || assert_eq!(fs::read_dir(view.root()).unwrap().count(), FILES));
    }
    let (others, _) = as_user(OTHER, OTHER, || all_of(|n| lock(&view, FILES - 1 - n)));
    assert!(others.len() >= 20, "{} locks are left for another user", others.len());
    assert_eq!(last_refused(&view, "locks"), Some(u64::from(OTHER)));
    drop(held);
    // The kernel reports a close after it returned.
    let deadline = Instant::now() + PATIENCE;
    while let Err(errno) = as_user(GREEDY, GREEDY, || lock(&view, 0).map(drop)) {
        assert!(errno == Errno::NOLCK && Instant::now() < deadline, "{errno}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_user_who_opens_all_it_can_leaves_descriptors_to_others() {
    if !can_mount() {
        return;
    }
    let (_dir, view) = open_view("default = 'userspace'");
    let (held, refused) = as_user(GREEDY, GREEDY, || all_of(|n| open(&view, n)));
    assert_eq!(refused, Some(Errno::MFILE));
    assert!(held.len() <= 100, "{} of 200", held.len());
    let (others, _) = as_user(OTHER, OTHER, || all_of(|n| open(&view, n)));
    assert!(others.len() >= 20, "{} are left for another user", others.len());
    assert_eq!(fs::read_dir(view.root()).unwrap().count(), FILES);
    assert_eq!(last_refused(&view, "descriptors"), Some(u64::from(OTHER)));
}

/// Its maker was told that there is none, and could neither make nor remove it.
#[test]
fn a_file_that_cannot_be_opened_for_want_of_descriptors_is_not_made() {
    if !can_mount() {
        return;
    }
    let (dir, view) = open_view("default = 'userspace'");
    fs::create_dir(dir.path().join("new")).unwrap();
    let make = |n: usize| {
        let path = view.at(&format!("new/{n}"));
        let made = File::options().read(true).write(true).create_new(true).open(path);
        made.map_err(|error| Errno::from_io_error(&error).unwrap())
    };
    let made: Vec<_> = (0..FILES).map(make).collect();
    let refused = made.iter().filter(|one| matches!(one, Err(Errno::MFILE))).count();
    assert!(refused > 100, "{refused}");
    let there = |path: &std::path::Path| fs::read_dir(path).unwrap().count();
    assert_eq!(there(&dir.path().join("new")), FILES - refused);
    // Nor is one emptied that cannot be opened.
    fs::write(dir.path().join("full"), "text").unwrap();
    for read in [false, true] {
        let emptied = File::options().read(read).write(true).truncate(true).open(view.at("full"));
        assert_eq!(emptied.unwrap_err().raw_os_error(), Some(libc::EMFILE));
    }
    assert_eq!(fs::read_to_string(dir.path().join("full")).unwrap(), "text");
    let first = made.iter().position(Result::is_err).unwrap();
    drop(made);
    let deadline = Instant::now() + PATIENCE;
    while let Err(errno) = make(first) {
        assert!(errno == Errno::MFILE && Instant::now() < deadline, "{errno}");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(there(&view.at("new")), FILES - refused + 1);
}

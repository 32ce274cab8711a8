//! Changes behind the view, seen although the kernel caches names and attributes.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::harness::{View, as_user, can_mount};

/// A change outside is to be seen within this time. It takes some milliseconds; a busy machine,
/// more.
const SEEN_WITHIN: Duration = Duration::from_secs(20);
/// Longer than the attribute timeout: what is not asked about again after it is cached by the
/// watch.
const PAST_TIMEOUT: Duration = Duration::from_millis(1300);

/// Longer than other tests change so much at a time that reports are lost.
const KEPT_WITHIN: Duration = Duration::from_secs(240);

/// Waits until `holds`, at most [`SEEN_WITHIN`].
#[track_caller]
fn soon(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < SEEN_WITHIN, "not seen: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// Requests about names.
fn asked(view: &View) -> u64 {
    ["lookup", "readdir"].iter().map(|name| view.count(name)).sum()
}

/// A view whose tree is in the kernel's cache.
fn warm(view: &View) {
    for _ in 0..2 {
        names(view.root());
        names(&view.at("dir"));
        fs::metadata(view.at("dir/a")).unwrap();
        fs::metadata(view.at("dir/missing")).unwrap_err();
    }
}

fn view() -> View {
    View::with("", &[("dir/a", "text"), ("dir/b", "text"), ("top", "text")])
}

#[test]
fn what_is_watched_is_not_asked_about_again() {
    if !can_mount() {
        return;
    }
    let view = view();
    warm(&view);
    let before = asked(&view);
    std::thread::sleep(PAST_TIMEOUT);
    warm(&view);
    assert_eq!(asked(&view), before, "names and listings are cached");
    assert!(view.watch("directories") >= 2);
    // The same without the watch.
    let view = View::of(view.lower(), "", &["--watch", "off"]);
    warm(&view);
    let before = asked(&view);
    std::thread::sleep(PAST_TIMEOUT);
    warm(&view);
    assert!(asked(&view) > before);
    assert_eq!(view.watch("directories"), 0);
}

#[test]
fn changes_of_files_outside_are_seen() {
    if !can_mount() {
        return;
    }
    let view = view();
    warm(&view);
    let size = |path: &str| fs::metadata(view.at(path)).unwrap().len();
    // Written in place, by somebody who keeps the file open.
    let mut writer = fs::File::options().append(true).open(view.below("dir/a")).unwrap();
    writer.write_all(b" and more").unwrap();
    soon("a write in place", || size("dir/a") == 13);
    assert_eq!(fs::read_to_string(view.at("dir/a")).unwrap(), "text and more");
    warm(&view);
    fs::File::options().write(true).open(view.below("dir/a")).unwrap().set_len(1).unwrap();
    soon("a truncation", || size("dir/a") == 1);
    warm(&view);
    fs::set_permissions(view.below("dir/a"), PermissionsExt::from_mode(0o600)).unwrap();
    let mode = |path: &str| fs::metadata(view.at(path)).unwrap().permissions().mode() & 0o777;
    soon("a change of the mode", || mode("dir/a") == 0o600);
    // Replaced by rename, as editors do.
    fs::write(view.below("dir/new"), "replaced").unwrap();
    fs::rename(view.below("dir/new"), view.below("dir/a")).unwrap();
    soon("a replaced file", || fs::read_to_string(view.at("dir/a")).unwrap() == "replaced");
    warm(&view);
    fs::set_permissions(view.below("dir"), PermissionsExt::from_mode(0o700)).unwrap();
    soon("a change of a directory's mode", || mode("dir") == 0o700);
}

#[test]
fn names_made_and_removed_outside_are_seen() {
    if !can_mount() {
        return;
    }
    let view = view();
    warm(&view);
    fs::write(view.below("dir/missing"), "").unwrap();
    soon("a name that was missing", || view.at("dir/missing").exists());
    soon("a listed name", || names(&view.at("dir")) == set(&["a", "b", "missing"]));
    warm_up(&view);
    fs::remove_file(view.below("dir/a")).unwrap();
    soon("a removed name", || !view.at("dir/a").exists());
    soon("an unlisted name", || names(&view.at("dir")) == set(&["b", "missing"]));
    fs::create_dir(view.below("dir/sub")).unwrap();
    fs::write(view.below("dir/sub/inner"), "").unwrap();
    soon("a new directory", || view.at("dir/sub/inner").exists());
    names(&view.at("dir/sub"));
    fs::rename(view.below("dir/sub"), view.below("moved")).unwrap();
    soon("a moved directory", || !view.at("dir/sub").exists() && view.at("moved/inner").exists());
    assert_eq!(names(&view.at("moved")), set(&["inner"]));
    fs::write(view.below("moved/second"), "").unwrap();
    soon("a name in it", || names(&view.at("moved")) == set(&["inner", "second"]));
}

fn warm_up(view: &View) {
    for _ in 0..2 {
        names(&view.at("dir"));
        let _ = fs::metadata(view.at("dir/a"));
    }
}

#[test]
fn changes_from_both_sides_are_listed() {
    if !can_mount() {
        return;
    }
    let view = view();
    let dir = view.at("dir");
    for round in 0..20 {
        names(&dir);
        fs::write(dir.join("inside"), "").unwrap();
        assert!(names(&dir).contains("inside"), "its own changes are seen at once");
        fs::write(view.below("dir/outside"), "").unwrap();
        soon("a file made outside", || names(&dir).contains("outside"));
        fs::remove_file(view.below("dir/inside")).unwrap();
        // A listing may be fresh for another reason some milliseconds before the name is dropped.
        soon("a file removed outside", || {
            !names(&dir).contains("inside") && !dir.join("inside").exists()
        });
        fs::remove_file(dir.join("outside")).unwrap();
        assert_eq!(names(&dir), set(&["a", "b"]), "round {round}");
    }
}

/// Files that are written through the view are not watched one by one: the timeout holds for them.
#[test]
fn a_file_open_for_writing_in_the_view_is_seen_to_change_outside() {
    if !can_mount() {
        return;
    }
    let view = view();
    warm(&view);
    let mut inside = fs::File::options().append(true).open(view.at("dir/a")).unwrap();
    inside.write_all(b"+inside").unwrap();
    assert_eq!(fs::metadata(view.at("dir/a")).unwrap().len(), 11);
    fs::write(view.below("dir/b"), "changed outside").unwrap();
    soon("a change beside it", || fs::metadata(view.at("dir/b")).unwrap().len() == 15);
    fs::File::options()
        .append(true)
        .open(view.below("dir/a"))
        .unwrap()
        .write_all(b"+outside")
        .unwrap();
    soon("a change of it", || inside.metadata().unwrap().len() == 19);
}

/// From then on changes of files there are not reported, and what was cached of them is not believed
/// any longer: also where the directory is too large to be listed for that, and where few of its files
/// are known.
#[test]
fn what_lies_beside_a_file_that_is_written_is_asked_about_again() {
    if !can_mount() {
        return;
    }
    let view = view();
    fs::create_dir(view.below("large")).unwrap();
    for n in 0..2_000 {
        fs::write(view.below(&format!("large/{n}")), "text").unwrap();
    }
    // So many known names that listing `dir` is worth it.
    fs::create_dir(view.below("other")).unwrap();
    for n in 0..200 {
        fs::write(view.below(&format!("other/{n}")), "text").unwrap();
    }
    for (dir, written, beside) in [("large", "1", "2"), ("dir", "a", "b")] {
        let beside = format!("{dir}/{beside}");
        let size = || fs::metadata(view.at(&beside)).unwrap().len();
        for _ in 0..3 {
            warm(&view);
            names(&view.at("large"));
            size();
            std::thread::sleep(Duration::from_millis(300));
        }
        for name in names(&view.at("other")) {
            fs::metadata(view.at("other").join(name)).unwrap();
        }
        let before = size();
        fs::OpenOptions::new().append(true).open(view.at(&format!("{dir}/{written}"))).unwrap();
        // The reports end some milliseconds later.
        std::thread::sleep(Duration::from_millis(300));
        fs::write(view.below(&beside), "changed outside").unwrap();
        let start = Instant::now();
        soon("a change beside it", || size() == 15);
        let took = start.elapsed();
        assert!(before == 4 && took < Duration::from_secs(6), "{beside}: {took:?}, {before}");
    }
}

#[test]
fn a_file_with_two_names_changes_under_both() {
    if !can_mount() {
        return;
    }
    let view = view();
    fs::create_dir(view.below("elsewhere")).unwrap();
    fs::hard_link(view.below("dir/a"), view.below("elsewhere/a")).unwrap();
    warm(&view);
    // Only `dir` is watched; the write goes through the other name.
    fs::write(view.below("elsewhere/a"), "longer than before").unwrap();
    soon("a write by another name", || fs::metadata(view.at("dir/a")).unwrap().len() == 18);
}

/// A further name in a directory that nobody watches: a change made through it is reported to
/// nobody.
#[test]
fn a_file_that_gets_a_name_elsewhere_changes_within_the_timeout() {
    if !can_mount() {
        return;
    }
    let view = view();
    for _ in 0..3 {
        warm(&view);
        std::thread::sleep(Duration::from_millis(300));
    }
    let elsewhere = tempfile::tempdir_in(view.lower().parent().unwrap()).unwrap();
    let name = elsewhere.path().join("further");
    fs::hard_link(view.lower().join("dir/a"), &name).unwrap();
    fs::write(&name, "a longer text").unwrap();
    fs::set_permissions(&name, fs::Permissions::from_mode(0o600)).unwrap();
    fs::remove_file(&name).unwrap();
    let now = || fs::metadata(view.at("dir/a")).unwrap();
    soon("the mode", || now().permissions().mode() & 0o777 == 0o600);
    soon("the length", || now().len() == 13);
}

/// Whether further names of files are reported. They are on ext4, unless others change very much at
/// this moment.
fn files_are_reported(view: &View) -> bool {
    const EXT4: i64 = 0xEF53;
    if view.reports_files() {
        return true;
    }
    let on_ext4 = rustix::fs::statfs(view.lower()).unwrap().f_type == EXT4;
    assert!(!on_ext4 || view.watch("overflows") > 0, "there are reports on ext4");
    println!("not shown: this file system has no reports about all files");
    false
}

/// Attributes of files that nobody changes are asked for once.
#[test]
fn attributes_of_files_are_kept() {
    if !can_mount() {
        return;
    }
    // Other tests may change very much meanwhile: files that are known then are asked for again until
    // their names are.
    let start = Instant::now();
    loop {
        let view = view();
        warm(&view);
        if !files_are_reported(&view) {
            return;
        }
        let look = || {
            for path in ["dir/a", "dir/b", "dir"] {
                fs::metadata(view.at(path)).unwrap();
            }
        };
        look();
        let before = view.count("getattr");
        std::thread::sleep(PAST_TIMEOUT);
        look();
        if view.count("getattr") == before {
            return;
        }
        assert!(start.elapsed() < KEPT_WITHIN, "attributes are asked for again in each round");
    }
}

/// It is open in the view, and others move it to where nobody watches, or write it by a further
/// name that they keep open.
#[test]
fn what_becomes_of_a_file_elsewhere_is_seen_within_the_timeout() {
    if !can_mount() {
        return;
    }
    let view = view();
    for _ in 0..3 {
        warm(&view);
        std::thread::sleep(Duration::from_millis(300));
    }
    let elsewhere = tempfile::tempdir_in(view.lower().parent().unwrap()).unwrap();
    let append = |path: &Path| fs::File::options().append(true).open(path).unwrap();

    let open = fs::File::open(view.at("dir/a")).unwrap();
    let moved = elsewhere.path().join("moved");
    fs::rename(view.below("dir/a"), &moved).unwrap();
    soon("that it is not there", || fs::metadata(view.at("dir/a")).is_err());
    append(&moved).write_all(b" and more").unwrap();
    soon("a write at its new place", || open.metadata().unwrap().len() == 13);
    fs::set_permissions(&moved, PermissionsExt::from_mode(0o640)).unwrap();
    let mode = |meta: fs::Metadata| meta.permissions().mode() & 0o777;
    soon("a mode at its new place", || mode(open.metadata().unwrap()) == 0o640);

    let further = elsewhere.path().join("further");
    fs::hard_link(view.below("dir/b"), &further).unwrap();
    let mut writer = append(&further);
    let len = || fs::metadata(view.at("dir/b")).unwrap().len();
    for round in 1..4 {
        writer.write_all(b"1234").unwrap();
        soon("a write by a further name", || len() == 4 + 4 * round);
    }
    fs::remove_file(&further).unwrap();
    // Whoever has it open writes on, and nobody reports that: it is not kept because it has one name.
    for round in 4..7 {
        len();
        std::thread::sleep(PAST_TIMEOUT);
        len();
        writer.write_all(b"1234").unwrap();
        let start = Instant::now();
        soon("a write by a name that is gone", || len() == 4 + 4 * round);
        assert!(start.elapsed() < Duration::from_secs(5), "seen when it expired");
    }
    drop(writer);
    soon("that it has one name", || {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(view.at("dir/b")).unwrap().nlink() == 1
    });
}

/// One view's writes reach another view of the same files.
#[test]
fn another_view_is_seen_to_write() {
    if !can_mount() {
        return;
    }
    let view = view();
    let other = View::of(view.lower(), "", &[]);
    warm(&view);
    warm(&view);
    let len = || fs::metadata(view.at("dir/a")).unwrap().len();
    assert_eq!(len(), 4);
    let mut writer = fs::File::options().append(true).open(other.at("dir/a")).unwrap();
    for round in 1..4 {
        writer.write_all(b"1234").unwrap();
        soon("a write through the other view", || len() == 4 + 4 * round);
    }
    fs::set_permissions(other.at("dir/a"), PermissionsExt::from_mode(0o600)).unwrap();
    let mode = || fs::metadata(view.at("dir/a")).unwrap().permissions().mode() & 0o777;
    soon("a mode set in the other view", || mode() == 0o600);
}

/// Where others change very much elsewhere, reports about all files stop for a while, and what was
/// cached because of them goes.
#[test]
fn very_many_changes_elsewhere_end_the_reports_about_files() {
    if !can_mount() {
        return;
    }
    let view = view();
    warm(&view);
    if !files_are_reported(&view) {
        return;
    }
    let elsewhere = tempfile::NamedTempFile::new_in(view.lower().parent().unwrap()).unwrap();
    // Reports about one file that wait are one report, so there are many files.
    let many = tempfile::tempdir_in(view.lower().parent().unwrap()).unwrap();
    let files: Vec<_> = (0..500).map(|n| many.path().join(n.to_string())).collect();
    files.iter().for_each(|file| fs::write(file, "").unwrap());
    let deadline = Instant::now() + Duration::from_secs(60);
    while view.watch("overflows") == 0 && Instant::now() < deadline {
        for _ in 0..100 {
            for file in &files {
                fs::set_permissions(file, PermissionsExt::from_mode(0o640)).unwrap();
            }
        }
    }
    assert!(view.watch("overflows") > 0);
    // What nobody would report: the further name is made while nothing is reported.
    fs::hard_link(view.below("dir/a"), elsewhere.path().with_extension("further")).unwrap();
    let name = elsewhere.path().with_extension("further");
    fs::write(&name, "a longer text").unwrap();
    fs::remove_file(&name).unwrap();
    soon("the length", || fs::metadata(view.at("dir/a")).unwrap().len() == 13);
}

#[test]
fn who_may_not_list_gets_no_cached_listing() {
    if !can_mount() {
        return;
    }
    let policy = "[[rule]]\npath = 'dir'\noperation = 'list'\nuid = 65534\naction = 'deny'\n";
    let view = View::with(policy, &[("dir/a", "text")]);
    fs::set_permissions(view.lower(), PermissionsExt::from_mode(0o755)).unwrap();
    fs::set_permissions(view.lower().parent().unwrap(), PermissionsExt::from_mode(0o755)).unwrap();
    for _ in 0..3 {
        assert_eq!(names(&view.at("dir")), set(&["a"]));
        let refused = as_user(65534, 65534, || fs::read_dir(view.at("dir")).map(drop));
        assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
        let other = as_user(1000, 1000, || names(&view.at("dir")));
        assert_eq!(other, set(&["a"]));
    }
}

#[test]
fn names_that_a_rename_hides_are_dropped() {
    if !can_mount() {
        return;
    }
    let policy = "[[rule]]\npath = 'private/secret'\naction = 'hide'\n";
    let view = View::with(policy, &[("plain/secret", "text"), ("plain/a", "text")]);
    for _ in 0..2 {
        assert_eq!(names(&view.at("plain")), set(&["a", "secret"]));
        fs::metadata(view.at("plain/secret")).unwrap();
    }
    // In the view, what could not be made there is not moved there either.
    let refused = fs::rename(view.at("plain"), view.at("private"));
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    fs::rename(view.below("plain"), view.below("private")).unwrap();
    soon("the new name", || view.at("private").exists());
    soon("a hidden name", || !view.at("private/secret").exists());
    soon("a hidden entry", || names(&view.at("private")) == set(&["a"]));
    // Made outside where it is hidden: never seen.
    fs::remove_file(view.below("private/secret")).unwrap();
    fs::write(view.below("private/secret"), "").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(names(&view.at("private")), set(&["a"]));
    assert!(!view.at("private/secret").exists());
}

/// Whoever looks the new name up before the report has come has the kernel move the directory, with
/// all that is cached below it.
#[test]
fn names_that_a_rename_outside_hides_are_dropped_whoever_is_first() {
    if !can_mount() {
        return;
    }
    let policy = "[[rule]]\npath = 'private/**/secret'\naction = 'hide'\n";
    let view = View::with(policy, &[("plain/in/secret", "text"), ("plain/in/a", "text")]);
    for round in 0..20 {
        for _ in 0..2 {
            soon("what is shown", || names(&view.at("plain/in")) == set(&["a", "secret"]));
            fs::metadata(view.at("plain/in/secret")).unwrap();
        }
        fs::rename(view.below("plain"), view.below("private")).unwrap();
        if round % 2 == 0 {
            while fs::metadata(view.at("private/in")).is_err() {}
        }
        soon("a hidden name", || !view.at("private/in/secret").exists());
        soon("a hidden entry", || names(&view.at("private/in")) == set(&["a"]));
        fs::rename(view.below("private"), view.below("plain")).unwrap();
    }
}

/// Nobody tells of the move: neither of the directories between which it goes is watched yet.
#[test]
fn names_that_a_move_between_unwatched_directories_hides_are_dropped() {
    if !can_mount() {
        return;
    }
    let policy = "[[rule]]\npath = 'private/**/secret'\naction = 'hide'\n";
    let view = View::with(
        policy,
        &[("plain/in/secret", "text"), ("plain/in/a", "text"), ("private/x", "text")],
    );
    let held = fs::File::open(view.at("plain/in")).unwrap();
    let at = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
    // It is watched itself.
    for _ in 0..3 {
        assert_eq!(names(&at), set(&["a", "secret"]));
        fs::metadata(at.join("secret")).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    fs::rename(view.below("plain/in"), view.below("private/in")).unwrap();
    fs::metadata(view.at("private/in")).unwrap();
    soon("a hidden name", || !view.at("private/in/secret").exists());
    soon("a hidden entry", || names(&view.at("private/in")) == set(&["a"]));
}

#[test]
fn a_directory_that_is_moved_leaves_others_cached() {
    if !can_mount() {
        return;
    }
    let policy = "[[rule]]\npath = '**/hidden'\naction = 'hide'\n";
    let view = View::with(policy, &[("dir/a", "text"), ("dir/b", "text"), ("moves/in/c", "text")]);
    warm(&view);
    names(&view.at("moves/in"));
    std::thread::sleep(PAST_TIMEOUT);
    warm(&view);
    let before = asked(&view);
    fs::rename(view.at("moves"), view.at("moved")).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    for name in ["dir/a", "dir/b"] {
        fs::metadata(view.at(name)).unwrap();
    }
    let asked = asked(&view) - before;
    // Of the new name.
    assert!(asked <= 1, "{asked} requests");
    assert!(view.at("moved/in/c").exists() && !view.at("moves").exists());
}

/// A directory that somebody holds, and may be in.
struct Held(fs::File);

impl Held {
    fn new(path: &Path) -> Self {
        Self(fs::File::open(path).unwrap())
    }

    /// Whether getcwd(2) would tell where it is, which it does not once the kernel has forgotten the
    /// name.
    fn has_its_place(&self) -> bool {
        let link = fs::read_link(format!("/proc/self/fd/{}", self.0.as_raw_fd())).unwrap();
        !link.as_os_str().as_bytes().ends_with(b" (deleted)")
    }
}

/// Programs ask where they are (rustc begins so), and something may be mounted on what is dropped.
#[test]
fn what_is_dropped_leaves_directories_in_their_place() {
    if !can_mount() {
        return;
    }
    let policy = "[[rule]]\npath = '**/secret'\naction = 'hide'\n";
    let view = View::with(policy, &[("dir/in/a", "text"), ("moves/b", "text")]);
    let stays = |why: &str, held: &[&Held]| {
        // Longer than until what was dropped is dropped again.
        let end = Instant::now() + Duration::from_millis(300);
        while Instant::now() < end {
            assert!(held.iter().all(|held| held.has_its_place()), "{why}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let (dir, inner) = (Held::new(&view.at("dir")), Held::new(&view.at("dir/in")));
    for listed in ["moves", "dir", "dir/in"] {
        names(&view.at(listed));
    }
    fs::rename(view.at("moves"), view.at("moved")).unwrap();
    stays("another directory was moved", &[&dir, &inner]);

    fs::create_dir(view.below("dir/made")).unwrap();
    soon("a directory that was made outside", || view.at("dir/made").is_dir());
    let made = Held::new(&view.at("dir/made"));
    stays("it was made outside just before", &[&dir, &inner, &made]);

    fs::remove_dir(view.below("dir/made")).unwrap();
    soon("that it was removed", || !made.has_its_place());
    fs::rename(view.below("dir/in"), view.below("dir/out")).unwrap();
    soon("its new name", || view.at("dir/out/a").exists() && !view.at("dir/in").exists());
    stays("it was moved outside just before", &[&dir, &inner]);
}

#[test]
fn lost_reports_drop_what_is_cached() {
    if !can_mount() {
        return;
    }
    // The group takes the limit when it is made.
    let limit = "/proc/sys/fs/fanotify/max_queued_events";
    let before = fs::read_to_string(limit).unwrap();
    fs::write(limit, "8").unwrap();
    let view = view();
    fs::write(limit, before).unwrap();
    warm(&view);
    let held = Held::new(&view.at("dir"));
    for round in 0..5 {
        for n in 0..500 {
            fs::write(view.below(&format!("dir/{round}-{n}")), "x").unwrap();
        }
        fs::write(view.below("dir/a"), format!("round {round}")).unwrap();
        let text = format!("round {round}");
        soon("a write among lost reports", || {
            fs::metadata(view.at("dir/a")).unwrap().len() == text.len() as u64
        });
        assert!(held.has_its_place(), "before anybody looks it up");
        soon("all names", || names(&view.at("dir")).len() == 2 + 500 * (round + 1));
    }
    assert!(view.watch("overflows") > 0, "more changes at once than the queue takes");
}

/// Somebody changes the tree all the time while somebody else reads it; at rest both sides agree.
#[test]
fn a_busy_tree_agrees_at_rest() {
    if !can_mount() {
        return;
    }
    let view = view();
    let deadline = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let view = &view;
            scope.spawn(move || {
                for n in 0_u32.. {
                    if Instant::now() > deadline {
                        break;
                    }
                    let name = format!("dir/{thread}-{}", n % 17);
                    let path = if n % 3 == 0 { view.at(&name) } else { view.below(&name) };
                    match n % 5 {
                        0 => drop(fs::remove_file(path)),
                        1 => drop(fs::rename(&path, path.with_extension("moved"))),
                        _ => drop(fs::write(path, "x".repeat(n as usize % 50))),
                    }
                }
            });
        }
        scope.spawn(|| {
            while Instant::now() < deadline {
                for name in names(&view.at("dir")) {
                    let _ = fs::metadata(view.at("dir").join(name));
                }
            }
        });
    });
    soon("the same names and sizes on both sides", || {
        let sizes = |dir: &Path| -> Vec<_> {
            let names = names(dir).into_iter();
            names.map(|name| (fs::metadata(dir.join(&name)).map(|m| m.len()).ok(), name)).collect()
        };
        sizes(&view.at("dir")) == sizes(&view.below("dir"))
    });
}

//! Programs that list directories, and use attributes of the files in them or not.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{View, can_mount};

const DIRECTORIES: usize = 60;
const FILES: usize = 10;

/// A tree of directories in each other, three wide.
fn tree(root: &Path) {
    let mut dirs = vec![root.to_owned()];
    for number in 1..DIRECTORIES {
        let dir = dirs[(number - 1) / 3].join(format!("d{number}"));
        fs::create_dir(&dir).unwrap();
        dirs.push(dir);
    }
    for dir in dirs {
        for file in 0..FILES {
            fs::write(dir.join(format!("f{file}")), format!("{file}")).unwrap();
        }
    }
}

/// All paths below `dir`, as one thread finds them; of each file `look` has a look at it.
fn walk(dir: &Path, look: &dyn Fn(&Path)) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut entries: Vec<_> = fs::read_dir(dir).unwrap().map(Result::unwrap).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if entry.file_type().unwrap().is_dir() {
            found.extend(walk(&entry.path(), look));
        } else {
            look(&entry.path());
        }
        found.insert(entry.path());
    }
    found
}

/// The same in a thread of its own, below the root of a view or of its directory; relative paths.
fn walked(root: &Path, look: impl Fn(&Path) + Sync) -> BTreeSet<PathBuf> {
    let found = std::thread::scope(|scope| scope.spawn(|| walk(root, &look)).join().unwrap());
    found.iter().map(|path| path.strip_prefix(root).unwrap().to_owned()).collect()
}

fn view(policy: &str, options: &[&str]) -> (tempfile::TempDir, View) {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("dir");
    fs::create_dir(&dir).unwrap();
    tree(&dir);
    let view = View::of(&dir, policy, options);
    (base, view)
}

const HIDES: &str = "[[rule]]\npath = '**/f3'\naction = 'hide'\n";

#[test]
fn who_lists_names_gets_few_attributes_and_all_names() {
    if !can_mount() {
        return;
    }
    for (policy, options) in [("", &[][..]), (HIDES, &[]), ("", &["--watch", "off"])] {
        let (_base, view) = view(policy, options);
        let mut expected = walked(&view.below(""), |_| ());
        if policy == HIDES {
            expected.retain(|path| !path.ends_with("f3"));
        }
        assert_eq!(walked(&view.at(""), |_| ()), expected);
        let (by_name, lookups) = (view.count("listed_by_name"), view.count("lookup"));
        assert!(by_name > 300, "{by_name} of {} files", DIRECTORIES * FILES);
        assert!(lookups < 100, "{lookups}");
        // What was left out is there for whoever wants it.
        for path in &expected {
            let path = path.to_str().unwrap();
            let (in_view, below) = (view.at(path), view.below(path));
            let (in_view, below) = (fs::metadata(in_view).unwrap(), fs::metadata(below).unwrap());
            assert_eq!(in_view.len(), below.len(), "{path:?}");
        }
        assert_eq!(walked(&view.at(""), |_| ()), expected, "listed again");
    }
}

#[test]
fn who_looks_at_files_gets_their_attributes_with_their_names() {
    if !can_mount() {
        return;
    }
    let (_base, view) = view("", &[]);
    let expected = walked(&view.below(""), |_| ());
    let look = |path: &Path| {
        fs::metadata(path).unwrap();
    };
    assert_eq!(walked(&view.at(""), look), expected);
    let (by_name, lookups) = (view.count("listed_by_name"), view.count("lookup"));
    // A few are tried, once in 64 directories.
    assert!(by_name < 60, "{by_name}");
    assert!(lookups < 60, "{lookups}");
}

/// The kernel has the names of the first program, and would look up file after file for the second one.
#[test]
fn what_a_program_listed_by_name_is_listed_anew_for_one_that_reads_it() {
    if !can_mount() {
        return;
    }
    let (_base, view) = view("", &[]);
    walked(&view.at(""), |_| ());
    let before = view.count("lookup");
    let files = AtomicUsize::new(0);
    let read = |path: &Path| {
        assert_eq!(fs::read(path).unwrap().len(), 1);
        if files.fetch_add(1, Ordering::Relaxed) == 60 {
            // Until the kernel was told, on a busy machine too.
            std::thread::sleep(Duration::from_millis(1500));
        }
    };
    let found = walked(&view.at(""), read);
    assert_eq!(found, walked(&view.below(""), |_| ()));
    let lookups = view.count("lookup") - before;
    // The first 61 at most, what was listed before, and what is tried.
    assert!(lookups < 200, "{lookups} of {} files", DIRECTORIES * FILES);
}

/// The kernel believes for seconds that a name does not exist. Where a listing shows it, it is there.
#[test]
fn a_name_that_was_missing_is_there_once_it_is_listed() {
    if !can_mount() {
        return;
    }
    for options in [&[][..], &["--watch", "off", "--attr-timeout", "600"]] {
        let (_base, view) = view("", options);
        std::thread::scope(|scope| {
            let walker = || {
                walk(&view.at(""), &|_| ());
                for number in 0..20 {
                    let name = format!("d1/new{number}");
                    assert!(!view.at(&name).exists());
                    fs::write(view.below(&name), "").unwrap();
                    let listed = |dir: PathBuf| fs::read_dir(dir).unwrap().count();
                    let start = Instant::now();
                    while listed(view.at("d1")) != listed(view.below("d1")) {
                        assert!(start.elapsed() < Duration::from_secs(20), "{name} is not listed");
                    }
                    fs::metadata(view.at(&name)).unwrap();
                }
                assert!(view.count("listed_by_name") > 300);
            };
            scope.spawn(walker).join().unwrap();
        });
    }
}

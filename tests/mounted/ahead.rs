//! Small files are read before they are opened, where programs open them in the order in which they
//! are listed. Nobody notices but by the speed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::harness::View;
use crate::mapped::Map;
use crate::small::{settle, soon, view};

const FILES: usize = 240;

/// What file number `index` holds.
fn text(index: usize) -> String {
    format!("the content of file {index:03}\n").repeat(1 + index % 200)
}

/// A view of many small files in a few directories, as long as anything can be read ahead here.
fn view_of_many(policy: &str) -> Option<View> {
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1) {
        println!("skipped: nothing is read ahead on a single CPU");
        return None;
    }
    let names: Vec<_> = (0..FILES).map(|i| format!("d{}/e/f{i:03}", i / 60)).collect();
    let texts: Vec<_> = (0..FILES).map(text).collect();
    let files: Vec<_> = names.iter().map(String::as_str).zip(texts.iter().map(|t| &**t)).collect();
    view(policy, &files)
}

/// All files below `dir`, as `grep -r` comes to them. The kernel knows them afterwards.
fn listed(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let path = entry.path();
        if entry.metadata().unwrap().is_dir() {
            files.extend(listed(&path));
        } else {
            files.push(path);
        }
    }
    files
}

fn index_of(path: &Path) -> usize {
    path.file_name().unwrap().to_str().unwrap()[1..].parse().unwrap()
}

/// However many were opened in no order before.
#[test]
fn who_begins_to_keep_the_order_is_noticed() {
    let Some(view) = view_of_many("") else { return };
    let files = listed(view.root());
    let (here_and_there, in_order) = files.split_at(FILES / 2);
    for file in here_and_there.iter().rev() {
        assert_eq!(fs::read_to_string(file).unwrap(), text(index_of(file)));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(view.count("read_ahead"), 0);
    for file in in_order {
        assert_eq!(fs::read_to_string(file).unwrap(), text(index_of(file)));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(view.count("read_ahead_used") > 0, "{}", view.server_report()["view"]["counts"]);
}

/// Reads files until further ones were read ahead, and returns how many it read.
fn read_until_some_are_ahead(view: &View, files: &[PathBuf]) -> usize {
    for (done, file) in files.iter().enumerate() {
        assert_eq!(fs::read_to_string(file).unwrap(), text(index_of(file)));
        std::thread::sleep(Duration::from_millis(20));
        if view.count("read_ahead") > view.count("read_ahead_used") + 2 {
            // What is being read now is read soon.
            std::thread::sleep(Duration::from_millis(100));
            return done + 1;
        }
    }
    panic!("nothing is read ahead: {}", view.server_report()["view"]["counts"]);
}

#[test]
fn who_reads_files_in_the_order_of_their_listing_finds_them_read() {
    let Some(view) = view_of_many("") else { return };
    let files = listed(view.root());
    assert_eq!(files.len(), FILES);
    for file in &files {
        assert_eq!(fs::read_to_string(file).unwrap(), text(index_of(file)));
        // A busy machine lets the other thread run, too.
        std::thread::sleep(Duration::from_micros(300));
    }
    let (read, used) = (view.count("read_ahead"), view.count("read_ahead_used"));
    assert!(used > FILES as u64 / 2 && used <= read, "{used} of {read}");
    assert_eq!((view.count("open_cached"), view.count("read")), (FILES as u64, 0));
    // All of it is in the kernel now.
    for file in &files {
        assert_eq!(fs::read_to_string(file).unwrap(), text(index_of(file)));
    }
    assert_eq!((view.count("read_ahead"), view.count("read_ahead_used")), (read, used));
}

#[test]
fn who_opens_files_in_another_order_has_none_read() {
    let Some(view) = view_of_many("") else { return };
    for file in listed(view.root()).iter().rev() {
        assert_eq!(fs::read_to_string(file).unwrap(), text(index_of(file)));
        std::thread::sleep(Duration::from_micros(300));
    }
    assert_eq!(view.count("read_ahead"), 0);
    // Nothing is left to do.
    soon("the server sleeps", || {
        let before = view.cpu_ticks();
        std::thread::sleep(Duration::from_millis(500));
        view.cpu_ticks() <= before + 1
    });
}

#[test]
fn what_changed_since_it_was_read_ahead_is_seen() {
    let Some(view) = view_of_many("") else { return };
    let files = listed(view.root());
    let done = read_until_some_are_ahead(&view, &files);
    let changed = |index| text(index).replace("content", "CONTENT");
    for file in &files[done..] {
        let below = view.lower().join(file.strip_prefix(view.root()).unwrap());
        fs::write(&below, changed(index_of(file))).unwrap();
    }
    for file in &files[done..] {
        assert_eq!(fs::read_to_string(file).unwrap(), changed(index_of(file)));
    }
}

#[test]
fn a_file_that_was_read_ahead_and_removed_keeps_no_space() {
    let Some(view) = view_of_many("") else { return };
    let files = listed(view.root());
    let done = read_until_some_are_ahead(&view, &files);
    for file in &files[done..] {
        fs::remove_file(view.lower().join(file.strip_prefix(view.root()).unwrap())).unwrap();
    }
    for file in &files[done..] {
        soon("a removed file", || File::open(file).is_err());
    }
    let descriptors = PathBuf::from(format!("/proc/{}/fd", view.pid()));
    let of_removed = || {
        let links = fs::read_dir(&descriptors).unwrap();
        let links = links.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        links.filter(|link| link.to_string_lossy().ends_with("(deleted)")).count()
    };
    soon("descriptors of removed files are closed", || of_removed() == 0);
}

/// What a rule masks, refuses or hides stays so between files that are read ahead.
#[test]
fn what_the_policy_says_about_files_in_between_holds() {
    let policy = "[[rule]]\npath = '**/f*3'\naction = 'redact'\n\
                  [[rule]]\npath = '**/f*7'\naction = 'deny'\n\
                  [[rule]]\npath = '**/f*9'\naction = 'hide'\n";
    let Some(view) = view_of_many(policy) else { return };
    let secret = "token = ghp_0123456789abcdefghijABCDEFGHIJ012345\n";
    let redacted: Vec<_> = (0..FILES)
        .filter(|i| i % 10 == 3)
        .map(|i| view.below(&format!("d{}/e/f{i:03}", i / 60)))
        .collect();
    for below in &redacted {
        fs::write(below, secret).unwrap();
    }
    settle(&redacted.iter().map(AsRef::as_ref).collect::<Vec<_>>());
    let files = listed(view.root());
    assert_eq!(files.len(), FILES - FILES / 10, "hidden ones are not listed");
    for file in &files {
        let index = index_of(file);
        match index % 10 {
            3 => {
                let opened = File::open(file).unwrap();
                let map = Map::new(&opened, secret.len(), true, false).unwrap();
                let mapped = map.read(0, secret.len());
                let read = fs::read_to_string(file).unwrap();
                assert!(!read.contains("ghp_0123"), "{read}");
                assert!(!String::from_utf8_lossy(&mapped).contains("ghp_0123"));
            }
            7 => assert_eq!(File::open(file).unwrap_err().raw_os_error(), Some(libc::EACCES)),
            9 => panic!("{} is hidden", file.display()),
            _ => assert_eq!(fs::read_to_string(file).unwrap(), text(index)),
        }
        std::thread::sleep(Duration::from_micros(300));
    }
    assert!(view.count("read_ahead_used") > 0);
}

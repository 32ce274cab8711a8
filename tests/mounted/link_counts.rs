//! The kernel counts the names of a file itself, and what it is told of them in between leaves its count right.

use std::fs;
use std::mem::MaybeUninit;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::harness::{View, can_mount};

const PATIENCE: Duration = Duration::from_secs(2);

/// A file that is watched for its end.
struct Watched(rustix::fd::OwnedFd);

impl Watched {
    fn new(file: &Path) -> Self {
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&watch, file, WatchFlags::DELETE_SELF).unwrap();
        Self(watch)
    }

    fn has_ended(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.0, &mut buffer);
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::DELETE_SELF) => return true,
                Ok(_) => {}
                Err(Errno::AGAIN) => return false,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Descriptors by which the server has files without a name.
fn removed_files(view: &View) -> usize {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", view.pid())).unwrap();
    let links = descriptors.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    links.filter(|link| link.to_string_lossy().ends_with(" (deleted)")).count()
}

/// As another thread, whose requests say nothing about those of this one.
fn elsewhere<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(act).join().unwrap())
}

/// Somebody lists the directory between the removal of one name and that of the last.
#[test]
fn who_watches_a_file_is_told_when_its_last_name_goes() {
    if !can_mount() {
        return;
    }
    for replaces in [false, true] {
        for further in [1, 2] {
            let view = View::with("", &[("file", "text"), ("other", "")]);
            let names: Vec<_> = (0..further).map(|n| view.at(&format!("name{n}"))).collect();
            names.iter().for_each(|name| fs::hard_link(view.at("file"), name).unwrap());
            // Until what was cached of the count by then has expired.
            thread::sleep(Duration::from_millis(1_200));
            let before = removed_files(&view);
            let watched = Watched::new(&view.at("file"));
            for name in &names {
                elsewhere(|| fs::remove_file(name).unwrap());
                let lengths = elsewhere(|| {
                    let listed = fs::read_dir(view.root()).unwrap();
                    listed.map(|entry| entry.unwrap().metadata().unwrap().len()).sum::<u64>()
                });
                assert!(lengths >= 4);
            }
            assert!(!watched.has_ended());
            elsewhere(|| match replaces {
                true => fs::rename(view.at("other"), view.at("file")).unwrap(),
                false => fs::remove_file(view.at("file")).unwrap(),
            });
            let begun = Instant::now();
            while !watched.has_ended() {
                let what = format!("replaced: {replaces}, further names: {further}");
                assert!(begun.elapsed() < PATIENCE, "{what}");
                thread::sleep(Duration::from_millis(5));
            }
            while removed_files(&view) > before {
                assert!(begun.elapsed() < PATIENCE, "its space is not given back");
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

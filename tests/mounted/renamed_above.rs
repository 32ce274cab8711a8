//! Files are opened while the directories above them are renamed through the view.

use std::fs::{self, File};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags};

use crate::harness::{View, can_mount};

/// Of the second look that the kernel takes after `ESTALE`, too, one in some hundred was overtaken.
const OPENS: usize = 10_000;
/// At least: a busy machine may run a thread for long before the other.
const EXCHANGES: usize = 300;
const LONGEST: Duration = Duration::from_secs(60);

/// Each of the two names leads to a file at every moment.
#[test]
fn a_file_opens_whenever_directories_above_it_are_exchanged() {
    if !can_mount() {
        return;
    }
    let view = View::new("[[rule]]\npath = 'secret/**'\naction = 'deny'\n");
    for dir in ["one", "two"] {
        fs::create_dir(view.at(dir)).unwrap();
        fs::write(view.at(dir).join("file"), dir).unwrap();
    }
    let (begun, done) = (Instant::now(), AtomicBool::new(false));
    let exchanged = thread::scope(|scope| {
        let exchanging = scope.spawn(|| {
            let mut exchanged = 0;
            while exchanged < EXCHANGES || !done.load(Ordering::Relaxed) {
                let (one, two) = (view.at("one"), view.at("two"));
                rustix::fs::renameat_with(CWD, one, CWD, two, RenameFlags::EXCHANGE).unwrap();
                exchanged += 1;
            }
            exchanged
        });
        let opening = |write: bool| {
            for dir in ["one", "two"].into_iter().cycle().take(OPENS) {
                let file = view.at(dir).join("file");
                let opened = File::options().read(!write).write(write).open(&file);
                opened.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
                if begun.elapsed() > LONGEST {
                    break;
                }
            }
        };
        let openers = [false, true].map(|write| scope.spawn(move || opening(write)));
        let opened = openers.map(thread::ScopedJoinHandle::join);
        done.store(true, Ordering::Relaxed);
        opened.into_iter().for_each(|one| one.unwrap());
        exchanging.join().unwrap()
    });
    assert!(exchanged >= EXCHANGES, "{exchanged}");
}

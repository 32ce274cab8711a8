//! A write beside a mapping of the same page, under the model checker:
//! `RUSTFLAGS="--cfg loom" cargo test -p tollgate-view --release --lib models`.
//!
//! The kernel is here what fs/fuse/file.c of Linux 6.18 does: a page is locked while it is read, stored to,
//! written back and dropped; before a write(2) is sent, the page is written back and dropped. Before a hole is
//! sent, the page is written back; after the answer, its bytes in the hole become zero.

use std::sync::Arc;

use loom::sync::Mutex;
use loom::thread;

use super::{Change, MappedPages};

/// A file of two bytes in one page.
type File = [u8; 2];

/// What a program stores into its mapping. `None`: nothing, as it does not see what it waits for.
type Store = fn(File) -> Option<(usize, u8)>;

struct Machine {
    pages: Arc<MappedPages>,
    lower: Mutex<File>,
    /// The kernel's page, and whether somebody stored into it.
    page: Mutex<Option<(File, bool)>>,
}

impl Machine {
    fn new(file: File) -> Arc<Machine> {
        let (lower, page) = (Mutex::new(file), Mutex::new(None));
        Arc::new(Machine { pages: Arc::default(), lower, page })
    }

    /// A byte of the file below, which is written alone.
    fn set(&self, at: usize, byte: u8) {
        self.lower.lock().unwrap()[at] = byte;
    }

    /// A page fault, and a store into what the program sees.
    fn store(&self, store: Store) {
        let mut page = self.page.lock().unwrap();
        if page.is_none() {
            let reading = self.pages.read(0..2);
            let bytes = *self.lower.lock().unwrap();
            drop(reading);
            *page = Some((bytes, false));
        }
        let (bytes, changed) = page.as_mut().unwrap();
        if let Some((at, byte)) = store(*bytes) {
            bytes[at] = byte;
            *changed = true;
        }
    }

    fn write_back(&self, page: &mut Option<(File, bool)>) {
        if let Some((bytes, changed @ true)) = page {
            let (back, data) = self.pages.write_back(0, &*bytes);
            for (at, byte) in data.iter().enumerate() {
                self.set(at, *byte);
            }
            drop(back);
            *changed = false;
        }
    }

    fn drop_page(&self) {
        let mut page = self.page.lock().unwrap();
        self.write_back(&mut page);
        *page = None;
    }

    fn sync(&self) {
        self.write_back(&mut self.page.lock().unwrap());
    }

    /// write(2).
    fn write(&self, at: usize, byte: u8) {
        self.drop_page();
        let writing = self.pages.write(at as u64, Change::Bytes(&[byte]));
        self.set(at, byte);
        if writing.done(false).is_some() {
            self.drop_page();
            writing.dropped();
        }
    }

    /// fallocate(2) of a hole of one byte, which the file below may refuse.
    fn hole(&self, at: usize, fails: bool) {
        self.sync();
        let writing = self.pages.write(at as u64, Change::Zeroes(1));
        if !fails {
            self.set(at, 0);
        }
        if writing.done(fails).is_some() {
            self.drop_page();
            writing.dropped();
        } else {
            drop(writing);
        }
        if let Some((bytes, _)) = self.page.lock().unwrap().as_mut().filter(|_| !fails) {
            bytes[at] = 0;
        }
    }

    /// What the file has once all is written back; and what a mapping shows.
    fn end(&self) -> File {
        self.sync();
        let lower = *self.lower.lock().unwrap();
        let shown = self.page.lock().unwrap().map_or(lower, |(bytes, _)| bytes);
        assert_eq!(shown, lower, "a page is older than the file");
        lower
    }
}

fn model(file: File, run: impl Fn(Arc<Machine>) + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || run(Machine::new(file)));
}

#[test]
fn a_write_and_a_store_beside_it_both_stay() {
    model([0, 0], |machine| {
        let other = Arc::clone(&machine);
        let writer = thread::spawn(move || other.write(0, 1));
        machine.store(|_| Some((1, 7)));
        machine.sync();
        machine.store(|_| Some((1, 8)));
        writer.join().unwrap();
        assert_eq!(machine.end(), [1, 8]);
    });
}

/// Who sees what was written, and stores over it, comes after it.
#[test]
fn a_store_over_what_was_written_stays() {
    model([0, 0], |machine| {
        let other = Arc::clone(&machine);
        let writer = thread::spawn(move || other.write(0, 1));
        let answer: Store = |seen| (seen[0] == 1).then_some((0, 9));
        machine.store(answer);
        machine.store(answer);
        let stored = machine.page.lock().unwrap().is_some_and(|(bytes, _)| bytes[0] == 9);
        writer.join().unwrap();
        let end = machine.end();
        assert!(end[0] == if stored { 9 } else { end[0].max(1) }, "{end:?}");
    });
}

#[test]
fn two_writes_and_a_store_all_stay() {
    model([0, 0], |machine| {
        let (one, two) = (Arc::clone(&machine), Arc::clone(&machine));
        let writers =
            [thread::spawn(move || one.write(0, 1)), thread::spawn(move || two.write(1, 2))];
        machine.store(|_| None);
        machine.store(|seen| Some((0, seen[0])));
        for writer in writers {
            writer.join().unwrap();
        }
        let end = machine.end();
        // The store is of what was there, which the first write may come before or after.
        assert!(end[1] == 2 && end[0] < 2, "{end:?}");
    });
}

#[test]
fn a_hole_and_a_store_beside_it_both_stay() {
    for fails in [false, true] {
        model([5, 5], move |machine| {
            let other = Arc::clone(&machine);
            let maker = thread::spawn(move || other.hole(0, fails));
            machine.store(|_| Some((1, 7)));
            machine.sync();
            machine.store(|_| Some((1, 8)));
            machine.sync();
            maker.join().unwrap();
            assert_eq!(machine.end(), [if fails { 5 } else { 0 }, 8]);
        });
    }
}

#[test]
fn a_hole_a_write_and_a_store_all_stay() {
    model([5, 5], |machine| {
        let (one, two) = (Arc::clone(&machine), Arc::clone(&machine));
        let others =
            [thread::spawn(move || one.hole(0, false)), thread::spawn(move || two.write(1, 2))];
        machine.store(|_| None);
        machine.store(|seen| Some((0, seen[0])));
        for other in others {
            other.join().unwrap();
        }
        let end = machine.end();
        assert!(end[1] == 2 && [0, 5].contains(&end[0]), "{end:?}");
    });
}

//! How parts of replies, what was read ahead, and rooms for buffers pass from thread to thread, under
//! the model checker: `RUSTFLAGS="--cfg loom" cargo test -p tollgate-view --release --lib models`.
//!
//! A reply that never comes is missing from the list of answers, and a room that is lost from the
//! count of free ones.

mod waiting;

use std::sync::{Arc, Mutex};

use loom::thread;
use rustix::io::Errno;

use super::gather::{Answer, Gather, Pieces};
use super::window::{Making, Window};

/// What callers were told. No part of what is modelled, hence a lock of the standard library.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<Result<Vec<u8>, Errno>>>>);

impl Told {
    fn all(&self) -> Vec<Result<Vec<u8>, Errno>> {
        self.0.lock().unwrap().clone()
    }
}

/// One caller, who wants bytes by their numbers.
struct Caller(Told);

impl Answer for Caller {
    type Piece = (Arc<Bytes>, u8);

    fn answer(self, pieces: Result<Pieces<Self::Piece>, Errno>) {
        let pieces = pieces.map(|pieces| pieces.iter().map(|(_, wanted)| *wanted).collect());
        self.0.0.lock().unwrap().push(pieces);
    }
}

/// Bytes in a buffer.
struct Bytes;

type Made = Window<Bytes, u8, Caller>;

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

/// Asks for what is made ahead, as a stream does: what the caller is told, or that it must be made
/// once more.
fn ask(window: &Made, told: &Told) -> bool {
    let gather = Gather::to_answer(1);
    let is_there = window.wait(gather.slot(0), 7);
    if is_there {
        gather.answer(Caller(told.clone()));
    }
    is_there
}

#[test]
fn parts_of_several_threads_are_joined_in_order_and_sent_once() {
    model(|| {
        let (told, gather) = (Told::default(), Gather::to_answer(3));
        let others = [2, 0].map(|index| {
            let slot = gather.slot(usize::from(index));
            thread::spawn(move || slot.bring(Ok((Arc::new(Bytes), index))))
        });
        let own = gather.slot(1);
        gather.answer(Caller(told.clone()));
        own.bring(Ok((Arc::new(Bytes), 1)));
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(told.all(), [Ok(vec![0, 1, 2])]);
    });
}

#[test]
fn a_part_that_nobody_makes_is_one_error() {
    model(|| {
        let (told, gather) = (Told::default(), Gather::to_answer(3));
        let (made, dropped, failed) = (gather.slot(0), gather.slot(1), gather.slot(2));
        let others = [
            thread::spawn(move || made.bring(Ok((Arc::new(Bytes), 0)))),
            thread::spawn(move || drop(dropped)),
        ];
        failed.bring(Err(Errno::ACCESS));
        gather.answer(Caller(told.clone()));
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(told.all(), [Err(Errno::IO)]);
    });
}

/// Who asks gets it, or learns at once that it is gone; nobody gets an error because others needed
/// the room.
#[test]
fn what_was_read_ahead_is_shown_or_asked_for_again() {
    model(|| {
        let (told, window) = (Told::default(), Arc::new(Made::default()));
        let making = Making::new(&window);
        let others = [
            thread::spawn(move || making.done(Ok(Bytes))),
            thread::spawn({
                let window = Arc::clone(&window);
                move || {
                    window.give_up();
                }
            }),
        ];
        let expected = if ask(&window, &told) { vec![Ok(vec![7])] } else { Vec::new() };
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(told.all(), expected);
    });
}

#[test]
fn who_waits_for_what_is_never_made_learns_of_it() {
    model(|| {
        let (told, window) = (Told::default(), Arc::new(Made::default()));
        let making = Making::new(&window);
        let maker = thread::spawn(move || drop(making));
        let asked = ask(&window, &told);
        maker.join().unwrap();
        let expected = if asked { vec![Err(Errno::IO)] } else { Vec::new() };
        assert_eq!(told.all(), expected);
    });
}

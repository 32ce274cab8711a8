//! Rooms for buffers: none is lost, none is had twice, and nobody waits for ever.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use loom::thread;

use super::super::rooms::{Ahead, Asking, Hall, Rooms, Wait};
use super::super::window::{Making, Window};
use super::{Answer, Errno, Pieces, model};

/// What requests were told, each by its number. No part of what is modelled, hence a lock of the
/// standard library; and so for who has rooms.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<(u64, Got)>>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Got {
    Rooms(usize),
    /// Its caller is killed.
    End,
}

impl Told {
    fn tell(&self, request: u64, got: Got) {
        self.0.lock().unwrap().push((request, got));
    }

    fn all(&self) -> Vec<(u64, Got)> {
        self.0.lock().unwrap().clone()
    }

    /// Not in the order of time.
    fn sorted(&self) -> Vec<(u64, Got)> {
        let mut all = self.all();
        all.sort_unstable();
        all
    }
}

/// Where requests keep their rooms, of which there are so many.
#[derive(Clone)]
struct Kept(Arc<(Mutex<Vec<Rooms>>, AtomicUsize, usize)>);

impl Kept {
    fn of(all: usize) -> Self {
        Self(Arc::new((Mutex::default(), AtomicUsize::new(0), all)))
    }

    fn keep(&self, rooms: Rooms, count: usize) {
        let before = self.0.1.fetch_add(count, Ordering::SeqCst);
        assert!(before + count <= self.0.2, "{before} rooms of {} and {count}", self.0.2);
        self.0.0.lock().unwrap().push(rooms);
    }

    /// Gives back what is kept now, one by one, and whether there was any.
    fn give_back(&self) -> bool {
        let kept = std::mem::take(&mut *self.0.0.lock().unwrap());
        let any = !kept.is_empty();
        for room in kept.into_iter().flatten() {
            self.0.1.fetch_sub(1, Ordering::SeqCst);
            drop(room);
        }
        any
    }
}

/// A request for rooms.
struct Request {
    number: u64,
    count: usize,
    told: Told,
    /// It gives them back at once without.
    kept: Option<Kept>,
    interrupted: Arc<AtomicBool>,
}

impl Request {
    fn new(number: u64, count: usize, told: &Told, kept: Option<&Kept>) -> Self {
        let interrupted = Arc::default();
        Self { number, count, told: told.clone(), kept: kept.cloned(), interrupted }
    }

    fn enter(self, hall: &Arc<Hall>) {
        hall.enter(self.count, self);
    }
}

impl Wait for Request {
    fn request(&self) -> Asking {
        Asking { unique: self.number, thread: 1 }
    }

    fn is_interrupted(&self) -> bool {
        // As the transport has it: a mark that is set before it is said.
        self.interrupted.load(Ordering::SeqCst)
    }

    fn go_on(self, rooms: Rooms) {
        self.told.tell(self.number, Got::Rooms(self.count));
        if let Some(kept) = self.kept {
            kept.keep(rooms, self.count);
        }
    }

    fn end(self) {
        self.told.tell(self.number, Got::End);
    }
}

/// Every thread that is interrupted is killed.
fn hall(count: usize, for_requests: usize) -> Arc<Hall> {
    Hall::new(count, for_requests, |_| true, |_| unreachable!("all are killed"))
}

/// All rooms of the hall.
fn all(hall: &Arc<Hall>, count: usize) -> Rooms {
    let (told, kept) = (Told::default(), Kept::of(count));
    Request::new(0, count, &told, Some(&kept)).enter(hall);
    let rooms = kept.0.0.lock().unwrap().pop();
    rooms.expect("nobody has any")
}

/// Several threads ask for several rooms, and give them back whenever.
#[test]
fn no_room_is_lost_and_none_is_had_twice() {
    model(|| {
        let (hall, told, kept) = (hall(2, 2), Told::default(), Kept::of(2));
        let others = [(1, 1), (2, 2)].map(|(number, count)| {
            let (hall, kept) = (Arc::clone(&hall), kept.clone());
            let request = Request::new(number, count, &told, Some(&kept));
            thread::spawn(move || {
                request.enter(&hall);
                kept.give_back();
            })
        });
        Request::new(3, 1, &told, Some(&kept)).enter(&hall);
        kept.give_back();
        others.into_iter().for_each(|other| other.join().unwrap());
        while kept.give_back() {}
        let expected = [(1, Got::Rooms(1)), (2, Got::Rooms(2)), (3, Got::Rooms(1))];
        assert_eq!((told.sorted(), hall.free()), (expected.to_vec(), 2));
    });
}

/// Rooms come back one by one, on two threads, while others come to ask. Who goes on gives its rooms
/// back at once, so whoever waits in the end waits for ever.
#[test]
fn nobody_waits_while_there_is_room() {
    model(|| {
        let (hall, told) = (hall(2, 2), Told::default());
        let mut held = all(&hall, 2);
        let (first, second) = (held.next(), held.next());
        let others = [thread::spawn(move || drop(first)), thread::spawn(move || drop(second))];
        Request::new(1, 2, &told, None).enter(&hall);
        Request::new(2, 1, &told, None).enter(&hall);
        others.into_iter().for_each(|other| other.join().unwrap());
        let expected = [(1, Got::Rooms(2)), (2, Got::Rooms(1))];
        assert_eq!((told.all(), hall.free()), (expected.to_vec(), 2));
    });
}

/// A small request does not take the room that a large one before it waits for.
#[test]
fn nobody_overtakes() {
    model(|| {
        let (hall, told, kept) = (hall(2, 2), Told::default(), Kept::of(2));
        let mut held = all(&hall, 2);
        drop(held.next());
        Request::new(1, 2, &told, Some(&kept)).enter(&hall);
        let other = thread::spawn(move || drop(held));
        Request::new(2, 1, &told, Some(&kept)).enter(&hall);
        other.join().unwrap();
        while kept.give_back() {}
        assert_eq!(told.all(), [(1, Got::Rooms(2)), (2, Got::Rooms(1))]);
        assert_eq!(hall.free(), 2);
    });
}

/// A caller had a signal before it is killed, of which the kernel tells nobody. It is found, or has its room.
#[test]
fn who_is_killed_after_another_signal_is_found() {
    static KILLED: AtomicBool = AtomicBool::new(false);
    static LOOKED_FOR: AtomicUsize = AtomicUsize::new(0);
    model(|| {
        KILLED.store(false, Ordering::SeqCst);
        LOOKED_FOR.store(0, Ordering::SeqCst);
        let is_killed = |_| KILLED.load(Ordering::SeqCst);
        let hall = Hall::new(1, 1, is_killed, |_| {
            LOOKED_FOR.fetch_add(1, Ordering::SeqCst);
        });
        let told = Told::default();
        let held = all(&hall, 1);
        Request::new(1, 1, &told, None).enter(&hall);
        hall.interrupted(1);
        assert_eq!(LOOKED_FOR.load(Ordering::SeqCst), 1, "it is looked at later");
        assert!(hall.end_killed(), "it waits on");
        KILLED.store(true, Ordering::SeqCst);
        let other = thread::spawn(move || drop(held));
        let looking = Arc::clone(&hall);
        let look = thread::spawn(move || looking.end_killed());
        other.join().unwrap();
        assert!(!look.join().unwrap(), "nobody is left");
        assert!(matches!(told.all()[..], [(1, Got::Rooms(1) | Got::End)]), "{:?}", told.all());
        assert_eq!(hall.free(), 1);
    });
}

/// Somebody who replies from what was read ahead, and has it until then.
struct Replier;

impl Answer for Replier {
    type Piece = (Arc<Rooms>, u8);

    fn answer(self, pieces: Result<Pieces<Self::Piece>, Errno>) {
        drop(pieces);
    }
}

type Made = Window<Rooms, u8, Replier>;

impl Ahead for Made {
    fn give_up(&self) -> Option<Arc<dyn Send + Sync>> {
        Self::give_up(self).map(|room| room as Arc<dyn Send + Sync>)
    }
}

/// A window that takes the only room that is left, and what makes it.
fn read_ahead(hall: &Arc<Hall>) -> (Arc<Made>, impl FnOnce() + Send + 'static) {
    let room = hall.room_ahead().expect("nobody waits");
    let window = Arc::new(Made::default());
    let ahead: Arc<dyn Ahead> = Arc::clone(&window) as _;
    hall.may_be_given_up(&ahead);
    let (making, hall) = (Making::new(&window), Arc::clone(hall));
    let make = move || {
        making.done(Ok(room));
        hall.window_is_done();
    };
    (window, make)
}

/// The only other room stays taken: who asks waits until the window is made, and gets its room, also
/// when somebody just replies from it.
#[test]
fn what_is_read_ahead_makes_room_once_it_is_made() {
    model(|| {
        let (hall, told) = (hall(2, 1), Told::default());
        let (window, make) = read_ahead(&hall);
        let held = all(&hall, 1);
        let maker = thread::spawn(make);
        let replier = thread::spawn({
            let window = Arc::clone(&window);
            move || {
                let gather = super::Gather::to_answer(1);
                if window.wait(gather.slot(0), 7) {
                    gather.answer(Replier);
                }
            }
        });
        Request::new(1, 1, &told, None).enter(&hall);
        maker.join().unwrap();
        replier.join().unwrap();
        assert_eq!((told.all(), hall.free()), (vec![(1, Got::Rooms(1))], 1));
        drop((held, window));
    });
}

/// A window that is never made (its queue was shut down) gives its room back.
#[test]
fn what_is_never_made_makes_room() {
    model(|| {
        let (hall, told) = (hall(2, 1), Told::default());
        let (_window, make) = read_ahead(&hall);
        let held = all(&hall, 1);
        let other = thread::spawn(move || drop(make));
        Request::new(1, 1, &told, None).enter(&hall);
        other.join().unwrap();
        assert_eq!((told.all(), hall.free()), (vec![(1, Got::Rooms(1))], 1));
        drop(held);
    });
}

/// The session ends: queues give back what waits in them, and take nothing any more. Everybody who
/// waits for a room is told, and learns from the queue that it is over.
#[test]
fn the_end_of_the_queues_leaves_nobody_waiting() {
    model(|| {
        let (hall, told, queued) = (hall(1, 1), Told::default(), Kept::of(1));
        Request::new(1, 1, &told, Some(&queued)).enter(&hall);
        Request::new(2, 1, &told, None).enter(&hall);
        let end = thread::spawn({
            let queued = queued.clone();
            move || queued.give_back()
        });
        Request::new(3, 1, &told, None).enter(&hall);
        end.join().unwrap();
        let expected: Vec<_> = (1..=3).map(|number| (number, Got::Rooms(1))).collect();
        assert_eq!((told.all(), hall.free()), (expected, 1));
    });
}

/// No room comes back before both are told: who is killed must not wait for one, whether it stands
/// in the line when that is said or is about to.
#[test]
fn who_is_killed_does_not_wait() {
    model(|| {
        let (hall, told) = (hall(1, 1), Told::default());
        let held = all(&hall, 1);
        let request = Request::new(1, 1, &told, None);
        let mark = Arc::clone(&request.interrupted);
        let killer = thread::spawn({
            let hall = Arc::clone(&hall);
            move || {
                mark.store(true, Ordering::SeqCst);
                hall.interrupted(1);
            }
        });
        request.enter(&hall);
        killer.join().unwrap();
        assert_eq!(told.all(), [(1, Got::End)]);
        drop(held);
        assert_eq!(hall.free(), 1);
    });
}

/// The first needs more than is free, and is killed: who stands behind it has what it needs. Or the
/// room comes first. Either way each is told once.
#[test]
fn who_stands_behind_a_killed_one_goes_on() {
    model(|| {
        let (hall, told) = (hall(2, 2), Told::default());
        let mut held = all(&hall, 2);
        drop(held.next());
        let (first, second) = (Request::new(1, 2, &told, None), Request::new(2, 1, &told, None));
        first.enter(&hall);
        let killer = thread::spawn({
            let hall = Arc::clone(&hall);
            move || hall.interrupted(1)
        });
        second.enter(&hall);
        killer.join().unwrap();
        assert_eq!(told.sorted(), [(1, Got::End), (2, Got::Rooms(1))]);
        drop(held);
        assert_eq!(hall.free(), 2);
    });
}

/// It is killed and served at once.
#[test]
fn who_is_killed_with_room_at_hand_is_told_once() {
    model(|| {
        let (hall, told) = (hall(1, 1), Told::default());
        let held = all(&hall, 1);
        Request::new(1, 1, &told, None).enter(&hall);
        let killer = thread::spawn({
            let hall = Arc::clone(&hall);
            move || hall.interrupted(1)
        });
        drop(held);
        killer.join().unwrap();
        assert_eq!((told.all().len(), hall.free()), (1, 1));
    });
}

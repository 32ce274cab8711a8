//! The right to buffers, and who waits for it.
//!
//! Who needs several rooms gets all of them at once, and holds none while it waits. Those who wait
//! are served in the order in which they came, by whoever frees a room: a request waits as a value,
//! not as a thread of the transport, which goes on to the next request. What was read ahead and is
//! not asked for yet is given up for those who wait.
//!
//! There are no more of them than callers who wait in the kernel for an answer. A caller that is
//! killed meanwhile waits no longer. Other signals do not end a wait: programs do not expect that
//! reading a file is interrupted. The kernel tells of the first signal alone, and this may be one that stops
//! the caller; so who had one is looked at now and then until it is served.
//!
//! All is under one lock, which is not held while anybody goes on. One thread serves at a time. It
//! looks again for the others, and for the rooms that come back while it serves: none is missed, and
//! nothing nests. The models are in [`super::models`].

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use crate::sync::Mutex;

/// What was made before anybody asked for it.
pub(super) trait Ahead: Send + Sync {
    /// Gives up what is made, if it is. Who replies from it has it still.
    fn give_up(&self) -> Option<Arc<dyn Send + Sync>>;
}

/// What may have to wait.
pub(super) trait Wait: Send + 'static {
    fn request(&self) -> Asking;

    /// Its caller got a signal. Whoever says so later looks for it among those who wait.
    fn is_interrupted(&self) -> bool;

    /// It has its rooms. Must not wait for anything.
    fn go_on(self, rooms: Rooms);

    /// Its caller is killed.
    fn end(self);
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asking {
    pub(crate) unique: u64,
    /// The thread that waits in the kernel; 0 for none.
    pub(crate) thread: u32,
}

/// All rooms, and who waits for some.
pub(super) struct Hall {
    state: Mutex<State>,
    /// Rooms that are left for requests when streams read ahead: the most of one request, too.
    for_requests: usize,
    /// Whether a thread is being killed.
    is_killed: fn(u32) -> bool,
    /// Has [`Hall::end_killed`] called until that says that nobody is left.
    look_later: fn(&Arc<Hall>),
}

#[derive(Default)]
struct State {
    free: usize,
    /// Who waits, the first first.
    waiting: VecDeque<Waiting>,
    /// A thread serves them.
    serving: bool,
    /// There may be room that it has not seen.
    look_again: bool,
    /// [`Hall::end_killed`] is going to be called.
    watched: bool,
    /// What was read ahead, the oldest first. Never more than there are rooms.
    ahead: VecDeque<Weak<dyn Ahead>>,
}

/// Somebody who waits.
struct Waiting {
    request: Asking,
    count: usize,
    /// Its caller had a signal that did not kill it.
    interrupted: bool,
    /// With its rooms, or without as its caller is killed.
    told: Box<dyn FnOnce(Option<Rooms>) + Send>,
}

impl Hall {
    /// With `count` rooms, of which `for_requests` are not for reading ahead.
    pub(super) fn new(
        count: usize,
        for_requests: usize,
        is_killed: fn(u32) -> bool,
        look_later: fn(&Arc<Self>),
    ) -> Arc<Self> {
        let state = Mutex::new(State { free: count, ..State::default() });
        Arc::new(Self { state, for_requests, is_killed, look_later })
    }

    /// Has `asked` go on with `count` rooms: here and now if so many are free, else on the thread that
    /// frees the last of them.
    ///
    /// # Panics
    /// If one request may not have so many.
    pub(super) fn enter(self: &Arc<Self>, count: usize, asked: impl Wait) {
        assert!(count <= self.for_requests, "{count} of {} rooms", self.for_requests);
        let mut state = self.state.lock();
        // Nobody overtakes who waits: small requests would keep a large one waiting for ever.
        if state.waiting.is_empty() && state.free >= count {
            state.free -= count;
            drop(state);
            return asked.go_on(self.rooms(count));
        }
        // Under the lock: who is interrupted later is found below.
        let (request, interrupted) = (asked.request(), asked.is_interrupted());
        let told = Box::new(move |rooms| match rooms {
            Some(rooms) => asked.go_on(rooms),
            None => asked.end(),
        });
        state.waiting.push_back(Waiting { request, count, interrupted: false, told });
        drop(state);
        if interrupted {
            self.interrupted(request.unique);
        }
        self.serve();
    }

    /// The caller of a request got a signal: if it is killed, it waits no longer.
    pub(super) fn interrupted(self: &Arc<Self>, unique: u64) {
        let Some(thread) = self.state.lock().interrupted(unique) else { return };
        // Of a thread that has no number here nothing will be known later either.
        let is_known = thread != 0;
        if is_known && !self.end_if_killed(Asking { unique, thread }) {
            let is_watched = std::mem::replace(&mut self.state.lock().watched, true);
            if !is_watched {
                (self.look_later)(self);
            }
        }
    }

    /// Has those wait no longer whose callers had a signal, and are killed by now. Whether there are others
    /// who had one: then this is to be called again.
    pub(super) fn end_killed(self: &Arc<Self>) -> bool {
        let interrupted: Vec<_> = self.state.lock().interrupted_ones().collect();
        for request in interrupted {
            self.end_if_killed(request);
        }
        let mut state = self.state.lock();
        let some_are_left = state.interrupted_ones().next().is_some();
        state.watched = some_are_left;
        some_are_left
    }

    /// Whether the caller of `request` is killed; then it waits no longer.
    fn end_if_killed(self: &Arc<Self>, request: Asking) -> bool {
        if !(self.is_killed)(request.thread) {
            return false;
        }
        // It may have been served meanwhile.
        let killed = self.state.lock().without(request.unique);
        if let Some(killed) = killed {
            killed.tell(None);
            // Who stood behind it may need less.
            self.serve();
        }
        true
    }

    /// Rooms that the count of free ones no longer has.
    fn rooms(self: &Arc<Self>, count: usize) -> Rooms {
        Rooms { hall: Arc::clone(self), count }
    }

    /// Serves those who wait, as far as there is room. To be called after each change that makes
    /// room.
    fn serve(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.look_again = true;
        if state.serving || state.waiting.is_empty() {
            return;
        }
        state.serving = true;
        while std::mem::take(&mut state.look_again) {
            while let Some(first) = state.next() {
                drop(state);
                let rooms = self.rooms(first.count);
                first.tell(Some(rooms));
                state = self.state.lock();
            }
            if state.waiting.is_empty() {
                break;
            }
            let ahead = state.ahead();
            drop(state);
            // Who still replies from it gives its room back, and has it looked at again.
            give_up_oldest(ahead);
            state = self.state.lock();
        }
        state.serving = false;
    }

    /// One room for what is read ahead, if that leaves enough for requests and nobody waits.
    pub(super) fn room_ahead(self: &Arc<Self>) -> Option<Rooms> {
        let mut state = self.state.lock();
        if state.free <= self.for_requests || !state.waiting.is_empty() {
            return None;
        }
        state.free -= 1;
        drop(state);
        Some(self.rooms(1))
    }

    /// `window` may be given up when somebody needs its room.
    pub(super) fn may_be_given_up(&self, window: &Arc<dyn Ahead>) {
        let mut state = self.state.lock();
        state.ahead.retain(|one| one.strong_count() > 0);
        state.ahead.push_back(Arc::downgrade(window));
    }

    /// A window was made: who waits may take its room.
    pub(super) fn window_is_done(self: &Arc<Self>) {
        self.serve();
    }

    /// Gives up all that was read ahead.
    pub(super) fn give_all_up(&self) {
        let ahead = self.state.lock().ahead();
        ahead.iter().for_each(|window| drop(window.give_up()));
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.state.lock().free
    }
}

impl State {
    /// The first who waits, if there is room.
    fn next(&mut self) -> Option<Waiting> {
        let count = self.waiting.front()?.count;
        self.free = self.free.checked_sub(count)?;
        self.waiting.pop_front()
    }

    /// The caller of this request, if it waits, had a signal. Returns its thread.
    fn interrupted(&mut self, unique: u64) -> Option<u32> {
        let asked = self.waiting.iter_mut().find(|waiting| waiting.request.unique == unique)?;
        asked.interrupted = asked.request.thread != 0;
        Some(asked.request.thread)
    }

    fn interrupted_ones(&self) -> impl Iterator<Item = Asking> {
        self.waiting.iter().filter(|waiting| waiting.interrupted).map(|waiting| waiting.request)
    }

    /// Who waits for this request waits no longer.
    fn without(&mut self, unique: u64) -> Option<Waiting> {
        let at = self.waiting.iter().position(|waiting| waiting.request.unique == unique)?;
        self.waiting.remove(at)
    }

    /// What is read ahead and still there, the oldest first.
    fn ahead(&mut self) -> Vec<Arc<dyn Ahead>> {
        let all: Vec<_> = self.ahead.iter().filter_map(Weak::upgrade).collect();
        self.ahead.retain(|one| one.strong_count() > 0);
        all
    }
}

impl Waiting {
    /// A panic is one of this request alone: who waits behind it is served.
    fn tell(self, rooms: Option<Rooms>) {
        if catch_unwind(AssertUnwindSafe(|| (self.told)(rooms))).is_err() {
            tracing::error!(request = self.request.unique, "panicked when it had its buffers");
        }
    }
}

/// Gives up the oldest that is done. Its room comes back when the last who replies from it is
/// through. To be called, and to drop the windows, without the lock: their rooms take it.
fn give_up_oldest(ahead: Vec<Arc<dyn Ahead>>) {
    let given = ahead.iter().find_map(|window| window.give_up());
    drop((given, ahead));
}

/// Some rooms, until this is dropped.
pub(super) struct Rooms {
    hall: Arc<Hall>,
    count: usize,
}

/// One by one.
impl Iterator for Rooms {
    type Item = Rooms;

    fn next(&mut self) -> Option<Rooms> {
        self.count = self.count.checked_sub(1)?;
        Some(self.hall.rooms(1))
    }
}

impl Drop for Rooms {
    fn drop(&mut self) {
        if self.count > 0 {
            self.hall.state.lock().free += self.count;
            self.hall.serve();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    const ALL: usize = 28;
    const FOR_REQUESTS: usize = 8;

    /// A request that nobody interrupts.
    struct Asks<F>(F);

    impl<F: FnOnce(Rooms) + Send + 'static> Wait for Asks<F> {
        fn request(&self) -> Asking {
            Asking { unique: 0, thread: 0 }
        }

        fn is_interrupted(&self) -> bool {
            false
        }

        fn go_on(self, rooms: Rooms) {
            (self.0)(rooms);
        }

        fn end(self) {
            unreachable!("nobody is killed");
        }
    }

    fn hall() -> Arc<Hall> {
        Hall::new(ALL, FOR_REQUESTS, |_| false, |_| ())
    }

    /// Waits on this thread.
    fn rooms(hall: &Arc<Hall>, count: usize) -> Vec<Rooms> {
        let (give, take) = mpsc::sync_channel(1);
        hall.enter(count, Asks(move |rooms| give.send(rooms).unwrap()));
        take.recv().unwrap().collect()
    }

    fn all(hall: &Arc<Hall>) -> Vec<Rooms> {
        (0..ALL).flat_map(|_| rooms(hall, 1)).collect()
    }

    /// Something read ahead that is done.
    struct Done(Mutex<Option<Arc<Rooms>>>);

    impl Ahead for Done {
        fn give_up(&self) -> Option<Arc<dyn Send + Sync>> {
            self.0.lock().take().map(|room| room as Arc<dyn Send + Sync>)
        }
    }

    fn ahead(hall: &Arc<Hall>) -> Option<Arc<dyn Ahead>> {
        let room = Arc::new(hall.room_ahead()?);
        let done: Arc<dyn Ahead> = Arc::new(Done(Mutex::new(Some(room))));
        hall.may_be_given_up(&done);
        Some(done)
    }

    #[test]
    fn reading_ahead_leaves_room_for_requests_and_gives_way_to_them() {
        let hall = hall();
        let made: Vec<_> = std::iter::from_fn(|| ahead(&hall)).collect();
        assert_eq!(made.len(), ALL - FOR_REQUESTS);
        let mut held = Vec::new();
        (0..ALL / 4).for_each(|_| held.extend(rooms(&hall, 4)));
        assert_eq!(held.len(), ALL);
        assert!(made.iter().all(|one| one.give_up().is_none()), "all had to go");
    }

    /// Each gets several at a time; a deadlock would hang.
    #[test]
    fn those_who_wait_get_all_at_once() {
        let hall = hall();
        let taken = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for count in [1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4] {
                let (hall, taken) = (&hall, &taken);
                scope.spawn(move || {
                    for _ in 0..300 {
                        let rooms = rooms(hall, count);
                        let all = taken.fetch_add(count, Ordering::SeqCst);
                        assert!(all + count <= ALL, "{all} and {count}");
                        drop(ahead(hall));
                        taken.fetch_sub(count, Ordering::SeqCst);
                        drop(rooms);
                    }
                });
            }
        });
        assert_eq!(hall.free(), ALL);
    }

    /// Nobody waits on a thread, nobody overtakes, and a large request is not starved by small ones.
    #[test]
    fn those_who_wait_are_served_in_the_order_in_which_they_came() {
        let hall = hall();
        let mut held = all(&hall);
        let (served, order) = mpsc::channel();
        for (who, count) in [4, 1, 2].into_iter().enumerate() {
            let served = served.clone();
            let told = move |rooms: Rooms| served.send((who, rooms.collect::<Vec<_>>())).unwrap();
            hall.enter(count, Asks(told));
        }
        assert!(hall.room_ahead().is_none(), "those who wait come first");
        let mut now = |free: usize| {
            held.truncate(held.len() - free);
            order.try_iter().map(|(who, rooms)| (who, rooms.len(), rooms)).collect::<Vec<_>>()
        };
        assert!(now(3).is_empty(), "the first needs four, and the second waits its turn");
        let first = now(1);
        assert_eq!((first.len(), first[0].0, first[0].1), (1, 0, 4));
        let second = now(1);
        assert_eq!((second.len(), second[0].0, second[0].1), (1, 1, 1));
        drop((first, second));
        let third = now(0);
        assert_eq!((third.len(), third[0].0, third[0].1), (1, 2, 2));
        drop((third, held));
        assert_eq!(hall.free(), ALL);
    }

    /// A chain of requests that each free the next one's buffer does not nest.
    #[test]
    fn a_long_queue_is_served_on_a_small_stack() {
        let hall = hall();
        let held = all(&hall);
        let count = Arc::new(AtomicUsize::new(0));
        for _ in 0..100_000 {
            let count = Arc::clone(&count);
            hall.enter(
                1,
                Asks(move |rooms| {
                    count.fetch_add(1, Ordering::Relaxed);
                    drop(rooms);
                }),
            );
        }
        let small = std::thread::Builder::new().stack_size(256 << 10);
        small.spawn(move || drop(held)).unwrap().join().unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 100_000);
        assert_eq!(hall.free(), ALL);
    }

    #[test]
    fn who_panics_holds_up_nobody_behind_it() {
        let hall = hall();
        let held = all(&hall);
        hall.enter(8, Asks(|_| panic!("deliberate")));
        let (served, order) = mpsc::channel();
        hall.enter(8, Asks(move |rooms: Rooms| served.send(rooms.count()).unwrap()));
        drop(held);
        assert_eq!(order.try_recv(), Ok(8));
        assert_eq!(hall.free(), ALL);
    }
}

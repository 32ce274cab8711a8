//! A limit on how many items run at once, and the FIFO of those that wait for it.
//!
//! A gated queue keeps its items here and puts *tokens* into its pool: each is the right to run the
//! next item. There are never more tokens, in the pool or held by a running item, than the limit.
//! With a limit of one, items run in the order in which they entered, which is all that an ordered
//! queue is. A rescuer can run the next item in place of a token that no worker comes to take.

use std::collections::VecDeque;

use tollgate_wakequeue::sync::{Futex, Mutex, Ordering};

/// The limit of one node, or of an ordered queue.
pub(crate) struct Gate<J> {
    state: Mutex<State<J>>,
    /// Bumped when a full gate has room again.
    room: Futex,
}

struct State<J> {
    waiting: VecDeque<J>,
    capacity: usize,
    limit: u32,
    /// Tokens in the pool or held by running items.
    active: u32,
    /// Of these, in the pool.
    in_pool: u32,
    /// Of these, whose item a rescuer runs: worth nothing when they arrive.
    void: u32,
    /// Threads waiting for room.
    sleepers: u32,
}

/// What became of an item at the gate.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entry<J> {
    /// It waits, and the caller must put a token into the pool.
    Token,
    /// It waits for others to finish.
    Waits,
    /// No room.
    Full(J),
}

impl<J> Gate<J> {
    pub(crate) fn new(limit: u32, capacity: usize) -> Self {
        let state = State {
            waiting: VecDeque::new(),
            capacity,
            limit,
            active: 0,
            in_pool: 0,
            void: 0,
            sleepers: 0,
        };
        Self { state: Mutex::new(state), room: Futex::new(0) }
    }

    pub(crate) fn enter(&self, job: J) -> Entry<J> {
        let mut state = self.state.lock();
        if state.waiting.len() >= state.capacity {
            return Entry::Full(job);
        }
        state.waiting.push_back(job);
        if state.active < state.limit {
            state.active += 1;
            state.in_pool += 1;
            return Entry::Token;
        }
        Entry::Waits
    }

    /// Sleeps until a full gate has room. May return early.
    pub(crate) fn wait_for_room(&self) {
        let mut state = self.state.lock();
        if state.waiting.len() < state.capacity {
            return;
        }
        state.sleepers += 1;
        let epoch = self.room.word().load(Ordering::SeqCst);
        drop(state);
        self.room.wait(epoch, None);
        self.state.lock().sleepers -= 1;
    }

    /// A token arrived: the item to run with it. `None` uses the token up.
    pub(crate) fn redeem(&self) -> Option<J> {
        let mut state = self.state.lock();
        state.in_pool -= 1;
        if state.void > 0 {
            state.void -= 1;
            return None;
        }
        if state.active > state.limit {
            // The limit was lowered; whoever is still active brings the next token.
            state.active -= 1;
            return None;
        }
        self.pop(state)
    }

    /// The item that ran with a token is done, and the same worker goes on with the next, if any.
    pub(crate) fn next(&self) -> Option<J> {
        let mut state = self.state.lock();
        if state.active > state.limit {
            state.active -= 1;
            return None;
        }
        self.pop(state)
    }

    /// The item that ran with a token is done. True: put another token into the pool.
    pub(crate) fn leave(&self) -> bool {
        let mut state = self.state.lock();
        if state.waiting.len() > state.in_pool as usize - state.void as usize
            && state.active <= state.limit
        {
            state.in_pool += 1;
            return true;
        }
        state.active -= 1;
        false
    }

    /// Takes the next item in place of a token that is still in the pool; the caller then holds
    /// that token. `None` when nothing waits for a worker.
    pub(crate) fn rescue(&self) -> Option<J> {
        let mut state = self.state.lock();
        if state.in_pool == state.void || state.active > state.limit {
            return None;
        }
        let front = self.take_front(&mut state)?;
        state.void += 1;
        Some(front)
    }

    /// Changes the limit. Returns how many tokens to put into the pool.
    pub(crate) fn set_limit(&self, limit: u32) -> u32 {
        let mut state = self.state.lock();
        state.limit = limit;
        let bound_to_run = (state.in_pool - state.void) as usize;
        let unserved = state.waiting.len().saturating_sub(bound_to_run);
        let tokens =
            limit.saturating_sub(state.active).min(u32::try_from(unserved).unwrap_or(u32::MAX));
        state.active += tokens;
        state.in_pool += tokens;
        tokens
    }

    pub(crate) fn set_capacity(&self, capacity: usize) {
        self.state.lock().capacity = capacity;
    }

    /// Items waiting, and tokens in the pool that nobody redeemed.
    pub(crate) fn waiting(&self) -> (usize, u32) {
        let state = self.state.lock();
        (state.waiting.len(), state.in_pool - state.void)
    }

    fn pop(&self, mut state: tollgate_wakequeue::sync::MutexGuard<'_, State<J>>) -> Option<J> {
        let front = self.take_front(&mut state);
        if front.is_none() {
            state.active -= 1;
        }
        front
    }

    fn take_front(&self, state: &mut State<J>) -> Option<J> {
        let front = state.waiting.pop_front();
        if front.is_some() && state.sleepers > 0 {
            self.room.word().fetch_add(1, Ordering::SeqCst);
            self.room.wake(i32::MAX);
        }
        front
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Enter,
        Redeem,
        FinishAndGoOn,
        Finish,
        Rescue,
        Limit(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Enter),
            3 => Just(Step::Redeem),
            1 => Just(Step::FinishAndGoOn),
            3 => Just(Step::Finish),
            1 => Just(Step::Rescue),
            1 => (1_u32..5).prop_map(Step::Limit),
        ]
    }

    /// The caller's side, done by the book: tokens in the pool and items running.
    #[derive(Default)]
    struct World {
        tokens: u32,
        running: u32,
        entered: u32,
        started: Vec<u32>,
    }

    impl World {
        fn start(&mut self, job: Option<u32>) {
            if let Some(job) = job {
                self.running += 1;
                self.started.push(job);
            }
        }

        fn finish(&mut self, gate: &Gate<u32>) {
            self.running -= 1;
            self.tokens += u32::from(gate.leave());
        }
    }

    proptest! {
        #[test]
        fn in_order_within_the_limit_and_nothing_left(
            steps in proptest::collection::vec(step(), 1..200), first in 1_u32..4,
        ) {
            let gate = Gate::new(first, 1000);
            let (mut world, mut limit, mut ceiling) = (World::default(), first, first);
            for step in steps {
                match step {
                    Step::Enter => {
                        let entry = gate.enter(world.entered);
                        world.entered += 1;
                        world.tokens += u32::from(entry == Entry::Token);
                    }
                    Step::Redeem if world.tokens > 0 => {
                        world.tokens -= 1;
                        let job = gate.redeem();
                        world.start(job);
                    }
                    Step::FinishAndGoOn if world.running > 0 => {
                        world.running -= 1;
                        let job = gate.next();
                        world.start(job);
                    }
                    Step::Finish if world.running > 0 => world.finish(&gate),
                    Step::Rescue => {
                        let job = gate.rescue();
                        world.start(job);
                    }
                    Step::Limit(new) => {
                        limit = new;
                        world.tokens += gate.set_limit(new);
                    }
                    _ => {}
                }
                // What ran before the limit was lowered may go on; nothing new starts above it.
                ceiling = limit.max(ceiling.min(world.running));
                prop_assert!(world.running <= ceiling, "{} > {}", world.running, ceiling);
            }
            while world.tokens + world.running > 0 {
                if world.running > 0 {
                    world.finish(&gate);
                } else {
                    world.tokens -= 1;
                    let job = gate.redeem();
                    world.start(job);
                }
            }
            prop_assert_eq!(world.started, (0..world.entered).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_full_gate_refuses() {
        let gate = Gate::new(1, 2);
        assert_eq!(gate.enter('a'), Entry::Token);
        assert_eq!(gate.enter('b'), Entry::Waits);
        assert_eq!(gate.enter('c'), Entry::Full('c'));
        assert_eq!(gate.redeem(), Some('a'));
        assert_eq!(gate.enter('c'), Entry::Waits);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread;
    use tollgate_wakequeue::sync::{Arc, AtomicU32};

    /// A worker with the pool reduced to a count: redeems every token there is.
    fn work(gate: &Gate<u32>, running: &AtomicU32, limit: u32, ran: &AtomicU32) {
        while let Some(job) = gate.redeem() {
            assert!(running.fetch_add(1, Ordering::SeqCst) < limit, "over the limit");
            ran.fetch_add(job, Ordering::SeqCst);
            running.fetch_sub(1, Ordering::SeqCst);
            if !gate.leave() {
                return;
            }
        }
    }

    /// max_active: two threads enter and run; never two at once, and both items run.
    #[test]
    fn max_active_holds_and_nothing_is_left() {
        loom::model(|| {
            let gate = Arc::new(Gate::new(1, 8));
            let running = Arc::new(AtomicU32::new(0));
            let ran = Arc::new(AtomicU32::new(0));
            let enter = |job| {
                let (gate, running, ran) =
                    (Arc::clone(&gate), Arc::clone(&running), Arc::clone(&ran));
                move || {
                    if gate.enter(job) == Entry::Token {
                        work(&gate, &running, 1, &ran);
                    }
                }
            };
            let other = thread::spawn(enter(1));
            enter(10)();
            other.join().unwrap();
            assert_eq!(ran.load(Ordering::SeqCst), 11);
            assert_eq!(gate.waiting(), (0, 0));
        });
    }

    /// Attribute change against queue: the limit is raised while items enter.
    #[test]
    fn a_raised_limit_releases_what_waits() {
        loom::model(|| {
            let gate = Arc::new(Gate::new(1, 8));
            let running = Arc::new(AtomicU32::new(0));
            let ran = Arc::new(AtomicU32::new(0));
            assert_eq!(gate.enter(1), Entry::Token);
            let changer = {
                let (gate, running, ran) =
                    (Arc::clone(&gate), Arc::clone(&running), Arc::clone(&ran));
                thread::spawn(move || {
                    for _ in 0..gate.set_limit(2) {
                        work(&gate, &running, 2, &ran);
                    }
                })
            };
            if gate.enter(10) == Entry::Token {
                work(&gate, &running, 2, &ran);
            }
            // The first token is still in the pool.
            work(&gate, &running, 2, &ran);
            changer.join().unwrap();
            assert_eq!(ran.load(Ordering::SeqCst), 11);
            assert_eq!(gate.waiting(), (0, 0));
        });
    }
    /// Attribute change against queue: the limit is lowered while two items run and others enter. In
    /// the end as many tokens are out as the limit allows, and nothing waits.
    #[test]
    fn a_lowered_limit_strands_nothing() {
        loom::model(|| {
            let gate = Arc::new(Gate::new(2, 8));
            let ran = Arc::new(AtomicU32::new(0));
            let tokens = [1, 10].map(|job| gate.enter(job));
            assert_eq!(tokens, [Entry::Token, Entry::Token]);
            let worker = || {
                let (gate, ran) = (Arc::clone(&gate), Arc::clone(&ran));
                move || work(&gate, &AtomicU32::new(0), 9, &ran)
            };
            let first = thread::spawn(worker());
            let second = thread::spawn(worker());
            assert_eq!(gate.set_limit(1), 0, "a lower limit gives no tokens");
            if gate.enter(100) == Entry::Token {
                work(&gate, &AtomicU32::new(0), 9, &ran);
            }
            first.join().unwrap();
            second.join().unwrap();
            assert_eq!(ran.load(Ordering::SeqCst), 111);
            assert_eq!(gate.waiting(), (0, 0));
            // Everything was given back: one may run, and only one.
            let tokens = [1, 10].map(|job| gate.enter(job));
            assert_eq!(tokens, [Entry::Token, Entry::Waits]);
        });
    }

    /// A rescuer runs an item while the worker that it despaired of arrives after all: each item runs
    /// once, one at a time and in order.
    #[test]
    fn a_rescuer_and_a_late_worker_share_an_ordered_queue() {
        loom::model(|| {
            let gate = Arc::new(Gate::new(1, 8));
            let order = Arc::new(AtomicU32::new(0));
            let running = Arc::new(AtomicU32::new(0));
            let run = |gate: &Gate<u32>, running: &AtomicU32, order: &AtomicU32, job: u32| {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                order.store(order.load(Ordering::SeqCst) * 10 + job, Ordering::SeqCst);
                running.fetch_sub(1, Ordering::SeqCst);
                gate.leave()
            };
            assert_eq!(gate.enter(1), Entry::Token);
            assert_eq!(gate.enter(2), Entry::Waits);
            let rescuer = {
                let (gate, running, order) =
                    (Arc::clone(&gate), Arc::clone(&running), Arc::clone(&order));
                thread::spawn(move || {
                    // Tokens that the caller of `rescue` must put into the pool.
                    gate.rescue().map_or(0, |job| u32::from(run(&gate, &running, &order, job)))
                })
            };
            let mut tokens = 1;
            while tokens > 0 {
                tokens -= 1;
                if let Some(job) = gate.redeem() {
                    tokens += u32::from(run(&gate, &running, &order, job));
                }
            }
            for _ in 0..rescuer.join().unwrap() {
                let job = gate.redeem().unwrap();
                assert!(!run(&gate, &running, &order, job), "there are two");
            }
            assert_eq!(order.load(Ordering::SeqCst), 12, "each once, in order");
        });
    }
}

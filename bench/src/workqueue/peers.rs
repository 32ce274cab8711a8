//! The peers: rayon, tokio and affinitypool.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::pool::{Pool, Trips, ns};
use super::wait::block_on;

/// `rayon::ThreadPool`. It has no word for blocking: a job that blocks holds its worker.
pub(super) struct Rayon(pub rayon::ThreadPool);

impl Rayon {
    pub(super) fn new(workers: usize) -> Result<Self> {
        Ok(Self(rayon::ThreadPoolBuilder::new().num_threads(workers).build()?))
    }
}

impl Pool for Rayon {
    fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        self.0.spawn(job);
    }

    fn round_trips(&self, plan: Trips) -> Vec<f64> {
        plan.time(|| self.0.install(|| ()))
    }

    fn blocking(section: impl FnOnce()) {
        section();
    }
}

/// tokio's multi-threaded runtime, without timers and I/O.
pub(super) struct Tokio(pub tokio::runtime::Runtime);

impl Tokio {
    pub(super) fn new(workers: usize) -> Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        Ok(Self(builder.worker_threads(workers).build()?))
    }
}

impl Pool for Tokio {
    fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        self.0.spawn(async move { job() });
    }

    /// All trips within one `block_on`, as a program would do it that makes many.
    fn round_trips(&self, plan: Trips) -> Vec<f64> {
        self.0.block_on(async {
            let mut times = Vec::with_capacity(plan.count);
            for _ in 0..plan.count {
                plan.pause();
                let start = Instant::now();
                // An error would be a panic of the job, which does nothing.
                let _ = tokio::spawn(async {}).await;
                times.push(ns(start));
            }
            times
        })
    }

    fn blocking(section: impl FnOnce()) {
        tokio::task::block_in_place(section);
    }
}

/// `affinitypool::Threadpool`. Its tasks are cancelled when their future is dropped, so futures are
/// kept until their task is done. It has no word for blocking.
pub(super) struct Affinity(affinitypool::Threadpool);

/// Futures that a submitter outside keeps at most; then it waits for the oldest.
const AFFINITY_WINDOW: usize = 4096;

/// How long a caller spins for a worker that is awake. A worker of this pool stays awake when the
/// next job comes soon, so not to park is what makes trips short.
const AFFINITY_HOT_SPIN: Duration = Duration::from_micros(50);

/// How long a caller spins for a worker that sleeps. Longer spinning was measured to be worse: with
/// few CPUs the worker waits for this one.
const AFFINITY_COLD_SPIN: Duration = Duration::from_micros(3);

/// Kept futures of a thread above which finished ones are let go.
const AFFINITY_KEPT: usize = 64;

thread_local! {
    static KEPT: RefCell<VecDeque<Pin<Box<dyn Future<Output = ()>>>>> =
        const { RefCell::new(VecDeque::new()) };
}

impl Affinity {
    pub(super) fn new(workers: usize) -> Self {
        Self(affinitypool::Threadpool::new(workers))
    }
}

impl Pool for Affinity {
    fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        let task = Box::pin(self.0.spawn(job));
        KEPT.with_borrow_mut(|kept| {
            kept.push_back(task);
            let mut context = Context::from_waker(Waker::noop());
            while kept.len() > AFFINITY_KEPT
                && kept.front_mut().is_some_and(|task| task.as_mut().poll(&mut context).is_ready())
            {
                kept.pop_front();
            }
        });
    }

    fn spawn_many(&self, count: usize, job: fn()) {
        let mut window = VecDeque::with_capacity(AFFINITY_WINDOW);
        for _ in 0..count {
            if window.len() == AFFINITY_WINDOW
                && let Some(oldest) = window.pop_front()
            {
                block_on(Duration::ZERO, oldest);
            }
            window.push_back(self.0.spawn(job));
        }
        window.into_iter().for_each(|task| block_on(Duration::ZERO, task));
    }

    fn spawn_while(&self, job: impl FnOnce() + Send + 'static, wait: impl FnOnce()) {
        let task = self.0.spawn(job);
        wait();
        block_on(Duration::ZERO, task);
    }

    fn round_trips(&self, plan: Trips) -> Vec<f64> {
        let spin = if plan.idle.is_zero() { AFFINITY_HOT_SPIN } else { AFFINITY_COLD_SPIN };
        plan.time(|| block_on(spin, self.0.spawn(|| ())))
    }

    fn blocking(section: impl FnOnce()) {
        section();
    }
}

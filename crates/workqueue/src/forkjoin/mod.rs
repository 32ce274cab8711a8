//! Fork and join: closures that borrow, run side by side, and end before the call returns.
//!
//! The calling thread always takes part, worker or not: it runs what nobody comes for, so a fork
//! needs no free worker and nests to any depth, and work that is too small to share stays in the
//! caller's cache. See `hand` for how others come to help.

#![expect(unsafe_code, reason = "jobs lie in the frames of those who wait for them")]

mod deque;
mod hand;
mod join;
mod parallel;
mod scope;

pub use hand::MAX_HANDS;
pub(crate) use join::join_on;
pub use scope::Scope as Fork;
pub(crate) use scope::scope_on;

use crate::Queue;

/// Fork and join on this queue.
impl Queue {
    /// Runs both closures, at once if a worker of this queue has nothing else to do, and returns
    /// both results. They may borrow.
    ///
    /// The calling thread runs `a`, and `b` as well when nobody has begun it by then. Helpers come
    /// as items of the queue, hence under its limit and in its scope: in an ordered queue's item
    /// nobody comes. From outside of the queue's items, the calling thread itself does not count.
    ///
    /// ```
    /// # let runtime = tollgate_workqueue::Runtime::builder().build()?;
    /// # let queue = runtime.queue("example").build()?;
    /// fn sum(queue: &tollgate_workqueue::Queue, numbers: &[u64]) -> u64 {
    ///     if numbers.len() < 1000 {
    ///         return numbers.iter().sum();
    ///     }
    ///     let (left, right) = numbers.split_at(numbers.len() / 2);
    ///     let (left, right) = queue.join(|| sum(queue, left), || sum(queue, right));
    ///     left + right
    /// }
    /// assert_eq!(sum(&queue, &(0..10_000).collect::<Vec<_>>()), 49_995_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Do not hold a lock over this call that forked closures take: while it waits, the thread may
    /// run other forked closures of the queue.
    ///
    /// # Panics
    /// If a closure panics, with its payload, when both have ended. If `a` panics and nobody has
    /// begun `b`, that is dropped without being run.
    #[inline]
    pub fn join<A, B, RA, RB>(&self, a: A, b: B) -> (RA, RB)
    where
        A: FnOnce() -> RA,
        B: FnOnce() -> RB + Send,
        RB: Send,
    {
        join_on(self.core(), a, b)
    }

    /// Calls `body` with a scope, in which it can [spawn](Fork::spawn) closures that borrow from
    /// outside of it. Returns when all of them have ended.
    ///
    /// Who runs them is as for [`join`](Self::join); closures that nobody has begun when `body`
    /// returns are run by the calling thread.
    ///
    /// # Panics
    /// If `body` or a closure panics, with the payload of `body` or else of the first closure, when
    /// all closures have ended.
    pub fn scope<'env, R>(
        &self,
        body: impl for<'scope> FnOnce(&'scope Fork<'scope, 'env>) -> R,
    ) -> R {
        scope_on(self.core(), body)
    }

    /// Calls `body` for every item, in chunks of `chunk` of them; 0 leaves the size to the runtime,
    /// which cuts eight chunks per CPU of the queue.
    ///
    /// For iterators with more to offer, cut by chunks here and iterate inside, or run the threads
    /// of another library as items: see `docs/workqueue.md`.
    ///
    /// ```
    /// # let runtime = tollgate_workqueue::Runtime::builder().build()?;
    /// # let queue = runtime.queue("example").build()?;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// let total = AtomicU64::new(0);
    /// queue.for_each(&[1, 2, 3], 0, |n| {
    ///     total.fetch_add(*n, Ordering::Relaxed);
    /// });
    /// assert_eq!(total.into_inner(), 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// If `body` panics, when the other chunks have ended or were left out.
    pub fn for_each<T: Sync>(&self, items: &[T], chunk: usize, body: impl Fn(&T) + Sync) {
        let chunk = self.chunk_len(chunk, items.len());
        let each = |_, items: &[T]| items.iter().for_each(&body);
        parallel::chunks(self.core(), items, 0, chunk, &each);
    }

    /// As [`for_each`](Self::for_each), with exclusive use of each item.
    ///
    /// # Panics
    /// As [`for_each`](Self::for_each).
    pub fn for_each_mut<T: Send>(
        &self,
        items: &mut [T],
        chunk: usize,
        body: impl Fn(&mut T) + Sync,
    ) {
        self.for_each_chunk_mut(items, chunk, |_, items| items.iter_mut().for_each(&body));
    }

    /// Calls `body` with every chunk and the index of its first item. All chunks but the last have
    /// `chunk` items.
    ///
    /// # Panics
    /// As [`for_each`](Self::for_each).
    pub fn for_each_chunk_mut<T: Send>(
        &self,
        items: &mut [T],
        chunk: usize,
        body: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let chunk = self.chunk_len(chunk, items.len());
        parallel::chunks_mut(self.core(), items, 0, chunk, &body);
    }

    /// The results of `body` for every item, in order; `chunk` as for [`for_each`](Self::for_each).
    ///
    /// ```
    /// # let runtime = tollgate_workqueue::Runtime::builder().build()?;
    /// # let queue = runtime.queue("example").build()?;
    /// assert_eq!(queue.map(&[1, 2, 3], 1, |n| n * n), [1, 4, 9]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// As [`for_each`](Self::for_each). Results of the other items are dropped.
    pub fn map<T: Sync, R: Send>(
        &self,
        items: &[T],
        chunk: usize,
        body: impl Fn(&T) -> R + Sync,
    ) -> Vec<R> {
        parallel::map(self.core(), items, self.chunk_len(chunk, items.len()), &body)
    }

    fn chunk_len(&self, asked: usize, len: usize) -> usize {
        parallel::chunk_len(asked, len, self.core().pool().key.sharding.cpumask.len())
    }
}

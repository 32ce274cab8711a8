//! Waiting for a buffer without a thread.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::buffer::{Buffer, state::Taken};
use super::core::Want;
use super::handle::Pool;
use super::wait_list::Ticket;
use crate::error::Error;

/// A take that is under way, see [`Pool::take_async`]. Whoever drops it waits no longer.
#[must_use = "nothing is taken before this is polled"]
pub struct Taking {
    pool: Pool,
    bytes: usize,
    class: Option<usize>,
    ticket: Option<Ticket>,
}

impl Pool {
    /// As [`take`](Self::take), for a task that must not block its thread: where every buffer is
    /// taken, the task is woken when one was given back. Tasks are woken in the order in which they
    /// came; until the one that was woken is polled, whoever else takes may get the buffer, and it
    /// waits again, at its old place. It waits whatever [`super::AtMaximum`] says, and as long as it is not dropped.
    ///
    /// Clearing, and asking the kernel for memory, happen in the poll that gets the buffer:
    /// 2 MiB take 20 to 40 us. [`take_cleared`](Self::take_cleared) never does either.
    ///
    /// # Errors
    /// As [`take`](Self::take), but for [`Error::Exhausted`].
    pub fn take_async(&self, bytes: usize) -> Taking {
        Taking { pool: self.clone(), bytes, class: None, ticket: None }
    }
}

impl Future for Taking {
    type Output = Result<Buffer<Taken>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { pool, bytes, class, ticket } = &mut *self;
        let class = match *class {
            Some(class) => class,
            None => *class.insert(pool.class_for(*bytes)?),
        };
        let core = pool.core();
        let pop = || core.pop(class, Want::Zeroes);
        // The first look takes no lock.
        let found = match ticket.is_none().then(pop).flatten() {
            Some(found) => Poll::Ready(found),
            None => core.classes[class].waiters.poll(ticket, context.waker(), pop),
        };
        found.map(|found| pool.cleared(core.with_memory(found)?, *bytes, None))
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        if let (Some(class), Some(ticket)) = (self.class, self.ticket.take()) {
            self.pool.core().classes[class].waiters.leave(&ticket);
        }
    }
}

impl fmt::Debug for Taking {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Taking({} bytes)", self.bytes)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};
    use std::thread;

    use super::*;
    use crate::pool::AtMaximum;

    const KIB: usize = 1024;
    const ROUNDS: usize = if cfg!(miri) { 5 } else { 500 };

    /// Counts how often it was woken.
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A task that is polled by hand.
    struct Task {
        take: Pin<Box<Taking>>,
        woken: Arc<Woken>,
    }

    impl Task {
        fn new(pool: &Pool) -> Self {
            let take = Box::pin(pool.take_async(KIB));
            Self { take, woken: Arc::new(Woken(AtomicUsize::new(0))) }
        }

        fn poll(&mut self) -> Poll<Result<Buffer<Taken>, Error>> {
            let waker = Waker::from(self.woken.clone());
            self.take.as_mut().poll(&mut Context::from_waker(&waker))
        }

        fn woken(&self) -> usize {
            self.woken.0.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn a_task_waits_without_a_thread_and_is_woken_by_a_giver() {
        // It waits though a take would be refused.
        let pool = Pool::builder().class(16 * KIB, 1).at_maximum(AtMaximum::Refuse);
        let pool = pool.build().unwrap();
        let [mut first, mut second, mut third] = std::array::from_fn(|_| Task::new(&pool));
        let mut buffer = pool.take(KIB).unwrap();
        buffer.fill(7);
        assert!(
            [&mut first, &mut second, &mut third].into_iter().all(|task| task.poll().is_pending())
        );
        drop(buffer);
        assert_eq!([first.woken(), second.woken(), third.woken()], [1, 0, 0], "who came first");
        // It gives up before it looks: the wake-up is the next one's.
        drop(first);
        assert_eq!([second.woken(), third.woken()], [1, 0]);
        let Poll::Ready(Ok(buffer)) = second.poll() else { panic!("a buffer is free") };
        assert!(buffer.iter().all(|byte| *byte == 0));
        assert!(third.poll().is_pending(), "polled, though nobody woke it");
        drop(buffer);
        assert_eq!(third.woken(), 1);
        assert!(matches!(third.poll(), Poll::Ready(Ok(_))));
        let mut large = Box::pin(pool.take_async(1 << 30));
        let refused = large.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(refused, Poll::Ready(Err(Error::NoSuchClass { .. }))), "{refused:?}");
    }

    /// More tasks than buffers, on several threads: each gets its own, and none sleeps on.
    #[test]
    fn many_tasks_share_a_few_buffers() {
        let pool = Pool::builder().class(16 * KIB, 2).build().unwrap();
        thread::scope(|scope| {
            for mark in 1..=4_u8 {
                let pool = &pool;
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        let mut buffer = block_on(pool.take_async(9 * KIB)).unwrap();
                        assert!(buffer.iter().all(|byte| *byte == 0));
                        buffer.fill(mark);
                        assert!(buffer.iter().all(|byte| *byte == mark), "another owner's bytes");
                    }
                });
            }
        });
    }

    /// Polls on this thread, which sleeps in between.
    fn block_on<T>(future: impl Future<Output = T>) -> T {
        struct Unpark(thread::Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut future = std::pin::pin!(future);
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(done) => return done,
                Poll::Pending => thread::park(),
            }
        }
    }
}

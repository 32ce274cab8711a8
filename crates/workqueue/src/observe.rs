//! Items that are looked at on their way: for their times, and as spans. By choice, per queue.

use std::time::Duration;

use tollgate_topology::CpuId;

use crate::context;
use crate::core::QueueCore;
use crate::error::SubmitError;
use crate::latency::{LATENCY, Moment, SPANS};
use crate::queue::Queue;

/// Looking at items. Both cost nothing while they are off, beyond one load.
impl Queue {
    /// Measures, from now on or no more, how long items are queued and how long they run;
    /// [`Runtime::monitor`](crate::Runtime::monitor) has the distributions. Costs three looks at
    /// the clock per item, about 80 ns, and a word of its captured state.
    ///
    /// An item that is aborted or cancelled before it begins is not measured. One that its waiter
    /// runs (see [`Handle::wait`](crate::Handle::wait)) counts as queued until its turn would have
    /// come, and as run in no time.
    pub fn measure_latency(&self, on: bool) {
        self.check_process();
        self.core().observed.set(LATENCY, on);
    }

    /// Gives each item, from now on or no more, a [`tracing`] span named `item` with the name of
    /// the queue, at level INFO, inside the span that was current where the item was queued.
    pub fn trace_items(&self, on: bool) {
        self.check_process();
        self.core().observed.set(SPANS, on);
    }
}

impl QueueCore {
    /// As [`submit`](Self::submit), for items of users.
    #[inline]
    pub(crate) fn submit_item<F>(&self, closure: F, near: Option<CpuId>) -> Result<(), SubmitError>
    where
        F: FnOnce() + Send + 'static,
    {
        match self.observed.what() {
            0 => self.submit(closure, near),
            what => self.submit_observed(what, closure, near),
        }
    }

    #[cold]
    fn submit_observed<F>(
        &self,
        what: u64,
        closure: F,
        near: Option<CpuId>,
    ) -> Result<(), SubmitError>
    where
        F: FnOnce() + Send + 'static,
    {
        let queued = Moment::now();
        if what & SPANS == 0 {
            return self.submit(move || measured(queued, closure), near);
        }
        let queue = self.name();
        let span = tracing::info_span!("item", queue);
        if what & LATENCY == 0 {
            self.submit(move || span.in_scope(closure), near)
        } else {
            self.submit(move || span.in_scope(|| measured(queued, closure)), near)
        }
    }
}

fn measured(queued: Moment, closure: impl FnOnce()) {
    /// Notes the time at the end, also by a panic.
    struct Run {
        was_queued: Duration,
        begun: Moment,
    }
    impl Drop for Run {
        fn drop(&mut self) {
            context::current_queue(|core| {
                let times = core.observed.times();
                if context::has_run_nothing() {
                    times.queued.take_back(self.was_queued);
                } else {
                    times.run.note(self.begun.elapsed());
                }
            });
        }
    }
    let was_queued = queued.elapsed();
    // At the begin, as some items run for long; an item that was aborted is seen only by running it.
    context::current_queue(|core| core.observed.times().queued.note(was_queued));
    let _run = Run { was_queued, begun: Moment::now() };
    closure();
}

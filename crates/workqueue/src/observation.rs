//! What is noted of one run of an item that is queued again and again.

use crate::latency::{LATENCY, Moment, Observed, SPANS};

/// Made where the item is queued, by choice of its queue, and used up by the run.
pub(crate) struct Observation {
    queued: Option<Moment>,
    /// The span that was current where the item was queued.
    parent: Option<tracing::Span>,
}

impl Observation {
    /// Nothing, and no allocation, unless somebody wants to know.
    #[inline]
    pub(crate) fn of(observed: &Observed) -> Option<Box<Self>> {
        match observed.what() {
            0 => None,
            what => Some(Self::start(what)),
        }
    }

    #[cold]
    fn start(what: u64) -> Box<Self> {
        Box::new(Self {
            queued: (what & LATENCY != 0).then(Moment::now),
            parent: (what & SPANS != 0).then(tracing::Span::current),
        })
    }

    /// The delay is over: the item is queued from here on.
    pub(crate) fn restart(&mut self) {
        if self.queued.is_some() {
            self.queued = Some(Moment::now());
        }
    }

    /// Runs the item. `body` must not unwind.
    pub(crate) fn run(self, observed: &Observed, queue: &str, body: impl FnOnce()) {
        let begun = self.queued.map(|queued| {
            observed.times().queued.note(queued.elapsed());
            Moment::now()
        });
        match self.parent {
            Some(parent) => tracing::info_span!(parent: &parent, "item", queue).in_scope(body),
            None => body(),
        }
        if let Some(begun) = begun {
            observed.times().run.note(begun.elapsed());
        }
    }
}

//! Telling that a ring has served what it was sent: see `passage.rs`.

use super::RingQueue;
use crate::uring::entry::Kind;

impl RingQueue {
    /// Answers whoever asked whether this ring has served what it was sent, if it has. Otherwise
    /// there is a request to serve, or a helper that will wake this thread: it comes back then.
    pub(super) fn answer_passage(&mut self) {
        let question = self.shared.passage.question();
        // Closes that wait in the kernel were made before the question, too.
        self.passes = question.is_some();
        let Some(question) = question else { return };
        self.let_all_out();
        if self.has_served_all() {
            self.shared.passage.pass(question);
        }
    }

    /// Whether nothing that is quick to serve is left of what was sent to this ring.
    fn has_served_all(&mut self) -> bool {
        // A reply may bring a request that waited in the kernel.
        loop {
            self.queue_commits();
            if self.ring.submit_and_look().is_err() {
                return false;
            }
            let submitted = std::mem::take(&mut self.queued);
            self.collect();
            if !submitted {
                return self.received.is_empty() && !self.helpers_serve();
            }
        }
    }

    /// Whether handlers of helpers have yet to return from requests that are quick to serve. Those
    /// whose replies are to come have been served: their replies may wait for this ring's answer.
    fn helpers_serve(&self) -> bool {
        let mut handed = self.handed.iter().enumerate();
        handed.any(|(index, kind)| {
            *kind == Some(Kind::Quick) && self.shared.entry(index).is_with_helper()
        })
    }
}

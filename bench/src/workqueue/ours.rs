//! The runtime of this project, as the peers are used: one queue, every default.

use anyhow::Result;
use tollgate_workqueue::{Queue, Runtime, blocking};

use super::pool::{Pool, Trips};

/// A queue, and the runtime it belongs to unless the caller keeps that.
pub(super) struct Ours {
    queue: Queue,
    _runtime: Option<Runtime>,
}

impl Ours {
    /// A runtime of its own, with a worker per CPU.
    pub(super) fn new() -> Result<Self> {
        let runtime = Runtime::builder().build()?;
        Ok(Self { queue: runtime.queue("bench").build()?, _runtime: Some(runtime) })
    }

    /// A queue of a runtime that outlives this.
    pub(super) fn of(queue: Queue) -> Self {
        Self { queue, _runtime: None }
    }

    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }
}

impl Pool for Ours {
    fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        // The queue is neither drained nor shut down while a sample runs, and waits when it is
        // full, so a refusal is a defect of the runtime.
        if let Err(refused) = self.queue.post(job) {
            panic!("a job was refused: {refused}");
        }
    }

    fn round_trips(&self, plan: Trips) -> Vec<f64> {
        plan.time(|| match self.queue.spawn(|| ()) {
            // An error would be a panic of the job, which does nothing.
            Ok(handle) => drop(handle.wait()),
            Err(refused) => panic!("a job was refused: {refused}"),
        })
    }

    fn blocking(section: impl FnOnce()) {
        blocking(section);
    }
}

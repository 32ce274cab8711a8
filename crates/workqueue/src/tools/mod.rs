//! What `dump` and `monitor` show, as plain data that serialises, and the setting of attributes by
//! name.

mod dump;
mod monitor;

pub use dump::{Dump, NodeActive, PodDump, PoolDump, QueueDump, ShardDump};
pub use monitor::{Monitor, QueueMonitor, QueueRates, Rates};

use std::sync::Arc;

use crate::shared::Shared;
use crate::{AttributeError, Runtime};

impl Runtime {
    /// Scopes, pods, pools, queues and attributes as they are now.
    #[must_use]
    pub fn dump(&self) -> Dump {
        Dump::of(self.shared())
    }

    /// Counters as they are now.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor::of(self.shared())
    }

    /// Changes an attribute of the queue with this name, by its `ATTRIBUTE=VALUE` form: what the
    /// `set` command does.
    ///
    /// # Errors
    /// There is no such queue or attribute, or it cannot have this value. Nothing has changed then.
    pub fn set(&self, queue: &str, setting: &str) -> Result<(), AttributeError> {
        self.shared().set(queue, &[setting])
    }
}

impl Shared {
    /// Changes attributes of the queue with this name, all or none.
    pub(crate) fn set(
        self: &Arc<Self>,
        queue: &str,
        settings: &[impl AsRef<str>],
    ) -> Result<(), AttributeError> {
        let core = self.live_queue(queue);
        let core = core.ok_or_else(|| AttributeError::NoSuchQueue(queue.to_owned()))?;
        self.apply(&core, |attributes| {
            settings.iter().try_for_each(|setting| attributes.set(setting.as_ref()))
        })
    }
}

//! Rescuers: which queues have one, and until when.

use std::io;
use std::sync::Arc;

use tollgate_wakequeue::sync::Ordering;

use super::Shared;
use crate::core::QueueCore;
use crate::forked;
use crate::rescuer::Rescuer;
use crate::run;

impl Shared {
    /// Gives a queue that nobody uses yet a rescuer.
    pub(super) fn add_rescuer(self: &Arc<Self>, core: &Arc<QueueCore>) -> io::Result<()> {
        let (shared, rescued) = (Arc::clone(self), Arc::clone(core));
        let name = self.settings.hooks.name("rescue");
        let rescuer = Rescuer::start(name, move || {
            // It keeps the queue alive, too.
            run::rescue(&rescued, &shared.pools())
        })?;
        core.set_rescuer(rescuer);
        self.rescuers.fetch_add(1, Ordering::SeqCst);
        // The housekeeper may sleep for longer than rescuers allow.
        self.alarm.ring();
        Ok(())
    }

    /// The last user of a queue is gone. What is left there is run, by its rescuer if need be.
    pub(crate) fn retire(&self, core: &Arc<QueueCore>) {
        if forked::is_copy(self.id.generation()) {
            return;
        }
        let mut registry = self.registry();
        let name = core.name();
        if registry.live.get(&name).is_some_and(|live| Arc::ptr_eq(live, core)) {
            registry.live.remove(&name);
            registry.retired.push(Arc::clone(core));
        }
        // Under the lock: afterwards the queue may be somebody else's.
        self.end_unused_rescuer(core);
        registry.rest_unused_pools();
    }

    pub(crate) fn has_rescuers(&self) -> bool {
        self.rescuers.load(Ordering::SeqCst) > 0
    }

    /// Queues with their rescuers: those that users hold, and those of which something is left.
    pub(crate) fn rescuers(&self) -> Vec<(Arc<QueueCore>, Arc<Rescuer>)> {
        let registry = self.registry();
        let queues = registry.live.values().chain(&registry.retired);
        queues.filter_map(|core| Some((Arc::clone(core), core.rescuer.lock().clone()?))).collect()
    }

    /// Ends the rescuers of queues that nobody holds, and of which nothing is left any more.
    pub(crate) fn end_unused_rescuers(&self) {
        if self.has_rescuers() {
            let registry = self.registry();
            registry.retired.iter().for_each(|core| self.end_unused_rescuer(core));
        }
    }

    /// For a queue that nobody holds. The registry is locked.
    fn end_unused_rescuer(&self, core: &QueueCore) {
        if core.in_flight.totals().0 > 0 {
            return;
        }
        if let Some(rescuer) = core.rescuer.lock().take() {
            self.rescuers.fetch_sub(1, Ordering::SeqCst);
            // Whoever dropped the last handle may be what the rescuer's item waits for.
            rescuer.stop();
        }
    }
}

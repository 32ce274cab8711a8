//! Which pool serves a queue, when that changes: by its attributes, the default scope, or the CPUs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use tollgate_topology::{CpuSet, Scope};

use crate::attributes::Attributes;
use crate::context;
use crate::core::{NOBODY, QueueCore};
use crate::error::AttributeError;
use crate::forked;
use crate::runtime::Runtime;
use crate::shared::Shared;

/// Says who changes a queue, until it is dropped: the change may be made by code of the program's
/// own.
struct Changer<'q>(&'q QueueCore);

impl<'q> Changer<'q> {
    fn new(core: &'q QueueCore) -> Self {
        core.changer.store(context::thread_slot(), Ordering::Relaxed);
        Self(core)
    }
}

impl Drop for Changer<'_> {
    fn drop(&mut self) {
        self.0.changer.store(NOBODY, Ordering::Relaxed);
    }
}

impl Shared {
    /// Gives every queue a new pool when the process has other CPUs than before.
    pub(crate) fn look_at_cpus(self: &Arc<Self>) {
        if !self.cpus.have_changed() {
            return;
        }
        tracing::info!(cpus = %self.cpus.machine().allowed(), "the process has other CPUs");
        // Elsewhere: this waits for whoever is changing attributes, and the housekeeper for nobody.
        let (shared, name) = (Arc::clone(self), self.settings.hooks.name("cpus"));
        let placing = thread::Builder::new().name(name).spawn(move || shared.place_all());
        if let Err(error) = placing {
            tracing::warn!(%error, "queues keep their old CPUs, and are looked at again");
            self.cpus.look_again();
        }
    }

    fn place_all(self: &Arc<Self>) {
        for queue in self.live_queues() {
            let placed = self.apply_unchecked(&queue, |_| Ok(()));
            if let Err(error) = placed {
                tracing::warn!(queue = queue.name(), %error, "a queue keeps its old CPUs");
            }
        }
    }

    /// Changes attributes that were checked, or nothing.
    fn apply_unchecked(
        self: &Arc<Self>,
        core: &Arc<QueueCore>,
        change: impl FnOnce(&mut Attributes) -> Result<(), AttributeError>,
    ) -> Result<(), AttributeError> {
        forked::check(self.id.generation());
        if core.changer.load(Ordering::Relaxed) == context::thread_slot() {
            return Err(AttributeError::InsideChange(core.name()));
        }
        // Held over the whole change, so that two changes do not mix.
        let _changing = core.changing.lock();
        let _changer = Changer::new(core);
        let mut attributes = core.attributes.lock().clone();
        change(&mut attributes)?;
        self.place(core, &attributes)?;
        *core.attributes.lock() = attributes;
        Ok(())
    }

    /// Changes the attributes of a queue, or nothing.
    pub(crate) fn apply(
        self: &Arc<Self>,
        core: &Arc<QueueCore>,
        change: impl FnOnce(&mut Attributes) -> Result<(), AttributeError>,
    ) -> Result<(), AttributeError> {
        self.apply_unchecked(core, |attributes| {
            let mask_before = attributes.cpumask.clone();
            change(attributes)?;
            self.check_attributes(core, attributes, mask_before.as_ref())
        })
    }
}

/// CPUs and the default scope.
impl Runtime {
    /// Changes the scope of queues that did not choose, those that exist included.
    ///
    /// # Errors
    /// As [`Queue::change`](crate::Queue::change); queues before the one in the error have changed.
    pub fn set_default_scope(&self, scope: Scope) -> Result<(), AttributeError> {
        let shared = self.shared();
        forked::check(shared.id.generation());
        shared.cpus.set_default_scope(scope);
        shared.live_queues().iter().try_for_each(|queue| shared.apply_unchecked(queue, |_| Ok(())))
    }

    /// Changes the CPUs that workers may use; `None` gives them all that the process may use. A
    /// queue's own mask cuts these further, and counts for nothing where that would leave no CPU.
    ///
    /// # Errors
    /// The mask is empty, or names a CPU that is offline, not allowed or not there: nothing has
    /// changed then. Or as [`Queue::change`](crate::Queue::change).
    pub fn set_cpumask(&self, cpus: Option<CpuSet>) -> Result<(), AttributeError> {
        let shared = self.shared();
        forked::check(shared.id.generation());
        if let Some(cpus) = &cpus {
            shared.cpus.machine().check_mask(cpus)?;
        }
        shared.cpus.ask_for(cpus);
        shared.live_queues().iter().try_for_each(|queue| shared.apply_unchecked(queue, |_| Ok(())))
    }
}

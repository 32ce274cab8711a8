//! A queue as its users see it.

use std::sync::Arc;

use tollgate_topology::{CpuId, CpuSet, Scope};

use crate::attributes::Attributes;
use crate::blocking::blocking;
use crate::core::{Close, Identity, QueueCore, WhenFull};
use crate::error::{AttributeError, BuildError, SubmitError, WaitError};
use crate::handle::Handle;
use crate::shared::{NewQueue, Shared};
use crate::{context, task};

/// A named queue. Clones are the same queue; its name becomes free when the last one is dropped,
/// and what is still queued then is run. A [`Work`](crate::Work) holds its queue, and with it the
/// name, as long as it lives; one that is delayed lives until its time has come or it is cancelled.
#[derive(Clone)]
pub struct Queue {
    inner: Arc<Inner>,
}

struct Inner {
    core: Arc<QueueCore>,
    shared: Arc<Shared>,
    /// As in the core, where it is behind a lock: in a copy of the process, that may be held for ever.
    name: Box<str>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.retire(&self.core);
    }
}

impl Queue {
    pub(crate) fn new(core: Arc<QueueCore>, shared: Arc<Shared>) -> Self {
        let name = core.name().into();
        Self { inner: Arc::new(Inner { core, shared, name }) }
    }

    pub(crate) fn core(&self) -> &QueueCore {
        &self.inner.core
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// Its name. Takes no lock, and can be asked for in a copy of the process.
    #[must_use]
    pub fn name(&self) -> String {
        self.inner.name.to_string()
    }

    /// Runs a closure and forgets it. Closures of up to 32 bytes are queued without an allocation.
    ///
    /// # Errors
    /// The queue is drained, shut down or full. The closure is dropped then; a panic of its
    /// destructor comes out of here.
    #[inline]
    pub fn post<F: FnOnce() + Send + 'static>(&self, closure: F) -> Result<(), SubmitError> {
        self.core().submit_item(closure, None)
    }

    /// As [`post`](Self::post), as if issued on `cpu`: a worker near it runs the closure.
    ///
    /// # Errors
    /// As [`post`](Self::post); or the CPU is not in the queue's mask.
    pub fn post_on<F>(&self, cpu: CpuId, closure: F) -> Result<(), SubmitError>
    where
        F: FnOnce() + Send + 'static,
    {
        self.check_cpu(cpu)?;
        self.core().submit_item(closure, Some(cpu))
    }

    /// Runs a closure and gives its result, or its panic, to whoever waits for the handle.
    ///
    /// ```
    /// # let runtime = tollgate_workqueue::Runtime::builder().build()?;
    /// # let queue = runtime.queue("example").build()?;
    /// let answer = queue.spawn(|| 6 * 7)?;
    /// assert_eq!(answer.wait()?, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The queue is drained, shut down or full.
    #[inline]
    pub fn spawn<T, F>(&self, closure: F) -> Result<Handle<T>, SubmitError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.spawn_near(None, closure)
    }

    /// As [`spawn`](Self::spawn), as if issued on `cpu`.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn); or the CPU is not in the queue's mask.
    pub fn spawn_on<T, F>(&self, cpu: CpuId, closure: F) -> Result<Handle<T>, SubmitError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.check_cpu(cpu)?;
        self.spawn_near(Some(cpu), closure)
    }

    /// As [`spawn`](Self::spawn), for a closure that waits most of its time: all of it is a
    /// [`blocking`] section, so other items run beside it, up to the pool's `max_workers`.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn).
    pub fn spawn_blocking<T, F>(&self, closure: F) -> Result<Handle<T>, SubmitError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.spawn(|| blocking(closure))
    }

    fn spawn_near<T, F>(&self, cpu: Option<CpuId>, closure: F) -> Result<Handle<T>, SubmitError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (task, ticket) = task::new(self.core(), cpu, closure);
        self.core().submit_item(move || ticket.arrive(), cpu)?;
        Ok(Handle::new(task))
    }

    /// Waits until everything queued before this call has been run. Delayed items whose time has
    /// not come are not waited for.
    ///
    /// # Errors
    /// From inside an item of this queue, which would wait for itself; also from a closure that was forked
    /// on this queue, if a helper runs it: that is an item of it.
    pub fn flush(&self) -> Result<(), WaitError> {
        self.not_inside("flush")?;
        blocking(|| self.core().in_flight.flush());
        Ok(())
    }

    /// Refuses new items, except those that its own items queue, and waits until none is left,
    /// however often others try. Afterwards the queue stays closed until [`reopen`](Self::reopen).
    ///
    /// Delayed items are not waited for, and not run when their time comes while the queue is
    /// closed: that is counted as `refused` in [`monitor`](crate::Runtime::monitor) and logged. This
    /// holds for those that the queue's own items delay during the drain, too, though
    /// [`queue_delayed`](crate::Work::queue_delayed) accepts them.
    ///
    /// # Errors
    /// From inside an item of this queue, which would wait for itself; also from a closure that was forked
    /// on this queue, if a helper runs it: that is an item of it.
    pub fn drain(&self) -> Result<(), WaitError> {
        self.not_inside("drain")?;
        let core = self.core();
        core.close(Close::Drained);
        blocking(|| {
            loop {
                core.in_flight.flush();
                if core.in_flight.totals().0 == 0 {
                    return;
                }
            }
        });
        Ok(())
    }

    /// Accepts items again after a [`drain`](Self::drain).
    pub fn reopen(&self) {
        self.check_process();
        self.core().reopen();
    }

    /// The attributes as they are now.
    #[must_use]
    pub fn attributes(&self) -> Attributes {
        self.check_process();
        self.core().attributes.lock().clone()
    }

    /// Changes the attributes while work is queued: no item is lost, doubled or, in an ordered
    /// queue, reordered. Items that are in the old pool are run there.
    ///
    /// `change` is called under a lock of the queue, so that two changes do not mix. Do not change
    /// another queue inside it: two threads that change two queues inside each other wait for each
    /// other for ever. Nor should it wait for anything that changes this queue.
    ///
    /// A mask that stays as it is may name CPUs that are gone since it was set.
    ///
    /// # Errors
    /// The attributes make no sense or cannot be had here; or this is called inside `change` of the
    /// same queue. Nothing has changed then.
    pub fn change(&self, change: impl FnOnce(&mut Attributes)) -> Result<(), AttributeError> {
        self.inner.shared.apply(&self.inner.core, |attributes| {
            change(attributes);
            Ok(())
        })
    }

    /// Changes one attribute by its `ATTRIBUTE=VALUE` form.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub fn set(&self, setting: &str) -> Result<(), AttributeError> {
        self.inner.shared.apply(&self.inner.core, |attributes| attributes.set(setting))
    }

    /// Items queued and not yet finished. A worker counts an item out after its result is there, so
    /// for a moment this may count one that somebody has waited for by
    /// [`Handle::wait`](crate::Handle::wait) or [`Work::flush`](crate::Work::flush);
    /// [`flush`](Self::flush) and [`drain`](Self::drain) wait for the count.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.check_process();
        self.core().in_flight.totals().0
    }

    /// Panics in a copy of the process.
    #[inline]
    pub(crate) fn check_process(&self) {
        crate::forked::check(self.core().runtime.generation());
    }

    pub(crate) fn check_cpu(&self, cpu: CpuId) -> Result<(), SubmitError> {
        self.check_process();
        let mask = &self.core().pool().key.sharding.cpumask;
        if mask.contains(cpu) {
            return Ok(());
        }
        Err(SubmitError::Cpu { cpu: cpu.0, queue: self.name(), mask: mask.to_string() })
    }

    pub(crate) fn check_open(&self) -> Result<(), SubmitError> {
        self.check_process();
        if self.inner.shared.is_shut_down() {
            return Err(SubmitError::ShutDown(self.name()));
        }
        if self.core().is_drained() && !context::belongs_to_queue(self.core()) {
            return Err(SubmitError::Drained(self.name()));
        }
        Ok(())
    }

    fn not_inside(&self, operation: &'static str) -> Result<(), WaitError> {
        self.check_process();
        if context::is_inside_queue(self.core()) {
            return Err(WaitError::InsideQueue { operation, queue: self.name() });
        }
        Ok(())
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// The default capacity of a queue's backlog.
pub const DEFAULT_BACKLOG: usize = 65_536;

/// A queue to be. See [`Runtime::queue`](crate::Runtime::queue).
#[must_use = "call build()"]
pub struct QueueBuilder<'r> {
    shared: &'r Arc<Shared>,
    new: NewQueue,
}

impl<'r> QueueBuilder<'r> {
    pub(crate) fn new(shared: &'r Arc<Shared>, name: &str) -> Self {
        let identity = Identity {
            name: name.to_owned(),
            ordered: false,
            high_priority: false,
            capacity: DEFAULT_BACKLOG,
            when_full: WhenFull::default(),
        };
        let new = NewQueue { identity, attributes: Attributes::default(), rescuer: false };
        Self { shared, new }
    }

    /// One item at a time, in the order in which they were queued.
    pub fn ordered(mut self) -> Self {
        self.new.identity.ordered = true;
        self
    }

    /// CPUs that work together; the runtime's default otherwise.
    pub fn scope(mut self, scope: Scope) -> Self {
        self.new.attributes.affinity_scope = Some(scope);
        self
    }

    /// Workers never leave the pod of their scope.
    pub fn strict(mut self, strict: bool) -> Self {
        self.new.attributes.affinity_strict = strict;
        self
    }

    /// Workers are moved to the CPU that issued the item. For comparison.
    pub fn localize(mut self, localize: bool) -> Self {
        self.new.attributes.localize = localize;
        self
    }

    /// The CPUs that workers may use; all that the process may otherwise.
    pub fn cpumask(mut self, cpus: CpuSet) -> Self {
        self.new.attributes.cpumask = Some(cpus);
        self
    }

    /// Scheduling priority of the workers, -20 to 19.
    pub fn nice(mut self, nice: i32) -> Self {
        self.new.attributes.nice = nice;
        self
    }

    /// Items running at once, over all nodes; each node may have at least eight of them, or all if
    /// fewer.
    pub fn max_active(mut self, max_active: u32) -> Self {
        self.new.attributes.max_active = Some(max_active);
        self
    }

    /// Workers of their own, at nice -20 where the system allows it.
    pub fn high_priority(mut self) -> Self {
        self.new.identity.high_priority = true;
        self
    }

    /// One worker in reserve, which runs items one at a time when the pool makes no progress, or one
    /// that the queue had before its attributes changed.
    pub fn rescuer(mut self) -> Self {
        self.new.rescuer = true;
        self
    }

    /// What happens to an item when there is no room for it.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.new.identity.when_full = when_full;
        self
    }

    /// The most items of the queue's own backlog (ordered or limited), per node. Other queues have
    /// their items in the shards of their pool, which are bounded by
    /// [`Builder::shard_capacity`](crate::Builder::shard_capacity).
    ///
    /// Items of a limited queue without an order come to the backlog from the shards, when a worker
    /// finds that the limit is reached. What waits there for a worker, up to 8,192 items a shard by
    /// default, is not in the backlog: so many more may be accepted before one is refused.
    pub fn backlog(mut self, capacity: usize) -> Self {
        self.new.identity.capacity = capacity;
        self
    }

    /// Makes the queue.
    ///
    /// # Errors
    /// The name is malformed or taken; the attributes make no sense or cannot be had here; there
    /// are too many queues or pools; the runtime is shut down.
    pub fn build(self) -> Result<Queue, BuildError> {
        let core = self.shared.add_queue(&self.new)?;
        Ok(Queue::new(core, Arc::clone(self.shared)))
    }
}

//! What is said of a runtime before it starts: its threads, its CPUs, whom panics are reported to.

use std::sync::Arc;

use tollgate_topology::CpuSet;

use crate::error::Panic;
use crate::runtime::Builder;

/// Threads and panics.
impl Builder {
    /// What the names of the runtime's threads begin with: `workqueue` by default. A worker is
    /// called by this, the number of its pool and its own number in that, `workqueue-0.3`; the
    /// system shows the first 15 bytes.
    pub fn thread_name(mut self, prefix: &str) -> Self {
        self.settings.hooks.thread_name = Some(prefix.into());
        self
    }

    /// Bytes of stack of each worker, from [`MIN_STACK_LEN`](crate::MIN_STACK_LEN) to 2^40: by default
    /// 2 MiB, or what the variable `RUST_MIN_STACK` says.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.settings.hooks.stack_len = Some(bytes);
        self
    }

    /// Called on each worker's thread before its first item.
    pub fn on_thread_start(mut self, hook: impl Fn() + Send + Sync + 'static) -> Self {
        self.settings.hooks.start = Some(Arc::new(hook));
        self
    }

    /// Called on each worker's thread after its last item: the worker was idle for long, or the
    /// runtime ends.
    pub fn on_thread_stop(mut self, hook: impl Fn() + Send + Sync + 'static) -> Self {
        self.settings.hooks.stop = Some(Arc::new(hook));
        self
    }

    /// Called with the name of the queue when an item panics of whose result nobody learns
    /// otherwise: a posted closure, or an item that is queued again and again. It runs on the
    /// worker, right after the panic was caught. Without it such panics are counted, and that is
    /// all.
    ///
    /// A delayed item that a runtime forgets when it ends counts as one that panicked, too, when
    /// dropping it panics; that is told of on the thread which ends the runtime.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// let (tell, told) = mpsc::channel();
    /// let runtime = tollgate_workqueue::Runtime::builder()
    ///     .on_panic(move |queue, panic| {
    ///         let message = panic.message().unwrap_or("(not text)");
    ///         tell.send(format!("{queue}: {message}")).unwrap_or(());
    ///     })
    ///     .build()?;
    /// runtime.queue("log").build()?.post(|| panic!("disk full"))?;
    /// assert_eq!(told.recv()?, "log: disk full");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_panic(mut self, hook: impl Fn(&str, &Panic) + Send + Sync + 'static) -> Self {
        self.settings.hooks.panic = Some(Arc::new(hook));
        self
    }
}

/// CPUs and the default scope.
impl Builder {
    /// The CPUs that workers may use; by default all that the process may use. See
    /// [`Runtime::set_cpumask`](crate::Runtime::set_cpumask).
    pub fn cpumask(mut self, cpus: CpuSet) -> Self {
        self.cpumask = Some(cpus);
        self
    }

    /// How many items of a pool compute at once: by default one per CPU, and no more than the
    /// `cpu.max` of the control groups leaves, rounded up. Items beyond that wait, unless a running
    /// one blocks. Every pod has at least one.
    pub fn concurrency(mut self, items: u16) -> Self {
        self.settings.concurrency = Some(items);
        self
    }
}

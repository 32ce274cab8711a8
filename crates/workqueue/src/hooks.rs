//! What a program has to say about the threads of a runtime, and whom panics are reported to.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crate::contained;
use crate::error::{BuildError, Panic};
use crate::own_thread;
use crate::runtime_id::RuntimeId;

/// The smallest stack of a worker, in bytes.
pub const MIN_STACK_LEN: usize = 64 << 10;

/// The largest, far below where the standard library's sums overflow.
const MAX_STACK_LEN: usize = 1 << 40;

pub(crate) type ThreadHook = Arc<dyn Fn() + Send + Sync>;
pub(crate) type PanicHook = Arc<dyn Fn(&str, &Panic) + Send + Sync>;

/// Settings of the threads. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Hooks {
    pub(crate) thread_name: Option<Arc<str>>,
    pub(crate) stack_len: Option<usize>,
    pub(crate) start: Option<ThreadHook>,
    pub(crate) stop: Option<ThreadHook>,
    pub(crate) panic: Option<PanicHook>,
}

impl Hooks {
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        if let Some(name) = self.thread_name.as_ref().filter(|name| name.contains('\0')) {
            return Err(BuildError::ThreadName(name.to_string()));
        }
        match self.stack_len {
            Some(bytes) if !(MIN_STACK_LEN..=MAX_STACK_LEN).contains(&bytes) => {
                Err(BuildError::Setting {
                    setting: "stack_size",
                    value: bytes as u64,
                    expected: "must be from 65536 bytes to 2^40",
                })
            }
            _ => Ok(()),
        }
    }

    /// The name of a thread.
    pub(crate) fn name(&self, which: &str) -> String {
        format!("{}-{which}", self.thread_name.as_deref().unwrap_or("workqueue"))
    }

    /// Starts a thread of this runtime that runs items.
    pub(crate) fn start(
        &self,
        which: &str,
        runtime: RuntimeId,
        body: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<JoinHandle<()>> {
        let mut builder = thread::Builder::new().name(self.name(which));
        if let Some(bytes) = self.stack_len {
            builder = builder.stack_size(bytes);
        }
        if self.start.is_none() && self.stop.is_none() {
            return builder.spawn(move || {
                own_thread::mark(runtime);
                body();
            });
        }
        let (start, stop) = (self.start.clone(), self.stop.clone());
        builder.spawn(move || {
            own_thread::mark(runtime);
            call(start.as_deref());
            body();
            call(stop.as_deref());
        })
    }

    /// Nobody else learns of this panic. Taken from the item, so that it is dropped here.
    pub(crate) fn report(&self, queue: &str, panic: &Panic) {
        if let Some(hook) = &self.panic {
            // A hook that panics has been told itself, by the standard library's message.
            contained::call_quietly(|| hook(queue, panic));
        }
    }
}

fn call(hook: Option<&(dyn Fn() + Send + Sync)>) {
    if let Some(hook) = hook {
        // As in `report`. The thread goes on: items depend on it, not on the hook.
        contained::call_quietly(hook);
    }
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooks")
            .field("thread_name", &self.thread_name)
            .field("stack_len", &self.stack_len)
            .finish_non_exhaustive()
    }
}

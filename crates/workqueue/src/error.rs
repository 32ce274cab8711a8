//! What can be refused, and what would be right instead.

use std::sync::PoisonError;
use std::time::Duration;

use tollgate_topology::{MaskError, TopologyError, UnknownScope};

use crate::contained;
use crate::maxima::{MAX_MAX_ACTIVE, MAX_NAME_LEN, MAX_NICE, MAX_POOLS, MAX_QUEUES, MIN_NICE};

/// Attributes that make no sense, on their own or on this machine.
#[derive(Debug, thiserror::Error)]
pub enum AttributeError {
    /// Not `NAME=VALUE`.
    #[error("setting {0:?} is not ATTRIBUTE=VALUE")]
    NotASetting(String),
    /// No such attribute.
    #[error(
        "unknown attribute {0:?}: one of affinity_scope, affinity_strict, localize, cpumask, nice, max_active"
    )]
    Unknown(String),
    /// No such scope.
    #[error(transparent)]
    Scope(#[from] UnknownScope),
    /// Not a value of this attribute.
    #[error("{attribute}={value}: expected {expected}")]
    Value {
        /// Which attribute.
        attribute: &'static str,
        /// What was given.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
    /// The mask is empty, or names a CPU that is offline, not allowed or not there.
    #[error("cpumask: {0}")]
    Mask(#[from] MaskError),
    /// Zero or more than the most.
    #[error("max_active {0}: must be from 1 to {MAX_MAX_ACTIVE}")]
    MaxActive(u32),
    /// Out of range.
    #[error("nice {0}: must be from {MIN_NICE} to {MAX_NICE}")]
    Nice(i32),
    /// An ordered queue runs one item at a time, by definition.
    #[error("max_active of the ordered queue {queue:?} cannot be changed: it is 1 by construction")]
    Ordered {
        /// Which queue.
        queue: String,
    },
    /// A high-priority queue has its nice level from its pool.
    #[error(
        "nice of the high-priority queue {queue:?} is {MIN_NICE}: build it without high_priority() to choose another"
    )]
    HighPriority {
        /// Which queue.
        queue: String,
    },
    /// Every combination of attributes has a pool, and there are that many already.
    #[error(
        "there are {MAX_POOLS} pools already: use fewer different combinations of scope, strict, localize, cpumask and nice"
    )]
    TooManyPools,
    /// The machine is too large for one pool.
    #[error(transparent)]
    Layout(tollgate_wakequeue::ConfigError),
    /// No queue has this name.
    #[error("no queue is named {0:?}")]
    NoSuchQueue(String),
    /// The closure of a change changes the same queue, and would wait for itself.
    #[error("queue {0:?}: its attributes cannot be changed inside a change of them")]
    InsideChange(String),
}

/// A runtime or queue that cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The attributes are wrong.
    #[error(transparent)]
    Attributes(#[from] AttributeError),
    /// This machine could not be understood.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A runtime setting is out of range.
    #[error("{setting} {value}: {expected}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// What was given.
        value: u64,
        /// What would be right.
        expected: &'static str,
    },
    /// Names are what tools call queues by.
    #[error(
        "queue name {0:?}: must have 1 to {MAX_NAME_LEN} bytes, none of them a control character, a space or '='"
    )]
    Name(String),
    /// There is one already.
    #[error("a queue named {0:?} exists: drop it first, or choose another name")]
    NameTaken(String),
    /// Too many queues.
    #[error("there are {MAX_QUEUES} queues already")]
    TooManyQueues,
    /// `configure_global` came too late, or twice.
    #[error("the global runtime exists already: configure it before its first use, once")]
    GlobalExists,
    /// A variable of the environment holds nonsense.
    #[error("environment variable {variable}: {reason}")]
    Environment {
        /// Which.
        variable: &'static str,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// The system cannot have a thread of this name.
    #[error("thread name {0:?}: must have no NUL byte")]
    ThreadName(String),
    /// The runtime is going away.
    #[error("the runtime is shut down")]
    ShutDown,
    /// The operating system refused a thread.
    #[error("a thread could not be started: {0}")]
    Thread(#[source] std::io::Error),
}

/// An item that was not queued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Only items of the queue itself may still queue.
    #[error("queue {0:?} is drained: reopen() it first")]
    Drained(String),
    /// The runtime is gone or going.
    #[error("queue {0:?}: the runtime is shut down")]
    ShutDown(String),
    /// There was no room, and the queue was built to refuse then.
    #[error("queue {queue:?} is full: {capacity} items wait already")]
    Full {
        /// Which queue.
        queue: String,
        /// What it holds.
        capacity: usize,
    },
    /// The item was disabled more often than enabled.
    #[error("the item is disabled: enable() it first")]
    Disabled,
    /// The CPU is not one of the queue's.
    #[error("CPU {cpu} is not in the cpumask of queue {queue:?}, which is {mask}")]
    Cpu {
        /// What was asked for.
        cpu: u32,
        /// Which queue.
        queue: String,
        /// What would be right.
        mask: String,
    },
    /// Too many items wait for their time.
    #[error("{0} delayed items are pending already")]
    TooManyDelayed(usize),
    /// Too far away to be a time.
    #[error("a delay of {0:?} is too long")]
    Delay(Duration),
}

/// A wait that would never end, or an operation out of balance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The item would wait for itself.
    #[error(
        "{operation} of queue {queue:?} from inside one of its items would wait for that item itself"
    )]
    InsideQueue {
        /// What was called.
        operation: &'static str,
        /// Which queue.
        queue: String,
    },
    /// The item would wait for itself.
    #[error("{operation} of an item from inside that item would wait for itself")]
    InsideItem {
        /// What was called.
        operation: &'static str,
    },
    /// There is a limit to nesting.
    #[error("the item is disabled 255 times already")]
    DisabledTooOften,
    /// enable() without disable().
    #[error("the item is not disabled")]
    NotDisabled,
    /// The item could not be queued.
    #[error(transparent)]
    Submit(#[from] SubmitError),
}

/// Why a handle has no result to give.
pub enum JoinError {
    /// The closure panicked, with this.
    Panicked(Panic),
    /// The closure was dropped without being run: its runtime was shut down, or refused it.
    Cancelled,
}

/// What a closure panicked with. One pointer, so that results stay small. Where the payload panics
/// when it is dropped, that ends here.
pub struct Panic(Box<Panicked>);

struct Panicked {
    message: Option<String>,
    /// Only `Send`; nobody looks at it before it is taken out. A lock that nobody takes makes it
    /// `Sync`.
    payload: std::sync::Mutex<Option<Box<dyn std::any::Any + Send>>>,
}

/// Whoever drops it has done nothing wrong: the payload's own panic is not that of an item.
impl Drop for Panicked {
    fn drop(&mut self) {
        let payload = self.payload.get_mut().unwrap_or_else(PoisonError::into_inner);
        payload.take().into_iter().for_each(contained::discard);
    }
}

impl Panic {
    pub(crate) fn new(payload: Box<dyn std::any::Any + Send>) -> Self {
        let message = (payload.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .or_else(|| payload.downcast_ref::<String>().cloned());
        Self(Box::new(Panicked { message, payload: std::sync::Mutex::new(Some(payload)) }))
    }

    /// The message, when it is text.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        self.0.message.as_deref()
    }

    /// What [`std::panic::resume_unwind`] takes.
    #[must_use]
    pub fn into_payload(mut self) -> Box<dyn std::any::Any + Send> {
        let payload = self.0.payload.get_mut().unwrap_or_else(PoisonError::into_inner);
        payload.take().expect("it is taken out once")
    }
}

impl std::fmt::Debug for Panic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Panic").field("message", &self.0.message).finish_non_exhaustive()
    }
}

impl JoinError {
    /// The panic's message, when it is text.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        match self {
            Self::Panicked(panic) => panic.message(),
            Self::Cancelled => None,
        }
    }
}

impl std::fmt::Debug for JoinError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "JoinError({self})")
    }
}

impl std::fmt::Display for JoinError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cancelled => f.write_str("the item was dropped without being run"),
            Self::Panicked(_) => {
                write!(f, "the item panicked: {}", self.message().unwrap_or("(not text)"))
            }
        }
    }
}

impl std::error::Error for JoinError {}

const _: () = {
    // What `?` asks of an error in most programs.
    const fn is_an_error<E: std::error::Error + Send + Sync + 'static>() {}
    is_an_error::<JoinError>();
};

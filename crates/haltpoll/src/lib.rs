//! Keeps CPUs from halting while requests come in bursts, and lets them halt right after.
//!
//! On a virtual machine a CPU that halts leaves the guest, and waking it goes through the host: 15
//! to 50 us, several times what a small request costs otherwise. A request between two threads pays
//! for it up to twice. [`KeepAwake`] watches requests through [`Hook`]s and, from the second one
//! within a short time until less than a millisecond after the last one, uses the better of two
//! [`Means`]:
//!
//! * [`Means::Latency`]: the kernel's own idle loop polls instead of halting. The process holds a
//!   request for a wake-up latency of zero on `/dev/cpu_dma_latency`, which the kernel drops by
//!   itself if the process dies.
//! * [`Means::Pollers`]: threads of the class SCHED_IDLE, which gives way to everything, execute
//!   PAUSE on the CPUs where requests were seen. This needs no privilege.
//!
//! In [`Mode::Auto`] it does neither where waking is cheap, on battery, under a CPU quota, or while
//! the host is short of CPU time; [`KeepAwake::status`] says which and why.
//!
//! ```
//! use tollgate_haltpoll::{KeepAwake, Mode};
//!
//! let awake = KeepAwake::start(Mode::Auto);
//! let mut hook = awake.hook(); // one for each thread that takes requests
//! for _request in 0..100 {
//!     hook.touch();
//! }
//! println!("{}", awake.status());
//! ```
//!
//! It is only an optimisation: nothing waits for it, and whatever fails in it leaves things as they
//! were.

mod book;
mod burst_state;
mod choosing;
mod conditions;
mod hook;
mod idleness;
mod keep_awake;
mod latency;
mod measure;
mod mode;
mod monitor;
mod occupancy;
mod poller;
mod pollers;
mod ready;
mod status;
mod sync;
mod sys;

pub use conditions::{CpuQuota, Roots, cpu_of_thread};
pub use hook::Hook;
pub use keep_awake::KeepAwake;
pub use mode::{Means, Mode, UnknownMode};
pub use occupancy::Runnable;
pub use pollers::PollingTime;
pub use status::{State, Status};
pub use sys::{preempt_when_woken, take_short_slices};

/// How long the monitor sleeps between two looks at the requests.
///
/// A look without a new request ends the burst, so that it ends between 0.4 and 0.8 ms after its
/// last request, and later by what the kernel takes to wake the monitor. A shorter tick costs more
/// than it saves: each one is a timer interrupt and a thread that runs for about 10 us on a virtual
/// machine.
pub const TICK: std::time::Duration = std::time::Duration::from_micros(400);

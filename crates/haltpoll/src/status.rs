//! What can be known of it from outside.

use std::fmt;
use std::time::Duration;

use crate::mode::{Means, Mode};

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The cost of a wake-up is being measured.
    Measuring,
    /// CPUs are kept awake in bursts by these means.
    Ready(Means),
    /// Nothing is done, and nothing will be; [`Status::reason`] says why.
    Off,
}

/// A snapshot of a [`KeepAwake`](crate::KeepAwake).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// As the user chose.
    pub mode: Mode,
    /// What came of it.
    pub state: State,
    /// Why, in words.
    pub reason: String,
    /// What a wake-up of another CPU costs.
    pub wake: Option<Duration>,
    /// The same while its idle loop polls, where that could be tried.
    pub wake_held: Option<Duration>,
    /// Whether the means are [`Means::Pollers`] only because this process may not write
    /// `/dev/cpu_dma_latency`: a machine where wake-ups are dear and the idle loop could poll.
    pub lacks_permission: bool,
    /// Bursts so far.
    pub bursts: u64,
    /// Time that all bursts took together, up to a millisecond after the last request of each. With
    /// [`Means::Latency`], idle CPUs polled for so long instead of halting.
    pub awake: Duration,
    /// CPU time of the monitor and the pollers. A burst that is not over is left out.
    pub cpu: Duration,
    /// Times that it was suspended because of battery or stolen CPU time, and the latest reason.
    pub suspended: u64,
    /// The latest reason for that.
    pub suspended_for: Option<String>,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            State::Off => return write!(f, "off: {}", self.reason),
            State::Measuring if self.reason.is_empty() => return write!(f, "measuring"),
            State::Measuring => return write!(f, "not yet: {}; to be measured again", self.reason),
            State::Ready(means) => write!(f, "{} by {means}: {}", self.mode, self.reason)?,
        }
        let bursts = self.bursts;
        write!(f, "; {bursts} bursts, {:.1?} awake, {:.1?} CPU time", self.awake, self.cpu)?;
        match &self.suspended_for {
            Some(why) => write!(f, "; suspended {} times, last for {why}", self.suspended),
            None => Ok(()),
        }
    }
}

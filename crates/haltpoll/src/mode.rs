//! What the user may choose.

use std::fmt;
use std::str::FromStr;

/// Whether CPUs are kept awake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Where it pays: see the crate's text.
    #[default]
    Auto,
    /// Whatever it costs: neither battery, quota nor the host's load is looked at.
    On,
    /// Never. No thread is started and nothing is measured.
    Off,
}

/// A word that is no [`Mode`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not one of auto, on, off")]
pub struct UnknownMode(pub String);

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(word: &str) -> Result<Self, UnknownMode> {
        match word {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            other => Err(UnknownMode(other.to_owned())),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

/// How CPUs are kept awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Means {
    /// The kernel's idle loop polls, on every CPU of the machine.
    Latency,
    /// Threads of the class SCHED_IDLE poll, on the CPUs where requests were seen.
    Pollers,
}

impl fmt::Display for Means {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Latency => "cpu_dma_latency",
            Self::Pollers => "SCHED_IDLE threads",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_read_as_it_is_shown() {
        for mode in [Mode::Auto, Mode::On, Mode::Off] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        let error = "yes".parse::<Mode>().unwrap_err();
        assert_eq!(error.to_string(), "`yes` is not one of auto, on, off");
    }
}

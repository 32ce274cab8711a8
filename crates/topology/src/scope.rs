//! The affinity scopes and their names.

use std::fmt;
use std::str::FromStr;

/// How far the workers of a queue may spread: each scope cuts the CPUs into pods.
///
/// The order is from the narrowest to the widest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// One pod per CPU.
    Cpu,
    /// One pod per SMT core.
    Smt,
    /// An LLC of more than [`crate::MAX_SHARD_CORES`] cores is cut evenly; a smaller one is whole.
    CacheShard,
    /// One pod per last-level cache.
    Cache,
    /// One pod per NUMA node.
    Numa,
    /// One pod for the machine.
    System,
}

impl Scope {
    /// Every scope, from the narrowest to the widest.
    pub const ALL: [Self; 6] =
        [Self::Cpu, Self::Smt, Self::CacheShard, Self::Cache, Self::Numa, Self::System];

    /// The name, as it is read and written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Smt => "smt",
            Self::CacheShard => "cache_shard",
            Self::Cache => "cache",
            Self::Numa => "numa",
            Self::System => "system",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A word that names no scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown affinity scope {0:?}; right would be one of cpu, smt, cache, cache_shard, numa, system"
)]
pub struct UnknownScope(
    /// The word.
    pub String,
);

impl FromStr for Scope {
    type Err = UnknownScope;

    fn from_str(word: &str) -> Result<Self, UnknownScope> {
        Self::ALL
            .into_iter()
            .find(|scope| scope.name() == word)
            .ok_or_else(|| UnknownScope(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_the_error_lists_them() {
        let error = "l3".parse::<Scope>().unwrap_err().to_string();
        assert!(error.contains("\"l3\""));
        for scope in Scope::ALL {
            assert_eq!(scope.to_string().parse(), Ok(scope));
            assert!(error.contains(scope.name()), "{error}");
        }
        assert!("Cache".parse::<Scope>().is_err(), "names are exact");
    }
}

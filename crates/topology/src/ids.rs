//! Newtypes for the indices of places, and the distance between two CPUs.

use std::fmt;

/// A number that cannot be an id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{number} is no {kind}: right would be a whole number from 0 to 4294967295")]
pub struct IndexError {
    kind: &'static str,
    number: String,
}

impl IndexError {
    fn new(kind: &'static str, number: impl fmt::Display) -> Self {
        Self { kind, number: number.to_string() }
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The number as an index.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }

            /// The id with this index, which the caller knows to be one. For numbers from outside
            /// use `try_from`.
            ///
            /// # Panics
            /// When the index does not fit in 32 bits; indices here stay below [`crate::MAX_CPUS`].
            #[must_use]
            #[track_caller]
            pub fn from_index(index: usize) -> Self {
                match Self::try_from(index) {
                    Ok(id) => id,
                    Err(error) => panic!("{error}"),
                }
            }
        }

        impl TryFrom<usize> for $name {
            type Error = IndexError;

            fn try_from(index: usize) -> Result<Self, IndexError> {
                let number = u32::try_from(index);
                number.map(Self).map_err(|_| IndexError::new(stringify!($name), index))
            }
        }

        /// For numbers that the kernel delivers as C integers: a negative one is an error, not 0.
        impl TryFrom<i32> for $name {
            type Error = IndexError;

            fn try_from(number: i32) -> Result<Self, IndexError> {
                let index = u32::try_from(number);
                index.map(Self).map_err(|_| IndexError::new(stringify!($name), number))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A logical CPU, by the kernel's number.
    CpuId
}
id! {
    /// An SMT core: the logical CPUs that share one set of execution units. Numbered densely from
    /// 0, by lowest CPU; not the kernel's `core_id`, which repeats in every package.
    CoreId
}
id! {
    /// A last-level cache within one NUMA node. Numbered densely from 0, by lowest CPU.
    LlcId
}
id! {
    /// A NUMA node, by the kernel's number (numbers can have gaps).
    NodeId
}
id! {
    /// A pod of one [`crate::Pods`]. Numbered densely from 0, by lowest CPU.
    PodId
}

/// How far apart two CPUs are; nearer compares as less.
///
/// Up to [`Distance::NODE`] the steps are only an order. Beyond it the value is the firmware's
/// relative memory latency between the two nodes, where 10 means local.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Distance(u8);

impl Distance {
    /// The same CPU.
    pub const SAME: Self = Self(0);
    /// Two threads of one core.
    pub const SMT: Self = Self(1);
    /// Two cores of one last-level cache.
    pub const CACHE: Self = Self(2);
    /// Two caches of one NUMA node.
    pub const NODE: Self = Self(10);
    /// The farthest there is; also the distance to a CPU that is offline or unknown.
    pub const FARTHEST: Self = Self(u8::MAX);

    /// Two nodes, with the latency that the firmware states. Always farther than
    /// [`Distance::NODE`], whatever a broken table says.
    #[must_use]
    pub fn remote(latency: u8) -> Self {
        Self(latency.max(Self::NODE.0 + 1))
    }

    /// The value as a number; only comparisons mean something below 10.
    #[must_use]
    pub const fn as_u8(self) -> u8 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_no_id_is_an_error_and_not_zero() {
        assert_eq!(CpuId::try_from(7_i32), Ok(CpuId(7)));
        assert_eq!(NodeId::try_from(7_usize), Ok(NodeId(7)));
        let error = CpuId::try_from(-1_i32).unwrap_err().to_string();
        assert!(error.starts_with("-1 is no CpuId"), "{error}");
        assert!(LlcId::try_from(usize::MAX).is_err());
    }

    #[test]
    #[should_panic(expected = "is no NodeId")]
    fn an_index_that_cannot_be_panics_in_the_asserting_constructor() {
        let _ = NodeId::from_index(usize::MAX);
    }
}

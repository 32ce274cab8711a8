//! What can be wrong with a keyring.

use crate::error::SealError;
use crate::keyring::cost::PassphraseCost;

/// What is wrong with a ring or with what should open it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyringError {
    /// Not a ring, or damaged.
    #[error("line {line} of the keyring: {problem}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// It opens for no recipient of that kind.
    #[error("the passphrase or key opens none of {0} recipients")]
    Rejected(usize),
    /// There is no such recipient.
    #[error("there is no recipient `{}`", .0.escape_debug())]
    NoRecipient(String),
    /// There is a recipient of that name.
    #[error("`{}` is taken: there is such a recipient already", .0.escape_debug())]
    NameTaken(String),
    /// A name that no recipient can have.
    #[error(
        "`{}` cannot be a recipient's name: it is empty, or has blanks or control characters",
        .0.escape_debug()
    )]
    BadName(String),
    /// Without a recipient nobody could open it.
    #[error("`{}` is the last recipient", .0.escape_debug())]
    LastRecipient(String),
    /// Costs that are out of range.
    #[error(
        "Argon2id with {kib} KiB of memory, {passes} passes and {lanes} lanes: {1}",
        kib = .0.memory_kib, passes = .0.passes, lanes = .0.lanes
    )]
    Cost(PassphraseCost, String),
    /// It has no passphrase to be changed.
    #[error("recipient `{}` has a key file, and no passphrase to be changed", .0.escape_debug())]
    HasKeyFile(String),
    /// It opens none of the ring's master keys.
    #[error("the key that was given is another keyring's")]
    AnothersKey,
    /// A master key is not what was wrapped.
    #[error("the key of epoch {0} is not authentic")]
    Epoch(u32),
    /// There is no key of that epoch.
    #[error("there is no key of epoch {0}")]
    NoEpoch(u32),
    /// No random numbers.
    #[error(transparent)]
    Seal(#[from] SealError),
}

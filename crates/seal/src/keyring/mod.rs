//! Who may have the master keys: each recipient has the ring's key wrapped by a passphrase or by a key file,
//! and the ring's key wraps the master key of each epoch.
//!
//! The form is text, one record in a line; binary parts are hexadecimal:
//!
//! ```text
//! tollgate keyring 1
//! passphrase NAME M_KIB PASSES LANES SALT NONCE WRAPPED
//! key-file NAME SALT NONCE WRAPPED
//! epoch NUMBER NONCE WRAPPED
//! ```
//!
//! Everything before WRAPPED in its line is authenticated with it.

mod cost;
mod error;
mod recipient;
mod ring;
mod text;

pub use cost::PassphraseCost;
pub use error::KeyringError;
pub use ring::{Keyring, RingKey};

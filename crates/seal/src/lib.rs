//! Sealed files: encrypted at rest, with random access, authenticated as a whole.
//!
//! A sealed file has two copies of a header, then slots of one block's size. A map, a tree of
//! encrypted nodes whose root stands in the header, says for each block of the plain file in which
//! slot it is, with its nonce and its tag. Nothing that the last commit refers to is overwritten: blocks
//! and nodes go to free slots, and the header is the last that is written. So a crash leaves the
//! file as the last commit left it, and bytes that were changed, moved, cut off or taken from
//! another file or an earlier state are an error.
//!
//! The crate does no I/O but through [`Store`], which the caller gives. The format, byte by byte,
//! and what is promised against whom stand in `docs/seal.md`.
//!
//! ```
//! use tollgate_seal::{MasterKey, Options, SealedFile};
//!
//! let key = MasterKey::generate(1)?;
//! let path = std::env::temp_dir().join(format!("sealed-{}", std::process::id()));
//! let open = || std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
//!
//! let file = SealedFile::create(open()?, &key, b"vault", Options::default())?;
//! file.write_at(b"secret", 10_000)?;
//! file.commit()?;
//!
//! let file = SealedFile::open(open()?, &key, b"vault")?;
//! let mut text = [0; 6];
//! assert_eq!((file.size(), file.read_at(&mut text, 10_000)?), (10_006, 6));
//! assert_eq!(&text, b"secret");
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod at_once;
mod beside;
mod cipher;
mod counting;
mod cutting;
mod error;
mod file;
mod found;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod header;
mod keyring;
mod keys;
mod map;
#[cfg(all(loom, test))]
mod models;
mod reading;
mod sharing;
mod slots;
mod store;
mod trimming;
mod walk;
mod writing;

pub use beside::Task;
pub use cipher::Cipher;
pub use error::SealError;
pub use file::{Options, SealedFile};
pub use found::{Stat, begins_sealed, looks_sealed, may_be_sealed, stat};
pub use keyring::{Keyring, KeyringError, PassphraseCost, RingKey};
pub use keys::{Keys, MasterKey, MasterKeys};
pub use store::Store;

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

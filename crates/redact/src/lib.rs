//! Masks secrets in text. What is masked keeps its length, and everything else keeps its offset.
//! Pure: no I/O, no clock, no environment.
//!
//! ```
//! use tollgate_redact::{Detectors, Redactor};
//!
//! let redactor = Redactor::new(Detectors::default());
//! let mut text = *b"db = postgres://app:xK9-tr33@db.local/main\n";
//! redactor.mask_all(&mut text, |found| assert_eq!(found.rule.to_string(), "url-password"));
//! assert_eq!(&text, b"db = postgres://app:********@db.local/main\n");
//! ```
//!
//! # A part of a file
//!
//! A view is asked for a range of a file, not for the file. [`Redactor::mask_range`] masks a range
//! exactly as masking the whole file would. For that, each detector decides about a byte by the
//! bytes near it alone, at most [`Redactor::before`] bytes ahead of the range and
//! [`Redactor::after`] bytes behind it, and never by what another detector found. The caller reads
//! the range with that much around it.
//!
//! # What has no maximum length
//!
//! A private key in PEM form, or a token, may be longer than any context. Such text consists of a
//! few kinds of bytes. Where so many of them precede a byte that the beginning may lie further back
//! than the context reaches, the byte is masked (module `run`).
//!
//! Detectors, limits and measured rates are described in `docs/redact.md`.

mod armor;
mod assigned;
mod base64;
mod card;
mod class;
mod detector;
mod env;
mod error;
mod formats;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod jwt;
mod own;
mod redactor;
mod run;
mod tokens;
mod url;

pub use detector::{Detector, Detectors, Found, Rule, UnknownDetector};
pub use error::{RangeError, RegexError};
pub use own::OwnRegex;
pub use redactor::{DEFAULT_FILE_MAX, MASK, Redactor};

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! Rules in TOML that decide what a caller may do with a path. Pure: no I/O, no clock, no
//! environment.
//!
//! ```
//! use tollgate_policy::{CallerFacts, Facts, Kind, Operation, Policy, Verdict};
//!
//! let policy = Policy::parse(
//!     r#"
//!     [[rule]]
//!     path = "**/*.pem"
//!     action = "deny"
//!     "#,
//!     "policy.toml",
//! )?;
//! let key = Facts { path: b"tls/server.pem", kind: Kind::File, size: 1704, head: None };
//! let caller = CallerFacts { uid: 1000, gid: 1000, exe: None };
//! assert_eq!(policy.decide(&key, Operation::Read, &caller).verdict, Verdict::Deny);
//! # Ok::<(), tollgate_policy::PolicyError>(())
//! ```
//!
//! The language is described in `docs/policy.md`, how decisions are made in the module of
//! [`Matched`].

mod anywhere;
mod budget;
mod error;
mod explain;
mod facts;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod glob;
mod held;
mod limits;
mod link;
mod made;
mod matched;
mod moved;
mod names;
mod parse;
mod path_text;
mod policy;
mod policy_file;
mod precede;
mod redaction;
mod rule;
mod weaken;
mod words;

pub use error::{PolicyError, Problem, Warning};
pub use explain::{Audited, Condition, Explanation, OperationReport, RuleReport, Status};
pub use facts::{CallerFacts, CallerNeeds, Facts, InodeFacts};
pub use limits::{
    HEAD_LEN, MAX_DOMAIN_LEN, MAX_GLOB_LEN, MAX_GLOBS, MAX_NATIVE, MAX_PRECEDING, MAX_REGEXES,
    MAX_REGEXES_LEN, MAX_RULES, MAX_SPREAD, MAX_SPREAD_IN_ALL, MAX_TEXT_LEN, MAX_VIEWS,
};
pub use made::Made;
pub use matched::{Contents, Decision, Matched};
pub use moved::{Inside, Move, MoveReport};
pub use names::{Names, NoNames};
pub use policy::{NativeDirectory, Policy};
pub use policy_file::{PolicyFile, ViewEntry};
pub use precede::CannotJoin;
pub use redaction::Redaction;
pub use rule::{Rule, RuleId};
pub use words::{Action, Kind, Mode, Operation, OperationSet, UnknownWord, Verdict};

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

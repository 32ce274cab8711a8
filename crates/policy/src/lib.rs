//! Rules in TOML that decide what a caller may do with a path. Pure: no I/O, no clock, no environment.
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
//! The language is described in `docs/policy.md`, how the answers are found in the module of [`Policy`].

mod explain;
mod facts;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod glob;
mod parse;
mod policy;
mod rule;
mod weaken;
mod words;

pub use explain::{Condition, Explanation, OperationReport, RuleReport, Status};
pub use facts::{CallerFacts, CallerNeeds, Facts, HEAD_LEN};
pub use glob::index::MAX_RULES;
pub use parse::{MAX_GLOBS, MAX_TEXT_LEN, PolicyError, Problem, Warning};
pub use policy::{Decision, Policy};
pub use rule::{Rule, RuleId};
pub use words::{Action, Kind, Mode, Operation, OperationSet, UnknownWord, Verdict};

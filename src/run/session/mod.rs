//! `--session NAME`: a second `run` joins the fence of the first one.
//!
//! The first one listens at a socket in a directory that is private to its user and hidden in every
//! fence, and hands the namespaces of its init to whoever connects. The second one enters them, as
//! the kernel allows to the user who made them, and starts its CMD there.

mod join;
mod namespaces;
mod socket;
mod terms;

pub(super) use join::join;
pub(super) use namespaces::{Namespaces, user};
pub(super) use socket::{Found, Session, find};
pub(super) use terms::Terms;

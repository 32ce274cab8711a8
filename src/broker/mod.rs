//! `tollgate broker`, and the servers' side of it.

mod found;
mod start;

pub(crate) use found::{Broker, WOULD_HELP, find, may_register, usual_places};
pub(crate) use start::run;

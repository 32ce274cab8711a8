//! The audit log: JSON lines, written by a thread of its own.
//!
//! Recording copies the event into one of 4,096 slots that were allocated beforehand, and hands
//! it over by a lock-free queue. It never blocks, allocates or writes. When every slot is taken the
//! event is dropped and counted; the count goes into the log as a record of its own, and into
//! `status`. Refusals are counted besides, with or without a log, for the summary of `run`.

mod busiest;
mod file;
mod log;
mod origin;
pub(crate) mod read;
mod recorder;
mod repeats;
mod shared;
mod slot;
mod summary;
mod tally;
mod writer;

pub(crate) use log::{AuditConfig, AuditLog, AuditStatus};
pub(crate) use origin::{Origin, digest_of};
pub(crate) use recorder::Recorder;
pub(crate) use slot::timestamp;
pub(crate) use summary::{
    in_words as refusals_in_words, lines as summary, with_count as refusals_with_count,
};
pub(crate) use tally::TallyReport;

//! The operations, grouped by what they are about: each group is a set of methods on
//! [`crate::View`]. The table that maps requests to them is `serve.rs`; `admit.rs` and `record.rs`
//! connect them to the policy and to the audit log.

mod access;
mod admit;
mod arrived;
mod attr;
mod closes;
mod create;
mod data;
mod dirs;
mod linked;
mod lock;
mod lower_file;
mod misplaced;
mod mknod;
mod names;
mod one_link;
mod open;
mod overtaken;
mod record;
mod rename;
mod seek;
mod serve;
mod sight;
mod small;
mod spot;
mod stricter;
mod subtree;
mod twins;
mod xattr;

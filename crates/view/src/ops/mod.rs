//! The operations, grouped by what they are about. Each group is a set of methods on [`crate::View`];
//! this file is the table that maps requests to them.

mod attr;
mod data;
mod dirs;
mod names;
mod open;
mod serve;
mod xattr;

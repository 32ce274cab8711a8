//! `tollgate seal` from outside: keyrings, files, and everything that can be wrong with them.

mod damage;
mod files;
mod harness;
mod keys;
mod left;
#[path = "../support/mounting.rs"]
mod mounting;
mod moved;
mod rotation;

//! Sealed files in a mounted view: plain to programs, encrypted below, whole after a crash.

mod async_io;
mod compared;
mod crash;
mod faults;
mod full;
mod harness;
mod keys;
mod lost;
#[path = "../support/mapped.rs"]
mod mapped;
#[path = "../support/mounting.rs"]
mod mounting;
mod overlay;
mod replaced;
mod set_id;
mod times;
mod view;
mod writers;

//! `tollgate broker`: passthrough for a user without privilege, and nothing that the user does not
//! hold already. Real sockets, a real broker of root, callers of another user.

mod attack;
mod attributes;
#[path = "../support/device.rs"]
mod device;
mod edges;
mod fuse;
mod harness;
mod identity;
#[path = "../support/mounting.rs"]
mod mounting;
mod open;
mod place;
mod run;
mod trust;

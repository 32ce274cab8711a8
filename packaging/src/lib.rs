//! What Tollgate is delivered in: a Debian package with everything that belongs to it, and a
//! recording of the demo.

mod archive;
mod binary;
mod contents;
mod deb;
mod licences;
mod recording;

pub use deb::{Deb, build};
pub use recording::{Line, record, svg};

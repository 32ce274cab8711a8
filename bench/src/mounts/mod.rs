//! Views that are measured: starting their servers and ending them.

mod server;

pub(crate) use server::{Launcher, Server, threads};

use std::path::Path;

use anyhow::{Context, Result};

/// Makes the kernel forget all names and inodes that nobody uses.
///
/// # Errors
/// Without root.
pub(crate) fn forget_names() -> Result<()> {
    let path = Path::new("/proc/sys/vm/drop_caches");
    std::fs::write(path, "2").with_context(|| format!("cannot write {}", path.display()))
}

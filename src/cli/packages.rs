//! The arguments of commands that only packages need.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct ManPagesArgs {
    /// Where to write the pages
    pub(crate) dir: PathBuf,
}

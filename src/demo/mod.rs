//! `tollgate demo`.

use std::path::Path;

use crate::cli::DemoArgs;

pub(crate) fn run(_args: &DemoArgs) -> anyhow::Result<()> {
    anyhow::bail!("in the making")
}

pub(crate) fn probe(_dir: &Path) -> anyhow::Result<()> {
    anyhow::bail!("in the making")
}

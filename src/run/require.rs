//! `--require`: what must be had, or CMD is not started.

use anyhow::{bail, ensure};

use super::limits;
use super::network::Network;
use crate::cli::{FenceWhen, Required};
use crate::serve::Server;

/// What is known before anything is started. Missing parts of the fence are found when it is built.
///
/// # Errors
/// With what is missing.
pub(super) fn before(
    required: &[Required],
    fence: Option<FenceWhen>,
    network: &Network,
    limits: &limits::Kept,
) -> anyhow::Result<()> {
    let is = |what| required.contains(&what);
    ensure!(
        !(is(Required::Fence) && fence == Some(FenceWhen::Off)),
        "--require fence: --fence off leaves none"
    );
    ensure!(
        !is(Required::Network) || network.is_own(),
        "--require network: CMD would have the machine's network; choose --network off, --network \
         loopback or --allow-host"
    );
    match limits.told() {
        Some(missing) if is(Required::Limits) => bail!("--require limits: {missing}"),
        _ => Ok(()),
    }
}

/// What is known when the view is served.
///
/// # Errors
/// When the kernel does not serve files directly.
pub(super) fn passthrough(required: &[Required], server: &Server) -> anyhow::Result<()> {
    ensure!(
        !required.contains(&Required::Passthrough) || server.has_passthrough(),
        "--require passthrough: files would be served by tollgate; `tollgate doctor` says why"
    );
    Ok(())
}

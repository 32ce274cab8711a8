//! The network of CMD: the machine's, none, or one of its own with a proxy as the only way out.

mod filter;
mod head;
mod hosts;
mod own;
mod process;
mod proxy;
mod relay;

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;

use anyhow::{Context, ensure};

use crate::cli::{NetworkArgs, NetworkMode};
use crate::sys;

pub(super) use filter::restrict_sockets;
pub(super) use process::{Proxy, start};

/// Where the proxy is found inside. Nobody else is there before it.
const PROXY_PORT: u16 = 3128;

/// What CMD gets of the network.
#[derive(Clone, Debug)]
pub(super) enum Network {
    /// The machine's.
    Open,
    /// Not even 127.0.0.1.
    None,
    /// One of its own: what CMD starts reaches each other at 127.0.0.1.
    Loopback,
    /// The same, and these hosts by the proxy.
    Hosts(hosts::Hosts),
}

impl Network {
    /// What the options come to.
    ///
    /// # Errors
    /// When they contradict each other.
    pub(super) fn of(args: &NetworkArgs) -> anyhow::Result<Self> {
        let named = !args.allow_host.is_empty();
        ensure!(
            !(named && matches!(args.network, Some(NetworkMode::On | NetworkMode::Off))),
            "--allow-host leaves the hosts that it names as the only ones: it goes with --network \
             loopback, or without --network"
        );
        Ok(match args.network {
            _ if named => Self::Hosts(hosts::Hosts::new(&args.allow_host)),
            None | Some(NetworkMode::On) => Self::Open,
            Some(NetworkMode::Loopback) => Self::Loopback,
            Some(NetworkMode::Off) => Self::None,
        })
    }

    /// Whether CMD is in a network namespace of its own.
    pub(super) fn is_own(&self) -> bool {
        !matches!(self, Self::Open)
    }

    /// Variables by which programs find the proxy.
    pub(super) fn environment(&self) -> Vec<(OsString, OsString)> {
        if !matches!(self, Self::Hosts(_)) {
            return Vec::new();
        }
        let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
        let own = "localhost,127.0.0.1,::1";
        let proxies = ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"];
        let others = [("no_proxy", own), ("NO_PROXY", own), ("NODE_USE_ENV_PROXY", "1")];
        let proxies = proxies.iter().map(|name| (*name, proxy.as_str()));
        proxies.chain(others).map(|(name, value)| (name.into(), value.into())).collect()
    }

    /// Takes the calling process into it. The socket is the proxy's.
    ///
    /// # Errors
    /// When the kernel gives no network namespace.
    pub(super) fn enter(&self) -> anyhow::Result<Option<OwnedFd>> {
        if !self.is_own() {
            return Ok(None);
        }
        sys::unshare(libc::CLONE_NEWNET)
            .context("--network: this kernel or container gives no network namespace")?;
        if matches!(self, Self::None) {
            return Ok(None);
        }
        sys::bring_up_loopback().context("--network: 127.0.0.1 cannot be brought up")?;
        if !matches!(self, Self::Hosts(_)) {
            return Ok(None);
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, PROXY_PORT))
            .context("--allow-host: the proxy cannot listen inside")?;
        Ok(Some(listener.into()))
    }
}

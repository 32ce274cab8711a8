//! The process of the proxy: what it is handed, and what it gives up.

use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use anyhow::{Context, bail};
use landlock::{ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, Scope};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::hosts::{Hosts, Target};
use super::proxy;
use crate::run::wire::{Channel, Message, Received};
use crate::sys::{self, Forked};

/// The user that the proxy of root runs as where CMD is root itself.
const NOBODY: u32 = 65_534;

/// The proxy, seen from the server.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) channel: Channel,
    pub(crate) process: Pid,
}

/// Starts the process. It waits for the socket to listen on. `uid` is CMD's user.
///
/// # Errors
/// When no process can be had.
pub(crate) fn start(hosts: &Hosts, uid: u32) -> anyhow::Result<Proxy> {
    let (channel, own) = Channel::pair()?;
    match sys::fork().context("cannot fork")? {
        Forked::Child => {
            // When the server is gone, this process goes, and nobody asks why.
            let _ = run(&own, hosts, uid);
            sys::exit_now(1)
        }
        Forked::Parent(process) => Ok(Proxy { channel, process }),
    }
}

fn run(channel: &Channel, hosts: &Hosts, uid: u32) -> anyhow::Result<()> {
    sys::close_all_but(channel).context("cannot close inherited descriptors")?;
    close_streams()?;
    give_up(uid)?;
    // After the change of user, which would undo it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let Some(Received { message: Message::Listener, fd: Some(listener), .. }) =
        channel.receive()?
    else {
        bail!("the server is gone");
    };
    let channel = duplicate(channel)?;
    let on_refused = move |target: &Target| {
        let _ = channel.send(&Message::Refused(target.to_string()), None);
    };
    let on_refused: proxy::OnRefused = Arc::new(on_refused);
    proxy::serve(&TcpListener::from(listener), hosts, &on_refused);
    Ok(())
}

fn duplicate(channel: &Channel) -> anyhow::Result<Channel> {
    Ok(Channel::of(channel.as_fd().try_clone_to_owned()?))
}

/// Who reads what `run` prints does not wait for the proxy.
fn close_streams() -> anyhow::Result<()> {
    let null: OwnedFd =
        rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// What looks names up and makes connections needs no privilege, changes no file and starts no
/// program.
fn give_up(uid: u32) -> anyhow::Result<()> {
    if rustix::process::geteuid().is_root() {
        // In a user namespace there may be no other user to become.
        let _ = become_user(if uid == 0 { NOBODY } else { uid });
    }
    rustix::thread::set_no_new_privs(true)?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets)?;
    let changes = AccessFs::from_write(ABI::V5) | AccessFs::Execute;
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(changes)?
        .scope(Scope::from_all(ABI::V6))?
        .create()?
        .restrict_self()?;
    Ok(())
}

fn become_user(id: u32) -> rustix::io::Result<()> {
    let (uid, gid) = (rustix::fs::Uid::from_raw(id), rustix::fs::Gid::from_raw(id));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)
}

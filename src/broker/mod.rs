//! `tollgate broker`, and the servers' side of it.

mod found;
mod listening;

use anyhow::Context;
use tollgate_broker::Options;

use crate::cli::BrokerArgs;
use crate::messages;

pub(crate) use found::{Broker, WOULD_HELP, find, may_register};

/// Serves until it is ended.
///
/// # Errors
/// When it cannot listen, privilege is missing, or the process cannot be confined.
pub(crate) fn run(args: &BrokerArgs) -> anyhow::Result<()> {
    anyhow::ensure!(
        found::may_register(),
        "the broker needs CAP_SYS_ADMIN in the initial user namespace: start it as root"
    );
    let group = args.user_group.as_deref().map(group_id).transpose()?;
    let (listener, at) = listening::socket(&args.socket)?;
    let options = Options {
        group,
        max_files: args.max_files as usize,
        max_files_per_second: args.max_files_per_second,
    };
    messages::say(&format!("broker: ready at {at}"));
    match tollgate_broker::serve(listener, options).context("the broker cannot be confined")? {}
}

fn group_id(name: &str) -> anyhow::Result<u32> {
    let group = uzers::get_group_by_name(name);
    group.map(|group| group.gid()).with_context(|| {
        format!("--user-group `{name}`: there is no such group (`getent group` lists them)")
    })
}

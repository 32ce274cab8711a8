//! `tollgate top`: what the servers do, again and again.

mod rates;
mod table;
mod terminal;

use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use serde_json::Value;
use tollgate_control::Found;

pub(crate) use rates::{Rates, Span};
pub(crate) use table::text;

use crate::cli::TopArgs;
use crate::control::{self, Replies, Request, Warnings};
use crate::messages;
use crate::requests::Requests;

/// One look at a server.
struct Look {
    requests: Requests,
    pid_here: Option<u32>,
    socket: std::path::PathBuf,
}

/// Runs `tollgate top`.
///
/// # Errors
/// No server runs, or none at MNT.
pub(crate) fn run(args: &TopArgs) -> anyhow::Result<()> {
    let mnt = args.mnt.as_deref();
    let mnt = mnt.map(crate::files::whole);
    let mnt = mnt.as_deref();
    // Warnings would be drawn over later.
    let (mut before, silent) = look(mnt, Warnings::Shown)?;
    if before.is_empty() {
        bail!(control::nobody(mnt, &silent));
    }
    let screen = terminal::Screen::take(!args.json && !args.once)?;
    let mut left = if args.once { Some(1) } else { args.count };
    while left != Some(0) {
        if screen.ended_within(args.interval)? {
            return Ok(());
        }
        let (now, _) = look(mnt, Warnings::Left)?;
        screen.show(&shown(&between(&before, &now, Span::BetweenLooks), args.json)?)?;
        before = now;
        left = left.map(|left| left - 1);
    }
    Ok(())
}

/// The requests of each server since its start, with rates over `interval`, and the servers that do
/// not answer.
pub(crate) fn measure(
    mnt: Option<&Path>,
    interval: Duration,
) -> anyhow::Result<(Vec<Rates>, Vec<Found>)> {
    let (before, silent) = look(mnt, Warnings::Shown)?;
    std::thread::sleep(interval);
    let (now, _) = look(mnt, Warnings::Left)?;
    Ok((between(&before, &now, Span::SinceStart), silent))
}

fn look(mnt: Option<&Path>, warnings: Warnings) -> anyhow::Result<(Vec<Look>, Vec<Found>)> {
    let Replies { replies, silent } = match mnt {
        Some(mnt) => control::ask_for(&control::is_at(mnt), &Request::Requests, warnings)?,
        None => control::ask_all(&Request::Requests, warnings)?,
    };
    let looks = replies.into_iter().filter_map(|reply| {
        let requests = match serde_json::from_value::<Requests>(Value::Object(reply.report)) {
            Ok(requests) => requests,
            Err(error) => {
                if warnings == Warnings::Shown {
                    let shown = reply.found.path.display();
                    messages::warn(&format!("the reply of `{shown}`: {error}"));
                }
                return None;
            }
        };
        let wanted = mnt.is_none_or(|mnt| requests.mount_point == mnt.to_string_lossy());
        let (pid_here, socket) = (reply.found.pid, reply.found.path);
        wanted.then_some(Look { requests, pid_here, socket })
    });
    Ok((looks.collect(), silent))
}

/// A server that started meanwhile has no rates yet, one that ended has none any more.
fn between(before: &[Look], now: &[Look], span: Span) -> Vec<Rates> {
    let rates = now.iter().filter_map(|now| {
        let before = before.iter().find(|before| before.socket == now.socket)?;
        Some(Rates::between(&before.requests, &now.requests, now.pid_here, span))
    });
    rates.collect()
}

fn shown(rates: &[Rates], json: bool) -> anyhow::Result<String> {
    if json {
        return Ok(serde_json::to_string(rates)? + "\n");
    }
    if rates.is_empty() {
        return Ok("no server of this user runs\n".to_owned());
    }
    let texts: Vec<_> = rates.iter().map(text).collect();
    Ok(texts.join("\n"))
}

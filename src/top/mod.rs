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
use crate::escape::json_text;
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
    let mut screen = terminal::Screen::take(!args.json && !args.once)?;
    let mut left = if args.once { Some(1) } else { args.count };
    while left != Some(0) {
        if screen.ended_within(args.interval)? {
            return Ok(());
        }
        let (now, silent) = look(mnt, Warnings::Left)?;
        let rates = between(&before, &now, Span::BetweenLooks);
        let text = match args.json {
            true => json_text(&serde_json::to_string(&rates)?).into_owned() + "\n",
            false if rates.is_empty() => without_rates(mnt, &now, &silent) + "\n",
            false => rates.iter().map(text).collect::<Vec<_>>().join("\n"),
        };
        screen.show(&text)?;
        before = now;
        left = left.map(|left| left - 1);
    }
    Ok(())
}

/// What two looks at the servers came to.
pub(crate) enum Measured {
    Rates(Vec<Rates>),
    /// There are no servers. In words.
    Nobody(String),
    /// There are servers, and no rates of them: why, in words.
    Unknown(String),
}

/// The requests of each server since its start, with rates over `interval`.
pub(crate) fn measure(mnt: Option<&Path>, interval: Duration) -> anyhow::Result<Measured> {
    let (before, _) = look(mnt, Warnings::Shown)?;
    std::thread::sleep(interval);
    let (now, silent) = look(mnt, Warnings::Left)?;
    let rates = between(&before, &now, Span::SinceStart);
    Ok(match rates.is_empty() {
        false => Measured::Rates(rates),
        true if now.is_empty() && silent.is_empty() => {
            Measured::Nobody(without_rates(mnt, &now, &silent))
        }
        true => Measured::Unknown(without_rates(mnt, &now, &silent)),
    })
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

/// Why there are no rates, by what the newer of two looks found: servers, `now`, that the older one did not,
/// or none, but for `silent` ones.
fn without_rates(mnt: Option<&Path>, now: &[Look], silent: &[Found]) -> String {
    if now.is_empty() {
        return control::nobody(mnt, silent);
    }
    "what answers started just now, or was silent before: its rates come with the next look"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_without_rates_are_not_taken_for_ended() {
        let silent = Found { path: "/s/view-1.sock".into(), pid: Some(5), uid: 0 };
        let said = without_rates(None, &[], std::slice::from_ref(&silent));
        assert!(said.contains("process 5 does not answer"), "{said}");
        let look = |socket: &str| Look {
            requests: rates::tests::requests(1, Vec::new(), 0),
            pid_here: Some(5),
            socket: socket.into(),
        };
        // It was restarted: the same server at another socket.
        let (before, now) = ([look("/s/view-1.sock")], [look("/s/view-2.sock")]);
        assert!(between(&before, &now, Span::BetweenLooks).is_empty());
        let said = without_rates(None, &now, &[]);
        assert!(said.contains("started just now"), "{said}");
        assert_eq!(between(&now, &now, Span::BetweenLooks).len(), 1);
    }
}

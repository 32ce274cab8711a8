//! `tollgate wq`: the work queues of a running program.

mod target;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tollgate_workqueue::control::{ControlError, Reply, Request, ask};
use tollgate_workqueue::{Dump, Monitor, Rates};

use crate::cli::{WqCommand, WqDumpArgs, WqMonitorArgs, WqSetArgs};
use crate::escape::json_text;
use crate::inherited;
use crate::output;
use crate::sys::{self, SignalFd};

const ENDING: &[libc::c_int] = &[libc::SIGINT, libc::SIGTERM];

/// Runs `tollgate wq`.
///
/// # Errors
/// No process has work queues, or several do; the process sends no reply, or an error.
pub(crate) fn run(command: &WqCommand) -> anyhow::Result<()> {
    match command {
        WqCommand::Dump(args) => dump(args),
        WqCommand::Monitor(args) => monitor(args),
        WqCommand::Set(args) => set(args),
    }
}

fn dump(args: &WqDumpArgs) -> anyhow::Result<()> {
    let dump = Client::of(&args.target)?.dump()?;
    if args.json {
        println!("{}", json_text(&serde_json::to_string_pretty(&dump)?));
    } else {
        print!("{}", plain(&dump.to_string()));
    }
    Ok(())
}

fn set(args: &WqSetArgs) -> anyhow::Result<()> {
    let client = Client::of(&args.target)?;
    let (queue, settings) = (args.queue.clone(), args.settings.clone());
    match client.ask(&Request::Set { queue, settings }) {
        Ok(Reply::Set(_)) => {}
        Ok(other) => return Err(unexpected(other)),
        Err(error) => {
            must_be_there(&client.monitor()?, &args.queue)?;
            return Err(error);
        }
    }
    let dump = client.dump()?;
    // If the queue was dropped meanwhile, it was set nevertheless.
    for queue in dump.queues.iter().filter(|queue| queue.name == args.queue) {
        println!("{}", plain(&format!("{} {queue}", queue.name)));
    }
    Ok(())
}

fn monitor(args: &WqMonitorArgs) -> anyhow::Result<()> {
    // Before anything is asked, so that Ctrl-C ends it well from the start.
    let ending = inherited::without_ignored(ENDING);
    sys::block_signals(&ending).context("cannot block signals")?;
    let signals = SignalFd::new(&ending).context("cannot read signals")?;
    let client = Client::of(&args.target)?;
    let mut before = client.monitor()?;
    for name in &args.queues {
        must_be_there(&before, name)?;
    }
    let mut left = args.count;
    while left != Some(0) {
        if ended_within(args.interval, &signals)? {
            return Ok(());
        }
        let now = client.monitor().map_err(|error| client.while_monitored(error))?;
        show(now.since(&before), args)?;
        before = now;
        left = left.map(|left| left - 1);
    }
    Ok(())
}

fn must_be_there(monitor: &Monitor, queue: &str) -> anyhow::Result<()> {
    let names: Vec<_> = monitor.queues.iter().map(|queue| queue.name.as_str()).collect();
    let listed = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    ensure!(names.contains(&queue), "no queue is named {queue:?}; there are: {}", plain(&listed));
    Ok(())
}

fn show(mut rates: Rates, args: &WqMonitorArgs) -> anyhow::Result<()> {
    if !args.queues.is_empty() {
        rates.queues.retain(|queue| args.queues.contains(&queue.name));
    }
    if args.json {
        println!("{}", json_text(&serde_json::to_string(&rates)?));
        return output::finish();
    }
    print!("{}", plain(&rates.to_string()));
    if rates.stalls > 0 || rates.delayed > 0 {
        println!("delayed items {}, stalls reported {}", rates.delayed, rates.stalls);
    }
    println!();
    output::finish()
}

/// Text of another process without control characters, which could steer the terminal: root may
/// ask processes of any user.
fn plain(text: &str) -> String {
    let odd = |c: char| c.is_control() && c != '\n';
    text.chars().map(|c| if odd(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Waits; true when a signal came meanwhile that ends us.
fn ended_within(interval: Duration, signals: &SignalFd) -> anyhow::Result<bool> {
    let timeout = Timespec::try_from(interval).context("interval")?;
    let ready = poll(&mut [PollFd::new(signals, PollFlags::IN)], Some(&timeout));
    Ok(ready.context("cannot wait")? > 0)
}

/// One process that was chosen.
struct Client {
    socket: PathBuf,
}

impl Client {
    fn of(target: &crate::cli::WqTarget) -> anyhow::Result<Self> {
        Ok(Self { socket: target::socket(target)? })
    }

    fn ask(&self, request: &Request) -> anyhow::Result<Reply> {
        let text = ask(&self.socket, &serde_json::to_string(request)?)?;
        let shown = self.socket.display();
        let reply = serde_json::from_str(&text).with_context(|| {
            format!("the reply of `{shown}` is not understood; is it of another version?")
        })?;
        if let Reply::Error(error) = reply {
            bail!(plain(&error));
        }
        Ok(reply)
    }

    /// Says so when the process ended between two looks.
    fn while_monitored(&self, error: anyhow::Error) -> anyhow::Error {
        let shown = self.socket.display();
        if !error.downcast_ref().is_some_and(ControlError::is_gone) {
            return error.context(format!("monitoring `{shown}` ended"));
        }
        anyhow::anyhow!("the process at `{shown}` ended, or closed its socket, while monitored")
    }

    fn dump(&self) -> anyhow::Result<Dump> {
        match self.ask(&Request::Dump)? {
            Reply::Dump(dump) => Ok(dump),
            other => Err(unexpected(other)),
        }
    }

    fn monitor(&self) -> anyhow::Result<Monitor> {
        match self.ask(&Request::Monitor)? {
            Reply::Monitor(monitor) => Ok(monitor),
            other => Err(unexpected(other)),
        }
    }
}

fn unexpected(reply: Reply) -> anyhow::Error {
    let what = match reply {
        Reply::Dump(_) => "a dump",
        Reply::Monitor(_) => "counters",
        Reply::Set(_) => "what was set",
        Reply::Error(error) => return anyhow::anyhow!(error),
    };
    anyhow::anyhow!("the process replied with {what}, which was not asked for")
}

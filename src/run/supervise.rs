//! The server's side while CMD runs: messages, signals, and those who join.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};
use tollgate_fuse::SessionError;

use super::ended::{CommandEnd, EndedBySignal, end, not_executed};
use super::job::{Command, Job};
use super::network::Proxy;
use super::plan::Plan;
use super::raised;
use super::refused::Refused;
use super::require;
use super::session::{Namespaces, Session, Terms};
use super::signals;
use super::stuck::{self, Stuck, shorter};
use super::views::{InOrder, Prepared};
use super::wire::{Channel, Message, Received};
use crate::cli::RunArgs;
use crate::escape::{escaped, shown};
use crate::git::IndexesBefore;
use crate::presets::{Budget, files_run};
use crate::sandbox::Ender;
use crate::serve::{Common, Server};
use crate::sys::SignalFd;
use crate::{audit, inherited, messages, sandbox};

/// Most messages of the proxy that are heard once CMD has ended: many more than the socket holds, so that all are which
/// were there. What CMD leaves behind may go on asking until it is ended.
const MESSAGES_LEFT_MAX: usize = 10_000;

/// A `run`, from its first process on.
pub(super) struct Running {
    channel: Channel,
    signals: SignalFd,
    /// Until it was waited for.
    builder: Option<Pid>,
    /// Known once it is ready.
    init: Option<Pid>,
    /// CMD, from the moment it exists.
    command: Option<Command>,
    job: Job,
    proxy: Option<Proxy>,
    refused: Refused,
    session: Option<(Session, Terms)>,
    /// Until CMD's processes are gone.
    ender: Option<Ender>,
    stuck: Stuck,
}

impl Running {
    pub(super) fn of(
        channel: Channel,
        (signals, job): (SignalFd, Job),
        builder: Pid,
        proxy: Option<Proxy>,
        refused: Refused,
        session: Option<(Session, Terms)>,
    ) -> Self {
        let builder = Some(builder);
        Self {
            channel,
            signals,
            builder,
            init: None,
            command: None,
            job,
            proxy,
            refused,
            session,
            ender: None,
            stuck: Stuck::default(),
        }
    }

    /// Serves the view until CMD ends, and says what came of it.
    pub(super) fn supervise(
        &mut self,
        views: InOrder<Prepared>,
        plan: &Plan,
        args: &RunArgs,
    ) -> anyhow::Result<CommandEnd> {
        let dir = &plan.tree().path;
        let policy = views.dir.spec.policy();
        let hides = policy.can_hide();
        let indexes = if hides { IndexesBefore::of(dir) } else { IndexesBefore::default() };
        // Before the first thread.
        self.ender = Some(Ender::start()?);
        let servers = self.start(views)?;
        let server = &servers.dir;
        require::passthrough(&args.limits.require, server)?;
        self.refused.record_with(server.recorder());
        server.complete_sandbox();
        let begin = crate::git::begin(dir);
        let end = self.until_ended(plan, args, &servers);
        let recorders: Vec<_> = servers.all().map(Server::recorder).collect();
        servers.all().filter_map(Server::moved).for_each(|moved| messages::warn(&escaped(&moved)));
        let now = servers.dir.directory();
        let raised = servers.all().filter(|one| one.has_raised());
        let raised: Vec<_> = raised.filter_map(Server::directory).collect();
        // The log ends with the view of DIR.
        servers.around.into_iter().chain(servers.beside).for_each(Server::finish);
        servers.dir.finish();
        // Others may have moved it; that it cannot be reached was said.
        let left = now.map_or_else(Vec::new, |now| {
            let budget = Budget::default();
            let run = |top: &Path, repository: &_| files_run(top, repository, &budget);
            crate::git::left_behind(&now, begin, run)
        });
        left.iter().for_each(|line| messages::warn(line));
        let raised = raised.iter().filter_map(|dir| raised::left_behind(dir, begin));
        raised.for_each(|line| messages::warn(&line));
        let lost = indexes.lost(&policy);
        lost.iter().for_each(|line| messages::warn(line));
        if !args.quiet {
            let summaries = recorders.iter().flat_map(|one| audit::summary(&one.refusals()));
            summaries.for_each(|line| messages::say(&line));
            plan.limits.met().iter().for_each(|line| messages::say(line));
            let options = self.refused.options();
            if !options.is_empty() {
                messages::say(&format!("would have been allowed by: {}", options.join(" ")));
            }
        }
        end
    }

    /// Serves each view as soon as it is mounted: what is mounted in it waits for that.
    fn start(&mut self, views: InOrder<Prepared>) -> anyhow::Result<InOrder<Server>> {
        let InOrder { around, mut dir, beside } = views;
        let all = around.iter().chain([&dir]).chain(&beside);
        let sources = all.map(|view| view.source.try_clone()).collect::<Result<Vec<_>, _>>();
        let sources = sources.context("cannot copy a descriptor")?;
        let sources: Vec<_> = sources.iter().map(AsFd::as_fd).collect();
        let first = self.until_mounted()?;
        let common = dir.spec.common(&sources, &dir.tree.path)?;
        let (around, at_dir) = match around {
            Some(view) => (Some(self.start_one(&common, view, first)?), self.until_mounted()?),
            None => (None, first),
        };
        let dir = self.start_one(&common, dir, at_dir)?;
        let beside = beside.into_iter().map(|view| {
            let mounted = self.until_mounted()?;
            self.start_one(&common, view, mounted)
        });
        Ok(InOrder { around, dir, beside: beside.collect::<anyhow::Result<_>>()? })
    }

    fn start_one(
        &self,
        common: &Common,
        view: Prepared,
        (device, number): (OwnedFd, Option<u32>),
    ) -> anyhow::Result<Server> {
        let Prepared { spec, source, tree } = view;
        Server::start_in(common, spec, source, device, &tree.path, number).map_err(|error| {
            // The connection ends when the processes that hold the mount fail: then their reason is
            // the better one. Where the server fails by itself, it ends the connection, and the
            // other side's failure only follows from that.
            if connection_ended(&error) {
                return self.reported_failure().unwrap_or(error);
            }
            error
        })
    }

    /// The failure that the other side reported, if it did.
    fn reported_failure(&self) -> Option<anyhow::Error> {
        while self.channel.is_readable() {
            match self.channel.receive() {
                Ok(Some(Received { message: Message::Failed(text), .. })) => {
                    return Some(anyhow::anyhow!("{text}"));
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return None,
            }
        }
        None
    }

    /// The view's end, and the number of its connection, which ends with this process.
    fn until_mounted(&mut self) -> anyhow::Result<(OwnedFd, Option<u32>)> {
        loop {
            match self.next()? {
                Received { message: Message::Mounted(number), fd: Some(device), .. } => {
                    let number = u32::try_from(number).ok().filter(|number| *number > 0);
                    if let Some((ender, number)) = self.ender.as_ref().zip(number) {
                        ender.watch(number);
                    }
                    return Ok((device, number));
                }
                other => self.common(other)?,
            }
        }
    }

    /// Starts CMD and passes signals on until it ends.
    fn until_ended(
        &mut self,
        plan: &Plan,
        args: &RunArgs,
        servers: &InOrder<Server>,
    ) -> anyhow::Result<CommandEnd> {
        loop {
            let received = self.next()?;
            match received.message {
                Message::Ready => {
                    servers.all().for_each(Server::native_is_mounted);
                    self.init = received.sender;
                    if let Some((ender, init)) = self.ender.as_ref().zip(self.init) {
                        ender.know(init);
                    }
                    self.reap_builder();
                    if !args.quiet {
                        self.tell_of_session();
                    }
                    self.channel.send(&Message::Go, None)?;
                }
                Message::Starting => {
                    self.command = received.sender.and_then(Command::open);
                    self.stuck.begin(received.sender);
                }
                Message::Continued => self.job.continued(),
                Message::Stopped(signal) => {
                    if let Some(command) = &self.command {
                        self.job.stop(command, signal);
                    }
                }
                Message::NotExecuted(errno) => {
                    return Err(not_executed(&plan.start.command[0], errno));
                }
                Message::Note(_) if args.quiet => {}
                Message::Ended(status) => {
                    self.hear_last_of_proxy();
                    return Ok(end(status));
                }
                _ => self.common(received)?,
            }
        }
    }

    fn common(&mut self, received: Received) -> anyhow::Result<()> {
        match &received.message {
            Message::Failed(text) => bail!("{text}"),
            Message::Warning(text) => {
                messages::warn(text);
                Ok(())
            }
            Message::Note(text) => {
                messages::note(text);
                Ok(())
            }
            Message::Namespaces => {
                let (session, _) = self.session.as_mut().context("nobody is to join")?;
                session.open(Namespaces::received(received.fds())?);
                Ok(())
            }
            Message::Listener => {
                let proxy = self.proxy.as_ref().context("a socket came, and there is no proxy")?;
                proxy.channel.send(&Message::Listener, received.fd.as_ref().map(AsFd::as_fd))
            }
            other => bail!("the other side of `run` sent {other:?} out of turn"),
        }
    }

    /// The next message; signals that arrive before it are dealt with.
    fn next(&mut self) -> anyhow::Result<Received> {
        loop {
            let proxy = self.proxy.as_ref().map(|proxy| &proxy.channel);
            let joins = self.session.as_ref().and_then(|(session, _)| session.listener());
            let may_join = joins.is_some();
            let mut ready = [
                PollFd::new(&self.channel, PollFlags::IN),
                PollFd::new(&self.signals, PollFlags::IN),
                // Without a proxy or a session, the same again, which is not looked at.
                PollFd::new(proxy.unwrap_or(&self.channel), PollFlags::IN),
                PollFd::from_borrowed_fd(joins.unwrap_or(self.channel.as_fd()), PollFlags::IN),
            ];
            let patience = shorter(self.job.patience(), self.stuck.patience());
            match rustix::event::poll(&mut ready, patience.as_ref()) {
                Err(Errno::INTR) => continue,
                other => other.context("cannot wait for CMD")?,
            };
            let [message, signal, proxy, join] = ready.map(|fd| !fd.revents().is_empty());
            // Messages first: one may announce CMD, which a signal that came with it is for.
            if message {
                let lost = "the processes between tollgate and CMD were killed: from outside, or by \
                            the kernel for want of memory (--memory)";
                return self.channel.receive()?.context(lost);
            }
            if let Some(command) = &self.command {
                self.job.go_on_in_time(command);
            }
            if proxy {
                self.hear_proxy()?;
            }
            if let Some((session, _)) = self.session.as_ref().filter(|_| join && may_join) {
                session.answer();
            }
            if signal {
                self.pass_on()?;
            }
            if let Some(ender) = &self.ender {
                self.stuck.look(ender);
            }
        }
    }

    /// How to join, and what CMD may change.
    fn tell_of_session(&self) {
        let Some((session, terms)) = &self.session else { return };
        let quoted = |path: &std::path::PathBuf| format!("`{}`", shown(path));
        let places: Vec<_> = terms.writable.iter().map(quoted).collect();
        let also =
            if places.is_empty() { String::new() } else { format!(", {}", places.join(", ")) };
        let everything = if terms.fenced { "" } else { ", and wherever else its user may" };
        messages::note(&format!(
            "session `{name}`: CMD writes to `{}`{also}{everything}; join it with `tollgate run \
             --session {name} -- CMD`",
            shown(&terms.dir),
            name = session.name
        ));
    }

    /// What CMD asked the proxy for and did not get.
    fn hear_proxy(&mut self) -> anyhow::Result<()> {
        let Some(proxy) = &self.proxy else { return Ok(()) };
        match proxy.channel.receive()? {
            Some(Received { message: Message::Refused(target), .. }) => {
                self.refused.record(&target);
                Ok(())
            }
            Some(other) => bail!("the proxy sent {:?} out of turn", other.message),
            None => bail!("the proxy of --allow-host was killed from outside"),
        }
    }

    /// The proxy tells of what it refuses before it answers: all that CMD asked for is there by now.
    fn hear_last_of_proxy(&mut self) {
        let is_told = |proxy: &Proxy| {
            let mut ready = [PollFd::new(&proxy.channel, PollFlags::IN)];
            let told = rustix::event::poll(&mut ready, Some(&Timespec::default()));
            told.is_ok_and(|ready| ready > 0)
        };
        for _ in 0..MESSAGES_LEFT_MAX {
            if !self.proxy.as_ref().is_some_and(is_told) || self.hear_proxy().is_err() {
                return;
            }
        }
    }

    /// Waits for the builder, whose work is done.
    fn reap_builder(&mut self) {
        if let Some(builder) = self.builder.take() {
            let _ = rustix::process::waitpid(Some(builder), WaitOptions::empty());
        }
    }

    fn pass_on(&mut self) -> anyhow::Result<()> {
        let arrived = self.signals.read().context("cannot read a signal")?;
        match &self.command {
            Some(command) => {
                if arrived.signal == libc::SIGCONT {
                    self.job.go_on(command);
                } else {
                    command.pass_on(&arrived);
                    self.stuck.may_end();
                }
                Ok(())
            }
            // Once CMD is there, it ignores the same: a signal that is blocked arrives here all the same.
            None if inherited::is_ignored(arrived.signal) => Ok(()),
            None if signals::stops(arrived.signal) => {
                self.job.stop_before_command(arrived.signal);
                Ok(())
            }
            None if [libc::SIGWINCH, libc::SIGCONT, libc::SIGCHLD].contains(&arrived.signal) => {
                Ok(())
            }
            None => Err(EndedBySignal(arrived.signal).into()),
        }
    }

    /// Ends the processes in between, which are still there when we failed, and waits for them.
    /// With init, everything in its pid namespace ends.
    pub(super) fn collect(self) {
        let Self { channel, builder, init, proxy, job, session, ender, .. } = self;
        let proxy = proxy.map(|proxy| proxy.process);
        // An init that is not ready ends by this.
        drop(channel);
        if let Some(looker) = sandbox::looker() {
            looker.end();
        }
        for process in [builder, init, proxy].into_iter().flatten() {
            // Children that were not waited for: their ids cannot belong to other processes.
            let _ = rustix::process::kill_process(process, Signal::KILL);
        }
        session.iter().for_each(|(session, _)| session.have_joined_go_on());
        for process in [builder, init, proxy].into_iter().flatten() {
            stuck::wait_for(process, ender.as_ref());
        }
        drop(ender);
        while let Ok(_) | Err(Errno::INTR) = rustix::process::wait(WaitOptions::empty()) {}
        job.end();
    }
}

/// Whether a server did not start because its connection had ended.
fn connection_ended(error: &anyhow::Error) -> bool {
    use SessionError::{Gone, NotMounted, Receive, Reply};
    let session = error.downcast_ref::<SessionError>();
    session.is_some_and(|error| matches!(error, Gone | NotMounted | Receive(_) | Reply(_)))
}

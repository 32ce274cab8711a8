//! `tollgate run`: CMD sees DIR through the policy, and nothing else of it; the rest of the machine
//! it reads.

mod aliases;
mod bpf;
mod builder;
mod environment;
mod fence;
mod filter;
mod guard;
mod init;
mod limits;
mod network;
mod plan;
mod prepare;
mod privilege;
mod refused;
mod require;
mod user;
mod wire;

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

use crate::audit;
use crate::cli::{Required, RunArgs};
use crate::control;
use crate::git::Repository;
use crate::messages;
use crate::policy_choice;
use crate::serve::{Server, ServerKind, Spec};
use crate::sys::{self, Forked, SignalFd};
use crate::tree::{self, Tree};
use fence::Control;
use limits::Limits;
use network::{Network, Proxy};
use plan::{FORWARDED, Plan};
use refused::Refused;
use wire::{Channel, Message, Received};

/// How CMD ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandEnd {
    /// By itself, with this exit code.
    Exited(u8),
    /// By this signal.
    Signalled(i32),
}

/// Runs CMD over a view of DIR until it ends.
///
/// # Errors
/// Everything that kept CMD from being started, and the loss of the processes in between.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<CommandEnd> {
    let here = working_directory()?;
    let (tree, source) = tree::open(args.dir.as_deref().unwrap_or(&around(&here)))?;
    if tree.path.parent().is_none() {
        bail!("DIR is `/`: the view cannot cover the root of all paths; name a directory below it");
    }
    refuse_kernel_file_system(&tree, &source)?;
    refuse_open_directories()?;
    let cwd = start_directory(args.chdir.as_deref(), here, &tree)?;
    let command = args.command.first().map(OsString::as_os_str);
    let chosen = policy_choice::choose(args.serve.policy.as_deref(), &tree.path, command)?;
    let spec = Spec::load(&args.serve, chosen, &tree, &source, ServerKind::Run)?;
    let native = spec.native().to_vec();
    let network = Network::of(&args.network)?;
    let (fence, user, mut environment) = prepare::fence_and_user(args, &tree.path)?;
    environment.told().filter(|_| !args.quiet).iter().for_each(|text| messages::note(text));
    environment.set.splice(0..0, network.environment());
    let uid = user.as_ref().map_or_else(|| rustix::process::getuid().as_raw(), |user| user.uid);
    let limits = Limits::of(&args.limits).keep();
    limits.told().iter().for_each(|text| messages::warn(text));
    require::before(&args.limits.require, args.fence.fence, &network, &limits)?;
    let whole_fence = args.limits.require.contains(&Required::Fence);
    let refused = Refused::of(uid);
    let control = Control::new(&control::directory());
    let command = args.command.clone();
    let plan = Plan {
        tree,
        cwd,
        command,
        native,
        control,
        fence,
        user,
        environment,
        network,
        limits,
        whole_fence,
    };
    // Before the fork, so that no signal comes between it and the signal descriptor.
    sys::block_signals(FORWARDED).context("cannot block signals")?;
    let signals = SignalFd::new(FORWARDED).context("cannot read signals")?;
    let proxy = match &plan.network {
        Network::Hosts(hosts) => Some(network::start(hosts, uid)?),
        _ => None,
    };
    let (channel, child_channel) = Channel::pair()?;
    match sys::fork().context("cannot fork")? {
        Forked::Child => builder::run(&plan, &child_channel),
        Forked::Parent(builder) => {
            drop(child_channel);
            let builder = Some(builder);
            let mut running =
                Running { channel, signals, builder, init: None, command: None, proxy, refused };
            let end = running.supervise(spec, source, &plan, args);
            running.collect();
            if let Ok(end) = &end {
                prepare::tell_why_it_may_have_failed(args, *end == CommandEnd::Exited(0));
            }
            end
        }
    }
}

/// The view refuses these, but only once it is mounted: over /proc, nothing goes on from there.
fn refuse_kernel_file_system(tree: &Tree, source: &OwnedFd) -> anyhow::Result<()> {
    if tollgate_view::is_kernel_file_system(source.as_fd()) {
        bail!(
            "DIR `{}` cannot be viewed: it is of a file system whose files steer the kernel (proc, \
             sysfs and the like)",
            tree.path.display()
        );
    }
    Ok(())
}

/// A directory on a standard stream would be a door into the raw tree.
fn refuse_open_directories() -> anyhow::Result<()> {
    let streams = [
        ("input", std::io::stdin().as_fd().try_clone_to_owned()),
        ("output", std::io::stdout().as_fd().try_clone_to_owned()),
        ("error", std::io::stderr().as_fd().try_clone_to_owned()),
    ];
    for (name, fd) in streams {
        if fd.is_ok_and(|fd| tree::is_directory(&fd)) {
            bail!(
                "standard {name} is a directory, which would be a way past the view; redirect it"
            );
        }
    }
    Ok(())
}

fn working_directory() -> anyhow::Result<PathBuf> {
    std::env::current_dir().context("the working directory cannot be named; change to another")
}

/// DIR where none is named: the top of the git working tree, else the directory itself.
fn around(directory: &Path) -> PathBuf {
    Repository::top_of(directory).unwrap_or_else(|| directory.to_owned())
}

/// Where CMD starts: `--chdir`, the working directory if it lies in DIR, else DIR.
fn start_directory(chdir: Option<&Path>, here: PathBuf, tree: &Tree) -> anyhow::Result<PathBuf> {
    let Some(path) = chdir else {
        return Ok(if here.starts_with(&tree.path) { here } else { tree.path.clone() });
    };
    let shown = path.display();
    match std::fs::canonicalize(path) {
        Ok(directory) if directory.is_dir() => Ok(directory),
        Ok(_) => bail!("--chdir `{shown}` is not a directory"),
        Err(error) => bail!("--chdir `{shown}` {}", tree::why(&error)),
    }
}

struct Running {
    channel: Channel,
    signals: SignalFd,
    /// Until it was waited for.
    builder: Option<Pid>,
    /// Known once it is ready.
    init: Option<Pid>,
    /// CMD, from the moment it exists.
    command: Option<OwnedFd>,
    proxy: Option<Proxy>,
    refused: Refused,
}

impl Running {
    fn supervise(
        &mut self,
        spec: Spec,
        source: OwnedFd,
        plan: &Plan,
        args: &RunArgs,
    ) -> anyhow::Result<CommandEnd> {
        let (device, number) = self.until_mounted()?;
        let server = match Server::start(spec, source, device, &plan.tree.path, number) {
            // The connection ends when the processes that hold the mount fail: their reason is the
            // better one.
            Err(error) => return Err(self.reported_failure().unwrap_or(error)),
            Ok(server) => server,
        };
        require::passthrough(&args.limits.require, &server)?;
        self.refused.record_with(server.recorder());
        server.complete_sandbox();
        let begin = std::time::SystemTime::now();
        let end = self.until_ended(plan);
        let recorder = server.recorder();
        server.finish();
        crate::git::left_behind(&plan.tree.path, begin)
            .iter()
            .for_each(|line| messages::warn(line));
        if !args.quiet {
            audit::summary(&recorder.refusals()).iter().for_each(|line| messages::say(line));
            plan.limits.met().iter().for_each(|line| messages::say(line));
            let options = self.refused.options();
            if !options.is_empty() {
                messages::say(&format!("would have been allowed by: {}", options.join(" ")));
            }
        }
        end
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

    /// The view's end, and the number of its connection.
    fn until_mounted(&mut self) -> anyhow::Result<(OwnedFd, Option<u32>)> {
        loop {
            match self.next()? {
                Received { message: Message::Mounted(number), fd: Some(device), .. } => {
                    return Ok((device, u32::try_from(number).ok().filter(|number| *number > 0)));
                }
                other => self.common(other)?,
            }
        }
    }

    /// Starts CMD and passes signals on until it ends.
    fn until_ended(&mut self, plan: &Plan) -> anyhow::Result<CommandEnd> {
        loop {
            let received = self.next()?;
            match received.message {
                Message::Ready => {
                    self.init = received.sender;
                    self.reap_builder();
                    self.channel.send(&Message::Go, None)?;
                }
                Message::Starting => self.command = received.sender.and_then(open_process),
                Message::NotExecuted(errno) => return Err(not_executed(&plan.command[0], errno)),
                Message::Ended(status) => return Ok(end(status)),
                _ => self.common(received)?,
            }
        }
    }

    fn common(&mut self, received: Received) -> anyhow::Result<()> {
        match received.message {
            Message::Failed(text) => bail!("{text}"),
            Message::Warning(text) => {
                messages::warn(&text);
                Ok(())
            }
            Message::Note(text) => {
                messages::note(&text);
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
            let mut ready = [
                PollFd::new(&self.channel, PollFlags::IN),
                PollFd::new(&self.signals, PollFlags::IN),
                // Without a proxy, the same again, which is not looked at.
                PollFd::new(proxy.unwrap_or(&self.channel), PollFlags::IN),
            ];
            match rustix::event::poll(&mut ready, None) {
                Err(Errno::INTR) => continue,
                other => other.context("cannot wait for CMD")?,
            };
            let [message, signal, proxy] = ready.map(|fd| !fd.revents().is_empty());
            // Messages first: one may announce CMD, which a signal that came with it is for.
            if message {
                let lost = "the processes between tollgate and CMD were killed from outside";
                return self.channel.receive()?.context(lost);
            }
            if proxy {
                self.hear_proxy()?;
            }
            if signal {
                self.pass_on()?;
            }
        }
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

    /// Waits for the builder, whose work is done.
    fn reap_builder(&mut self) {
        if let Some(builder) = self.builder.take() {
            let _ = rustix::process::waitpid(Some(builder), WaitOptions::empty());
        }
    }

    fn pass_on(&self) -> anyhow::Result<()> {
        let arrived = self.signals.read().context("cannot read a signal")?;
        match &self.command {
            Some(command) => {
                if arrived.by_process
                    && let Some(signal) = Signal::from_named_raw(arrived.signal)
                {
                    // It may have ended by now.
                    let _ = rustix::process::pidfd_send_signal(command, signal);
                }
                Ok(())
            }
            None if arrived.signal == libc::SIGWINCH => Ok(()),
            None => bail!("ended by signal {} before CMD was started", arrived.signal),
        }
    }

    /// Ends the processes in between, which are still there when we failed, and waits for them.
    /// With init, everything in its pid namespace ends.
    fn collect(self) {
        let Self { channel, builder, init, proxy, .. } = self;
        let proxy = proxy.map(|proxy| proxy.process);
        // An init that is not ready ends by this.
        drop(channel);
        for process in [builder, init, proxy].into_iter().flatten() {
            // Children that were not waited for: their ids cannot belong to other processes.
            let _ = rustix::process::kill_process(process, Signal::KILL);
        }
        loop {
            match rustix::process::wait(WaitOptions::empty()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

fn open_process(pid: Pid) -> Option<OwnedFd> {
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// CMD could not be executed, with the exit status that shells give that.
#[derive(Debug)]
pub(crate) struct NotExecuted {
    command: String,
    errno: i32,
}

impl NotExecuted {
    /// 127 when there is no such file, else 126.
    pub(crate) fn exit_code(&self) -> u8 {
        if self.errno == libc::ENOENT { 127 } else { 126 }
    }
}

impl std::fmt::Display for NotExecuted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { command, errno } = self;
        match *errno {
            libc::ENOENT if command.contains('/') => {
                write!(f, "CMD `{command}` (or the interpreter it names) does not exist")
            }
            libc::ENOENT => write!(f, "CMD `{command}` is not found in PATH"),
            errno => {
                let error = std::io::Error::from_raw_os_error(errno);
                write!(f, "CMD `{command}` cannot be executed: {error}")
            }
        }
    }
}

impl std::error::Error for NotExecuted {}

fn not_executed(command: &OsStr, errno: i32) -> anyhow::Error {
    NotExecuted { command: command.to_string_lossy().into_owned(), errno }.into()
}

fn end(status: i32) -> CommandEnd {
    if libc::WIFSIGNALED(status) {
        CommandEnd::Signalled(libc::WTERMSIG(status))
    } else {
        CommandEnd::Exited(u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(u8::MAX))
    }
}

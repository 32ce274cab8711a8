//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tollgate_topology::Scope;

/// A policy-enforced view of a directory, at native speed.
#[derive(Debug, Parser)]
#[command(
    name = "tollgate",
    version = env!("TOLLGATE_VERSION"),
    arg_required_else_help = true,
    subcommand_required = true,
    max_term_width = 100,
    after_long_help = OVERVIEW
)]
pub(crate) struct Cli {
    /// Say more on standard error (what was negotiated, what was fallen back to)
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

const OVERVIEW: &str = "\
Examples:
  tollgate demo                                      see it at work
  tollgate run --policy p.toml ~/project -- make     make sees ~/project through the policy
  tollgate mount --policy p.toml ~/project ~/view    the same tree at a second place
  tollgate status                                    the servers that run, and what they did
  tollgate explain --policy p.toml .env              which rule decides, and why

Exit status: 0 done, 1 failed, 2 wrong usage. `run` passes on the status of CMD and ends with
125 when tollgate itself failed, 126 when CMD cannot be executed, 127 when CMD is not found.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command that sees DIR through the policy
    #[command(after_long_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Mount a view of DIR at MNT
    #[command(after_long_help = MOUNT_EXAMPLES)]
    Mount(MountArgs),
    /// Unmount a view, also one whose server is dead
    Umount(UmountArgs),
    /// Show the servers that run: what was negotiated, what was decided, what is missing and why
    Status(StatusArgs),
    /// Show what the servers do, refreshed: rates and latencies of requests, threads, busiest paths
    #[command(after_long_help = TOP_EXAMPLES)]
    Top(TopArgs),
    /// Check a policy file
    #[command(after_long_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Say which rule decides over a path, and why
    #[command(after_long_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArgs),
    /// Build a small project with secrets, run real programs over it, show what happened
    Demo(DemoArgs),
    /// Show the CPUs, caches and NUMA nodes of this machine, or of an invented one
    #[command(after_long_help = TOPOLOGY_EXAMPLES)]
    Topology(TopologyArgs),
    /// Huge pages: what is fastest on this machine
    #[command(subcommand)]
    Hugepage(HugepageCommand),
    /// Work queues of a running program: what they are, what they do, and changes while they run
    #[command(subcommand, after_long_help = WQ_EXAMPLES)]
    Wq(WqCommand),
    /// Print a completion script for a shell
    #[command(after_long_help = COMPLETION_EXAMPLES)]
    Completions {
        /// The shell to print for
        shell: clap_complete::Shell,
    },
    /// Measures a directory for `demo`; prints JSON
    #[command(hide = true)]
    DemoProbe {
        /// The directory to measure in
        dir: PathBuf,
    },
}

const RUN_EXAMPLES: &str = "\
In a private mount namespace the view covers DIR itself: CMD sees the same paths, cannot unmount
the view, and the raw tree is out of its reach. The view, and whatever CMD left running, is gone
when CMD ends. What this does and does not keep apart is listed in docs/run.md.

Examples:
  tollgate run --policy agent.toml . -- npm test
  tollgate run --policy agent.toml --audit /var/log/agent.jsonl ~/project -- bash
  tollgate run . -- sh -c 'cd sub && make'";

const MOUNT_EXAMPLES: &str = "\
Examples:
  tollgate mount --policy p.toml ~/project ~/view            until Ctrl-C or umount
  tollgate mount --daemon --log /tmp/t.log ~/project ~/view  returns when the view is ready
  tollgate umount ~/view";

const CHECK_EXAMPLES: &str = "\
Prints the warnings of a policy that can be read (exit status 0), or the file, line and column
of what is wrong (exit status 1).

Example:
  tollgate check policy.toml";

const EXPLAIN_EXAMPLES: &str = "\
PATH is relative to DIR. With --dir the file's kind, size and first bytes are read; without, PATH
is taken for an empty regular file (for a directory with a slash at its end).

Examples:
  tollgate explain --policy p.toml src/main.rs
  tollgate explain --policy p.toml --dir ~/project --operation write docs/a.md
  tollgate explain --policy p.toml --as uid=1000,exe=/usr/bin/node --json .env";

const TOPOLOGY_EXAMPLES: &str = "\
Examples:
  tollgate topology
  tollgate topology --scope cache_shard
  tollgate topology --synthetic 'numa:2 l3:4 core:8 pu:2' --scope cache --json";

const TUNE_EXAMPLES: &str = "\
Measures, whatever was kept from an earlier time, and changes nothing. Rows given here, or in the
environment variable TOLLGATE_CLEAR_PLAN, hold whatever is measured.

Examples:
  tollgate hugepage tune
  tollgate hugepage tune --rounds 3 --json";

const TOP_EXAMPLES: &str = "\
The columns are explained in docs/commands.md. The key q and Ctrl-C end it.

Examples:
  tollgate top
  tollgate top --once ~/view
  tollgate top --json --interval 5 | jq '.[] | {dir, requests_per_second}'";

const WQ_EXAMPLES: &str = "\
For programs that use the crate tollgate-workqueue and have called control::serve_default.
The columns are explained in docs/workqueue-tools.md.

Examples:
  tollgate wq dump                                   the only such program of this user
  tollgate wq monitor --pid 4711 --interval 5 crypt  one line per queue and interval
  tollgate wq set crypt affinity_scope=numa max_active=8";

const WQ_DUMP_EXAMPLES: &str = "\
Examples:
  tollgate wq dump
  tollgate wq dump --pid 4711 --json | jq '.queues[].name'";

const WQ_MONITOR_EXAMPLES: &str = "\
Ctrl-C ends it with status 0; a process that ends meanwhile, with status 1.

Examples:
  tollgate wq monitor
  tollgate wq monitor --interval 0.5 --count 10 crypt log
  tollgate wq monitor --json | jq '.queues[] | {name, started_per_s}'";

const WQ_SET_EXAMPLES: &str = "\
affinity_scope is cpu, smt, cache_shard, cache, numa, system or default; affinity_strict
and localize are true or false; cpumask is a list such as 0-3,8, or default; nice is from
-20 to 19; max_active is from 1 to 65536, or default. Nothing that is queued is lost.

Examples:
  tollgate wq set crypt max_active=8
  tollgate wq set crypt affinity_scope=numa affinity_strict=true cpumask=0-3
  tollgate wq set crypt affinity_scope=default max_active=default";

const COMPLETION_EXAMPLES: &str = "\
Examples:
  tollgate completions bash > /etc/bash_completion.d/tollgate
  tollgate completions zsh  > ~/.zfunc/_tollgate
  tollgate completions fish > ~/.config/fish/completions/tollgate.fish";

/// What `run` and `mount` have in common.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The policy to enforce; left out, everything passes through
    #[arg(long, short, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,

    /// Append an audit log in JSON lines to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) audit: Option<PathBuf>,

    /// What the audit log records
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = AuditDetail::Opens,
          requires = "audit")]
    pub(crate) audit_level: AuditDetail,

    /// Size in MiB at which the audit log is rotated
    #[arg(long, value_name = "MIB", default_value_t = 64, requires = "audit",
          value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub(crate) audit_size: u64,

    /// Rotated audit logs to keep (FILE.1 is the newest)
    #[arg(long, value_name = "N", default_value_t = 4, requires = "audit",
          value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) audit_keep: u32,

    /// Serve counters as Prometheus text at http://127.0.0.1:PORT/metrics, for every local user
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) metrics_port: Option<u16>,

    /// Threads that serve requests; left out, chosen from the machine
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,

    /// How requests come from the kernel; `uring` falls back to `devfuse` where it cannot be used
    #[arg(long, value_name = "TRANSPORT", value_enum, default_value_t = Transport::Auto)]
    pub(crate) transport: Transport,

    /// Seconds for which the kernel may cache attributes and names
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) attr_timeout: Duration,

    /// Keep CPUs from halting while requests come in bursts: faster where waking a CPU is slow, as
    /// on virtual machines
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = KeepAwakeWhen::Auto)]
    pub(crate) keep_awake: KeepAwakeWhen,

    /// Whether to watch DIR for changes behind the view, so that the kernel may cache names and
    /// attributes for longer than `--attr-timeout`
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = WatchArg::Auto)]
    pub(crate) watch: WatchArg,

    /// Descriptors that the server may hold open on DIR
    #[arg(long, value_name = "N", value_parser = descriptors)]
    pub(crate) max_descriptors: Option<usize>,
}

/// Whether changes behind the view are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WatchArg {
    /// Where the kernel permits it (root), and unless `--attr-timeout` is 0
    Auto,
    /// Always; without permission, Tollgate does not start
    On,
    /// Never
    Off,
}

/// When CPUs are kept from halting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KeepAwakeWhen {
    /// If waking a CPU is slow here, and not on battery, under a CPU quota, or while the host is
    /// busy
    Auto,
    /// In every burst of requests
    On,
    /// Never
    Off,
}

impl From<KeepAwakeWhen> for tollgate_haltpoll::Mode {
    fn from(when: KeepAwakeWhen) -> Self {
        match when {
            KeepAwakeWhen::Auto => Self::Auto,
            KeepAwakeWhen::On => Self::On,
            KeepAwakeWhen::Off => Self::Off,
        }
    }
}

/// What the audit log records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AuditDetail {
    /// Refused operations only
    Refused,
    /// Refused operations, opens, and changes of names and attributes
    Opens,
    /// Every request that reaches Tollgate, with each read and write of `userspace` files
    All,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) serve: ServeArgs,

    /// The directory that CMD sees through the policy
    pub(crate) dir: PathBuf,

    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct MountArgs {
    #[command(flatten)]
    pub(crate) serve: ServeArgs,

    /// Return when the view is ready and serve in the background
    #[arg(long)]
    pub(crate) daemon: bool,

    /// Where the background server writes its messages (left out: nowhere)
    #[arg(long, value_name = "FILE", requires = "daemon")]
    pub(crate) log: Option<PathBuf>,

    /// The directory to show
    pub(crate) dir: PathBuf,

    /// The empty directory to show it at, outside of DIR
    pub(crate) mnt: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct UmountArgs {
    /// Detach now and let programs that still use the view finish
    #[arg(long, short)]
    pub(crate) lazy: bool,

    /// The mount point
    pub(crate) mnt: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Show rates and latencies of requests by operation and decision, and the threads
    #[arg(long)]
    pub(crate) requests: bool,

    /// Print the counters of one server as Prometheus text
    #[arg(long, conflicts_with_all = ["json", "requests"])]
    pub(crate) metrics: bool,

    /// The mount point (for `run`: DIR); left out, every server of this user
    pub(crate) mnt: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,

    /// End after so many looks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,

    /// Print one table after one interval and end
    #[arg(long, conflicts_with = "count")]
    pub(crate) once: bool,

    /// Print JSON, one line per interval
    #[arg(long)]
    pub(crate) json: bool,

    /// The mount point (for `run`: DIR); left out, every server of this user
    pub(crate) mnt: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The policy file
    pub(crate) policy: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The policy; left out, everything passes through
    #[arg(long, short, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,

    /// The directory that PATH is in, to look at the real file
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// Only this operation; left out, all four
    #[arg(long, value_name = "OPERATION", value_enum)]
    pub(crate) operation: Option<OperationArg>,

    /// Who asks: uid=N, gid=N, exe=PATH, separated by commas; left out, you, without a program
    #[arg(long = "as", value_name = "WHO", value_parser = caller)]
    pub(crate) caller: Option<CallerArg>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// The path to explain, relative to DIR
    pub(crate) path: OsString,
}

/// The operations that a policy distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OperationArg {
    /// Open for reading, execute, read a link or an extended attribute
    Read,
    /// Open for writing, truncate, change attributes, remove or rename a name
    Write,
    /// Make a name
    Create,
    /// List a directory
    List,
}

/// The caller named by `--as`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallerArg {
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) exe: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TopologyArgs {
    /// Describe this machine instead, such as 'numa:2 l3:4 core:8 pu:2'
    #[arg(long, value_name = "DESCRIPTION")]
    pub(crate) synthetic: Option<String>,

    /// Cut the CPUs into the pods of a scope: cpu, smt, cache, cache_shard, numa or system
    #[arg(long, value_name = "SCOPE")]
    pub(crate) scope: Option<Scope>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum HugepageCommand {
    /// Measure the ways to clear and copy memory, and print the samples and the choice
    #[command(after_long_help = TUNE_EXAMPLES)]
    Tune(TuneArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TuneArgs {
    /// Samples of each way, taken in turn
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,

    /// Rows of the plan that hold whatever is measured
    #[arg(long, value_name = "ROWS")]
    pub(crate) plan: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WqCommand {
    /// Show scopes, pods, pools, queues with their attributes, and where the items of each CPU go
    #[command(after_long_help = WQ_DUMP_EXAMPLES)]
    Dump(WqDumpArgs),
    /// Show what each queue did, per second, until Ctrl-C
    #[command(after_long_help = WQ_MONITOR_EXAMPLES)]
    Monitor(WqMonitorArgs),
    /// Change attributes of a queue, all or none
    #[command(after_long_help = WQ_SET_EXAMPLES)]
    Set(WqSetArgs),
}

/// Which process to look into.
#[derive(Debug, Args)]
pub(crate) struct WqTarget {
    /// The process; left out, the only one of this user with a socket
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,

    /// The control socket, where it is not in the usual place
    #[arg(long, value_name = "PATH", conflicts_with = "pid")]
    pub(crate) socket: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct WqDumpArgs {
    #[command(flatten)]
    pub(crate) target: WqTarget,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct WqMonitorArgs {
    #[command(flatten)]
    pub(crate) target: WqTarget,

    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,

    /// End after so many tables
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,

    /// Print JSON, one line per interval
    #[arg(long)]
    pub(crate) json: bool,

    /// The queues to show; left out, all
    #[arg(value_name = "QUEUE")]
    pub(crate) queues: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct WqSetArgs {
    #[command(flatten)]
    pub(crate) target: WqTarget,

    /// The queue
    pub(crate) queue: String,

    /// What to set: affinity_scope, affinity_strict, localize, cpumask, nice or max_active
    #[arg(required = true, value_name = "ATTRIBUTE=VALUE")]
    pub(crate) settings: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Keep the project and print where it is
    #[arg(long)]
    pub(crate) keep: bool,

    /// Leave the speed table out
    #[arg(long)]
    pub(crate) no_speed: bool,
}

/// `--transport`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// What measured faster, which is /dev/fuse so far
    #[default]
    Auto,
    /// Read and write /dev/fuse
    Devfuse,
    /// io_uring (Linux 6.14, `echo Y > /sys/module/fuse/parameters/enable_uring`)
    Uring,
}

impl From<Transport> for tollgate_fuse::TransportChoice {
    fn from(transport: Transport) -> Self {
        match transport {
            Transport::Auto => Self::Auto,
            Transport::Devfuse => Self::DevFuse,
            Transport::Uring => Self::Uring,
        }
    }
}

/// Most threads that serve one view; each has a request buffer of 1 MiB.
pub(crate) const MAX_THREADS: usize = 256;
/// Fewest descriptors a view can work with.
pub(crate) const MIN_DESCRIPTORS: usize = 32;
/// Longest time for which the kernel may cache names and attributes.
const MAX_TIMEOUT_SECONDS: f64 = 86_400.0;

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(threads) if (1..=MAX_THREADS).contains(&threads) => Ok(threads),
        _ => Err(format!("expected a whole number from 1 to {MAX_THREADS}")),
    }
}

fn descriptors(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(descriptors) if descriptors >= MIN_DESCRIPTORS => Ok(descriptors),
        _ => Err(format!("expected a whole number of at least {MIN_DESCRIPTORS}")),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=MAX_TIMEOUT_SECONDS).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err(format!("expected seconds from 0 to {MAX_TIMEOUT_SECONDS}, such as 0.5")),
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected seconds from 0.1 to 3600".to_owned()),
    }
}

fn caller(text: &str) -> Result<CallerArg, String> {
    let mut caller = CallerArg::default();
    for part in text.split(',') {
        match part.split_once('=') {
            Some(("uid", number)) => caller.uid = Some(id("uid", number)?),
            Some(("gid", number)) => caller.gid = Some(id("gid", number)?),
            Some(("exe", path)) if path.starts_with('/') => caller.exe = Some(path.to_owned()),
            Some(("exe", path)) => return Err(format!("exe=`{path}` is not an absolute path")),
            _ => return Err(format!("`{part}` is none of uid=N, gid=N, exe=PATH")),
        }
    }
    Ok(caller)
}

fn id(what: &str, number: &str) -> Result<u32, String> {
    number.parse().map_err(|_| format!("{what}=`{number}` is not a number from 0 to {}", u32::MAX))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn run_takes_the_command_after_two_dashes_as_it_is() {
        let cli = Cli::try_parse_from(["tollgate", "run", "d", "--", "ls", "--policy", "-l"]);
        let Command::Run(run) = cli.unwrap().command else { panic!("not run") };
        assert_eq!(run.command, ["ls", "--policy", "-l"]);
        assert_eq!(run.serve.policy, None);
    }

    #[test]
    fn a_caller_is_read_part_by_part() {
        let parsed = caller("uid=5,exe=/bin/a=b").unwrap();
        let expected = CallerArg { uid: Some(5), gid: None, exe: Some("/bin/a=b".to_owned()) };
        assert_eq!(parsed, expected);
        assert!(caller("uid=-1").unwrap_err().contains("uid=`-1`"));
        assert!(caller("exe=node").unwrap_err().contains("absolute"));
        assert!(caller("pid=1").unwrap_err().contains("`pid=1`"));
        assert!(caller("").is_err());
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        assert!(threads("0").is_err() && threads("257").is_err() && threads("256").is_ok());
        assert!(seconds("-1").is_err() && seconds("NaN").is_err() && seconds("inf").is_err());
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        assert!(descriptors("31").is_err() && descriptors("32").is_ok());
    }
}

//! What `run` and `mount` have in common.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::broker::BrokerChoice;
use super::seal::SealSecretArgs;
use super::values::port;

/// What `run` and `mount` have in common.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The policy to enforce: a file, a built-in preset (agent, node, python, rust, ci, read-only;
    /// a file of such a name as `./node`), or `none` for a bare view. Left out: $TOLLGATE_POLICY or
    /// your configuration, which .tollgate.toml of DIR can only tighten; else that file; else
    /// `agent`
    #[arg(long, short, value_name = "POLICY")]
    pub(crate) policy: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) seal: SealSecretArgs,

    /// Append an audit log in JSON lines to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) audit: Option<PathBuf>,

    /// What the audit log records
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = AuditDetail::Opens,
          requires = "audit")]
    pub(crate) audit_level: AuditDetail,

    /// Size in MiB at which the audit log is rotated
    #[arg(long, value_name = "MIB", default_value_t = 64, requires = "audit",
          allow_negative_numbers = true,
          value_parser = audit_size)]
    pub(crate) audit_size: u64,

    /// Rotated audit logs to keep (FILE.1 is the newest)
    #[arg(long, value_name = "N", default_value_t = 4, requires = "audit",
          allow_negative_numbers = true,
          value_parser = audit_keep)]
    pub(crate) audit_keep: u32,

    /// Serve counters as Prometheus text at http://127.0.0.1:PORT/metrics, for every local user
    #[arg(long, value_name = "PORT", allow_negative_numbers = true,
          value_parser = port)]
    pub(crate) metrics_port: Option<u16>,

    /// Threads that serve requests; left out, chosen from the machine
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = threads)]
    pub(crate) threads: Option<usize>,

    /// How requests come from the kernel; `uring` falls back to `devfuse` where it cannot be used
    #[arg(long, value_name = "TRANSPORT", value_enum, default_value_t = Transport::Auto)]
    pub(crate) transport: Transport,

    /// Seconds for which the kernel may cache attributes and names
    #[arg(long, value_name = "SECONDS", default_value = "1", allow_negative_numbers = true,
          value_parser = seconds)]
    pub(crate) attr_timeout: Duration,

    /// Keep CPUs from halting while requests come in bursts: faster where waking a CPU is slow, as
    /// on virtual machines
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = KeepAwakeWhen::Auto)]
    pub(crate) keep_awake: KeepAwakeWhen,

    /// Whether to watch DIR for changes behind the view, so that the kernel may cache names and
    /// attributes for longer than `--attr-timeout`
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = WatchArg::Auto)]
    pub(crate) watch: WatchArg,

    /// Where programs get the bytes of small files (at most 64 KiB) that they only read
    #[arg(long, value_name = "FROM", value_enum, default_value_t = SmallFilesArg::Auto)]
    pub(crate) small_files: SmallFilesArg,

    /// Where a broker of root listens that registers files for this server; `auto`: at
    /// $XDG_RUNTIME_DIR/tollgate/broker.sock or /run/tollgate/broker.sock if this process may not
    /// register files itself; `off`: nowhere
    #[arg(long, value_name = "auto|off|PATH", default_value = "auto")]
    pub(crate) broker: BrokerChoice,

    /// Descriptors that the server may hold open on DIR
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = descriptors)]
    pub(crate) max_descriptors: Option<usize>,

    /// Whether the server gives up what it does not need once it serves: files outside of DIR,
    /// capabilities, tracing, system calls
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = SandboxMode::On)]
    pub(crate) sandbox: SandboxMode,
}

/// `--sandbox`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SandboxMode {
    /// A system call that serving does not need fails, is said, and is counted by `status`
    On,
    /// Nothing is given up: whoever takes the server over has all that its user has
    Off,
    /// As `on`, but such a call ends the server: for tests
    #[value(hide = true)]
    Strict,
}

/// Whether changes behind the view are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WatchArg {
    /// Where the kernel permits it, also to users, and unless `--attr-timeout` is 0
    Auto,
    /// Always; where the kernel does not permit it, Tollgate does not start
    On,
    /// Never
    Off,
}

/// Where the bytes of small files that are only read come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SmallFilesArg {
    /// `cached` where DIR is watched, and for a user who may not register files with the kernel
    Auto,
    /// From the view's page cache: faster, and a change made directly in DIR is seen by the next
    /// open, or within about a second where the file is open or mapped already
    Cached,
    /// From the file itself, like large ones: a change is seen at once in each case
    Passthrough,
}

impl From<SmallFilesArg> for tollgate_view::SmallFiles {
    fn from(from: SmallFilesArg) -> Self {
        match from {
            SmallFilesArg::Auto => Self::Auto,
            SmallFilesArg::Cached => Self::Cached,
            SmallFilesArg::Passthrough => Self::Passthrough,
        }
    }
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

/// `--transport`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// io_uring where the kernel's parameter is on and it can be used, else /dev/fuse
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
const MAX_THREADS: usize = 256;
/// Fewest descriptors a view can work with.
const MIN_DESCRIPTORS: usize = 32;
/// Longest time for which the kernel may cache names and attributes.
const MAX_TIMEOUT_SECONDS: f64 = 86_400.0;

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(threads) if (1..=MAX_THREADS).contains(&threads) => Ok(threads),
        _ => Err(format!("expected a whole number from 1 to {MAX_THREADS}")),
    }
}

fn audit_size(text: &str) -> Result<u64, String> {
    let size = text.parse().ok().filter(|size| (1..=1_048_576).contains(size));
    size.ok_or("expected a whole number from 1 to 1048576".into())
}

fn audit_keep(text: &str) -> Result<u32, String> {
    let keep = text.parse().ok().filter(|keep| *keep <= 1000);
    keep.ok_or("expected a whole number from 0 to 1000".into())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_refused() {
        assert!(threads("0").is_err() && threads("257").is_err() && threads("256").is_ok());
        assert!(seconds("-1").is_err() && seconds("NaN").is_err() && seconds("inf").is_err());
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        assert!(descriptors("31").is_err() && descriptors("32").is_ok());
    }
}

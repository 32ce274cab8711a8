//! The command line.

mod audit;
mod broker;
mod fence;
mod help;
mod machine;
mod mount;
mod mount_flags;
mod other;
mod packages;
mod policy;
mod redact;
mod reload;
mod run;
mod seal;
mod serve;
mod values;
mod watching;
mod wq;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

pub(crate) use audit::{AuditArgs, LearnArgs};
pub(crate) use broker::{BrokerArgs, BrokerChoice};
pub(crate) use fence::{
    AllowArg, EnvArg, FenceWhen, HostArg, LimitArgs, NetworkArgs, NetworkMode, Required,
};
pub(crate) use help::{grouped, hint_of_dashes, is_run, wants_overview};
pub(crate) use machine::{HugepageCommand, TopologyArgs, TuneArgs};
pub(crate) use mount::{MountArgs, UmountArgs};
pub(crate) use mount_flags::{MountFlagArgs, OthersArg};
pub(crate) use other::{DemoArgs, DoctorArgs};
pub(crate) use packages::ManPagesArgs;
pub(crate) use policy::caller;
pub(crate) use policy::{
    BriefArgs, CallerArg, CheckArgs, ExplainArgs, InitArgs, OperationArg, TestArgs,
};
pub(crate) use redact::{RedactCommand, RedactTestArgs};
pub(crate) use reload::ReloadArgs;
pub(crate) use run::{RunArgs, WhyArgs};
pub(crate) use seal::{
    ProgressArg, SealAddArgs, SealCheckArgs, SealCommand, SealConvertArgs, SealExportArgs,
    SealFilesArgs, SealInitArgs, SealKeyArgs, SealNewArgs, SealPasswdArgs, SealRotateArgs,
    SealSecretArgs,
};
pub(crate) use serve::{AuditDetail, SandboxMode, ServeArgs, WatchArg};
pub(crate) use watching::{StatusArgs, TopArgs};
pub(crate) use wq::{WqCommand, WqDumpArgs, WqMonitorArgs, WqSetArgs, WqTarget};

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
  tollgate doctor                                    what this machine can do
  tollgate demo                                      see it at work
  tollgate run -- claude                             fence an agent in this repository
  tollgate run --policy p.toml ~/project -- make     make sees ~/project through the policy
  tollgate mount --policy p.toml ~/project ~/view    the same tree at a second place
  tollgate status                                    the servers that run, and what they did
  tollgate explain --policy p.toml .env              which rule decides, and why

Exit status: 0 done, 1 failed, 2 wrong usage. `run` passes on the status of CMD and ends with
125 when tollgate itself failed, 126 when CMD cannot be executed, 127 when CMD is not found.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command that sees DIR through the policy
    #[command(after_long_help = run::RUN_EXAMPLES)]
    Run(RunArgs),
    /// Mount a view of DIR at MNT
    #[command(after_long_help = mount::MOUNT_EXAMPLES)]
    Mount(MountArgs),
    /// Unmount a view, also one whose server is dead
    #[command(after_long_help = mount::UMOUNT_EXAMPLES)]
    Umount(UmountArgs),
    /// Show the servers that run: their policies, what they refused, what is missing and why
    #[command(after_long_help = watching::STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// Show what the servers do, refreshed: rates and latencies of requests, threads, busiest paths
    #[command(after_long_help = watching::TOP_EXAMPLES)]
    Top(TopArgs),
    /// Show an audit log: columns, conditions, totals; follow it
    #[command(after_long_help = audit::AUDIT_EXAMPLES)]
    Audit(AuditArgs),
    /// Propose the narrowest policy that allows what audit logs show
    #[command(after_long_help = audit::LEARN_EXAMPLES)]
    Learn(LearnArgs),
    /// Have servers read their policies again
    #[command(after_long_help = reload::RELOAD_EXAMPLES)]
    Reload(ReloadArgs),
    /// Register files with the kernel for users without privilege: passthrough without root
    #[command(after_long_help = broker::BROKER_EXAMPLES)]
    Broker(BrokerArgs),
    /// Check a policy file
    #[command(after_long_help = policy::CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Say which rule decides over a path, and why
    #[command(after_long_help = policy::EXPLAIN_EXAMPLES)]
    Explain(ExplainArgs),
    /// Inside `run`: say whether CMD may read or change a path, and what would allow it
    #[command(after_long_help = run::WHY_EXAMPLES)]
    Why(WhyArgs),
    /// Write a policy fitted to a directory, and say what was found
    #[command(after_long_help = policy::INIT_EXAMPLES)]
    Init(InitArgs),
    /// Check the answers of a policy against what is expected of them
    #[command(after_long_help = policy::TEST_EXAMPLES)]
    Test(TestArgs),
    /// Print a text for an agent's memory file: what is fenced, and what a refusal means
    #[command(after_long_help = policy::BRIEF_EXAMPLES)]
    Brief(BriefArgs),
    /// Say what this machine can do, what is missing, and the command that mends it
    #[command(after_long_help = other::DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// Build a small project with secrets, run real programs over it, show what happened
    #[command(after_long_help = other::DEMO_EXAMPLES)]
    Demo(DemoArgs),
    /// Show the CPUs, caches and NUMA nodes of this machine, or of an invented one
    #[command(after_long_help = machine::TOPOLOGY_EXAMPLES)]
    Topology(TopologyArgs),
    /// Huge pages: what is fastest on this machine
    #[command(subcommand, after_long_help = machine::HUGEPAGE_EXAMPLES)]
    Hugepage(HugepageCommand),
    #[command(subcommand, after_long_help = redact::REDACT_EXAMPLES)]
    Redact(RedactCommand),
    #[command(subcommand, after_long_help = seal::SEAL_EXAMPLES)]
    Seal(SealCommand),
    /// Work queues of a running program: what they are, what they do, and changes while they run
    #[command(subcommand, after_long_help = wq::WQ_EXAMPLES)]
    Wq(WqCommand),
    /// Print a completion script for a shell
    #[command(after_long_help = other::COMPLETION_EXAMPLES)]
    Completions {
        /// The shell to print for
        shell: clap_complete::Shell,
    },
    /// Writes a man page for each command into a directory
    #[command(hide = true)]
    ManPages(ManPagesArgs),
    /// Reads a file of a view for `doctor`, and prints what its server says; JSON
    #[command(hide = true)]
    DoctorProbe {
        /// The directory that the view shows
        dir: PathBuf,
    },
    /// Measures a directory for `demo`; prints JSON
    #[command(hide = true)]
    DemoProbe {
        /// The directory to measure in
        dir: PathBuf,
    },
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
}

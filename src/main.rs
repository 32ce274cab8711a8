//! The `tollgate` binary: command line, servers, demo.

mod audit;
mod check;
mod cli;
mod control;
mod daemon;
mod demo;
mod explain;
mod machine;
mod messages;
mod mount;
mod mountinfo;
mod native;
mod policy_file;
mod prometheus;
mod requests;
mod run;
mod serve;
mod status;
mod sys;
mod top;
mod tree;
mod umount;
mod wq;

use std::ffi::OsStr;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use cli::{Cli, Command, HugepageCommand};
use run::{CommandEnd, NotExecuted};

/// Something failed.
const FAILED: u8 = 1;
/// `run` failed before CMD started, or its command line was wrong; the status of env(1) and
/// timeout(1) for such failures.
const RUN_FAILED: u8 = 125;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return wrong_usage(&error),
    };
    log(cli.verbose);
    if only_prints(&cli.command) {
        // As other tools do that feed `head`. A server must not end because a client went away.
        sys::end_on_closed_pipe();
    }
    let (name, result) = dispatch(cli.command);
    match result {
        Ok(code) => code,
        Err(error) => {
            messages::say(&format!("{name}: {}", messages::in_words(&error)));
            ExitCode::from(failure_code(name, &error))
        }
    }
}

fn dispatch(command: Command) -> (&'static str, anyhow::Result<ExitCode>) {
    let done = |result: anyhow::Result<()>| result.map(|()| ExitCode::SUCCESS);
    match command {
        Command::Run(args) => ("run", run::run(&args).map(end_like_command)),
        Command::Mount(args) => ("mount", done(mount::run(&args))),
        Command::Umount(args) => ("umount", done(umount::run(&args))),
        Command::Status(args) => ("status", done(status::run(&args))),
        Command::Top(args) => ("top", done(top::run(&args))),
        Command::Check(args) => ("check", done(check::run(&args))),
        Command::Explain(args) => ("explain", done(explain::run(&args))),
        Command::Demo(args) => ("demo", done(demo::run(&args))),
        Command::DemoProbe { dir } => ("demo-probe", done(demo::probe(&dir))),
        Command::Topology(args) => ("topology", done(machine::topology(&args))),
        Command::Hugepage(HugepageCommand::Tune(args)) => ("hugepage", done(machine::tune(&args))),
        Command::Wq(command) => ("wq", done(wq::run(&command))),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tollgate", &mut script);
            let written = std::io::Write::write_all(&mut std::io::stdout(), &script);
            ("completions", done(written.map_err(Into::into)))
        }
    }
}

/// Whether the command ends by itself and keeps nothing that would have to be cleaned up.
fn only_prints(command: &Command) -> bool {
    match command {
        Command::Run(_) | Command::Mount(_) | Command::Umount(_) | Command::Demo(_) => false,
        // It restores the terminal.
        Command::Top(_) => false,
        Command::Status(_) | Command::Check(_) | Command::Explain(_) | Command::Topology(_) => true,
        Command::Hugepage(_) | Command::Wq(_) => true,
        Command::DemoProbe { .. } | Command::Completions { .. } => true,
    }
}

/// Ends as CMD did: with its code, or by its signal.
fn end_like_command(end: CommandEnd) -> ExitCode {
    match end {
        CommandEnd::Exited(code) => ExitCode::from(code),
        CommandEnd::Signalled(signal) => {
            sys::die_by_signal(signal);
            // Only for a signal that ended CMD and does not end us.
            ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))
        }
    }
}

fn failure_code(name: &str, error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<NotExecuted>() {
        Some(not_executed) => not_executed.exit_code(),
        None if name == "run" => RUN_FAILED,
        None => FAILED,
    }
}

fn wrong_usage(error: &clap::Error) -> ExitCode {
    // A message that cannot be printed has no other place to go.
    let _ = error.print();
    let help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if help {
        ExitCode::SUCCESS
    } else if std::env::args_os().nth(1).as_deref() == Some(OsStr::new("run")) {
        ExitCode::from(RUN_FAILED)
    } else {
        ExitCode::from(2)
    }
}

/// Sends the libraries' messages to standard error: warnings always, more with `--verbose`.
fn log(verbose: bool) {
    let level = if verbose { tracing::Level::DEBUG } else { tracing::Level::WARN };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        .without_time()
        .init();
}

//! The `tollgate` binary: command line, servers, demo.

// First: its macros are for all that follow.
#[macro_use]
mod output;

mod accounts;
mod any_path;
mod audit;
mod believed;
mod brief;
mod broker;
mod check;
mod chroot;
mod cli;
mod connection;
mod control;
mod counting;
mod daemon;
mod demo;
mod doctor;
mod escape;
mod explain;
mod files;
mod forged;
mod git;
mod inherited;
mod init;
mod killed;
mod learn;
mod lingering;
mod machine;
mod man_pages;
mod messages;
mod mount;
mod mount_flags;
mod mount_helper;
mod mountinfo;
mod native;
mod nearest;
mod other_mounts;
mod other_paths;
mod policy_choice;
mod policy_file;
mod policy_masked;
mod policy_places;
mod policy_test;
mod policy_views;
mod presets;
mod prometheus;
mod redact;
mod reload;
mod requests;
mod run;
mod sandbox;
mod seal;
mod serve;
mod soft_limits;
mod status;
mod survey;
mod sys;
mod top;
mod tree;
mod umount;
mod user_config;
mod viewer;
mod why;
mod wq;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};

use cli::{Cli, Command, HugepageCommand};
use run::{CommandEnd, EndedBySignal, NotExecuted};

/// Something failed.
const FAILED: u8 = 1;
/// `run` failed before CMD started, or its command line was wrong; the status of env(1) and
/// timeout(1) for such failures.
const RUN_FAILED: u8 = 125;

/// The smallest stack that is enough, in bytes.
const STACK_MIN: u64 = 256 << 10;

fn main() -> ExitCode {
    // With less, the program would be killed somewhere below, without a word.
    let stack = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
    if let Some(stack) = stack.filter(|stack| *stack < STACK_MIN) {
        messages::say(&format!(
            "the stack may have {} KiB (`ulimit -s`), and {} are needed",
            stack >> 10,
            STACK_MIN >> 10
        ));
        let is_run = cli::is_run(&std::env::args_os().collect::<Vec<_>>());
        return ExitCode::from(if is_run { RUN_FAILED } else { FAILED });
    }
    with_enough_stack()
}

#[inline(never)]
fn with_enough_stack() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let translated = mount_helper::command_line(&arguments);
    let is_helper = translated.is_some();
    let arguments = match translated {
        None => arguments,
        Some(Ok(translated)) => translated,
        Some(Err(error)) => {
            messages::say(&messages::in_words(&error));
            return ExitCode::from(FAILED);
        }
    };
    let cli = match parse(&arguments) {
        Ok(cli) => cli,
        Err(error) if is_helper => {
            messages::say(
                mount_helper::in_words_of_options(&error.render().to_string())
                    .trim_start_matches("error: "),
            );
            return ExitCode::from(FAILED);
        }
        Err(error) => return wrong_usage(&arguments, &error),
    };
    let verbose = cli.verbose;
    log(verbose);
    if only_prints(&cli.command) {
        // As other tools do that feed `head`. A server must not end because a client went away.
        sys::end_on_closed_pipe();
    }
    let (name, result) = dispatch(cli.command, verbose);
    // An error of the command comes first.
    let result = result.and_then(|code| output::finish().map(|()| code));
    match result {
        Ok(code) => code,
        Err(error) => {
            messages::say(&format!("{name}: {}", messages::in_words(&error)));
            if let Some(EndedBySignal(signal)) = error.downcast_ref() {
                sys::die_by_signal(*signal);
            }
            ExitCode::from(failure_code(name, &error))
        }
    }
}

fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let command = Cli::command();
    let mut command = if cli::wants_overview(arguments) { cli::grouped(command) } else { command };
    let matches = command.try_get_matches_from_mut(arguments)?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    if let (Command::Run(args), Some((_, of_run))) = (&mut cli.command, matches.subcommand()) {
        args.remember_given(of_run);
    }
    Ok(cli)
}

fn dispatch(command: Command, verbose: bool) -> (&'static str, anyhow::Result<ExitCode>) {
    let done = |result: anyhow::Result<()>| result.map(|()| ExitCode::SUCCESS);
    match command {
        Command::Run(args) => ("run", run::run(&args).map(end_like_command)),
        Command::Mount(args) => ("mount", done(mount::run(&args))),
        Command::Umount(args) => ("umount", done(umount::run(&args))),
        Command::Status(args) => ("status", done(status::run(&args, verbose))),
        Command::Top(args) => ("top", done(top::run(&args))),
        Command::Audit(args) => ("audit", done(viewer::run(&args))),
        Command::Learn(args) => ("learn", done(learn::run(&args))),
        Command::Reload(args) => ("reload", done(reload::run(&args))),
        Command::Broker(args) => ("broker", done(broker::run(&args))),
        Command::Check(args) => ("check", done(check::run(&args))),
        Command::Why(args) => ("why", done(why::run(&args))),
        Command::Explain(args) => ("explain", explain::run(&args, verbose)),
        Command::Init(args) => ("init", done(init::run(&args))),
        Command::Test(args) => ("test", policy_test::run(&args)),
        Command::Brief(args) => ("brief", done(brief::run(&args))),
        Command::Doctor(args) => ("doctor", doctor::run(&args)),
        Command::Demo(args) => ("demo", done(demo::run(&args))),
        Command::DemoProbe { dir } => ("demo-probe", done(demo::probe(&dir))),
        Command::ManPages(args) => ("man-pages", done(man_pages::run(&args))),
        Command::DoctorProbe { dir } => ("doctor-probe", done(doctor::inside(&dir))),
        Command::Topology(args) => ("topology", done(machine::topology(&args))),
        Command::Hugepage(HugepageCommand::Tune(args)) => ("hugepage", done(machine::tune(&args))),
        Command::Redact(command) => ("redact", done(redact::run(&command))),
        Command::Seal(command) => ("seal", done(seal::run(&command))),
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
        Command::Reload(_) | Command::Broker(_) => false,
        // It removes what is not complete.
        Command::Seal(_) => false,
        // It restores the terminal.
        Command::Top(_) => false,
        Command::Init(_) | Command::Test(_) | Command::Brief(_) | Command::Doctor(_) => true,
        Command::Status(_) | Command::Check(_) | Command::Explain(_) | Command::Topology(_) => true,
        Command::Redact(_) | Command::Why(_) => true,
        Command::Hugepage(_) | Command::Wq(_) | Command::Audit(_) | Command::Learn(_) => true,
        Command::DemoProbe { .. } | Command::Completions { .. } | Command::ManPages(_) => true,
        Command::DoctorProbe { .. } => true,
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

fn wrong_usage(arguments: &[OsString], error: &clap::Error) -> ExitCode {
    let help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if help {
        sys::end_on_closed_pipe();
        match error.print().map_err(anyhow::Error::from).and_then(|()| output::finish()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                messages::say(&format!("the output cannot be written: {error}"));
                ExitCode::from(FAILED)
            }
        }
    } else {
        print_usage_error(error);
        code_of_wrong_usage(arguments, error)
    }
}

/// With the prefix of all messages in the place of clap's `error:`.
fn print_usage_error(error: &clap::Error) {
    let rendered = error.render();
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let text = if terminal { rendered.ansi().to_string() } else { rendered.to_string() };
    let text = text.replacen("error:", "tollgate:", 1);
    let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
}

fn code_of_wrong_usage(arguments: &[OsString], error: &clap::Error) -> ExitCode {
    if cli::is_run(arguments) {
        if let Some(hint) = cli::hint_of_dashes(arguments, error) {
            messages::say(&format!("run: {hint}"));
        }
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
        // A line that cannot be written would be told of by a macro that panics then, in whatever
        // thread it is: a worker that ends so leaves its requests without an answer.
        .log_internal_errors(false)
        .without_time()
        .init();
}

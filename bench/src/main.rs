//! Benchmarks of Tollgate beside its peers.
//!
//! `cargo run --release -p bench -- NAME [--quick] [--rounds N] [--json FILE] [--svg FILE] [--csv
//! FILE] [--only ROW_SUBSTRING]`

pub mod harness;
mod hugepage;
mod mounts;
pub mod passthrough;
mod programs;
mod project;
mod redacted;
mod sealed;
mod tree;
mod workqueue;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};
use harness::Options;
use tree::TreeOptions;

/// A benchmark: its name on the command line, one line about it, and its entry.
type Bench = (&'static str, &'static str, fn(&Options) -> Result<()>);

/// The one with options of its own.
const TREE: &str = "tree";

/// All benchmarks. To add one: its `mod` above, its line here.
const BENCHES: &[Bench] = &[
    (
        "passthrough",
        "A view against the bare directory and against a server on the fuser crate (as root)",
        passthrough::run,
    ),
    ("hugepage", "Clearing, getting, using and copying 2 MiB buffers", hugepage::run),
    ("redacted", "Reading source text with its secrets masked (as root)", redacted::run),
    ("sealed", "Sealed files against user space and gocryptfs (as root)", sealed::run),
    ("workqueue", "The workqueue runtime beside rayon, tokio and affinitypool", workqueue::run),
];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let matches = command().get_matches();
    let Some((name, arguments)) = matches.subcommand() else { return Ok(()) };
    match name {
        SERVE_PEER => return serve_peer(arguments),
        tree::CLIENT => return tree::run_client(arguments),
        _ => {}
    }
    harness::interrupt::install()?;
    let options = Options::from_arg_matches(arguments)?;
    if name == TREE {
        return tree::run(&options, &TreeOptions::from_arg_matches(arguments)?);
    }
    match BENCHES.iter().find(|bench| bench.0 == name) {
        Some((_, _, run)) => run(&options),
        None => Ok(()),
    }
}

/// `bench serve-peer DIR MNT` is how the passthrough benchmark starts its peer.
const SERVE_PEER: &str = "serve-peer";

fn serve_peer(arguments: &ArgMatches) -> Result<()> {
    let path = |name| arguments.get_one::<PathBuf>(name).context("clap requires it");
    let threads = *arguments.get_one("threads").context("clap has a default")?;
    passthrough::peer::serve(path("DIR")?, path("MNT")?, threads)
}

fn serve_peer_command() -> Command {
    let path = |name| Arg::new(name).required(true).value_parser(value_parser!(PathBuf));
    let threads = Arg::new("threads").long("threads").value_parser(value_parser!(usize));
    Command::new(SERVE_PEER)
        .about("Serve DIR at MNT with the peer of the passthrough benchmark, until it is unmounted")
        .args([path("DIR"), path("MNT"), threads.default_value("2")])
}

fn command() -> Command {
    let subcommands = BENCHES
        .iter()
        // What a benchmark is about comes last: the options' own documentation would stand there.
        .map(|(name, about, _)| Options::augment_args(Command::new(*name)).about(*about));
    let tree = TreeOptions::augment_args(Options::augment_args(Command::new(TREE)))
        .about("Programs over trees of small files in a view (as root)");
    Command::new("bench")
        .about("Benchmarks of Tollgate beside its peers, interleaved in one run")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(subcommands)
        .subcommand(tree)
        .subcommand(tree::client_command())
        .subcommand(serve_peer_command())
}

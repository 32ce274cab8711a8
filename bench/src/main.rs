//! Benchmarks of Tollgate beside its peers.
//!
//! `cargo run --release -p bench -- NAME [--quick] [--rounds N] [--json FILE] [--svg FILE] [--csv FILE]
//! [--only ROW_SUBSTRING]`

pub mod harness;

use anyhow::Result;
use clap::{Args, Command, FromArgMatches};
use harness::Options;

/// A benchmark: its name on the command line, one line about it, and its entry.
type Bench = (&'static str, &'static str, fn(&Options) -> Result<()>);

/// All benchmarks. To add one: its `mod` above, its line here.
const BENCHES: &[Bench] = &[];

fn main() -> Result<()> {
    harness::interrupt::install()?;
    let matches = command().get_matches();
    let Some((name, arguments)) = matches.subcommand() else { return Ok(()) };
    let options = Options::from_arg_matches(arguments)?;
    match BENCHES.iter().find(|bench| bench.0 == name) {
        Some((_, _, run)) => run(&options),
        None => Ok(()),
    }
}

fn command() -> Command {
    let subcommands = BENCHES
        .iter()
        .map(|(name, about, _)| Options::augment_args(Command::new(*name).about(*about)));
    Command::new("bench")
        .about("Benchmarks of Tollgate beside its peers, interleaved in one run")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(subcommands)
}

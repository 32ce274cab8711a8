//! Several programs at once: the total rate at which they read whole small files.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Arg, ArgMatches, value_parser};
use rustix::time::{ClockId, clock_gettime};

use super::contestants::TOLLGATE;
use super::site::Site;
use crate::harness::{Better, Must, Options, Report, Row};

/// Clients at once.
const CLIENTS: [usize; 3] = [1, 2, 4];
/// Files of each client's own directory.
const FILES: usize = 500;
/// From the start of the processes to the start of their work: all are ready by then.
const START_UP: Duration = Duration::from_millis(50);

/// `bench read-files DIR --from NS --for MS`: one client.
pub(crate) const CLIENT: &str = "read-files";

/// Measures all rows.
pub(super) fn run(site: &Site, options: &Options, report: &mut Report) -> Result<()> {
    for client in 0..CLIENTS[CLIENTS.len() - 1] {
        let directory = site.lower().join(directory_name(client));
        std::fs::create_dir_all(&directory)?;
        for file in 0..FILES {
            std::fs::write(directory.join(format!("f{file}")), [b'x'; 4096])?;
        }
    }
    site.settle()?;
    report.section("clients at once: whole files of 4 KiB opened, read and closed, in total");
    let duration = Duration::from_millis(options.pick(400, 200));
    let columns = site.columns();
    let columns: Vec<_> = columns.iter().map(String::as_str).collect();
    for clients in CLIENTS {
        let row = Row::new(&name(clients), "files/s", Better::Higher).warm_up();
        report.measure(&row, &columns, |_, column| {
            rate(&site.places()[column].root, clients, duration)
        })?;
        if clients > 1 {
            let one = name(1);
            let must = Must::at_least((row.name(), TOLLGATE), 1.3);
            report.must(must.against_cell((&one, TOLLGATE)).aim(1.8));
        }
    }
    Ok(())
}

fn name(clients: usize) -> String {
    format!("{clients} client{}", if clients == 1 { "" } else { "s" })
}

fn directory_name(client: usize) -> String {
    format!("client-{client}")
}

/// Files per second of `clients` processes together.
fn rate(root: &Path, clients: usize, duration: Duration) -> Result<f64> {
    let from = now() + START_UP;
    let start = |client| {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(CLIENT).arg(root.join(directory_name(client)));
        command.args(["--from", &from.as_nanos().to_string()]);
        command.args(["--for", &duration.as_millis().to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot run a client")
    };
    let children = (0..clients).map(start).collect::<Result<Vec<_>>>()?;
    let mut total = 0.0;
    for child in children {
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "a client failed: {}", output.status);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        total += text.trim().parse::<f64>().with_context(|| format!("a client said {text:?}"))?;
    }
    Ok(total)
}

/// The hidden command that [`run_client`] executes.
pub(crate) fn client_command() -> clap::Command {
    let number = |name: &'static str| {
        Arg::new(name).long(name).required(true).value_parser(value_parser!(u64))
    };
    clap::Command::new(CLIENT)
        .about(
            "Read the files of DIR in turn from the monotonic time --from (ns), --for so many ms",
        )
        .hide(true)
        .arg(Arg::new("DIR").required(true).value_parser(value_parser!(PathBuf)))
        .args([number("from"), number("for")])
}

/// One client: prints how many files per second it read.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn run_client(arguments: &ArgMatches) -> Result<()> {
    let number = |name| arguments.get_one::<u64>(name).copied().context("clap requires it");
    let directory = arguments.get_one::<PathBuf>("DIR").context("clap requires it")?;
    let paths: Vec<_> = (0..FILES).map(|file| directory.join(format!("f{file}"))).collect();
    let (from, length) = (Duration::from_nanos(number("from")?), number("for")?);
    std::thread::sleep(from.saturating_sub(now()));
    let (start, length) = (Instant::now(), Duration::from_millis(length));
    let (mut files, mut buffer) = (0u32, [0; 8192]);
    while start.elapsed() < length {
        let path = &paths[files as usize % FILES];
        let read = File::open(path)?.read(&mut buffer)?;
        ensure!(read == 4096, "{} has {read} bytes", path.display());
        files += 1;
    }
    println!("{}", f64::from(files) / start.elapsed().as_secs_f64());
    Ok(())
}

fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

//! What a round trip through the server costs: workers that block in `read`, and a crew
//! ([`SessionConfig::spin`]), by their number.
//!
//! `cargo run --release -p tollgate-fuse --example wakeups -- [SECONDS]`
//!
//! The server is this process, the clients are child processes. Needs the right to mount.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tollgate_fuse::*;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "client", what, path, seconds] => client(what, Path::new(path), seconds.parse()?),
        [_, seconds] => table(seconds.parse()?),
        _ => table(30.0),
    }
}

/// One column of the table.
struct Setup {
    name: &'static str,
    threads: usize,
    pinned: bool,
    spin_us: u64,
}

const SETUPS: &[Setup] = &[
    Setup { name: "1 thread, blocking", threads: 1, pinned: false, spin_us: 0 },
    Setup { name: "2 threads, blocking", threads: 2, pinned: false, spin_us: 0 },
    Setup { name: "2 threads, blocking, pinned", threads: 2, pinned: true, spin_us: 0 },
    Setup { name: "4 threads, blocking", threads: 4, pinned: false, spin_us: 0 },
    Setup { name: "crew of 1, 40 us", threads: 1, pinned: false, spin_us: 40 },
    Setup { name: "crew of 2, 10 us", threads: 2, pinned: false, spin_us: 10 },
    Setup { name: "crew of 2, 40 us", threads: 2, pinned: false, spin_us: 40 },
    Setup { name: "crew of 2, 100 us", threads: 2, pinned: false, spin_us: 100 },
    Setup { name: "crew of 4, 40 us", threads: 4, pinned: false, spin_us: 40 },
];

/// Operation and the clients' CPUs.
type Cell = (&'static str, &'static str, &'static [Option<usize>]);

const CELLS: &[Cell] = &[
    ("stat", "stat", &[None]),
    ("stat@0", "stat", &[Some(0)]),
    ("stat@1", "stat", &[Some(1)]),
    ("open", "open", &[None]),
    ("2x stat", "stat", &[None, None]),
    ("2x open", "open", &[None, None]),
];

/// Measurements of one cell: microseconds, and the share of the machine that others used meanwhile.
type Samples = Vec<(f64, f64)>;

fn table(seconds: f64) -> Result<(), Failure> {
    let only = std::env::var("ONLY").unwrap_or_default();
    let setups: Vec<_> = SETUPS.iter().filter(|s| s.name.contains(&only)).collect();
    let servers = setups.iter().map(|s| Server::start(s)).collect::<Result<Vec<_>, _>>()?;
    let mut all: Vec<Vec<Samples>> = vec![vec![Vec::new(); CELLS.len()]; servers.len()];
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < seconds {
        for (server, row) in servers.iter().zip(&mut all) {
            for (cell, samples) in CELLS.iter().zip(row) {
                if !await_quiet() {
                    continue;
                }
                let (us, foreign) = server.measure(cell.1, cell.2, 0.05)?;
                samples.push((us, if quiet_now() { foreign } else { 1.0 }));
            }
        }
    }
    println!("microseconds per operation: median over quiet samples (how many), minimum of all");
    print!("{:30}", "");
    CELLS.iter().for_each(|cell| print!(" {:>18}", cell.0));
    println!();
    for (setup, row) in setups.iter().zip(&all) {
        print!("{:30}", setup.name);
        row.iter().for_each(|samples| print!(" {:>18}", summary(samples)));
        println!();
    }
    Ok(())
}

/// Whether nothing but this thread runs at the moment.
fn quiet_now() -> bool {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace().nth(3).is_some_and(|running| running.starts_with("1/"))
}

/// Waits for a quiet moment, but not for long.
fn await_quiet() -> bool {
    let start = Instant::now();
    let mut in_a_row = 0;
    while start.elapsed() < Duration::from_millis(500) {
        in_a_row = if quiet_now() { in_a_row + 1 } else { 0 };
        if in_a_row == 3 {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Others' share of the machine up to which a sample counts as quiet.
const QUIET: f64 = 0.20;

fn summary(samples: &Samples) -> String {
    let mut quiet: Vec<f64> =
        samples.iter().filter(|(_, foreign)| *foreign < QUIET).map(|(us, _)| *us).collect();
    quiet.sort_by(f64::total_cmp);
    let minimum = samples.iter().map(|(us, _)| *us).fold(f64::INFINITY, f64::min);
    match quiet.get(quiet.len() / 2) {
        Some(median) => format!("{median:.1} ({}) {minimum:.1}", quiet.len()),
        None => format!("- (0) {minimum:.1}"),
    }
}

/// Busy time of all CPUs, in seconds.
fn busy() -> Result<f64, Failure> {
    let stat = fs::read_to_string("/proc/stat")?;
    let fields: Vec<f64> = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .flat_map(str::parse)
        .collect();
    let idle = fields[3] + fields[4];
    Ok((fields.iter().take(8).sum::<f64>() - idle) / 100.0)
}

/// CPU time of this process and its children that ended, in seconds.
fn own() -> Result<f64, Failure> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let after = stat.rsplit(')').next().unwrap_or_default();
    let fields: Vec<&str> = after.split_whitespace().collect();
    Ok(fields[11..15].iter().flat_map(|f| f.parse::<f64>()).sum::<f64>() / 100.0)
}

struct Server {
    _mount: Mount,
    _running: Running,
    at: PathBuf,
    _dirs: [tempfile::TempDir; 2],
}

impl Server {
    fn start(setup: &Setup) -> Result<Self, Failure> {
        let (at, lower) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let path = lower.path().join("file");
        fs::write(&path, b"content")?;
        let fs = Arc::new(One { lower: File::open(path)?, backing: OnceLock::new() });
        let (device, mount) = mount(at.path(), &MountOptions::default())?;
        let cpus = (0..setup.threads).map(|i| setup.pinned.then(|| vec![i % 2])).collect();
        let config = SessionConfig {
            threads: setup.threads,
            cpus,
            spin: Duration::from_micros(setup.spin_us),
            ..SessionConfig::default()
        };
        let running = Session::new(device, fs, config).start()?;
        let path = at.path().join("file");
        Ok(Self { _mount: mount, _running: running, at: path, _dirs: [at, lower] })
    }

    /// Microseconds per operation, and the share of the machine that others used.
    fn measure(
        &self,
        what: &str,
        cpus: &[Option<usize>],
        seconds: f64,
    ) -> Result<(f64, f64), Failure> {
        let before = (Instant::now(), busy()?, own()?);
        let spawn = |cpu: &Option<usize>| {
            let exe = std::env::current_exe()?;
            let mut command = match cpu {
                Some(cpu) => {
                    let mut command = Command::new("taskset");
                    command.arg("-c").arg(cpu.to_string()).arg(exe);
                    command
                }
                None => Command::new(exe),
            };
            command.args(["client", what]).arg(&self.at).arg(seconds.to_string());
            command.stdout(Stdio::piped()).spawn()
        };
        let children = cpus.iter().map(spawn).collect::<Result<Vec<_>, _>>()?;
        let mut rate = 0.0;
        for child in children {
            let output = child.wait_with_output()?;
            let us: f64 = String::from_utf8(output.stdout)?.trim().parse()?;
            rate += 1.0 / us;
        }
        let foreign = (busy()? - before.1) - (own()? - before.2);
        Ok((1.0 / rate, foreign / before.0.elapsed().as_secs_f64() / 2.0))
    }
}

/// Repeats an operation and prints microseconds per operation, the median of batches.
fn client(what: &str, path: &Path, seconds: f64) -> Result<(), Failure> {
    const BATCH: u32 = 100;
    let operation = || -> Result<(), Failure> {
        match what {
            "stat" => fs::metadata(path).map(|_| ())?,
            _ => File::open(path).map(|_| ())?,
        }
        Ok(())
    };
    let start = Instant::now();
    let mut batches = Vec::new();
    while start.elapsed().as_secs_f64() < seconds {
        let batch = Instant::now();
        for _ in 0..BATCH {
            operation()?;
        }
        batches.push(batch.elapsed().as_secs_f64() * 1e6 / f64::from(BATCH));
    }
    batches.sort_by(f64::total_cmp);
    println!("{}", batches[batches.len() / 2]);
    Ok(())
}

/// One passthrough file, whose attributes are never cached and whose name always is.
struct One {
    lower: File,
    backing: OnceLock<BackingFile>,
}

const FOREVER: Duration = Duration::from_secs(3600);

fn attr(node: NodeId) -> Attr {
    let mode = if node == NodeId::ROOT { 0o40755 } else { 0o100644 };
    Attr { ino: node.0, size: 7, mode, nlink: 1, blksize: 4096, ..Attr::default() }
}

impl Filesystem for One {
    fn init(&self, connection: &Connection) -> Result<(), Errno> {
        if let Ok(backing) = connection.open_backing(self.lower.as_fd()) {
            self.backing.set(backing).map_err(|_| Errno::BUSY)?;
        }
        Ok(())
    }

    fn lookup(&self, _: &Request<'_>, _: NodeId, _: Name<'_>, reply: Reply<'_, Entry>) {
        let node = NodeId(2);
        reply.ok(&Entry {
            node,
            generation: 0,
            entry_valid: FOREVER,
            attr: attr(node),
            attr_valid: Duration::ZERO,
        });
    }

    fn getattr(
        &self,
        _: &Request<'_>,
        node: NodeId,
        _: Option<FileHandle>,
        reply: Reply<'_, Attributes>,
    ) {
        let valid = if node == NodeId::ROOT { FOREVER } else { Duration::ZERO };
        reply.ok(&Attributes { attr: attr(node), valid });
    }

    fn open(&self, _: &Request<'_>, _: NodeId, _: args::Open, reply: Reply<'_, Opened>) {
        let backing = self.backing.get().map(BackingFile::id);
        let passthrough =
            if backing.is_some() { OpenReply::PASSTHROUGH } else { OpenReply::empty() };
        let flags = OpenReply::NOFLUSH | passthrough;
        reply.ok(&Opened { handle: FileHandle(1), flags, backing });
    }
}

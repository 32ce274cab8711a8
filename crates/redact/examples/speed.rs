//! How fast text is masked by one core, in its time alone, and how much is found in it:
//! `cargo run --release -p tollgate-redact --example speed -- DIR [LIST]`.
//!
//! Reads up to 100 MiB of the files in DIR, then masks them in ranges of 128 KiB, as a view does,
//! with each detector alone and with all. LIST: a file to write what was found to.

use std::fs;
use std::path::{Path, PathBuf};

use tollgate_redact::{Detector, Detectors, Redactor};

const TEXT_MAX: usize = 100 << 20;
const RANGE: u64 = 128 << 10;
const ROUNDS: usize = 5;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let Some(directory) = arguments.next() else {
        eprintln!("usage: speed DIR [LIST]");
        std::process::exit(2);
    };
    let mut files = Vec::new();
    read(Path::new(&directory), &mut files, &mut 0)?;
    let bytes: usize = files.iter().map(|(_, text)| text.len()).sum();
    println!("{} files, {:.1} MiB", files.len(), bytes as f64 / f64::from(1 << 20));
    if let Some(list) = arguments.next() {
        fs::write(list, findings(&files))?;
    }
    // One file out of all: a small file has no ranges.
    let whole: Vec<u8> = files.iter().flat_map(|(_, text)| text).copied().collect();
    println!("{:<14} {:>8} {:>8}", "detector", "GB/s", "found");
    for detector in Detector::ALL {
        row(detector.name(), Detectors::only(&[detector]), &whole);
    }
    row("default", Detectors::default(), &whole);
    row("all", Detectors::only(&Detector::ALL), &whole);
    Ok(())
}

fn read(
    path: &Path,
    files: &mut Vec<(PathBuf, Vec<u8>)>,
    total: &mut usize,
) -> std::io::Result<()> {
    let mut entries: Vec<_> = fs::read_dir(path)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if *total >= TEXT_MAX {
            break;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            read(&entry.path(), files, total)?;
        } else if kind.is_file() {
            let text = fs::read(entry.path())?;
            // Programs and archives are not what this is for.
            if !text[..text.len().min(4096)].contains(&0) {
                *total += text.len();
                files.push((entry.path(), text));
            }
        }
    }
    Ok(())
}

fn findings(files: &[(PathBuf, Vec<u8>)]) -> String {
    let redactor = Redactor::new(Detectors::default());
    let mut list = String::new();
    for (path, text) in files {
        redactor.mask_all(&mut text.clone(), |found| {
            let line = 1 + text[..found.bytes.start].iter().filter(|byte| **byte == b'\n').count();
            let secret = String::from_utf8_lossy(&text[found.bytes.clone()]).into_owned();
            let secret: String = secret.chars().take(60).collect();
            list += &format!("{}:{line}: {} {secret:?}\n", path.display(), found.rule);
        });
    }
    list
}

/// What this process has run so far: other programs on the machine do not count.
fn cpu_time_ns() -> u64 {
    let text = fs::read_to_string("/proc/self/schedstat").expect("Linux has it");
    let first = text.split(' ').next().expect("it has three numbers");
    first.parse().expect("a number")
}

fn row(name: &str, detectors: Detectors, text: &[u8]) {
    let redactor = Redactor::new(detectors);
    let size = text.len() as u64;
    let mut buffer = Vec::new();
    let mut best = f64::MAX;
    let mut found = 0_u64;
    for _ in 0..ROUNDS {
        found = 0;
        let begin = cpu_time_ns();
        for start in (0..size).step_by(usize::try_from(RANGE).expect("small")) {
            let range = start..size.min(start + RANGE);
            let read = redactor.to_read(range.clone(), size).expect("within the limit");
            let place = |at: u64| usize::try_from(at).expect("within the text");
            buffer.clear();
            buffer.extend_from_slice(&text[place(read.start)..place(read.end)]);
            let at_end = read.end == size;
            let masked =
                redactor.mask_range(&mut buffer, read.start, at_end, range, |_| found += 1);
            masked.expect("what was asked for was read");
        }
        best = best.min((cpu_time_ns() - begin) as f64 / 1e9);
    }
    println!("{name:<14} {:>8.2} {found:>8}", size as f64 / best / 1e9);
}

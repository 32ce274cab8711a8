//! Many files at once: which ones, by how many threads, how far.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anyhow::{Context, Result};

use crate::cli::SealFilesArgs;
use crate::seal::files::{self, UNFINISHED};
use crate::seal::ring::IN_DIR;

/// Most threads: beyond, a disk is slower rather than faster.
const THREADS_MAX: usize = 16;
/// Deeper directories are refused: links could not be told from a tree without end.
const DEPTH_MAX: usize = 256;

/// A file to be worked on.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    /// What the command line named, and where in it the file lies.
    pub(super) below: PathBuf,
}

/// The regular files that the command line names, in order, without links to them. What commands
/// that were killed left behind is removed.
///
/// # Errors
/// With the path that cannot be read.
pub(super) fn find(args: &SealFilesArgs, dir: &Path) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    let all = [dir.to_owned()];
    for path in if args.paths.is_empty() { &all[..] } else { &args.paths } {
        let metadata = fs::symlink_metadata(path)
            .map_err(|error| anyhow::anyhow!("{}{}", error, crate::nearest::path(path)))
            .with_context(|| path.display().to_string())?;
        if metadata.is_dir() {
            walk(path, Path::new(""), 0, &mut found)?;
        } else {
            let below = path.file_name().map(PathBuf::from).unwrap_or_default();
            found.push(Found { path: path.clone(), below });
        }
    }
    Ok(found)
}

fn walk(dir: &Path, below: &Path, depth: usize, found: &mut Vec<Found>) -> Result<()> {
    let named = || dir.display().to_string();
    anyhow::ensure!(depth < DEPTH_MAX, "{} is {DEPTH_MAX} directories deep", named());
    let mut entries = fs::read_dir(dir).with_context(named)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (kind, name) = (entry.file_type().with_context(named)?, entry.file_name());
        if kind.is_dir() {
            walk(&entry.path(), &below.join(&name), depth + 1, found)?;
        } else if kind.is_file() && name.as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
            files::remove_unfinished(&entry.path())?;
        } else if kind.is_file() && name != IN_DIR {
            found.push(Found { path: entry.path(), below: below.join(&name) });
        }
    }
    Ok(())
}

/// Has several threads do `each`; the results in the order of the files.
pub(super) fn for_each<T: Send>(found: &[Found], each: impl Fn(&Found) -> T + Sync) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(found.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads.min(THREADS_MAX).min(found.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Relaxed);
                    let Some(file) = found.get(index) else { return };
                    let result = each(file);
                    results.lock().expect("no thread panicked").push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no thread panicked");
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Bytes of all files.
pub(super) fn bytes(found: &[Found]) -> u64 {
    let size = |file: &Found| fs::symlink_metadata(&file.path).map_or(0, |found| found.len());
    found.iter().map(size).sum()
}

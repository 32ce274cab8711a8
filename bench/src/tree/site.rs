//! Where it happens: one lower directory, and a view of it per column.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::fs::statfs;
use tempfile::TempDir;

use super::contestants::Contestant;
use crate::harness::{Counts, Report};
use crate::mounts::Server;
use crate::project::{Shape, generate};

/// One column: a view of the lower directory, or the lower directory itself.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) contestant: Contestant,
    /// The root of the view.
    pub(super) root: PathBuf,
    lower: PathBuf,
    server: Option<Server>,
}

/// The lower directory with all views of it. Dropping it unmounts and deletes everything.
#[derive(Debug)]
pub(super) struct Site {
    // Dropped in this order: views before the files below.
    places: Vec<Place>,
    contestants: Vec<Contestant>,
    base: TempDir,
}

impl Place {
    /// The column.
    pub(super) fn name(&self) -> &str {
        &self.contestant.name
    }

    /// A directory of this column alone, as the view shows it.
    pub(super) fn work(&self) -> PathBuf {
        self.root.join(work_name(self.name()))
    }

    /// The same directory, below the view.
    pub(super) fn lower_work(&self) -> PathBuf {
        self.lower.join(work_name(self.name()))
    }

    /// Unmounts, and mounts again with `further` arguments: the kernel knows no names, the server
    /// counts from zero.
    pub(super) fn remount(&mut self, further: &[OsString]) -> Result<()> {
        self.server = None;
        self.server = self.contestant.start(&self.lower, &self.root, further)?;
        Ok(())
    }

    /// The server; `None` for the bare directory.
    pub(super) fn server(&self) -> Option<&Server> {
        self.server.as_ref()
    }

    /// Requests that the server has had, by operation; `None` if it is not Tollgate.
    pub(super) fn requests(&self) -> Result<Option<Counts>> {
        let Some(binary) = self.contestant.binary() else { return Ok(None) };
        let output = Command::new(binary).args(["status", "--json"]).arg(&self.root).output()?;
        let reports: serde_json::Value = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("no status of {}", self.root.display()))?;
        let counts = &reports[0]["transport"]["by_operation"];
        serde_json::from_value(counts.clone()).map(Some).context("no counts by operation")
    }

    /// Runs `work` and returns, beside its value, the requests that it caused.
    pub(super) fn counted<T>(
        &self,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Option<Counts>)> {
        let before = self.requests()?;
        let value = work()?;
        let Some((before, mut after)) = before.zip(self.requests()?) else {
            return Ok((value, None));
        };
        for (operation, count) in &mut after {
            *count -= before.get(operation).copied().unwrap_or(0);
        }
        Ok((value, Some(after)))
    }
}

impl Site {
    /// An empty lower directory below `directory`, or below the directory for temporary files.
    ///
    /// # Errors
    /// Without root: passthrough takes CAP_SYS_ADMIN.
    pub(super) fn new(directory: Option<&Path>, contestants: Vec<Contestant>) -> Result<Site> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "this benchmark must run as root: registering backing files takes CAP_SYS_ADMIN"
        );
        let directory = directory.map_or_else(std::env::temp_dir, Path::to_owned);
        let base = tempfile::Builder::new().prefix("tollgate-bench-").tempdir_in(&directory);
        let base = base.with_context(|| format!("cannot write in {}", directory.display()))?;
        let site = Site { places: Vec::new(), contestants, base };
        for contestant in &site.contestants {
            std::fs::create_dir_all(site.lower().join(work_name(&contestant.name)))?;
        }
        Ok(site)
    }

    /// The file system that is measured, for the reader.
    pub(super) fn describe(&self) -> Result<String> {
        let kind = match statfs(self.base.path())?.f_type {
            0xef53 => "ext4".to_owned(),
            0x0102_1994 => "tmpfs".to_owned(),
            0x9123_683e => "btrfs".to_owned(),
            0x5846_5342 => "xfs".to_owned(),
            other => format!("of type {other:#x}"),
        };
        Ok(format!("lower file system: {kind}."))
    }

    /// The lower directory.
    pub(super) fn lower(&self) -> PathBuf {
        self.base.path().join("lower")
    }

    /// Starts all servers. One that does not start loses its column, with a note in the report.
    pub(super) fn mount(&mut self, report: &mut Report) {
        let lower = self.lower();
        for (number, contestant) in self.contestants.clone().into_iter().enumerate() {
            let root = match contestant.is_bare() {
                true => lower.clone(),
                false => self.base.path().join(format!("view-{number}")),
            };
            match contestant.start(&lower, &root, &[]) {
                Ok(server) => {
                    let lower = lower.clone();
                    self.places.push(Place { contestant, root, lower, server });
                }
                Err(error) => report.note(format!("{}: not measured: {error:#}", contestant.name)),
            }
        }
    }

    /// All columns that are there.
    pub(super) fn places(&self) -> &[Place] {
        &self.places
    }

    /// All columns that are there, to be mounted anew.
    pub(super) fn places_mut(&mut self) -> &mut [Place] {
        &mut self.places
    }

    /// The names of all columns that are there.
    pub(super) fn columns(&self) -> Vec<String> {
        self.places.iter().map(|place| place.name().to_owned()).collect()
    }

    /// A tree of `files` small files that all columns share, made when it is first asked for.
    /// Returns its name in the lower directory.
    pub(super) fn shared_tree(&self, files: usize) -> Result<String> {
        let name = format!("tree-{files}");
        let root = self.lower().join(&name);
        if !root.try_exists()? {
            eprintln!("making {files} files ...");
            generate(&root, &small_files(files, 0))?;
            self.settle()?;
        }
        Ok(name)
    }

    /// Writes all dirty pages of the lower file system, so that none are written during a sample.
    pub(super) fn settle(&self) -> Result<()> {
        settle(self.base.path())
    }
}

/// Writes all dirty pages of the file system that `path` is on.
pub(super) fn settle(path: &Path) -> Result<()> {
    Ok(rustix::fs::syncfs(std::fs::File::open(path)?)?)
}

/// A tree of `files` files of at most 16 KiB, about eight to a directory as in source trees;
/// `units` of them can be compiled.
pub(super) fn small_files(files: usize, units: usize) -> Shape {
    Shape { files, directories: (files / 8).max(1), file_bytes_max: 16 << 10, headers: 40, units }
}

fn work_name(column: &str) -> String {
    format!("work-{}", column.replace([' ', '/'], "-"))
}

//! Where it happens: one lower directory, the bare one and its views.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::harness::Report;
use crate::mounts::{Launcher, Server, threads};

/// The bare directory.
pub(super) const NATIVE: &str = "native";
/// Tollgate with a policy that lets everything pass.
pub(super) const TOLLGATE: &str = "tollgate";
/// Tollgate with every byte through user space.
pub(super) const USER_SPACE: &str = "tollgate user space";
/// The minimal server on the `fuser` crate.
pub(super) const PEER: &str = "fuser peer";

/// One column: a view of the lower directory, or the lower directory itself.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) column: &'static str,
    /// The root of the view.
    pub(super) root: PathBuf,
    server: Option<Server>,
}

/// The lower directory with all views of it. Dropping it unmounts and deletes everything.
#[derive(Debug)]
pub(super) struct Site {
    // Dropped in this order: views before the files below.
    places: Vec<Place>,
    launcher: Option<Launcher>,
    base: TempDir,
}

impl Place {
    /// The server's resident memory in bytes; `None` for the bare directory.
    pub(super) fn resident_bytes(&self) -> Option<Result<u64>> {
        self.server.as_ref().map(Server::resident_bytes)
    }

    /// A directory of this column alone.
    pub(super) fn work(&self) -> PathBuf {
        self.root.join(work_name(self.column))
    }
}

impl Site {
    /// An empty lower directory below the directory for temporary files (`TMPDIR`).
    ///
    /// # Errors
    /// Without root: passthrough takes CAP_SYS_ADMIN.
    pub(super) fn new() -> Result<Site> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "this benchmark must run as root: registering backing files takes CAP_SYS_ADMIN"
        );
        let base = tempfile::Builder::new().prefix("tollgate-bench-").tempdir()?;
        let lower = base.path().join("lower");
        for column in [NATIVE, TOLLGATE, USER_SPACE, PEER] {
            std::fs::create_dir_all(lower.join(work_name(column)))?;
        }
        Ok(Site { places: Vec::new(), launcher: None, base })
    }

    /// The lower directory.
    pub(super) fn lower(&self) -> PathBuf {
        self.base.path().join("lower")
    }

    /// Each column's directory for its own files, in the lower directory.
    pub(super) fn lower_works(&self) -> impl Iterator<Item = PathBuf> {
        let lower = self.lower();
        [NATIVE, TOLLGATE, USER_SPACE, PEER].into_iter().map(move |c| lower.join(work_name(c)))
    }

    /// Starts all servers. One that does not start loses its column, with a note in the report.
    pub(super) fn mount(&mut self, report: &mut Report) -> Result<()> {
        self.places.push(Place { column: NATIVE, root: self.lower(), server: None });
        let policy = self.path("user-space.toml");
        std::fs::write(&policy, "default = \"userspace\"\n")?;
        let launcher = Launcher::new()?;
        let lower = self.lower();
        let count = threads().to_string();
        let plain = ["--threads", &count];
        let in_user = ["--threads", &count, "--policy", utf8(&policy)?];
        let (ours, user, peer) = (self.path("view"), self.path("view-user"), self.path("peer"));
        let started = [
            (TOLLGATE, launcher.tollgate(&plain, &lower, &ours, None), ours),
            (USER_SPACE, launcher.tollgate(&in_user, &lower, &user, None), user),
            (PEER, Launcher::peer(threads(), &lower, &peer), peer),
        ];
        for (column, server, root) in started {
            match server {
                Ok(server) => self.places.push(Place { column, root, server: Some(server) }),
                Err(error) => report.note(format!("{column}: not measured: {error:#}")),
            }
        }
        report.note(format!("servers: {count} threads each, one cloned device per thread."));
        self.launcher = Some(launcher);
        Ok(())
    }

    /// Runs `use_it` on a further Tollgate view whose server may have `max_descriptors` open.
    pub(super) fn with_limited_view<T>(
        &self,
        max_descriptors: u64,
        use_it: impl FnOnce(&Place) -> Result<T>,
    ) -> Result<T> {
        let launcher = self.launcher.as_ref().context("no server was started")?;
        let root = self.path("view-limited");
        let arguments = ["--threads", &threads().to_string()];
        let server = launcher.tollgate(&arguments, &self.lower(), &root, Some(max_descriptors))?;
        let server = Some(server);
        use_it(&Place { column: TOLLGATE, root, server })
    }

    /// All columns that are there.
    pub(super) fn places(&self) -> &[Place] {
        &self.places
    }

    /// The names of all columns that are there.
    pub(super) fn columns(&self) -> Vec<&'static str> {
        self.places.iter().map(|place| place.column).collect()
    }

    /// The column of this name, if its server runs.
    pub(super) fn place(&self, column: &str) -> Option<&Place> {
        self.places.iter().find(|place| place.column == column)
    }

    /// Writes all dirty pages of the lower file system, so that none are written during a sample.
    pub(super) fn settle(&self) -> Result<()> {
        let directory = std::fs::File::open(self.base.path())?;
        Ok(rustix::fs::syncfs(directory)?)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }
}

fn work_name(column: &str) -> String {
    format!("work-{}", column.replace(' ', "-"))
}

fn utf8(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

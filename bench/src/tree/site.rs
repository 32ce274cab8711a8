//! Where it happens: one lower directory, and a view of it per column.

use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::fs::statfs;
use tempfile::TempDir;

use super::contestants::{Contestant, TOLLGATE, USER, USER_AWAKE, work_name};
use super::user::{self, User};
use crate::harness::{Counts, Must, Report};
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
    /// Whose server and programs these are, if they are an ordinary user's.
    user: Option<User>,
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

    /// The directory `name` of the lower one that belongs to whoever uses this view.
    pub(super) fn own(&self, name: &str) -> String {
        if self.user.is_some() { of_user(name) } else { name.to_owned() }
    }

    /// The directory of this column alone, below the view.
    pub(super) fn lower_work(&self) -> PathBuf {
        self.lower.join(work_name(self.name()))
    }

    /// Unmounts, and mounts again with `further` arguments: the kernel knows no names, the server
    /// counts from zero.
    pub(super) fn remount(&mut self, further: &[OsString]) -> Result<()> {
        self.server = None;
        let user = self.user.as_ref();
        self.server = self.contestant.start(&self.lower, &self.root, user, further)?;
        Ok(())
    }

    /// Makes `command` one of whoever uses this view.
    pub(super) fn command(&self, mut command: Command) -> Command {
        if let Some(user) = &self.user {
            user.dress(&mut command);
        }
        command
    }

    /// Runs `work` as whoever uses this view.
    pub(super) fn within<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        match &self.user {
            Some(user) => user.on_a_thread(work),
            None => work(),
        }
    }

    /// The server; `None` for the bare directory.
    pub(super) fn server(&self) -> Option<&Server> {
        self.server.as_ref()
    }

    /// Requests that the server has had, by operation; `None` if it is not Tollgate.
    pub(super) fn requests(&self) -> Result<Option<Counts>> {
        let Some(binary) = self.contestant.binary() else { return Ok(None) };
        let mut status = Command::new(binary);
        status.args(["status", "--json"]).arg(&self.root);
        let output = self.command(status).output()?;
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
        if site.has_users() {
            std::fs::set_permissions(site.base.path(), PermissionsExt::from_mode(0o755))?;
            let awake = site.contestants.iter().any(Contestant::is_awake);
            user::open_devices(site.base.path(), awake)?;
        }
        site.hand_over()?;
        Ok(site)
    }

    fn has_users(&self) -> bool {
        self.contestants.iter().any(Contestant::is_of_user)
    }

    /// The directories named `name` in the lower one: that of all columns and, if a column is a
    /// user's, the user's own. Whoever does not own a file makes the kernel ask for its ACL.
    pub(super) fn owned(&self, name: &str) -> Vec<PathBuf> {
        let of_user = self.has_users().then(|| self.lower().join(of_user(name)));
        [self.lower().join(name)].into_iter().chain(of_user).collect()
    }

    /// What users' columns work on belongs to the user.
    pub(super) fn hand_over(&self) -> Result<()> {
        if !self.has_users() {
            return Ok(());
        }
        lchown(self.lower(), Some(user::NOBODY), Some(user::NOBODY))?;
        for entry in std::fs::read_dir(self.lower())? {
            let path = entry?.path();
            if path.to_string_lossy().ends_with(OF_USER) {
                user::hand_over(&path)?;
            }
        }
        let of_users = self.contestants.iter().filter(|contestant| contestant.is_of_user());
        let mut works = of_users.map(|contestant| self.lower().join(work_name(&contestant.name)));
        works.try_for_each(|work| user::hand_over(&work))
    }

    /// The file system that is measured, for the reader.
    pub(super) fn describe(&self) -> Result<String> {
        let kind = match statfs(self.base.path())?.f_type {
            0xef53 => format!("ext4{}", ext4_traits(&device_of(self.base.path())?, Path::new("/"))),
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
            match self.start(&contestant, &root, number) {
                Ok((server, user)) => {
                    let lower = lower.clone();
                    self.places.push(Place { contestant, root, lower, server, user });
                }
                Err(error) => report.note(format!("{}: not measured: {error:#}", contestant.name)),
            }
        }
    }

    fn start(
        &self,
        contestant: &Contestant,
        root: &Path,
        number: usize,
    ) -> Result<(Option<Server>, Option<User>)> {
        let binary = contestant.binary().filter(|_| contestant.is_of_user());
        let base = self.base.path().join(format!("user-{number}"));
        let user =
            binary.map(|binary| User::new(base, binary, contestant.is_awake())).transpose()?;
        Ok((contestant.start(&self.lower(), root, user.as_ref(), &[])?, user))
    }

    /// Takes the columns of users out, until they are put back.
    pub(super) fn put_aside_users(&mut self) -> Vec<Place> {
        let of_users = |place: &mut Place| place.user.is_some();
        self.places.extract_if(.., of_users).collect()
    }

    /// After the others: their order is no part of any figure.
    pub(super) fn put_back(&mut self, places: Vec<Place>) {
        self.places.extend(places);
    }

    /// All columns that are there.
    pub(super) fn places(&self) -> &[Place] {
        &self.places
    }

    /// All columns that are there, to be mounted anew.
    pub(super) fn places_mut(&mut self) -> &mut [Place] {
        &mut self.places
    }

    /// What columns of ordinary users must reach beside [`TOLLGATE`] in `row`.
    pub(super) fn musts_of_users(&self, row: &str) -> Vec<Must> {
        let asked = self.contestants.iter().any(Contestant::is_awake);
        let columns = [USER].into_iter().chain(asked.then_some(USER_AWAKE));
        let must = |column| Must::at_most((row, column), LIMIT_OF_USERS).against(TOLLGATE);
        columns.map(|column| must(column).aim(AIM_OF_USERS)).collect()
    }

    /// The names of all columns that are there.
    pub(super) fn columns(&self) -> Vec<String> {
        self.places.iter().map(|place| place.name().to_owned()).collect()
    }

    /// A tree of `files` small files that all columns share, made when it is first asked for.
    /// Returns its name in the lower directory.
    pub(super) fn shared_tree(&self, files: usize) -> Result<String> {
        let name = format!("tree-{files}");
        if !self.lower().join(&name).try_exists()? {
            eprintln!("making {files} files ...");
            for root in self.owned(&name) {
                generate(&root, &small_files(files, 0))?;
            }
            self.hand_over()?;
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

/// The kernel's name of the block device below `path` (`vda1`, `dm-0`); empty where there is none.
fn device_of(path: &Path) -> Result<String> {
    let dev = std::fs::metadata(path)?.dev();
    let link = format!("/sys/dev/block/{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let target = std::fs::read_link(link).unwrap_or_default();
    Ok(target.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()))
}

/// What an ext4 on `device` has that changes what making and deleting files costs there, by the /proc
/// below `root`.
///
/// Without a journal `ext4_new_inode` looks at each inode of the group that was deleted in the last one
/// to six minutes (`recently_deleted`, `fs/ext4/ialloc.c`), and with `discard` each file that is freed
/// waits for the device (`ext4_free_blocks`). 12,000 files were copied in 8.7 s after as many had been
/// deleted, and else in 0.8 s.
fn ext4_traits(device: &str, root: &Path) -> String {
    let Ok(options) =
        std::fs::read_to_string(root.join("proc/fs/ext4").join(device).join("options"))
    else {
        return String::new();
    };
    // The kernel prints how data are journalled where there is a journal, wherever that lies.
    if options.lines().any(|option| option.starts_with("data=")) {
        return " with a journal".to_owned();
    }
    let discards = options.lines().any(|option| option == "discard");
    let waits = if discards { ", and each deleted file waits for a discard" } else { "" };
    format!(
        " without a journal. Making a file there looks at every inode that was deleted in the last \
         minutes{waits}: `cp -r`, `rm -rf` and `create+close` take longer in every column, and the \
         ratios are lower than elsewhere (`--dir` names a directory on another file system)"
    )
}

/// What an ordinary user may wait compared with root, and the aim beyond.
const LIMIT_OF_USERS: f64 = 1.3;
const AIM_OF_USERS: f64 = 1.1;

/// What the names of directories of the user's end in.
const OF_USER: &str = "-of-the-user";

fn of_user(name: &str) -> String {
    format!("{name}{OF_USER}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_of_an_ext4_and_its_discards_are_told() {
        let root = tempfile::tempdir().unwrap();
        let put = |device: &str, options: &str| {
            let directory = root.path().join("proc/fs/ext4").join(device);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("options"), options).unwrap();
        };
        assert_eq!(ext4_traits("vda", root.path()), "", "nothing is known of it");
        put("vda", "rw\ndiscard\nresuid=0\n");
        let vda = ext4_traits("vda", root.path());
        assert!(vda.contains("without a journal") && vda.contains("a discard"), "{vda}");
        put("vda1", "rw\nnodiscard\n");
        let vda1 = ext4_traits("vda1", root.path());
        assert!(vda1.contains("without a journal") && !vda1.contains("discard"), "{vda1}");
        put("dm-0", "rw\ndiscard\ndata=ordered\n");
        assert_eq!(ext4_traits("dm-0", root.path()), " with a journal");
    }
}

//! The files that a server reaches once it serves: a Landlock domain.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr,
};

use crate::sys;

/// The first version that judges truncation, and moves between directories (Linux 6.2).
const NEEDED: ABI = ABI::V3;
const NEEDED_NUMBER: u32 = 3;

/// Where a server has to read: its own and others' processes, CPUs, its connection.
const READ: &[&str] = &["/proc", "/sys"];
/// Files that it opens: the device for each further queue, the one that keeps CPUs awake.
const OPENED: &[&str] = &["/dev/fuse", "/dev/null", "/dev/cpu_dma_latency"];

/// The places outside of DIR that a server uses.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// The directory of its log, in which that is rotated.
    pub(crate) log: Option<PathBuf>,
    /// The directories of its sockets.
    pub(crate) sockets: Vec<PathBuf>,
    /// Directories of things that it removes at its end.
    pub(crate) removes_in: Vec<PathBuf>,
}

/// A domain that nobody has entered yet.
pub(super) struct Domain(RulesetCreated);

impl Domain {
    /// Everything in `directories`, and of the rest what is in `places`.
    ///
    /// # Errors
    /// When the kernel has no Landlock, or one that is too old.
    pub(super) fn new(directories: &[BorrowedFd<'_>], places: &Places) -> anyhow::Result<Self> {
        let version = sys::landlock_version().context("this kernel has no Landlock")?;
        ensure!(version >= NEEDED_NUMBER, "Landlock of Linux 6.2 is needed");
        let all = AccessFs::from_all(NEEDED);
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(all)?
            .create()?;
        for directory in directories {
            rules = rules.add_rule(PathBeneath::new(directory, all))?;
        }
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let write = AccessFs::ReadFile | AccessFs::WriteFile;
        let log = write | AccessFs::MakeReg | AccessFs::RemoveFile | AccessFs::Truncate;
        let removal = read | AccessFs::RemoveFile | AccessFs::RemoveDir;
        let sockets = removal | AccessFs::MakeSock;
        let of = |paths: &[&str], access| -> Vec<(PathBuf, BitFlags<AccessFs>)> {
            paths.iter().map(|path| (PathBuf::from(path), access)).collect()
        };
        let mut places: Vec<_> = of(READ, read)
            .into_iter()
            .chain(of(OPENED, write))
            .chain(places.log.iter().map(|path| (path.clone(), log)))
            .chain(places.sockets.iter().map(|path| (path.clone(), sockets)))
            .chain(places.removes_in.iter().map(|path| (path.clone(), removal)))
            .collect();
        places.dedup();
        for (path, access) in places {
            rules = allow(rules, &path, access)
                .with_context(|| format!("no rule for `{}`", path.display()))?;
        }
        Ok(Self(rules))
    }

    /// The calling thread, and those that it starts, reach nothing else from now on. What is open
    /// already stays so.
    ///
    /// # Errors
    /// The error of Landlock.
    pub(super) fn enter(self) -> anyhow::Result<()> {
        self.0.restrict_self()?;
        Ok(())
    }
}

/// What is not there is not needed.
fn allow(
    rules: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> anyhow::Result<RulesetCreated> {
    use rustix::fs::{Mode, OFlags};
    let Ok(place) = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else {
        return Ok(rules);
    };
    Ok(rules.add_rule(PathBeneath::new(place.as_fd(), access))?)
}

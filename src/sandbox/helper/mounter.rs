//! The process that mounts native directories into a view, unmounts the view, and ends its connection
//! when the server was killed.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;
use rustix::thread::CapabilitySet;
use tollgate_fuse::MountError;

use super::channel::Helper;
use super::ender::{abort_file, connections};
use crate::escape::shown;
use crate::mountinfo::{self, MountInfo};
use crate::{messages, native, other_mounts};

/// How long the file systems that are mounted may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

const MOUNT: u8 = b'm';
const UNMOUNT: u8 = b'u';
const DETACH: u8 = b'd';

const DONE: u8 = 0;
const BUSY: u8 = 1;
const FAILED: u8 = 2;
const NOT_SEEN: u8 = 3;

/// Asks that process.
#[derive(Debug)]
pub(crate) struct Mounter {
    helper: Helper,
    /// The view stays mounted when this is dropped.
    kept: bool,
}

/// Why a view is still mounted.
#[derive(Debug)]
pub(crate) enum NotUnmounted {
    Busy,
    /// No path leads to it, in words: somebody else has unmounted it, or mounted over it.
    NotSeen(String),
    /// In words.
    Failed(String),
}

impl Mounter {
    /// Starts the process for the view at `mnt` of the directory `lower`. Before the first thread.
    ///
    /// # Errors
    /// When the process cannot be made.
    pub(crate) fn start(lower: OwnedFd, mnt: &Path, native: &[PathBuf]) -> anyhow::Result<Self> {
        let keeps =
            CapabilitySet::SYS_ADMIN | CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
        let (mnt, native) = (mnt.to_owned(), native.to_vec());
        let fd = lower.as_raw_fd();
        let helper = Helper::start_with_end(keeps, &[fd], || {
            // Native directories are mounted once.
            let mut lower = Some(lower);
            let view = Mounted::at(mnt);
            let abort = Abort::prepare(view.clone());
            let answers = move |request: &[u8]| (answer(&mut lower, &view, &native, request), None);
            (answers, || abort.end())
        })?;
        Ok(Self { helper, kept: false })
    }

    /// Mounts the native directories. The view must be served already.
    ///
    /// # Errors
    /// See [`native::mount`].
    pub(crate) fn mount_native(&self) -> anyhow::Result<()> {
        match self.ask(MOUNT) {
            (DONE, _) => Ok(()),
            (_, text) => Err(anyhow!("{text}")),
        }
    }

    /// Leaves the view mounted when this is dropped.
    pub(crate) fn keep(mut self) -> Self {
        self.kept = true;
        self
    }

    /// Unmounts the view, `lazy` or not, wherever it is by now; see [`native::unmount_view`]. What others
    /// have mounted in its place stays.
    ///
    /// # Errors
    /// When it is in use, or the kernel refuses it, and when it cannot be reached any more.
    pub(crate) fn unmount(&self, lazy: bool) -> Result<(), NotUnmounted> {
        match self.ask(if lazy { DETACH } else { UNMOUNT }) {
            (DONE, _) => Ok(()),
            (BUSY, _) => Err(NotUnmounted::Busy),
            (NOT_SEEN, text) => Err(NotUnmounted::NotSeen(text)),
            (_, text) => Err(NotUnmounted::Failed(text)),
        }
    }

    fn ask(&self, what: u8) -> (u8, String) {
        let answer = self.helper.ask(&[what], PATIENCE);
        let split = answer.as_ref().and_then(|(bytes, _)| bytes.split_first());
        split.map_or_else(
            || (FAILED, "the process that mounts for this server does not answer".to_owned()),
            |(result, text)| (*result, String::from_utf8_lossy(text).into_owned()),
        )
    }
}

impl Drop for Mounter {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        if let Err(NotUnmounted::NotSeen(reason) | NotUnmounted::Failed(reason)) =
            self.unmount(true)
        {
            tracing::debug!(reason, "not unmounted");
        }
    }
}

/// The mount of the view. At its path may be another one by now, and it may be elsewhere.
#[derive(Clone)]
struct Mounted {
    mnt: PathBuf,
    /// `None` where that could not be read: what is at the path is it then.
    line: Option<MountInfo>,
}

impl Mounted {
    fn at(mnt: PathBuf) -> Self {
        let mounts = mountinfo::read().unwrap_or_default();
        let line = mountinfo::at(&mounts, &mnt).cloned();
        Self { mnt, line }
    }

    /// The path that leads to it: somebody may have renamed a directory above it, or moved it.
    ///
    /// # Errors
    /// Why none does, in words.
    fn place(&self) -> Result<PathBuf, String> {
        let Some(line) = &self.line else { return Ok(self.mnt.clone()) };
        let mounts = mountinfo::read().map_err(|error| messages::in_words(&error))?;
        match mounts.iter().find(|mount| mount.is_same(line)) {
            None => Err(format!("the view is not mounted at `{}` any more", shown(&self.mnt))),
            Some(now) if other_mounts::id_at(&now.point) == Some(now.id) => Ok(now.point.clone()),
            Some(now) => {
                Err(format!("the view at `{}` is beneath another mount", shown(&now.point)))
            }
        }
    }
}

/// Ends the connection of a view whose server was killed. The kernel does that when the last thread of
/// the server is gone, and one may be stuck in the kernel: it tells of a change in a directory, and
/// waits for a caller that works there and waits for an answer.
struct Abort {
    /// In fusectl, opened while the number is known to be that of the view: it has no effect on a
    /// later connection of the same number.
    file: Option<File>,
    view: Mounted,
}

impl Abort {
    fn prepare(view: Mounted) -> Self {
        let number = view.line.as_ref().and_then(MountInfo::minor_number);
        let file =
            number.zip(connections().ok()).and_then(|(number, all)| abort_file(&all, number).ok());
        Self { file, view }
    }

    /// A connection that is at its end already stays as it is.
    fn end(self) {
        if self.file.is_some_and(|mut file| file.write_all(b"1").is_ok()) {
            return;
        }
        if self.view.line.is_none() {
            return;
        }
        let Ok(place) = self.view.place() else { return };
        // In use by this, the mount stays: what is beneath does not show.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if let Ok(_in_use) = rustix::fs::open(&place, flags, Mode::empty()) {
            let flags = UnmountFlags::FORCE | UnmountFlags::NOFOLLOW;
            let _ = rustix::mount::unmount(&place, flags);
        }
    }
}

/// In the process.
fn answer(
    lower: &mut Option<OwnedFd>,
    view: &Mounted,
    native: &[PathBuf],
    request: &[u8],
) -> Vec<u8> {
    let in_words = |result: u8, text: &str| [&[result][..], text.as_bytes()].concat();
    let failed = |text: String| in_words(FAILED, &text);
    let unmounted = |lazy| match view.place() {
        Err(reason) => in_words(NOT_SEEN, &reason),
        Ok(place) => match native::unmount_view(&place, native, lazy) {
            Ok(()) => vec![DONE],
            Err(MountError::Busy { .. }) => vec![BUSY],
            Err(error) => failed(messages::in_words(&error.into())),
        },
    };
    match request {
        [MOUNT] => match lower.take().map(|lower| mount(&lower, &view.mnt, native)) {
            Some(Ok(())) => vec![DONE],
            Some(Err(error)) => failed(messages::in_words(&error)),
            None => failed("native directories are mounted already".to_owned()),
        },
        [UNMOUNT] => unmounted(false),
        [DETACH] => unmounted(true),
        _ => failed("not a request".to_owned()),
    }
}

fn mount(lower: &OwnedFd, mnt: &Path, native: &[PathBuf]) -> anyhow::Result<()> {
    if native.is_empty() {
        return Ok(());
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let view = rustix::fs::open(mnt, flags, Mode::empty()).context("cannot open the view")?;
    native::mount(lower, &view, native)
}

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
use crate::mountinfo::{self, MountInfo};
use crate::{messages, native};

/// How long the file systems that are mounted may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

const MOUNT: u8 = b'm';
const UNMOUNT: u8 = b'u';
const DETACH: u8 = b'd';

const DONE: u8 = 0;
const BUSY: u8 = 1;
const FAILED: u8 = 2;

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
            let abort = Abort::prepare(&mnt);
            let answers = move |request: &[u8]| (answer(&mut lower, &mnt, &native, request), None);
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

    /// Unmounts the view, `lazy` or not; see [`native::unmount_view`].
    ///
    /// # Errors
    /// When it is in use, or the kernel refuses it.
    pub(crate) fn unmount(&self, lazy: bool) -> Result<(), NotUnmounted> {
        match self.ask(if lazy { DETACH } else { UNMOUNT }) {
            (DONE, _) => Ok(()),
            (BUSY, _) => Err(NotUnmounted::Busy),
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
        if !self.kept
            && let Err(NotUnmounted::Failed(reason)) = self.unmount(true)
        {
            tracing::debug!(reason, "not unmounted");
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
    mnt: PathBuf,
    mounted: Option<MountInfo>,
}

impl Abort {
    fn prepare(mnt: &Path) -> Self {
        let mounts = mountinfo::read().unwrap_or_default();
        let mounted = mountinfo::at(&mounts, mnt).cloned();
        let number = mounted.as_ref().and_then(MountInfo::minor_number);
        let file =
            number.zip(connections().ok()).and_then(|(number, all)| abort_file(&all, number).ok());
        Self { file, mnt: mnt.to_owned(), mounted }
    }

    /// A connection that is at its end already stays as it is.
    fn end(self) {
        if self.file.is_some_and(|mut file| file.write_all(b"1").is_ok()) {
            return;
        }
        let mounts = mountinfo::read().unwrap_or_default();
        if self.mounted.is_none() || mountinfo::at(&mounts, &self.mnt) != self.mounted.as_ref() {
            return;
        }
        // In use by this, the mount stays: what is beneath does not show.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if let Ok(_in_use) = rustix::fs::open(&self.mnt, flags, Mode::empty()) {
            let flags = UnmountFlags::FORCE | UnmountFlags::NOFOLLOW;
            let _ = rustix::mount::unmount(&self.mnt, flags);
        }
    }
}

/// In the process.
fn answer(lower: &mut Option<OwnedFd>, mnt: &Path, native: &[PathBuf], request: &[u8]) -> Vec<u8> {
    let failed = |text: String| [&[FAILED][..], text.as_bytes()].concat();
    let unmounted = |lazy| match native::unmount_view(mnt, native, lazy) {
        Ok(()) => vec![DONE],
        Err(MountError::Busy { .. }) => vec![BUSY],
        Err(error) => failed(messages::in_words(&error.into())),
    };
    match request {
        [MOUNT] => match lower.take().map(|lower| mount(&lower, mnt, native)) {
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

//! How a regular file is open: one I/O mode and one backing file for each inode (invariant 1).
//!
//! The kernel refuses (`EIO`) an inode that is open in two modes or with two backing files, so both
//! are kept here, per inode, while any handle is open. The registration may outlive the last
//! handle: see [`crate::idle`].

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tollgate_fuse::{BackingFile, BackingId, Connection};
use tollgate_policy::Made;

use crate::appends::Appends;
use crate::budget::Held;
use crate::creds::Powers;
use crate::lower::Version;
use crate::mapped::MappedPages;

/// How the kernel treats an inode while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoMode {
    /// The kernel reads and writes the lower file.
    Passthrough,
    /// Every read and write comes to this process.
    Direct,
    /// Through the page cache, which this process fills: small files that are only read (see
    /// [`crate::small`]), and what passthrough falls back to.
    Cached,
}

/// What the kernel's page cache of the view has of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pages {
    /// Nothing.
    #[default]
    Nothing,
    /// Pages of this version or of a later one.
    Of(Version),
    /// Each opener drops the pages that it finds; those that are there once all have closed the
    /// file are of this version or of a later one.
    Dropped(Version),
    /// Pages of which nobody knows how old they are.
    Unknown,
}

/// What handles were opened for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Uses {
    pub(crate) reads: bool,
    pub(crate) writes: bool,
}

/// State of one regular file. Guarded by its node's lock.
#[derive(Debug, Default)]
pub(crate) struct Io {
    /// Set while a handle is open.
    mode: Option<IoMode>,
    /// What its handles were opened for since none was open.
    uses: Uses,
    opens: u32,
    /// Handles among them of who executes the file.
    executions: u32,
    backing: Option<BackingFile>,
    /// Counts the descriptor that the node keeps while it is open, so that it is found without a
    /// name.
    kept: Option<Held>,
    /// What the kernel's page cache of the view has of this file.
    pub(crate) pages: Pages,
    /// Why it is open in [`IoMode::Cached`]: it was small and only read. Holds with the mode.
    small: bool,
    /// Handles among them through which the kernel writes the lower file.
    writers: u32,
    /// While there are such, and the file's mode may keep this process from opening it again: a
    /// descriptor for what the kernel does not do itself (ftruncate, fsync). Not longer, because
    /// nobody can execute the file meanwhile.
    writable: Option<(Arc<OwnedFd>, Held)>,
    /// How the view makes its bytes while it is open, if they are not those of the lower file. The
    /// handles of an inode share the pages of mappings, so they must show the same.
    made: Option<Made>,
    /// Where appends through the view go; made with the first handle that may write.
    appends: Option<Arc<Appends>>,
    /// Pages that the kernel keeps for mappings while the file is open in [`IoMode::Direct`]; made with the first
    /// handle that may write. What was read before, the kernel drops when it opens that.
    mapped: Option<Arc<MappedPages>>,
    /// It is open in [`IoMode::Cached`] for reading and writing, as who stores into a mapping has to open it.
    in_place: bool,
    /// Somebody wrote it while it was open in that way: passthrough would have been better.
    busy: bool,
    /// The kernel got these pages before anybody opened the file.
    read_ahead: bool,
    /// On a list of [`crate::idle::Idle`].
    lingering: bool,
    last_closed: Option<Instant>,
    /// An fsync failed while these handles were open. A new descriptor would not see that error
    /// again, and a failed fsync must never be followed by one that claims success.
    pub(crate) sync_error: Option<Errno>,
}

impl Io {
    /// The mode that holds while the file is open.
    pub(crate) fn mode(&self) -> Option<IoMode> {
        self.mode
    }

    pub(crate) fn is_open(&self) -> bool {
        self.opens > 0
    }

    /// What its handles were opened for since none was open: some may be closed again.
    pub(crate) fn uses(&self) -> Uses {
        self.uses
    }

    /// One handle more, in `mode`, for `uses`.
    ///
    /// # Panics
    /// If the file is open in another mode: the kernel would refuse the handle, or show bytes that
    /// must not be seen.
    pub(crate) fn opened(&mut self, mode: IoMode, uses: Uses) {
        assert!(
            self.mode.is_none_or(|held| held == mode),
            "opened as {mode:?} while it is open as {:?}",
            self.mode
        );
        assert!(
            mode != IoMode::Passthrough || self.backing.is_some(),
            "passthrough needs a registered backing file"
        );
        self.mode = Some(mode);
        self.uses.reads |= uses.reads;
        self.uses.writes |= uses.writes;
        self.opens = self.opens.checked_add(1).expect("fewer handles than memory has bytes");
    }

    /// What the handles of the file that may write it append by.
    pub(crate) fn appends(&mut self) -> Arc<Appends> {
        Arc::clone(self.appends.get_or_insert_default())
    }

    /// What the handles of the file that may write it in direct I/O know pages by. The one that is opened now is
    /// for reading and writing: `in_place`.
    pub(crate) fn mapped_by_writers(&mut self, in_place: bool) -> Arc<MappedPages> {
        let mapped = self.mapped.get_or_insert_default();
        if in_place {
            mapped.opened_in_place();
        }
        Arc::clone(mapped)
    }

    /// The same, if there is a handle that may write.
    pub(crate) fn mapped(&self) -> Option<&Arc<MappedPages>> {
        self.mapped.as_ref()
    }

    /// A handle in [`IoMode::Cached`] is for reading and writing.
    pub(crate) fn opened_in_place(&mut self) {
        self.in_place = true;
    }

    /// Whether the kernel may have pages that somebody stored into through a mapping, and did not write
    /// back yet.
    pub(crate) fn may_have_stores(&self) -> bool {
        self.in_place || self.mapped.as_ref().is_some_and(|pages| pages.may_have_stores())
    }

    /// The handle opened last is of who executes the file.
    pub(crate) fn executed(&mut self) {
        self.executions += 1;
    }

    /// One of those is closed.
    pub(crate) fn execution_ended(&mut self) {
        debug_assert!(self.executions > 0, "ended more often than begun");
        self.executions = self.executions.saturating_sub(1);
    }

    /// Whether somebody executes the file, as far as it was opened for that here.
    pub(crate) fn is_executed(&self) -> bool {
        self.executions > 0
    }

    /// Whether a handle may be opened whose bytes are made so, or those of the lower file.
    pub(crate) fn may_be_made(&self, made: Option<&Made>) -> bool {
        match (&self.made, made) {
            _ if !self.is_open() => true,
            (Some(held), Some(made)) => held.is_like(made),
            (held, made) => held.is_none() && made.is_none(),
        }
    }

    /// Whether it is open, and its handles show plain what is encrypted below.
    pub(crate) fn shows_sealed(&self) -> bool {
        self.made.as_ref().is_some_and(|made| !made.domains.is_empty())
    }

    /// One handle more, whose bytes the view makes.
    ///
    /// # Panics
    /// If the file is open in another way.
    pub(crate) fn opened_made(&mut self, made: Made, uses: Uses) {
        assert!(self.may_be_made(Some(&made)), "open in another way: {:?}", self.mode);
        self.opened(IoMode::Direct, uses);
        self.made = Some(made);
        // Of pages that a mapping brings into the cache nobody knows whose bytes they are.
        self.pages = Pages::Unknown;
    }

    /// One handle more, of a small file that is only read.
    pub(crate) fn opened_small(&mut self) {
        self.opened(IoMode::Cached, Uses { reads: true, writes: false });
        self.small = true;
    }

    /// The kernel has its content, of this version, and nobody opened it yet. Returns whether it
    /// should go on an idle list.
    pub(crate) fn is_read_ahead(&mut self, version: Version) -> bool {
        self.pages = Pages::Of(version);
        self.read_ahead = true;
        self.kept.is_some() && !std::mem::replace(&mut self.lingering, true)
    }

    /// Whether it was read before it was opened; true once.
    pub(crate) fn take_read_ahead(&mut self) -> bool {
        std::mem::take(&mut self.read_ahead)
    }

    /// Whether it is open as a small file that was only read when it was opened first.
    pub(crate) fn is_small(&self) -> bool {
        self.small
    }

    /// It is open in [`IoMode::Cached`], and one who may write it opens it too.
    pub(crate) fn is_written_here(&mut self) {
        self.pages = Pages::Unknown;
        self.busy |= self.small;
    }

    /// Whether it was written while it was open as a small file that is only read.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// The kernel writes the lower file through the handle opened last.
    pub(crate) fn opened_to_write(&mut self) {
        self.writers += 1;
    }

    /// One of those is closed. Returns the descriptor that was kept for them, after the last one, to
    /// be dropped outside the lock.
    pub(crate) fn writing_ended(&mut self) -> Option<(Arc<OwnedFd>, Held)> {
        debug_assert!(self.writers > 0, "closed more often than opened");
        self.writers = self.writers.saturating_sub(1);
        if self.writers == 0 { self.writable.take() } else { None }
    }

    /// Keeps `fd`, open for reading and writing, until the last of those handles is closed.
    ///
    /// # Panics
    /// If there is none of them.
    pub(crate) fn keep_writable(&mut self, fd: OwnedFd, held: Held) {
        assert!(self.writers > 0, "kept for whom?");
        self.writable = Some((Arc::new(fd), held));
    }

    /// Whether such handles are open, and nothing is kept for them.
    pub(crate) fn lacks_writable(&self) -> bool {
        self.writers > 0 && self.writable.is_none()
    }

    /// What was kept so.
    pub(crate) fn writable(&self) -> Option<&Arc<OwnedFd>> {
        self.writable.as_ref().map(|(fd, _)| fd)
    }

    /// One handle fewer. Returns whether the file should go on an idle list.
    pub(crate) fn closed(&mut self) -> bool {
        debug_assert!(self.opens > 0, "closed more often than opened");
        self.opens = self.opens.saturating_sub(1);
        if self.opens > 0 {
            return false;
        }
        self.mode = None;
        self.uses = Uses::default();
        self.small = false;
        self.made = None;
        self.mapped = None;
        self.in_place = false;
        if let Pages::Dropped(version) = self.pages {
            self.pages = Pages::Of(version);
        }
        self.sync_error = None;
        self.last_closed = Some(Instant::now());
        (self.backing.is_some() || self.kept.is_some())
            && !std::mem::replace(&mut self.lingering, true)
    }

    /// The node keeps a descriptor until the file leaves its idle list.
    pub(crate) fn keep(&mut self, held: Held) {
        self.kept = Some(held);
    }

    /// Whether the node keeps a descriptor.
    pub(crate) fn keeps(&self) -> bool {
        self.kept.is_some()
    }

    /// The registered backing file.
    pub(crate) fn backing_id(&self) -> Option<BackingId> {
        self.backing.as_ref().map(BackingFile::id)
    }

    /// Registers `fd` unless a backing file stands already. `by_user` is whether the lower file
    /// system reserves space for a user.
    pub(crate) fn register(
        &mut self,
        connection: &Connection,
        fd: BorrowedFd<'_>,
        powers: &Powers,
        by_user: bool,
    ) -> std::io::Result<BackingId> {
        if let Some(id) = self.backing_id() {
            return Ok(id);
        }
        // The kernel writes with the credentials of this moment, whoever the writer is. Without
        // privilege the lower file system drops set-id bits at a write, which nobody else would do:
        // with KILLPRIV_V2 the kernel leaves it to whoever writes.
        let backing = powers.as_nobody(by_user, || connection.open_backing(fd))?;
        let id = backing.id();
        self.backing = Some(backing);
        Ok(id)
    }

    /// It leaves its idle list. Returns what it held, if nobody has it open, to be dropped outside
    /// the lock.
    pub(crate) fn retire(&mut self) -> Option<(Option<BackingFile>, Option<Held>)> {
        self.lingering = false;
        (!self.is_open()).then(|| (self.backing.take(), self.kept.take()))
    }

    /// Whether nobody used it for `linger`.
    pub(crate) fn has_lingered(&self, linger: Duration) -> bool {
        self.last_closed.is_none_or(|at| at.elapsed() >= linger)
    }
}

//! A file that is encrypted below and plain in the view.
//!
//! All handles of an inode share one [`OpenFile`], so that a writer's blocks are seen by every
//! reader. What is written is made durable by fsync, and by the [`Committer`] soon after a close or
//! two seconds after the first write.

use std::cell::RefCell;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use tollgate_fuse::NodeId;
use tollgate_seal::{Options, SealError, SealedFile};

use crate::audit::Audit;
use crate::content::committer::{Committer, Pending};
use crate::content::damaged::{errno_of, tell};
use crate::content::lost::Lost;
use crate::content::lower_store::LowerStore;
use crate::content::times::{Time, Times, touch};
use crate::content::to_open::ToOpen;
use crate::content::{AsAsker, Beside, Content};
use crate::lower::{self, Key, Version};
use crate::one_writer::OneWriter;
use crate::road::lane::Lane;
use crate::road::memory::{Part, Room};
use crate::seal_keys::SealKeys;

/// Encrypted at a time by one thread.
const STEP: usize = 256 << 10;

/// How often a file that another server writes is opened again for one look at it.
const TRIES: usize = 50;

/// How long who opens a file waits at most: for those who are still at work in it, though a commit has
/// failed,
const AT_WORK: Duration = Duration::from_secs(2);
/// and for another server that has just made it.
const BEING_MADE: Duration = Duration::from_millis(50);

/// Why a file is not open.
pub(super) enum NotOpen {
    /// Soon it may be: to be tried again.
    Yet,
    Fails(Errno),
}

impl From<Errno> for NotOpen {
    fn from(errno: Errno) -> NotOpen {
        NotOpen::Fails(errno)
    }
}

/// An inode that is open under a `seal` rule.
pub(super) struct OpenFile {
    id: NodeId,
    key: Key,
    lost: Arc<Lost>,
    path: Box<[u8]>,
    domain: Arc<str>,
    file: RwLock<Arc<SealedFile<LowerStore>>>,
    /// How often it was opened again after a commit that failed.
    losses: AtomicU64,
    /// So many of them somebody was told of by fsync.
    losses_heard: AtomicU64,
    /// Held while a commit, or a caller, sets the times of the lower file. What is durable.
    setting_times: Mutex<Committed>,
    times: Times,
    audit: Option<Arc<dyn Audit>>,
    /// The block of the last damage that was told, and one more.
    told: AtomicU64,
    /// Somebody has closed it, and nobody has written it since: what it needs only while it is written can
    /// be given back.
    is_closed: AtomicBool,
    /// Handles that write.
    writers: Mutex<usize>,
    keys: Arc<SealKeys>,
    /// Kept until the last commit is done.
    _writer: Arc<OneWriter>,
    /// This server was the one that writes when it opened the file.
    is_writers: bool,
}

impl OpenFile {
    /// # Errors
    /// `EIO` if it is not sealed, or not with these keys and for this domain. Not yet, if another server may be
    /// about to seal it, and the caller has not `waited` long for that.
    pub(super) fn open(
        file: &ToOpen<'_>,
        domain: &Arc<str>,
        keys: &Arc<SealKeys>,
        writer: &Arc<OneWriter>,
        lost: &Arc<Lost>,
        (audit, waited): (Option<Arc<dyn Audit>>, Duration),
    ) -> Result<OpenFile, NotOpen> {
        // Before the file is looked at: what another server writes after that is not seen.
        let is_writers = writer.is_held();
        let lower = LowerStore::new(Arc::clone(&file.fd), file.writes || file.is_new);
        let store = || lower.again();
        let domain_name = domain.as_bytes();
        let create = || {
            let (newest, (powers, caller)) = (keys.newest(), file.asked);
            let create = || SealedFile::create(store(), &*newest, domain_name, Options::default());
            // Blocks that are reserved for root are not for a caller who is not.
            powers
                .with_room_of(caller, create)
                .unwrap_or_else(|errno| Err(std::io::Error::from(errno).into()))
        };
        let sealed = if file.is_new {
            create()
        } else {
            match keys.with(|keys| SealedFile::open(store(), keys, domain_name)) {
                Err(SealError::NotSealed)
                    if !is_writers && waited < BEING_MADE && is_being_made(&file.fd) =>
                {
                    return Err(NotOpen::Yet);
                }
                // A server that was killed may have left it so; what it has is discarded anyway.
                Err(
                    SealError::NotSealed
                    | SealError::HeaderNotAuthentic
                    | SealError::HeadersOfTwoFiles,
                ) if file.begins_anew => {
                    rustix::fs::ftruncate(&*file.fd, 0)?;
                    create()
                }
                opened => opened,
            }
        };
        let (id, key) = (file.node.id, file.node.key);
        let told = AtomicU64::new(0);
        let path = file.path.clone().into_boxed_slice();
        match sealed {
            Ok(sealed) => {
                let file = RwLock::new(Arc::new(sealed));
                let (setting_times, times) = (Mutex::default(), Times::default());
                let domain = Arc::clone(domain);
                let (keys, _writer, lost) =
                    (Arc::clone(keys), Arc::clone(writer), Arc::clone(lost));
                Ok(OpenFile {
                    id,
                    key,
                    lost,
                    path,
                    domain,
                    file,
                    losses: AtomicU64::new(0),
                    losses_heard: AtomicU64::new(0),
                    setting_times,
                    times,
                    audit,
                    told,
                    is_closed: AtomicBool::default(),
                    writers: Mutex::default(),
                    keys,
                    _writer,
                    is_writers,
                })
            }
            Err(error) => {
                let told = |bytes| {
                    tell(&audit, &path, key.ino(), bytes);
                    true
                };
                Err(errno_of(&error, &path, told).into())
            }
        }
    }

    /// A further handle.
    ///
    /// # Errors
    /// `EBUSY` if another policy bound it to another domain; `EIO` if it had to be opened again, and
    /// cannot be. Not yet, if somebody is still at work in one of which a commit failed, and the caller has
    /// not `waited` long for that.
    pub(super) fn join(
        &self,
        file: &ToOpen<'_>,
        domain: &Arc<str>,
        keys: &SealKeys,
        waited: Duration,
    ) -> Result<(), NotOpen> {
        if self.domain != *domain {
            return Err(Errno::BUSY.into());
        }
        if self.has_failed() {
            self.open_again(file, keys, waited)
        } else {
            if file.writes {
                self.current().store().widen(&file.fd);
            }
            Ok(())
        }
    }

    /// A handle that writes came, with `fd` for the lower file.
    fn add_writer(&self, fd: &Arc<OwnedFd>) {
        let mut writers = self.writers.lock();
        *writers += 1;
        self.current().store().widen(fd);
    }

    /// Whether it was the last one.
    fn remove_writer(&self) -> bool {
        let left = {
            let mut writers = self.writers.lock();
            *writers -= 1;
            *writers
        };
        self.narrow_if_idle();
        left == 0
    }

    /// Keeps the lower file open to be read alone, once nobody writes and all is durable: others look whether
    /// it is open to be written before they replace it.
    fn narrow_if_idle(&self) {
        let writers = self.writers.lock();
        // Who commits looks after that.
        let Some(_setting) = self.setting_times.try_lock() else { return };
        let file = self.current();
        let is_idle = !file.is_changed() && !file.has_excess() && !file.has_failed();
        if *writers == 0 && is_idle {
            file.store().narrow();
        }
    }

    /// Opens a file anew of which a commit failed, as the last one left it.
    fn open_again(
        &self,
        file: &ToOpen<'_>,
        keys: &SealKeys,
        waited: Duration,
    ) -> Result<(), NotOpen> {
        let mut current = self.file.write();
        // Who still writes to it may write where there is something else after that.
        if Arc::strong_count(&current) > 1 {
            return Err(if waited < AT_WORK { NotOpen::Yet } else { Errno::IO.into() });
        }
        // Handles that write stay open, also if this one does not.
        let lower = current.store().again();
        if file.writes {
            lower.widen(&file.fd);
        }
        let open = |keys: &_| SealedFile::open(lower.again(), keys, self.domain.as_bytes());
        *current = Arc::new(keys.with(open).map_err(|error| self.errno(&error))?);
        self.losses.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// How often what was written and not committed was lost, with a commit that has just failed.
    fn losses(&self) -> u64 {
        let file = self.file.read();
        self.losses.load(Ordering::Relaxed) + u64::from(file.has_failed())
    }

    /// Begins a file anew that is to have nothing in it, and whose map is damaged: `error`. As with a
    /// file whose header is not good, who is killed meanwhile leaves an empty one.
    fn begin_anew(&self, error: SealError) -> Result<(), SealError> {
        let mut file = self.file.write();
        // Whoever is at work in it goes on with slots that would not be there any more.
        if Arc::strong_count(&file) > 1 {
            return Err(error);
        }
        let store = file.store().again();
        rustix::fs::ftruncate(store.fd(), 0).map_err(std::io::Error::from)?;
        let (keys, domain) = (self.keys.newest(), self.domain.as_bytes());
        *file = Arc::new(SealedFile::create(store, &*keys, domain, Options::default())?);
        Ok(())
    }

    /// Whether nobody but this server writes the file.
    pub(super) fn is_writers(&self) -> bool {
        self.is_writers
    }

    /// Whether what was written and not committed is gone.
    pub(super) fn has_failed(&self) -> bool {
        self.current().has_failed()
    }

    /// Opens a file again that another server writes: its blocks may be elsewhere by now. Whether there
    /// was a commit since `before` was opened.
    fn renew(&self, before: &Arc<SealedFile<LowerStore>>) -> Result<bool, SealError> {
        let open =
            |keys: &_| SealedFile::open(before.store().again(), keys, self.domain.as_bytes());
        let again = self.keys.with(open)?;
        let is_newer = again.generation() != before.generation();
        *self.file.write() = Arc::new(again);
        Ok(is_newer)
    }

    /// Reads what is there.
    fn read(&self, range: &Range<u64>, buffer: &mut [u8]) -> Result<usize, SealError> {
        self.look(|file| file.read_at(buffer, range.start))
    }

    /// Runs `act` on what is there; of a file that another server writes, on what is there now.
    fn look<T>(
        &self,
        mut act: impl FnMut(&SealedFile<LowerStore>) -> Result<T, SealError>,
    ) -> Result<T, SealError> {
        let mut tries = 0;
        loop {
            let file = self.current();
            match act(&file) {
                Err(SealError::BlockNotAuthentic(_) | SealError::MapNotAuthentic { .. })
                    if !self.is_writers && tries < TRIES =>
                {
                    // Where no commit came between, it is hardly the other server.
                    tries += if self.renew(&file)? { 1 } else { TRIES.div_ceil(5) };
                }
                done => return done,
            }
        }
    }

    /// What callers see of it.
    pub(super) fn shown(&self) -> Shown {
        let file = self.current();
        Shown { size: file.size(), modified: self.times.shown(&file.store().fd()) }
    }

    /// Runs `act`, which changes the content.
    fn change<T>(&self, act: impl FnOnce() -> T) -> T {
        self.times.change(|| self.current().store().fd(), act)
    }

    /// Writes, in steps. How many bytes were written.
    fn write(&self, data: &mut [u8], offset: u64, beside: &Beside<'_>) -> Result<usize, Errno> {
        let file = self.current();
        // So much at a time: what is told to have been written before a failure ends there.
        let most = STEP * beside.ways.max(1);
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            // Steps end where blocks do, so that none is written twice.
            let within = usize::try_from(at % STEP as u64).map_err(|_| Errno::INVAL)?;
            let step = (most - within).min(data.len() - done);
            match file.write_beside(&mut data[done..done + step], at, beside.run) {
                Ok(written) => {
                    done += written;
                    if written < step {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(self.errno(&error)),
            }
        }
        Ok(done)
    }

    fn set_len(&self, len: u64) -> Result<(), SealError> {
        let done = self.current().set_len(len);
        match done {
            Err(error @ SealError::MapNotAuthentic { .. }) if len == 0 => self.begin_anew(error),
            done => done,
        }
    }

    /// Runs `act`, which sets the times of the lower file, while no commit does.
    pub(super) fn with_times<T>(&self, act: impl FnOnce() -> T) -> T {
        let _setting = self.setting_times.lock();
        act()
    }

    /// Makes durable what was written.
    fn make_durable(&self) -> Result<(), Errno> {
        let file = self.current();
        let wanted = file.changes();
        // Another may be under way, which is waited for.
        let mut committed = self.setting_times.lock();
        if !file.is_changed() {
            return file.commit().map_err(|error| self.errno(&error));
        }
        if committed.has(&file, wanted) {
            // By who had the lock before: of many who wait, one commits for all.
            return Ok(());
        }
        let changes = file.changes();
        let done = self.keep_time(&file, || file.commit());
        if done.is_ok() {
            *committed = Committed { file: Arc::downgrade(&file), changes };
        }
        done
    }

    /// Runs `act`, which writes the map and the header or gives space back: the time of the last change
    /// stays that of the content.
    fn keep_time(
        &self,
        file: &SealedFile<LowerStore>,
        act: impl FnOnce() -> Result<(), SealError>,
    ) -> Result<(), Errno> {
        let fd = file.store().fd();
        self.times.commit_begins(&fd)?;
        let done = act().map_err(|error| self.errno(&error));
        // Also of what failed: it is tried again and again.
        self.times.commit_ends(&fd);
        done
    }

    fn current(&self) -> Arc<SealedFile<LowerStore>> {
        Arc::clone(&self.file.read())
    }

    fn errno(&self, error: &SealError) -> Errno {
        errno_of(error, &self.path, |bytes| {
            let mark = bytes.as_ref().map_or(u64::MAX, |bytes| bytes.start + 1);
            let is_news = self.told.swap(mark, Ordering::Relaxed) != mark;
            if is_news {
                tell(&self.audit, &self.path, self.key.ino(), bytes);
            }
            is_news
        })
    }
}

impl Pending for OpenFile {
    fn id(&self) -> NodeId {
        self.id
    }

    fn path(&self) -> &[u8] {
        &self.path
    }

    /// And gives back what a file that was closed does not need.
    fn commit(&self) -> Result<(), Errno> {
        self.make_durable()?;
        let file = self.current();
        let mut done = Ok(());
        if self.is_closed.load(Ordering::Relaxed) && file.has_excess() {
            let _setting = self.setting_times.lock();
            done = self.keep_time(&file, || file.rest());
        }
        self.narrow_if_idle();
        done
    }

    /// A file without a name would only keep its space.
    fn can_try_again(&self) -> bool {
        let file = self.current();
        file.is_changed() && !file.has_failed() && !is_deleted(&file)
    }

    fn is_lost(&self, error: Errno) {
        // Who has it open is told one by one.
        let is_heard =
            self.has_failed() && self.losses_heard.load(Ordering::Relaxed) >= self.losses();
        if !is_heard && !is_deleted(&self.current()) {
            self.lost.add(self.key, error);
        }
    }
}

fn is_deleted(file: &SealedFile<LowerStore>) -> bool {
    rustix::fs::fstat(file.store().fd()).is_ok_and(|stat| stat.st_nlink == 0)
}

/// What the last commit made durable.
#[derive(Default)]
struct Committed {
    /// A file that was opened again counts anew.
    file: Weak<SealedFile<LowerStore>>,
    /// So many changes of it.
    changes: u64,
}

impl Committed {
    fn has(&self, file: &Arc<SealedFile<LowerStore>>, changes: u64) -> bool {
        std::ptr::eq(self.file.as_ptr(), Arc::as_ptr(file)) && self.changes >= changes
    }
}

/// What callers see otherwise than the lower file shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    pub(crate) size: u64,
    /// When the content was changed last, where that may not be the time of the lower file.
    pub(crate) modified: Option<Time>,
}

/// A handle.
pub(super) struct Sealed {
    open: Arc<OpenFile>,
    committer: Arc<Committer>,
    writes: bool,
    /// So many losses it was told of, or are from before it was opened.
    losses_told: AtomicU64,
}

impl Sealed {
    /// `writer`: with this descriptor for the lower file it writes.
    pub(super) fn new(
        open: Arc<OpenFile>,
        committer: Arc<Committer>,
        writer: Option<&Arc<OwnedFd>>,
    ) -> Sealed {
        let losses_told = AtomicU64::new(open.losses());
        if let Some(fd) = writer {
            open.add_writer(fd);
        }
        Sealed { open, committer, writes: writer.is_some(), losses_told }
    }

    /// For fsync: an error if something was lost since it was opened that it was not told of yet. As with
    /// other files, each handle is told, once: what it has written may be among it.
    fn tell_of_losses(&self) -> Result<(), Errno> {
        let losses = self.open.losses();
        if self.losses_told.fetch_max(losses, Ordering::Relaxed) == losses {
            return Ok(());
        }
        self.open.losses_heard.fetch_max(losses, Ordering::Relaxed);
        Err(Errno::IO)
    }

    /// Something is to be committed: at once if it is much, so that nobody who writes has to.
    fn changed(&self) {
        self.open.is_closed.store(false, Ordering::Relaxed);
        let much = self.open.current().is_commit_due();
        self.committer.changed(&(Arc::clone(&self.open) as Arc<dyn Pending>), much);
    }

    /// Runs `act`, of which nothing may be in the lower file until a commit. The time is set by the server
    /// itself: who has the file open may change it, and need not be allowed to set times by now.
    fn change_and_touch(
        &self,
        as_asker: AsAsker<'_>,
        act: impl Fn() -> Result<(), SealError>,
    ) -> Result<(), Errno> {
        let touched = self.open.change(|| {
            as_asker(&mut || act().map_err(|error| self.open.errno(&error)))?;
            Ok(touch(&self.open.current().store().fd()))
        })?;
        self.changed();
        touched
    }
}

impl Content for Sealed {
    fn lane(&self) -> Lane {
        Lane::Seal
    }

    fn size(&self) -> Result<u64, Errno> {
        Ok(self.open.current().size())
    }

    fn version(&self) -> Result<Option<Version>, Errno> {
        let counted = || Version::counted(self.open.current().changes());
        Ok(self.open.is_writers.then(counted))
    }

    fn read(&self, range: Range<u64>, room: Room) -> Result<Part, Errno> {
        let file = self.open.current();
        file.store().accessed();
        let end = range.end.min(file.size());
        if range.start >= end {
            return Ok(Part::end(room));
        }
        let length = usize::try_from(end - range.start).map_err(|_| Errno::INVAL)?;
        let mut buffer = room.zeroed(length)?;
        let read = self.open.read(&range, &mut buffer[..length]);
        let read = read.map_err(|error| self.open.errno(&error))?;
        Ok(Part::new(buffer, 0..read, room))
    }

    fn read_at_once(&self, buffer: &mut [u8], offset: u64) -> Option<usize> {
        let file = self.open.current();
        file.store().accessed();
        file.read_at_once(buffer, offset).ok()?
    }

    fn write_at_once(&self, data: &[u8], offset: u64) -> Option<usize> {
        let file = self.open.current();
        let write = |bytes: &mut _| file.write_at_once(bytes, offset);
        let written = self.open.change(|| with_scratch(data, write)).ok()?;
        written.then(|| {
            self.changed();
            data.len()
        })
    }

    fn write(&self, data: &mut [u8], offset: u64, beside: &Beside<'_>) -> Result<usize, Errno> {
        let done = self.open.change(|| self.open.write(data, offset, beside))?;
        self.changed();
        Ok(done)
    }

    fn set_len(&self, len: u64, as_asker: AsAsker<'_>) -> Result<(), Errno> {
        self.change_and_touch(as_asker, || self.open.set_len(len))
    }

    fn punch(&self, range: Range<u64>, as_asker: AsAsker<'_>) -> Result<(), Errno> {
        self.change_and_touch(as_asker, || self.open.current().punch(range.clone()))
    }

    fn seek(&self, to: SeekFrom) -> Result<u64, Errno> {
        let found = self.open.look(|file| match to {
            SeekFrom::Data(offset) if offset < file.size() => {
                Ok(file.next_data(offset)?.map(|data| data.start))
            }
            SeekFrom::Hole(offset) if offset < file.size() => file.next_hole(offset).map(Some),
            _ => Ok(None),
        });
        found.map_err(|error| self.open.errno(&error))?.ok_or(Errno::NXIO)
    }

    fn commit(&self, data_only: bool) -> Result<(), Errno> {
        let done = self.open.make_durable();
        let told = self.tell_of_losses();
        // What was lost behind a close, before this was opened or meanwhile, is told once. What is told
        // above is not kept there after that.
        let lost = self.open.lost.take(self.open.key);
        done.and_then(|()| lost.map_or(Ok(()), Err)).and(told)?;
        if !data_only {
            rustix::fs::fsync(self.open.current().store().fd())?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Errno> {
        let file = self.open.current();
        // It goes on being told: this may be the end of a process that has a copy of the descriptor, and that
        // asks nobody.
        if self.writes && self.losses_told.load(Ordering::Relaxed) < self.open.losses() {
            return Err(Errno::IO);
        }
        if self.writes && (file.is_changed() || file.has_excess()) {
            self.open.is_closed.store(true, Ordering::Relaxed);
            self.committer.changed(&(Arc::clone(&self.open) as Arc<dyn Pending>), true);
        }
        Ok(())
    }
}

impl Drop for Sealed {
    fn drop(&mut self) {
        if self.writes && self.open.remove_writer() {
            // What somebody has made durable already waits for nothing any more: it would keep the space of a
            // file without a name.
            self.committer.try_now(self.open.id);
        }
    }
}

/// Runs `act` on a copy of `data`, which it may overwrite: what stays there is encrypted.
fn with_scratch<T>(data: &[u8], act: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local!(static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        scratch.extend_from_slice(data);
        act(scratch)
    })
}

/// The size of the plain file; `None` if the lower one is not sealed so.
///
/// # Errors
/// If that cannot be told now, though the file may be good: it is not read, or its key is not at hand.
pub(super) fn plain_size(
    fd: OwnedFd,
    keys: &SealKeys,
    domain: &str,
) -> Result<Option<u64>, SealError> {
    let store = LowerStore::new(Arc::new(fd), false);
    match keys.with(|keys| tollgate_seal::stat(&store, keys, domain.as_bytes())) {
        Ok(found) => Ok(Some(found.size)),
        Err(error @ (SealError::Io(_) | SealError::WrongEpoch { .. })) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Whether another server may be about to seal a file that it has just made.
fn is_being_made(fd: &OwnedFd) -> bool {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
    rustix::fs::fstat(fd)
        .is_ok_and(|stat| stat.st_size == 0 && (now - 1..=now).contains(&stat.st_ctime))
}

/// As an `O_PATH` descriptor names it.
pub(super) fn reopen(path: impl AsFd) -> Result<OwnedFd, Errno> {
    lower::reopen(path.as_fd(), rustix::fs::OFlags::RDONLY)
}

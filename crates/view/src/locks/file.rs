//! Who holds which locks on one lower file, as far as they came through this view.
//!
//! The lower file system decides who gets a lock; what is noted here says which process a lock
//! belongs to, which locks end with a handle, and who waits for whom. What it notes changes
//! together with the lower file, under one mutex, which is never held while anything waits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustix::io::Errno;
use smallvec::SmallVec;
use tollgate_fuse::FileHandle;

use crate::caller::Callers;
use crate::handles::flushes;
use crate::locks::description::{Class, Description, Wanted};
use crate::locks::range::{Kind, Piece, Pieces, Range};
use crate::locks::who::{self, OwnerKind};
use crate::shares::Taken;

/// Names the owner of a lock. The kernel tells a process from an open file description by the
/// number alone; `flock` has owners of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnerId {
    pub(crate) class: Class,
    pub(crate) owner: u64,
}

/// A request for a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) id: OwnerId,
    pub(crate) wanted: Wanted,
    pub(crate) handle: FileHandle,
    /// The process that asks, and its thread.
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    /// Its user.
    pub(crate) uid: u32,
}

/// How one owner's lock on the lower file is reached.
pub(crate) trait Source {
    /// A new description of the lower file, open for reading, and if `writable` for writing.
    fn open(&self, writable: bool) -> Result<Description, Errno>;
    /// What counts pieces for the user who asks, in blocks of [`Pieces::BLOCK`].
    fn room(&self) -> Taken;
    /// Who looks at the thread that asks.
    fn callers(&self) -> &dyn Callers;
    /// Whether the handle can be asked for locks against readers.
    fn is_writable(&self) -> bool;
}

/// One owner's locks.
#[derive(Debug)]
struct Holder {
    description: Arc<Description>,
    pieces: Pieces,
    /// Room for pieces, counted.
    room: Taken,
    kind: OwnerKind,
    pid: u32,
    /// Becomes readable when the process ends; for one whose closes the kernel does not report.
    life: Option<Arc<who::Life>>,
    handles: SmallVec<[u64; 2]>,
    /// Requests of this owner that wait: the description stays while there are any.
    waiting: usize,
    /// The description before this one, while a thread of such a request has it.
    left: Weak<Description>,
}

/// The locks on one lower file that came through this view.
#[derive(Debug, Default)]
pub(crate) struct FileLocks {
    holders: Mutex<FxHashMap<OwnerId, Holder>>,
    /// A range was locked once: databases and lock files are known by it.
    ranges_used: AtomicBool,
}

impl FileLocks {
    /// Ranges of this file have been locked since the kernel remembers the inode.
    pub(crate) fn ranges_used(&self) -> bool {
        self.ranges_used.load(Ordering::Relaxed)
    }

    /// Locks or unlocks without waiting. With `EAGAIN` the owner's description stays for a wait,
    /// until [`FileLocks::wait_ends`].
    ///
    /// # Errors
    /// `EAGAIN` if somebody's lock is in the way; `ENOLCK` if no description can be had.
    pub(crate) fn set(&self, ask: &Ask, source: &impl Source) -> Result<(), Errno> {
        if let Some(holder) = self.holders.lock().get_mut(&ask.id)
            && holder.description.serves(&ask.wanted)
        {
            return holder.set_or_wait(ask);
        }
        if ask.wanted.kind.is_none() {
            return Ok(());
        }
        // Opened outside the mutex: the lower file system may take its time.
        let writable = source.is_writable() || ask.wanted.kind == Some(Kind::Write);
        let whole = ask.id.class == Class::Whole;
        let description = Arc::new(source.open(writable && !whole)?);
        let kind =
            if whole { OwnerKind::Description } else { who::asks(source.callers(), ask.tid) };
        if !whole {
            self.ranges_used.store(true, Ordering::Relaxed);
        }
        let mut holders = self.holders.lock();
        let holder = match holders.entry(ask.id) {
            std::collections::hash_map::Entry::Occupied(there) => {
                let holder = there.into_mut();
                // Another thread of the owner may have opened one meanwhile.
                if !holder.description.serves(&ask.wanted) {
                    holder.move_to(description)?;
                }
                holder
            }
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(Holder::new(description, source.room(), kind, ask.pid))
            }
        };
        holder.set_or_wait(ask)
    }

    /// Locks or unlocks without waiting on the description that the owner has; `None` if it has
    /// none that serves.
    pub(crate) fn set_if_open(&self, ask: &Ask) -> Option<Result<(), Errno>> {
        let mut holders = self.holders.lock();
        let holder = holders.get_mut(&ask.id)?;
        holder.description.serves(&ask.wanted).then(|| holder.set(ask))
    }

    /// The same for who has waited for the lock in the kernel, and so has it below. If it cannot be noted, nobody
    /// would give it up: it is given up again.
    ///
    /// # Errors
    /// `ENOLCK` if there is no description any more, or no room; as [`FileLocks::set`] otherwise.
    pub(crate) fn set_waited(&self, ask: &Ask) -> Result<(), Errno> {
        let mut holders = self.holders.lock();
        let holder = holders.get_mut(&ask.id).filter(|own| own.description.serves(&ask.wanted));
        let holder = holder.ok_or(Errno::NOLCK)?;
        holder.set(ask).inspect_err(|_| holder.lock_as_noted(&ask.wanted))
    }

    /// The reply that the lock is there reached nobody who could give it up.
    pub(crate) fn undo(&self, ask: &Ask) {
        self.set_if_open(&Ask { wanted: ask.wanted.undone(), ..*ask });
    }

    /// A request that got `EAGAIN` waits no longer.
    pub(crate) fn wait_ends(&self, id: OwnerId) {
        let mut holders = self.holders.lock();
        if let Some(holder) = holders.get_mut(&id) {
            holder.waiting -= 1;
            if holder.is_idle() && holder.handles.is_empty() {
                holders.remove(&id);
            }
        }
    }

    /// The description that an owner's locks are taken on.
    pub(crate) fn description(&self, id: OwnerId) -> Option<Arc<Description>> {
        self.holders.lock().get(&id).map(|holder| Arc::clone(&holder.description))
    }

    /// Whether requests of the owner may wait on a description that it has left.
    pub(crate) fn has_left(&self, id: OwnerId) -> bool {
        self.holders.lock().get(&id).is_some_and(Holder::has_left)
    }

    /// Process `owner` closed a descriptor of the file: all its locks on ranges end.
    pub(crate) fn flushed(&self, owner: u64) {
        let id = OwnerId { class: Class::Ranges, owner };
        let mut holders = self.holders.lock();
        if let Some(holder) = holders.get_mut(&id) {
            holder.end_all();
            if holder.waiting == 0 {
                holders.remove(&id);
            }
        }
    }

    /// Nobody has `handle` open any more: locks that were taken through it end.
    pub(crate) fn released(&self, handle: FileHandle) {
        let mut holders = self.holders.lock();
        holders.retain(|_, holder| {
            if holder.handles.contains(&handle.0) {
                holder.end_handle(handle.0);
            }
            !(holder.is_idle() && holder.handles.is_empty())
        });
    }

    /// The process behind `life` ended. Its number may belong to another owner by now, which has
    /// another `life` then.
    pub(crate) fn process_ended(&self, id: OwnerId, life: &Arc<who::Life>) {
        let mut holders = self.holders.lock();
        let Some(holder) = holders.get_mut(&id) else { return };
        if holder.life.as_ref().is_some_and(|own| Arc::ptr_eq(own, life)) {
            holder.end_all();
            if holder.waiting == 0 {
                holders.remove(&id);
            }
        }
    }

    /// The life of a process that holds locks here and whose closes are not reported.
    pub(crate) fn life(&self, id: OwnerId) -> Option<Arc<who::Life>> {
        self.holders.lock().get(&id)?.life.clone()
    }

    /// The process in the view that has locked some of `range` in a way that excludes `kind`.
    pub(crate) fn holder(&self, range: Range, kind: Kind, not: OwnerId) -> Option<u32> {
        let holders = self.holders.lock();
        let mut others = holders.iter().filter(|(id, _)| id.class == not.class && **id != not);
        others
            .find(|(_, holder)| holder.pieces.conflict(range, kind).is_some())
            .map(|(_, holder)| holder.pid)
    }

    /// Processes whose locks are in the way of `ask`.
    pub(crate) fn blocking_processes(&self, ask: &Ask) -> Vec<OwnerId> {
        let Some(kind) = ask.wanted.kind else { return Vec::new() };
        let holders = self.holders.lock();
        let others = holders.iter().filter(|(id, holder)| {
            id.class == Class::Ranges && **id != ask.id && holder.kind != OwnerKind::Description
        });
        others
            .filter(|(_, holder)| holder.pieces.conflict(ask.wanted.range, kind).is_some())
            .map(|(id, _)| *id)
            .collect()
    }

    /// Tries a lock once more that got `EAGAIN`, and tells why if it is still not to be had. Both
    /// at one moment: a close that is reported in between would leave nothing in the way.
    pub(crate) fn try_again(&self, ask: &Ask) -> Result<(), InTheWay> {
        let mut holders = self.holders.lock();
        let holder = holders.get_mut(&ask.id).filter(|own| own.description.serves(&ask.wanted));
        match holder.map_or(Err(Errno::NOLCK), |own| own.set(ask)) {
            Ok(()) => Ok(()),
            Err(Errno::AGAIN) if may_be_closing(&holders, ask) => Err(InTheWay::MayBeClosing),
            Err(error) => Err(InTheWay::Stays(error)),
        }
    }

    /// Whether the owner is a process, as far as is known.
    pub(crate) fn is_process(&self, id: OwnerId) -> bool {
        let holders = self.holders.lock();
        holders.get(&id).is_some_and(|holder| holder.kind != OwnerKind::Description)
    }
}

/// Why a lock is not to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InTheWay {
    /// A lock that may have ended already.
    MayBeClosing,
    /// What does not end by itself.
    Stays(Errno),
}

/// Whether a lock in the way of `ask` may have ended already, with a close that the kernel reports
/// only after it returned; or is the owner's own, which a thread that waited has got on a description
/// that the owner has left.
fn may_be_closing(holders: &FxHashMap<OwnerId, Holder>, ask: &Ask) -> bool {
    if holders.get(&ask.id).is_some_and(Holder::has_left) {
        return true;
    }
    let Some(kind) = ask.wanted.kind else { return false };
    let mut others = holders.iter().filter(|(id, _)| id.class == ask.id.class && **id != ask.id);
    others.any(|(_, holder)| {
        let late =
            |piece: &Piece| holder.kind != OwnerKind::Process || !flushes(FileHandle(piece.handle));
        holder.pieces.conflict(ask.wanted.range, kind).is_some_and(late)
    })
}

impl Holder {
    fn new(description: Arc<Description>, room: Taken, kind: OwnerKind, pid: u32) -> Self {
        Self {
            description,
            pieces: Pieces::default(),
            room,
            kind,
            pid,
            life: None,
            handles: SmallVec::new(),
            waiting: 0,
            left: Weak::new(),
        }
    }

    fn set_or_wait(&mut self, ask: &Ask) -> Result<(), Errno> {
        let result = self.set(ask);
        if result == Err(Errno::AGAIN) {
            self.waiting += 1;
        }
        result
    }

    fn set(&mut self, ask: &Ask) -> Result<(), Errno> {
        self.belongs_to(ask);
        let Some(kind) = ask.wanted.kind else {
            self.pieces.unlock(ask.wanted.range);
            self.give_room_back();
            return self.description.set(&ask.wanted);
        };
        if self.pieces.is_full() || !self.room.set(self.pieces.blocks_with_next()) {
            return Err(Errno::NOLCK);
        }
        let set = self.description.set(&ask.wanted);
        if set.is_err() && ask.id.class == Class::Whole {
            // flock(2): the lock that was there is given up first.
            self.pieces.clear();
        }
        set?;
        let Wanted { range, .. } = ask.wanted;
        self.pieces.lock(Piece { range, kind, handle: ask.handle.0 });
        if !self.handles.contains(&ask.handle.0) {
            self.handles.push(ask.handle.0);
        }
        Ok(())
    }

    /// The kernel's number of an owner is used again once its process is gone. What the old one
    /// left, because its close was not reported yet, is not the new one's.
    fn belongs_to(&mut self, ask: &Ask) {
        if self.pid != ask.pid && ask.wanted.kind.is_some() {
            if self.life.take().is_some_and(|life| life.is_over()) {
                self.end_all();
            }
            self.pid = ask.pid;
        }
        if self.kind == OwnerKind::Process && self.life.is_none() && !flushes(ask.handle) {
            let held = self.description.hold_another();
            self.life = held.and_then(|held| who::Life::of(ask.pid, held)).map(Arc::new);
        }
    }

    /// Goes over to `description`, which can be locked against readers too, from one that cannot.
    /// Nobody gets in between: what is locked is locked on both until the old one is unlocked.
    fn move_to(&mut self, description: Arc<Description>) -> Result<(), Errno> {
        for piece in self.pieces.iter() {
            let wanted =
                Wanted { class: Class::Ranges, range: piece.range, kind: Some(piece.kind) };
            // Only reading was locked on the old one, so the two do not exclude each other.
            description.set(&wanted).map_err(|_| Errno::NOLCK)?;
        }
        // Threads that wait have the old one open: without this, its locks would stay with them.
        self.unlock(Range::ALL);
        let left = std::mem::replace(&mut self.description, description);
        self.left = Arc::downgrade(&left);
        Ok(())
    }

    fn end_all(&mut self) {
        self.pieces.clear();
        self.handles.clear();
        self.give_room_back();
        self.unlock(Range::ALL);
    }

    fn end_handle(&mut self, handle: u64) {
        self.handles.retain(|other| *other != handle);
        let through = |piece: &&Piece| piece.handle == handle;
        let ended: SmallVec<[Range; 4]> =
            self.pieces.iter().filter(through).map(|piece| piece.range).collect();
        for range in ended {
            self.pieces.unlock(range);
            self.unlock(range);
        }
        self.give_room_back();
    }

    fn give_room_back(&mut self) {
        self.room.set(self.room.count().min(self.pieces.blocks_with_next()));
    }

    fn unlock(&self, range: Range) {
        for class in [Class::Ranges, Class::Whole] {
            if let Err(error) = self.description.set(&Wanted { class, range, kind: None }) {
                tracing::warn!(%error, "a lock on a lower file could not be given up");
            }
        }
    }

    /// Locks of this range what is noted, and no more. Where a wait to read has let readers in who were kept out
    /// before, they stay.
    fn lock_as_noted(&self, &Wanted { class, range, .. }: &Wanted) {
        for (range, kind) in self.pieces.over(range) {
            if let Err(error) = self.description.set(&Wanted { class, range, kind }) {
                tracing::warn!(%error, "a lock on a lower file is not as it was");
            }
        }
    }

    fn has_left(&self) -> bool {
        self.left.strong_count() > 0
    }

    fn is_idle(&self) -> bool {
        self.pieces.is_empty() && self.waiting == 0
    }
}

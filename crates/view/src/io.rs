//! How a regular file is open: one I/O mode and one backing file for each inode (invariant 1).
//!
//! The kernel refuses (`EIO`) an inode that is open in two modes or with two backing files, so both are
//! kept here, per inode, while any handle is open. After the last close the registration stays for a
//! moment: programs open the same file again and again, and a new registration costs a lookup of the
//! lower file and two ioctls.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use tollgate_fuse::{BackingFile, BackingId, Connection, FileHandle};
use tollgate_policy::Mode;

use crate::creds::without_fsetid;
use crate::fds::Held;
use crate::memory::Trim;
use crate::table::Node;

/// How the kernel treats an inode while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoMode {
    /// The kernel reads and writes the lower file.
    Passthrough,
    /// Every read and write comes to this process.
    Direct,
    /// Through the page cache to this process: what passthrough falls back to.
    Cached,
}

/// State of one regular file. Guarded by its node's lock.
#[derive(Debug, Default)]
pub(crate) struct Io {
    /// Set while a handle is open.
    pub(crate) mode: Option<IoMode>,
    pub(crate) opens: u32,
    backing: Option<BackingFile>,
    /// Counts the descriptor that the node keeps while it is open, so that it is found without a name.
    kept: Option<Held>,
    /// On an [`Idle`] list.
    lingering: bool,
    last_closed: Option<Instant>,
    /// An fsync failed while these handles were open. A new descriptor would not see that error again,
    /// and a failed fsync must never be followed by one that claims success.
    pub(crate) sync_error: Option<Errno>,
}

impl Io {
    pub(crate) fn opened(&mut self, mode: IoMode) {
        self.mode = Some(mode);
        self.opens += 1;
    }

    /// One handle fewer. Answers whether the file should go on an [`Idle`] list.
    pub(crate) fn closed(&mut self) -> bool {
        self.opens = self.opens.saturating_sub(1);
        if self.opens > 0 {
            return false;
        }
        self.mode = None;
        self.sync_error = None;
        self.last_closed = Some(Instant::now());
        self.backing.is_some() && !std::mem::replace(&mut self.lingering, true)
    }

    /// The node keeps a descriptor as long as the registration stands.
    pub(crate) fn keep(&mut self, held: Held) {
        self.kept = Some(held);
    }

    /// The registered backing file.
    pub(crate) fn backing_id(&self) -> Option<BackingId> {
        self.backing.as_ref().map(BackingFile::id)
    }

    /// Registers `fd` unless a backing file stands already.
    pub(crate) fn register(
        &mut self,
        connection: &Connection,
        fd: &OwnedFd,
    ) -> std::io::Result<BackingId> {
        if let Some(id) = self.backing_id() {
            return Ok(id);
        }
        // The kernel writes with the credentials of this moment. Without CAP_FSETID the lower file
        // system drops set-id bits at a write, which nobody else would do: with KILLPRIV_V2 the
        // kernel leaves it to whoever writes.
        let backing = without_fsetid(|| connection.open_backing(fd.as_fd()))?;
        let id = backing.id();
        self.backing = Some(backing);
        Ok(id)
    }

    fn has_lingered(&self) -> bool {
        self.last_closed.is_none_or(|at| at.elapsed() >= Idle::LINGER)
    }
}

/// Whether passthrough can be had, and why not.
#[derive(Debug, Default)]
pub(crate) struct Passthrough {
    refused: AtomicBool,
    reason: OnceLock<String>,
    /// Files that were served by this process although the policy allows passthrough.
    fallbacks: AtomicU64,
}

impl Passthrough {
    pub(crate) fn unavailable(&self, reason: impl Into<String>) {
        self.refused.store(true, Ordering::Relaxed);
        let reason = reason.into();
        if self.reason.set(reason.clone()).is_ok() {
            tracing::debug!(reason, "no passthrough: files are served by this process");
        }
    }

    pub(crate) fn is_available(&self) -> bool {
        !self.refused.load(Ordering::Relaxed)
    }

    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    pub(crate) fn fell_back(&self) {
        self.fallbacks.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn fallbacks(&self) -> u64 {
        self.fallbacks.load(Ordering::Relaxed)
    }

    /// A registration failed. `EPERM` is about this process and stays so; `ELOOP` (stacked too deep) and
    /// the like are about the file.
    pub(crate) fn registration_failed(&self, error: &std::io::Error) {
        self.fell_back();
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::PERM) => {
                self.unavailable("registering a backing file needs CAP_SYS_ADMIN");
            }
            Some(Errno::LOOP) => {
                let _ = self.reason.set(
                    "some lower files lie on a file system that is stacked too deep".to_owned(),
                );
            }
            _ => {
                let _ = self.reason.set(format!("the kernel refused a backing file: {error}"));
            }
        }
    }
}

/// The mode that `wanted` comes to.
pub(crate) fn io_mode(wanted: Mode, passthrough: &Passthrough) -> IoMode {
    match wanted {
        Mode::Userspace => IoMode::Direct,
        Mode::Passthrough if passthrough.is_available() => IoMode::Passthrough,
        Mode::Passthrough => IoMode::Cached,
    }
}

/// Files that nobody has open, whose registration is kept a little longer. One list per worker, so
/// that no lock is shared.
pub(crate) struct Idle {
    lists: Box<[crossbeam_utils::CachePadded<Mutex<IdleList>>]>,
    /// Something waits, so the sweeper has work.
    waiting: Mutex<bool>,
    wake: Condvar,
    stop: AtomicBool,
    trim: Trim,
}

type IdleList = VecDeque<(Instant, Weak<Node>)>;

impl Idle {
    /// How long a registration outlives its last handle. A file deleted behind our back keeps its
    /// space at most twice this long.
    pub(crate) const LINGER: Duration = Duration::from_secs(1);
    /// Files kept per worker; beyond it the oldest goes at once.
    const MAX_PER_WORKER: usize = 256;

    pub(crate) fn new(workers: usize) -> Self {
        Self {
            lists: (0..workers.max(1)).map(|_| Default::default()).collect(),
            waiting: Mutex::new(false),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
            trim: Trim::default(),
        }
    }

    /// A node was forgotten; after many the sweeper gives their memory back.
    pub(crate) fn forgotten(&self) {
        if self.trim.count() {
            self.wake_up();
        }
    }

    fn wake_up(&self) {
        *self.waiting.lock() = true;
        self.wake.notify_one();
    }

    /// `node` was closed for the last time by `worker`, and is on no list.
    pub(crate) fn push(&self, worker: usize, node: &Arc<Node>) {
        let (surplus, first) = {
            let mut list = self.lists[worker % self.lists.len()].lock();
            list.push_back((Instant::now(), Arc::downgrade(node)));
            let surplus = if list.len() > Self::MAX_PER_WORKER { list.pop_front() } else { None };
            (surplus, list.len() == 1)
        };
        if let Some(node) = surplus.and_then(|(_, weak)| weak.upgrade()) {
            retire_now(&node);
        }
        if first {
            self.wake_up();
        }
    }

    /// Sweeps until [`Idle::stop`]; sleeps without a timeout while nothing lingers.
    pub(crate) fn sweep_until_stopped(&self) {
        while !self.stop.load(Ordering::Acquire) {
            let mut waiting = self.waiting.lock();
            while !*waiting && !self.stop.load(Ordering::Acquire) {
                self.wake.wait(&mut waiting);
            }
            *waiting = false;
            // Sleep on the condition, so that a stop need not wait for the second to pass.
            let pause = Instant::now() + Self::LINGER;
            while !self.stop.load(Ordering::Acquire) {
                if self.wake.wait_until(&mut waiting, pause).timed_out() {
                    break;
                }
            }
            drop(waiting);
            if self.sweep() {
                *self.waiting.lock() = true;
            }
        }
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        let _waiting = self.waiting.lock();
        self.wake.notify_all();
    }

    /// Drops what has lingered long enough, and memory that is not used. Answers whether anything is left.
    fn sweep(&self) -> bool {
        self.trim.run_if_due();
        let mut left = false;
        for list in &self.lists {
            while let Some(node) = Self::due(list) {
                let Some(node) = node.upgrade() else { continue };
                if !retire_if_lingered(&node) {
                    list.lock().push_back((Instant::now(), Arc::downgrade(&node)));
                }
            }
            left |= !list.lock().is_empty();
        }
        left
    }

    fn due(list: &Mutex<IdleList>) -> Option<Weak<Node>> {
        let mut list = list.lock();
        let (since, _) = list.front()?;
        if since.elapsed() < Self::LINGER {
            return None;
        }
        list.pop_front().map(|(_, node)| node)
    }
}

/// Takes `node` off its list, or answers false because it was used in the meantime.
fn retire_if_lingered(node: &Node) -> bool {
    {
        let mut io = node.io.lock();
        if io.opens > 0 {
            // The next last close puts it on a list again.
            io.lingering = false;
            return true;
        }
        if !io.has_lingered() {
            return false;
        }
    }
    retire_now(node);
    true
}

/// Drops the registration and the descriptor of `node` if nobody has it open: its time is over, or its
/// lower file is about to go and must not keep its space.
pub(crate) fn retire_now(node: &Node) {
    let mut io = node.io.lock();
    io.lingering = false;
    if io.opens > 0 {
        return;
    }
    let backing = io.backing.take();
    let kept = io.kept.take();
    let fd = if node.pinned.load(Ordering::Relaxed) { None } else { node.fd.lock().take() };
    // The system calls run outside the lock.
    drop(io);
    drop((backing, kept, fd));
}

/// A handle whose reads and writes come to this process.
#[derive(Debug)]
pub(crate) struct UserFile {
    pub(crate) fd: OwnedFd,
    pub(crate) _held: Held,
}

/// Open handles by number. Passthrough handles need no state: their number says what they are.
pub(crate) struct Handles<T> {
    shards: Box<[crossbeam_utils::CachePadded<Mutex<HandleMap<T>>>]>,
    next: AtomicU64,
}

type HandleMap<T> = rustc_hash::FxHashMap<u64, Arc<T>>;

/// The handle of every passthrough file.
pub(crate) const PASSTHROUGH_HANDLE: FileHandle = FileHandle(0);

impl<T> Handles<T> {
    const SHARDS: usize = 16;

    pub(crate) fn new() -> Self {
        Self {
            shards: (0..Self::SHARDS).map(|_| Default::default()).collect(),
            next: AtomicU64::new(PASSTHROUGH_HANDLE.0 + 1),
        }
    }

    pub(crate) fn insert(&self, value: T) -> FileHandle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.shard(number).lock().insert(number, Arc::new(value));
        FileHandle(number)
    }

    /// # Errors
    /// `EBADF` for a handle that is not open here.
    pub(crate) fn get(&self, handle: FileHandle) -> Result<Arc<T>, Errno> {
        self.shard(handle.0).lock().get(&handle.0).cloned().ok_or(Errno::BADF)
    }

    pub(crate) fn remove(&self, handle: FileHandle) -> Option<Arc<T>> {
        self.shard(handle.0).lock().remove(&handle.0)
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    fn shard(&self, number: u64) -> &Mutex<HandleMap<T>> {
        &self.shards[usize::try_from(number % Self::SHARDS as u64).unwrap_or(0)]
    }
}

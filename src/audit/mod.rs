//! The audit log: JSON lines, written by a thread of its own.
//!
//! Recording copies the event into one of [`SLOTS`] slots that were allocated beforehand, and hands
//! it over by a lock-free queue. It never blocks, allocates or writes. When every slot is taken the
//! event is dropped and counted; the count goes into the log as a record of its own, and into
//! `status`.

mod busiest;
mod file;
mod slot;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, SystemTime};

use crossbeam_queue::ArrayQueue;
use serde::Serialize;

use crate::requests::Busiest;

use busiest::Busiest as Counter;
use file::RotatedFile;
use slot::Slot;
pub(crate) use slot::timestamp;
use tollgate_view::{Audit, AuditLevel, Event};

/// Events that can wait for the writer: about 6 MiB. What comes when all are taken is dropped.
const SLOTS: usize = 4096;
/// Events that go into the file with one write.
const BATCH: usize = 256;
/// How long the writer looks for more before it sleeps until it is woken.
const LINGER: Duration = Duration::from_millis(2);

/// Where the log goes.
#[derive(Debug)]
pub(crate) struct AuditConfig {
    pub(crate) path: PathBuf,
    pub(crate) level: AuditLevel,
    pub(crate) max_bytes: u64,
    pub(crate) keep: u32,
}

/// What the log has done so far.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AuditStatus {
    pub(crate) file: String,
    pub(crate) written: u64,
    /// Events that found no free slot.
    pub(crate) dropped: u64,
    /// Events whose write failed, as on a full disk.
    pub(crate) failed: u64,
    pub(crate) last_error: Option<String>,
}

/// Takes events and hands them to the writer.
#[derive(Debug)]
pub(crate) struct AuditLog {
    shared: Arc<Shared>,
    level: AuditLevel,
    path: PathBuf,
    writer: std::sync::Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    /// Slots to fill.
    free: ArrayQueue<Box<Slot>>,
    /// Slots to write, oldest first.
    filled: ArrayQueue<Box<Slot>>,
    dropped: AtomicU64,
    written: AtomicU64,
    failed: AtomicU64,
    /// The writer sleeps, or is about to, and must be woken.
    asleep: AtomicBool,
    stop: AtomicBool,
    writer: OnceLock<Thread>,
    /// Taken by the writer after a failure and by `status` only.
    last_error: std::sync::Mutex<Option<String>>,
    /// Paths, and callers. Taken by the writer for each batch, and by `top`.
    busiest: std::sync::Mutex<(Counter, Counter)>,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Slot")
    }
}

impl AuditLog {
    /// Opens the file and starts the writer.
    ///
    /// # Errors
    /// When the file cannot be opened for appending, or no thread can be started.
    pub(crate) fn start(config: AuditConfig) -> io::Result<Self> {
        let file = RotatedFile::open(config.path.clone(), config.max_bytes, config.keep)?;
        let shared = Arc::new(Shared::new());
        let thread = std::thread::Builder::new().name("tollgate-audit".to_owned()).spawn({
            let shared = shared.clone();
            move || Writer { shared, file, lines: Vec::new(), drops_told: 0 }.run()
        })?;
        // The writer looks at `filled` before it sleeps, so nothing is lost before this is set.
        let _ = shared.writer.set(thread.thread().clone());
        let writer = std::sync::Mutex::new(Some(thread));
        Ok(Self { shared, level: config.level, path: config.path, writer })
    }

    /// Counts so far.
    pub(crate) fn status(&self) -> AuditStatus {
        let shared = &self.shared;
        AuditStatus {
            file: self.path.to_string_lossy().into_owned(),
            written: shared.written.load(Ordering::Relaxed),
            dropped: shared.dropped.load(Ordering::Relaxed),
            failed: shared.failed.load(Ordering::Relaxed),
            last_error: lock(&shared.last_error).clone(),
        }
    }

    /// What was recorded most often.
    pub(crate) fn busiest(&self) -> Busiest {
        let counters = lock(&self.shared.busiest);
        Busiest { paths: counters.0.report(), callers: counters.1.report() }
    }

    /// Writes everything that was recorded before the call, makes it durable and ends the writer.
    pub(crate) fn finish(&self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake();
        if let Some(thread) = lock(&self.writer).take() {
            let _ = thread.join();
        }
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Audit for AuditLog {
    fn level(&self) -> AuditLevel {
        self.level
    }

    fn record(&self, event: &Event<'_>) {
        let Some(mut slot) = self.shared.free.pop() else {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        slot.fill(event);
        if self.shared.filled.push(slot).is_err() {
            debug_assert!(false, "`filled` has room for every slot there is");
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if self.shared.asleep.load(Ordering::SeqCst) {
            self.shared.wake();
        }
    }
}

impl Shared {
    fn new() -> Self {
        let free = ArrayQueue::new(SLOTS);
        for _ in 0..SLOTS {
            let pushed = free.push(Box::new(Slot::empty()));
            assert!(pushed.is_ok(), "there are as many places as slots");
        }
        Self {
            free,
            filled: ArrayQueue::new(SLOTS),
            dropped: AtomicU64::new(0),
            written: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            writer: OnceLock::new(),
            last_error: std::sync::Mutex::new(None),
            busiest: std::sync::Mutex::default(),
        }
    }

    /// Wakes the writer; only the first caller after it fell asleep pays the system call.
    fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Some(writer) = self.writer.get()
        {
            writer.unpark();
        }
    }
}

struct Writer {
    shared: Arc<Shared>,
    file: RotatedFile,
    lines: Vec<u8>,
    drops_told: u64,
}

impl Writer {
    fn run(mut self) {
        loop {
            // Read before the queue is emptied: what was recorded before the stop is written.
            let stop = self.shared.stop.load(Ordering::SeqCst);
            while self.write_batch() {}
            self.tell_drops();
            if stop {
                break;
            }
            self.wait();
        }
        if let Err(error) = self.file.sync() {
            self.note(&error);
        }
    }

    /// Sleeps until there is something to do. `asleep` is set before the queue is looked at again,
    /// and [`Audit::record`] looks at `asleep` after it pushed, so one of the two sees the other.
    fn wait(&self) {
        std::thread::park_timeout(LINGER);
        if !self.shared.filled.is_empty() {
            return;
        }
        self.shared.asleep.store(true, Ordering::SeqCst);
        let idle = || self.shared.filled.is_empty() && !self.shared.stop.load(Ordering::SeqCst);
        while idle() && self.shared.asleep.load(Ordering::SeqCst) {
            if self.shared.writer.get().is_some() {
                std::thread::park();
            } else {
                // Until the handle is set, no wake-up can arrive.
                std::thread::park_timeout(LINGER);
            }
        }
        self.shared.asleep.store(false, Ordering::SeqCst);
    }

    /// Writes up to [`BATCH`] events; false when there were none.
    fn write_batch(&mut self) -> bool {
        self.lines.clear();
        let mut events = 0;
        let shared = Arc::clone(&self.shared);
        let mut busiest = lock(&shared.busiest);
        while events < BATCH
            && let Some(slot) = self.shared.filled.pop()
        {
            busiest.0.count(slot.path());
            busiest.1.count(&slot.caller());
            if let Err(error) = slot.write_line(&mut self.lines) {
                self.note(&error.into());
            }
            let returned = self.shared.free.push(slot);
            debug_assert!(returned.is_ok(), "`free` has room for every slot there is");
            events += 1;
        }
        drop(busiest);
        if events > 0 {
            self.append(events as u64);
        }
        events > 0
    }

    fn append(&mut self, events: u64) {
        match self.file.append(&self.lines) {
            Ok(()) => self.shared.written.fetch_add(events, Ordering::Relaxed),
            Err(error) => {
                self.note(&error);
                self.shared.failed.fetch_add(events, Ordering::Relaxed)
            }
        };
    }

    /// Records new drops in the log; tries again later when that fails.
    fn tell_drops(&mut self) {
        let total = self.shared.dropped.load(Ordering::Relaxed);
        if total == self.drops_told {
            return;
        }
        let time = slot::timestamp(SystemTime::now());
        let new = total - self.drops_told;
        let line =
            serde_json::json!({ "time": time, "event": "dropped", "count": new, "total": total });
        match self.file.append(format!("{line}\n").as_bytes()) {
            Ok(()) => self.drops_told = total,
            Err(error) => self.note(&error),
        }
    }

    fn note(&self, error: &io::Error) {
        let mut last = lock(&self.shared.last_error);
        if last.is_none() {
            tracing::error!("the audit log cannot be written: {error}");
        }
        *last = Some(error.to_string());
    }
}

/// A panic elsewhere does not make these values wrong.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use tollgate_view::Outcome;

    fn config(path: &Path) -> AuditConfig {
        AuditConfig { path: path.to_owned(), level: AuditLevel::All, max_bytes: 1 << 30, keep: 1 }
    }

    fn event(inode: u64) -> Event<'static> {
        Event {
            operation: "read",
            outcome: Outcome::Userspace,
            uid: 0,
            gid: 0,
            pid: 1,
            exe: None,
            inode,
            path: b"file",
            rule: None,
            offset: Some(0),
            bytes: Some(4096),
        }
    }

    fn lines(path: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn nothing_that_was_recorded_is_lost_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = AuditLog::start(config(&path)).unwrap();
        for inode in 0..1000 {
            log.record(&event(inode));
        }
        drop(log);
        let inodes: Vec<_> = lines(&path).iter().map(|line| line["inode"].as_u64()).collect();
        assert_eq!(inodes, (0..1000).map(Some).collect::<Vec<_>>());
    }

    #[test]
    fn a_sleeping_writer_is_woken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = AuditLog::start(config(&path)).unwrap();
        for inode in 1..=3 {
            let deadline = std::time::Instant::now() + Duration::from_secs(10);
            while !log.shared.asleep.load(Ordering::SeqCst) {
                assert!(std::time::Instant::now() < deadline, "the writer never sleeps");
                std::thread::sleep(Duration::from_millis(1));
            }
            log.record(&event(inode));
            while log.status().written != inode {
                assert!(std::time::Instant::now() < deadline, "the writer was not woken");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn every_event_is_written_or_counted_as_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = AuditLog::start(config(&path)).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|inode| log.record(&event(inode))));
            }
        });
        log.finish();
        let status = log.status();
        assert_eq!(status.written + status.dropped, 80_000);
        let lines = lines(&path);
        let (drops, events): (Vec<_>, Vec<_>) =
            lines.iter().partition(|line| line["event"] == "dropped");
        assert_eq!(events.len() as u64, status.written);
        let told: u64 = drops.iter().map(|line| line["count"].as_u64().unwrap()).sum();
        assert_eq!(told, status.dropped);
    }

    #[test]
    fn with_every_slot_taken_events_are_dropped_and_the_log_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = AuditLog::start(config(&path)).unwrap();
        let taken: Vec<_> = std::iter::from_fn(|| log.shared.free.pop()).collect();
        log.record(&event(1));
        log.record(&event(2));
        taken.into_iter().for_each(|slot| drop(log.shared.free.push(slot)));
        log.record(&event(3));
        log.finish();
        // Where the drops are recorded, and in how many lines, depends on when the writer reads the
        // counts.
        let lines = lines(&path);
        let (drops, events): (Vec<_>, Vec<_>) =
            lines.iter().partition(|line| line["event"] == "dropped");
        assert_eq!(events.iter().map(|line| &line["inode"]).collect::<Vec<_>>(), [3]);
        assert_eq!(drops.iter().map(|line| line["count"].as_u64().unwrap()).sum::<u64>(), 2);
        assert_eq!(drops.last().unwrap()["total"], 2);
        assert_eq!(log.status().dropped, 2);
    }
}

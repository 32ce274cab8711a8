//! The log: events come in here.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use serde::Serialize;
use tollgate_view::{Audit, AuditLevel, Event};

use super::file::{RotatedFile, numbered};
use super::origin::Origin;
use super::shared::{Shared, lock};
use super::writer::Writer;
use crate::escape;
use crate::requests::Busiest;

/// Where the log goes.
#[derive(Debug)]
pub(crate) struct AuditConfig {
    pub(crate) path: PathBuf,
    pub(crate) level: AuditLevel,
    pub(crate) max_bytes: u64,
    pub(crate) keep: u32,
}

impl AuditConfig {
    /// FILE, and FILE.1 to the last that is kept.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let full = (1..=self.keep).map(|number| numbered(&self.path, number));
        std::iter::once(self.path.clone()).chain(full).collect()
    }
}

/// What the log has done so far.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AuditStatus {
    pub(crate) file: String,
    /// Its bytes, if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file_hex: Option<String>,
    pub(crate) written: u64,
    /// Refusals that are counted in the record of another one.
    pub(crate) repeated: u64,
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

impl AuditLog {
    /// Opens the file and starts the writer.
    ///
    /// # Errors
    /// When the file cannot be opened for appending, or no thread can be started.
    pub(crate) fn start(config: AuditConfig, origin: Origin) -> io::Result<Self> {
        let file = RotatedFile::open(config.path.clone(), config.max_bytes, config.keep)?;
        let shared = Arc::new(Shared::new());
        let writer = Writer::new(Arc::clone(&shared), file, origin)?;
        let builder = std::thread::Builder::new().name("tollgate-audit".to_owned());
        let thread = builder.spawn(move || writer.run())?;
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
            file_hex: escape::hex(&self.path),
            written: shared.written.load(Ordering::Relaxed),
            repeated: shared.repeated.load(Ordering::Relaxed),
            dropped: shared.dropped.load(Ordering::Relaxed),
            failed: shared.failed.load(Ordering::Relaxed),
            last_error: lock(&shared.last_error).clone(),
        }
    }

    /// Another policy is in force, of this digest.
    pub(crate) fn policy_changed(&self, sha256: Option<String>) {
        lock(&self.shared.reloads).push(sha256);
        self.shared.wake();
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

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use tollgate_view::{Detail, Outcome};

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
            detail: Detail::Span { offset: 0, bytes: 4096 },
        }
    }

    fn origin() -> Origin {
        Origin::new("mount", Path::new("/d"), Path::new("/m"), None)
    }

    /// The lines about events.
    fn lines(path: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.filter(|line: &serde_json::Value| line["dir"].is_null()).collect()
    }

    #[test]
    fn nothing_that_was_recorded_is_lost_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = AuditLog::start(config(&path), origin()).unwrap();
        for inode in 0..1000 {
            log.record(&event(inode));
        }
        drop(log);
        let inodes: Vec<_> = lines(&path).iter().map(|line| line["inode"].as_u64()).collect();
        assert_eq!(inodes, (0..1000).map(Some).collect::<Vec<_>>());
    }

    #[test]
    fn a_log_that_cannot_be_rotated_is_written_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = AuditLog::start(AuditConfig { max_bytes: 1, ..config(&path) }, origin()).unwrap();
        std::fs::create_dir(dir.path().join("log.1")).unwrap();
        for inode in 0..1000 {
            log.record(&event(inode));
        }
        log.finish();
        let status = log.status();
        assert_eq!((status.written, status.failed), (1000, 0));
        let said = status.last_error.unwrap();
        assert!(said.contains("cannot be rotated") && said.contains("written on"), "{said}");
        assert_eq!(lines(&path).iter().filter(|line| line["event"] == "request").count(), 1000);
        assert!(std::fs::read_to_string(&path).unwrap().contains("\"event\":\"stop\""));
    }

    /// However fast records come.
    #[test]
    fn a_log_that_is_taken_away_from_a_busy_writer_is_begun_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = AuditLog::start(config(&path), origin()).unwrap();
        let end = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !end.load(Ordering::Relaxed) {
                        log.record(&event(1));
                    }
                });
            }
            while log.status().dropped == 0 {
                std::thread::yield_now();
            }
            std::fs::remove_file(&path).unwrap();
            let since = std::time::Instant::now();
            while !path.exists() && since.elapsed() < Duration::from_secs(30) {
                std::thread::sleep(Duration::from_millis(10));
            }
            end.store(true, Ordering::Relaxed);
        });
        assert!(path.exists());
    }

    /// By somebody, or by logrotate.
    #[test]
    fn a_log_that_is_taken_away_is_begun_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        for is_removed in [true, false] {
            let log = AuditLog::start(config(&path), origin()).unwrap();
            log.record(&event(1));
            while log.status().written < 1 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let moved = dir.path().join("moved");
            if is_removed {
                std::fs::remove_file(&path).unwrap();
            } else {
                std::fs::rename(&path, &moved).unwrap();
            }
            log.record(&event(2));
            log.finish();
            let said = log.status().last_error.unwrap();
            assert!(
                said.contains(if is_removed { "removed, with the records" } else { "moved, or" }),
                "{said}"
            );
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(
                text.contains("\"event\":\"continued\"") && text.contains("\"event\":\"stop\"")
            );
            let inodes =
                |path| lines(path).iter().filter_map(|line| line["inode"].as_u64()).collect();
            let mut inodes: Vec<_> = if is_removed { vec![1] } else { inodes(&moved) };
            inodes.extend::<Vec<_>>(
                lines(&path).iter().filter_map(|line| line["inode"].as_u64()).collect(),
            );
            // The second is in the one or the other.
            assert!(inodes == [1, 2] || is_removed && inodes == [1], "{inodes:?}");
            std::fs::remove_file(&path).unwrap();
        }
    }

    /// Also where a new file could be opened, and was refused then.
    #[test]
    fn what_goes_into_a_removed_file_is_not_counted_as_written() {
        for has_directory in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let at = |name: &str| dir.path().join(name);
            std::fs::write(at("log.1"), "").unwrap();
            let log = AuditLog::start(config(&at("log")), origin()).unwrap();
            log.record(&event(1));
            while log.status().written < 1 {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::fs::remove_file(at("log")).unwrap();
            let reason = if has_directory {
                std::fs::create_dir(at("log")).unwrap();
                "Is a directory"
            } else {
                std::fs::hard_link(at("log.1"), at("other")).unwrap();
                "log.1` has 2 names"
            };
            std::thread::sleep(Duration::from_millis(1100));
            log.record(&event(2));
            while log.status().written + log.status().failed < 2 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let status = log.status();
            assert_eq!((status.written, status.failed), (1, 1), "{status:?}");
            let said = status.last_error.unwrap();
            assert!(said.contains("cannot be begun again: ") && said.contains(reason), "{said}");
            // As soon as a new one can be begun, it is.
            std::fs::remove_dir(at("log")).or_else(|_| std::fs::remove_file(at("other"))).unwrap();
            std::thread::sleep(Duration::from_millis(1100));
            log.record(&event(3));
            log.finish();
            assert_eq!((log.status().written, log.status().failed), (2, 1));
            let found = lines(&at("log"));
            assert!(found.iter().any(|line| line["inode"] == 3), "{found:?}");
            assert!(found.iter().any(|line| line["event"] == "failed" && line["count"] == 1));
        }
    }

    /// Its path may lead into DIR by then.
    #[test]
    fn a_log_stays_in_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for is_removed in [false, true] {
            std::fs::create_dir(at("logs")).unwrap();
            std::fs::create_dir_all(at("dir")).unwrap();
            let log = AuditLog::start(config(&at("logs/log")), origin()).unwrap();
            log.record(&event(1));
            while log.status().written < 1 {
                std::thread::sleep(Duration::from_millis(1));
            }
            if is_removed {
                std::fs::remove_dir_all(at("logs")).unwrap();
            } else {
                std::fs::rename(at("logs"), at("moved")).unwrap();
            }
            std::os::unix::fs::symlink("dir", at("logs")).unwrap();
            std::thread::sleep(Duration::from_millis(1100));
            log.record(&event(2));
            log.finish();
            let status = log.status();
            let said = status.last_error.unwrap();
            assert_eq!(std::fs::read_dir(at("dir")).unwrap().count(), 0, "{said}");
            if is_removed {
                assert!(said.contains("removed, and cannot be begun again"), "{said}");
                assert_eq!((status.written, status.failed), (1, 1));
            } else {
                assert!(said.contains("directory that was moved"), "{said}");
                let text = std::fs::read_to_string(at("moved/log")).unwrap();
                assert!(text.contains("\"inode\":2") && text.contains("\"stop\""), "{text}");
            }
            std::fs::remove_file(at("logs")).unwrap();
        }
    }

    #[test]
    fn a_sleeping_writer_is_woken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = AuditLog::start(config(&path), origin()).unwrap();
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
        let log = AuditLog::start(config(&path), origin()).unwrap();
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
        let log = AuditLog::start(config(&path), origin()).unwrap();
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

//! What wakes the thread that looks after locks, and the processes whose end it has to notice,
//! because their closes are not reported.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::locks::file::{FileLocks, OwnerId};
use crate::locks::who;

/// A process whose locks on a file end with it.
struct Life {
    file: Weak<FileLocks>,
    id: OwnerId,
    process: Arc<who::Life>,
}

/// What the thread is told, and whether there is one.
#[derive(Default)]
struct Orders {
    running: bool,
    lives: Vec<Life>,
    ended: bool,
}

pub(crate) struct Keeper {
    orders: Mutex<Orders>,
    wake: OwnedFd,
}

impl Keeper {
    /// Processes that are watched at the same time. The locks of further ones end with their
    /// handle.
    const MAX_LIVES: usize = 1024;

    pub(crate) fn new() -> Result<Self, Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self { orders: Mutex::default(), wake: rustix::event::eventfd(0, flags)? })
    }

    /// The caller has to start the thread: nobody did.
    pub(crate) fn starts(&self) -> bool {
        !std::mem::replace(&mut self.orders.lock().running, true)
    }

    /// The thread could not be started.
    pub(crate) fn did_not_start(&self) {
        self.orders.lock().running = false;
    }

    /// Wakes the thread.
    pub(crate) fn ring(&self) {
        // A full counter has woken it already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Watches `process`, whose locks on `file` end when it does. Returns whether that is news for
    /// the thread.
    pub(crate) fn watch(
        &self,
        file: &Arc<FileLocks>,
        id: OwnerId,
        process: Arc<who::Life>,
    ) -> bool {
        let lives = &mut self.orders.lock().lives;
        let known = lives.iter().any(|life| Arc::ptr_eq(&life.process, &process));
        if known || lives.len() >= Self::MAX_LIVES {
            return false;
        }
        lives.push(Life { file: Arc::downgrade(file), id, process });
        true
    }

    /// The view goes: so does the thread, once nothing waits any more.
    pub(crate) fn end(&self) {
        self.orders.lock().ended = true;
        self.ring();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.orders.lock().ended
    }

    /// Forgets processes that hold nothing any more, and ends the locks of those that ended.
    pub(crate) fn look_at_lives(&self) {
        let over: Vec<Life> = {
            let lives = &mut self.orders.lock().lives;
            lives.retain(|life| {
                let file = life.file.upgrade();
                let own = file.and_then(|file| file.life(life.id));
                own.is_some_and(|own| Arc::ptr_eq(&own, &life.process))
            });
            lives.extract_if(.., |life| life.process.is_over()).collect()
        };
        for life in over {
            if let Some(file) = life.file.upgrade() {
                file.process_ended(life.id, &life.process);
            }
        }
    }

    /// Sleeps until it is nudged, a process ends, or `timeout` is over.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) {
        let processes: Vec<_> =
            self.orders.lock().lives.iter().map(|life| Arc::clone(&life.process)).collect();
        let mut polled = vec![PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN)];
        polled.extend(processes.iter().map(|p| PollFd::from_borrowed_fd(p.as_fd(), PollFlags::IN)));
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        // An error here would be a signal: the loop looks again anyway.
        let _ = rustix::event::poll(&mut polled, timeout.as_ref());
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }
}

//! Which CPUs the owner of a ring runs on: see `roaming.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::thread::CpuSet;

use super::RingQueue;
use crate::uring::roaming::{Change, Roaming};

/// The owner's CPUs.
#[derive(Debug)]
pub(super) struct Place {
    roaming: Roaming,
    /// Until the next look.
    left: u32,
    /// The CPU of the ring, and all that the session may use.
    own: CpuSet,
    all: CpuSet,
}

impl RingQueue {
    /// Binds the calling thread, the owner, to the CPUs of its ring.
    pub(super) fn bind_to_cpus(&mut self) {
        self.observer.may_move = self.cpus.len() > 1;
        let mut own = CpuSet::new();
        for &cpu in self.cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU) {
            own.set(cpu);
        }
        let all = rustix::thread::sched_getaffinity(None);
        // The kernel still delivers the queue's requests wherever the thread runs.
        if let Err(error) = rustix::thread::sched_setaffinity(None, &own) {
            tracing::warn!(cpus = ?self.cpus, %error, "the thread of a ring runs on other CPUs");
            return;
        }
        // An owner of several CPUs follows its caller between them instead.
        self.place = all.ok().filter(|_| self.cpus.len() == 1).map(|all| {
            let cpus = usize::try_from(all.count()).unwrap_or(1);
            Place { roaming: Roaming::new(cpus), left: Roaming::LOOK_EVERY, own, all }
        });
    }

    /// A request came.
    pub(super) fn count_request(&mut self) {
        let Some(place) = &mut self.place else { return };
        self.requests += 1;
        self.shared.requests.store(self.requests, Ordering::Relaxed);
        place.left -= 1;
        if place.left > 0 {
            return;
        }
        place.left = Roaming::LOOK_EVERY;
        let others = self.rings.iter().filter(|ring| !Arc::ptr_eq(ring, &self.shared));
        let others = others.map(|ring| ring.requests.load(Ordering::Relaxed));
        let change = place.roaming.look(std::mem::take(&mut self.observer.changes), others);
        let cpus = match change {
            Some(Change::Bind) => &place.own,
            Some(Change::Release) => &place.all,
            None => return,
        };
        // A set that shrank meanwhile leaves the thread where it is.
        let _ = rustix::thread::sched_setaffinity(None, cpus);
    }
}

//! The transport of a mounted device: `/dev/fuse`, and io_uring beside it where it can be used.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use tollgate_haltpoll::PollingTime;

use crate::device::{DeviceQueue, DeviceTransport};
use crate::init::{InitFlags, defers_releases};
use crate::transport::{
    Control, Queue, QueueConfig, ReceiveError, Received, ReplySink, Spare, Transport,
    TransportInUse, TransportReport,
};
use crate::uring::{
    Connected, Handover, HelperQueue, Job, Registration, RingQueue, RingReport, Rings,
    UringUnavailable,
};

/// Which transport a session should use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TransportChoice {
    /// io_uring where the kernel's parameter for it is on and it can be used, else `/dev/fuse`:
    /// several programs at once, compilers above all, measured faster over io_uring, see
    /// docs/fuse-transport.md.
    #[default]
    Auto,
    /// `/dev/fuse`.
    DevFuse,
    /// io_uring. Where it cannot be used, `/dev/fuse`, with a warning.
    Uring,
}

impl TransportChoice {
    /// Whether a session makes rings, as far as is known without making them.
    #[must_use]
    pub fn may_use_uring(self) -> bool {
        match self {
            Self::Auto => UringUnavailable::check().is_ok(),
            Self::DevFuse => false,
            Self::Uring => true,
        }
    }
}

impl fmt::Display for TransportChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::DevFuse => "devfuse",
            Self::Uring => "uring",
        })
    }
}

/// Why [`TransportChoice::Auto`] took io_uring.
const WHY_URING: &str =
    "it is switched on in the kernel, and measured faster for several programs at once";

/// The transport of a mounted [`Device`](crate::Device).
#[derive(Debug)]
pub struct MountedTransport {
    device: DeviceTransport,
    choice: TransportChoice,
    rings: Stage,
    handover: Arc<Handover<Job>>,
}

/// How far the rings are.
enum Stage {
    /// Not made.
    None,
    /// Made before the handshake.
    Made(Rings),
    /// Given to their threads.
    Connected(Arc<Registration>, RingReport),
    /// Not used, and why, if the choice allowed them.
    Unused(Option<UringUnavailable>),
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Made(_) => "Made",
            Self::Connected(..) => "Connected",
            Self::Unused(_) => "Unused",
        })
    }
}

impl MountedTransport {
    /// The transport of a connection that begins with `device`.
    #[must_use]
    pub fn new(device: DeviceTransport, choice: TransportChoice) -> Self {
        Self { device, choice, rings: Stage::None, handover: Arc::new(Handover::new()) }
    }

    fn unused(&mut self, reason: UringUnavailable) {
        // Who started the session reports it: see `TransportReport`.
        tracing::debug!(%reason, "io_uring cannot be used; /dev/fuse serves");
        self.rings = Stage::Unused(Some(reason));
    }
}

impl Transport for MountedTransport {
    type Queue = MountedQueue;

    fn open(&mut self, config: &QueueConfig) -> io::Result<MountedQueue> {
        match self.choice {
            TransportChoice::DevFuse => self.rings = Stage::Unused(None),
            TransportChoice::Auto | TransportChoice::Uring => match Rings::new(config) {
                Ok(rings) => self.rings = Stage::Made(rings),
                Err(reason) => self.unused(reason),
            },
        }
        let queue = self.device.open(config)?;
        Ok(MountedQueue::Device(Box::new(queue)))
    }

    fn flags(&self) -> InitFlags {
        match self.rings {
            Stage::Made(_) => InitFlags::OVER_IO_URING,
            _ => InitFlags::empty(),
        }
    }

    fn open_others(
        &mut self,
        agreed: InitFlags,
        config: &QueueConfig,
    ) -> io::Result<Vec<MountedQueue>> {
        match std::mem::replace(&mut self.rings, Stage::Unused(None)) {
            Stage::Made(rings) if agreed.contains(InitFlags::OVER_IO_URING) => {
                let device = self.device.main();
                let clone_fd = || self.device.clone_fd();
                let Connected { mut queues, helpers, registration, report } =
                    rings.connect(&device, clone_fd, &self.handover, self.device.spin())?;
                self.rings = Stage::Connected(registration, report);
                if defers_releases(agreed, config.defer_releases) {
                    queues.iter_mut().for_each(RingQueue::defer_releases);
                }
                let fallback = || (self.device.clone(), *config);
                let queue = |ring| {
                    MountedQueue::Ring(Box::new(RingOrDevice { ring, fallback: fallback() }))
                };
                let helpers =
                    helpers.into_iter().map(|one| MountedQueue::Helper(Box::new(Helper(one))));
                return Ok(queues.into_iter().map(queue).chain(helpers).collect());
            }
            // The rings could be made, but this mount was made while the parameter was off.
            Stage::Made(_) => self.unused(UringUnavailable::Parameter),
            stage => self.rings = stage,
        }
        let queues = self.device.open_others(agreed, config)?;
        Ok(queues.into_iter().map(|queue| MountedQueue::Device(Box::new(queue))).collect())
    }

    fn spare(&self, config: &QueueConfig) -> Spare {
        match &self.rings {
            // The owners of rings serve /dev/fuse instead, and hand nothing to helpers.
            Stage::Connected(registration, report) if registration.has_failed() => {
                Spare { reserve: 0, unused: report.helpers }
            }
            Stage::Connected(..) => Spare { reserve: Rings::reserve(config), unused: 0 },
            Stage::None | Stage::Made(_) | Stage::Unused(_) => self.device.spare(config),
        }
    }

    fn control(&self) -> Arc<dyn Control> {
        let handover = Arc::clone(&self.handover);
        Arc::new(MountedControl { device: self.device.control(), handover })
    }

    fn report(&self) -> TransportReport {
        let (reason, rings) = match &self.rings {
            Stage::Connected(registration, report) => match registration.outcome() {
                Ok(()) => (None, Some(*report)),
                Err(reason) => (Some(reason), None),
            },
            Stage::Unused(reason) => (reason.clone(), None),
            Stage::None | Stage::Made(_) => (None, None),
        };
        let in_use = if rings.is_some() { TransportInUse::Uring } else { TransportInUse::DevFuse };
        let chosen = self.choice == TransportChoice::Auto && in_use == TransportInUse::Uring;
        let why = chosen.then_some(WHY_URING);
        TransportReport { in_use, reason: why, rings, uring_unavailable: reason }
    }
}

/// The device's, which wakes helpers as well.
struct MountedControl {
    device: Arc<dyn Control>,
    handover: Arc<Handover<Job>>,
}

impl Control for MountedControl {
    fn notify(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.device.notify(parts)
    }

    fn open_backing(&self, fd: BorrowedFd<'_>) -> io::Result<u32> {
        self.device.open_backing(fd)
    }

    fn close_backing(&self, id: u32) -> io::Result<()> {
        self.device.close_backing(id)
    }

    fn device(&self) -> Option<BorrowedFd<'_>> {
        self.device.device()
    }

    fn prepare_thread(&self) {
        self.device.prepare_thread();
    }

    fn wake(&self, tid: i32) {
        self.device.wake(tid);
        self.handover.kick();
    }

    fn close(&self) {
        self.device.close();
    }
}

/// One worker's queue.
#[derive(Debug)]
pub enum MountedQueue {
    /// On `/dev/fuse`.
    Device(Box<DeviceQueue>),
    /// On a ring, or on `/dev/fuse` once the ring proved unusable.
    Ring(Box<RingOrDevice>),
    /// Of requests that the owners of rings gave away.
    Helper(Box<Helper>),
}

/// See [`MountedQueue::Helper`].
#[derive(Debug)]
pub struct Helper(HelperQueue);

/// A ring, and what replaces it.
#[derive(Debug)]
pub struct RingOrDevice {
    ring: RingQueue,
    fallback: (DeviceTransport, QueueConfig),
}

impl Queue for MountedQueue {
    fn attach(&mut self, polling: PollingTime) -> io::Result<()> {
        let both = match self {
            Self::Device(queue) => return queue.attach(polling),
            Self::Ring(both) => both,
            Self::Helper(helper) => return helper.0.attach(polling),
        };
        let Err(reason) = both.ring.register(polling.clone()) else { return Ok(()) };
        tracing::debug!(%reason, "a ring cannot be used; its thread serves /dev/fuse");
        let (device, config) = &both.fallback;
        let mut queue = device.open_shared(both.ring.device_fd(), config)?;
        queue.attach(polling)?;
        both.ring.shared().fall_back(queue.sink());
        *self = Self::Device(Box::new(queue));
        Ok(())
    }

    fn receive(&mut self) -> Result<Received<'_>, ReceiveError> {
        match self {
            Self::Device(queue) => queue.receive(),
            Self::Ring(both) => both.ring.receive(),
            Self::Helper(helper) => helper.0.receive(),
        }
    }

    fn finish(&mut self, handler_ns: u64) {
        match self {
            Self::Device(queue) => queue.finish(handler_ns),
            Self::Ring(both) => both.ring.finish(handler_ns),
            Self::Helper(helper) => helper.0.finish(handler_ns),
        }
    }

    fn sink(&self) -> Arc<dyn ReplySink> {
        match self {
            Self::Device(queue) => queue.sink(),
            Self::Ring(both) => both.ring.sink(),
            Self::Helper(helper) => helper.0.sink(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use super::*;
    use crate::Device;
    use crate::session::SessionConfig;

    const RINGS: RingReport = RingReport {
        threads: 2,
        helpers: 3,
        queues: 2,
        entries_per_queue: 4,
        buffer_bytes: 1 << 20,
    };

    #[test]
    #[cfg_attr(miri, ignore = "opens a device")]
    fn the_reserve_is_what_the_transport_in_use_has() {
        let spin = Duration::from_micros(20);
        let with = |may_hang| SessionConfig { reserve: 30, spin, may_hang, ..Default::default() };
        let [config, may_hang] = [false, true].map(|may_hang| with(may_hang).queues());
        let device = Device::from_fd(File::open("/dev/null").unwrap().into());
        let device = DeviceTransport::new(device, spin);
        let mut transport = MountedTransport::new(device, TransportChoice::Auto);
        let all = Spare { reserve: 30, unused: 0 };
        transport.rings = Stage::Unused(None);
        assert_eq!([config, may_hang].map(|config| transport.spare(&config)), [all, all]);

        let registration = Registration::new(1);
        let arrival = registration.arrival();
        transport.rings = Stage::Connected(registration, RINGS);
        assert_eq!(transport.spare(&config), Spare::default());
        assert_eq!(transport.spare(&may_hang), all);
        // A thread ended before it could register its ring: /dev/fuse serves.
        drop(arrival);
        assert_eq!(transport.report().in_use, TransportInUse::DevFuse);
        for config in [config, may_hang] {
            assert_eq!(transport.spare(&config), Spare { reserve: 0, unused: RINGS.helpers });
        }
    }
}

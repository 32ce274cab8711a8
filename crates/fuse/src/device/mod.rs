//! The `/dev/fuse` transport.
//!
//! One descriptor per queue, made by `FUSE_DEV_IOC_CLONE`, so that each has a processing list of
//! its own in the kernel. A request costs one `read` and one `write` (`writev` with several parts).
//!
//! With [`crate::SessionConfig::spin`] the workers are [leader and followers](leader): only as many
//! wait for requests as the load needs, and the one that waits polls for a while before it sleeps.
//! Without it every worker blocks in `read`, and the kernel wakes them in turn.

mod affinity;
mod crowd;
mod fd;
mod leader;
mod queue;
pub(crate) mod signal;
mod turn;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use crate::buffer::BufferSize;
use crate::init::InitFlags;
use crate::transport::{Control, QueueConfig, Spare, Transport, TransportInUse, TransportReport};
use fd::{DeviceControl, Inert};
use leader::LeaderFollowers;
use queue::Member;

pub(crate) use affinity::CallerAffinity;
pub(crate) use fd::SharedFd;
pub use queue::DeviceQueue;

/// An open `/dev/fuse`. It becomes a connection when it is mounted.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
}

impl Device {
    /// Opens `/dev/fuse`.
    ///
    /// # Errors
    /// `ENOENT` or `ENODEV` if the kernel has no FUSE, `EACCES` and `EPERM` where it is not
    /// allowed.
    pub fn open() -> io::Result<Self> {
        let path = Path::new("/dev/fuse");
        let fd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { fd })
    }

    /// Takes a descriptor from elsewhere; the same as `From`.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

/// Takes a descriptor from elsewhere: from `fusermount3`, or from a supervisor.
impl From<OwnedFd> for Device {
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The `/dev/fuse` transport of a mounted [`Device`]. Clones are of the same connection.
#[derive(Clone, Debug)]
pub struct DeviceTransport {
    main: Arc<SharedFd>,
    /// For all descriptors of the connection.
    inert: Arc<Inert>,
    spin: Duration,
    workers: Arc<LeaderFollowers>,
    /// What this process may use. Asked once: with a control group's quota that is several files,
    /// and a view has tens of queues.
    cpus: usize,
}

impl DeviceTransport {
    /// The transport of a connection that begins with `device`; `spin` as in
    /// [`crate::SessionConfig::spin`].
    #[must_use]
    pub fn new(device: Device, spin: Duration) -> Self {
        // One from elsewhere may have come through exec. The connection would outlive its server in
        // whatever that starts.
        if let Err(error) = rustix::io::fcntl_setfd(&device.fd, rustix::io::FdFlags::CLOEXEC) {
            tracing::warn!(%error, "programs that are started inherit /dev/fuse");
        }
        let inert = Arc::new(Inert::default());
        let main = Arc::new(SharedFd::new(device.fd, &inert));
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self { main, inert, spin, workers: Arc::new(LeaderFollowers::new()), cpus }
    }

    /// As in [`crate::SessionConfig::spin`].
    pub(crate) fn spin(&self) -> Duration {
        self.spin
    }

    pub(crate) fn main(&self) -> Arc<SharedFd> {
        Arc::clone(&self.main)
    }

    /// A descriptor of the same connection with a processing list of its own. Where `/dev/fuse`
    /// cannot be opened (after a change of root), the queue shares the first descriptor, which
    /// works too.
    pub(crate) fn clone_fd(&self) -> Arc<SharedFd> {
        let cloned = Device::open().and_then(|device| {
            fd::clone_onto(device.as_fd(), self.main.0.as_fd())?;
            Ok(device.fd)
        });
        match cloned {
            Ok(fd) => Arc::new(SharedFd::new(fd, &self.inert)),
            Err(error) => {
                tracing::debug!(%error, "a queue shares the first /dev/fuse descriptor");
                Arc::clone(&self.main)
            }
        }
    }

    fn queue(
        &self,
        fd: Arc<SharedFd>,
        index: usize,
        config: &QueueConfig,
    ) -> io::Result<DeviceQueue> {
        let member = (!self.spin.is_zero())
            .then(|| Member::new(&self.workers, index, config.threads, self.cpus));
        // A device from elsewhere may come with either. Without a member a read that does not block
        // would be repeated for ever.
        let mut flags = rustix::fs::fcntl_getfl(&fd.0)?;
        flags.set(OFlags::NONBLOCK, member.is_some());
        rustix::fs::fcntl_setfl(&fd.0, flags)?;
        let buffers = 2 * (config.threads + config.reserve);
        let size = BufferSize::within(config.max_payload_bytes, config.buffer_bytes, buffers);
        Ok(DeviceQueue::new(fd, self.spin, member, size))
    }

    /// A further queue on a descriptor of the same connection, which waits for requests.
    pub(crate) fn open_shared(
        &self,
        fd: Arc<SharedFd>,
        config: &QueueConfig,
    ) -> io::Result<DeviceQueue> {
        // No reserve: its thread is one of those that serve.
        self.queue(fd, 1, &QueueConfig { threads: config.threads.max(2), ..*config })
    }
}

impl Transport for DeviceTransport {
    type Queue = DeviceQueue;

    fn open(&mut self, config: &QueueConfig) -> io::Result<DeviceQueue> {
        self.inert.open()?;
        self.queue(Arc::clone(&self.main), 0, config)
    }

    fn open_others(
        &mut self,
        _agreed: InitFlags,
        config: &QueueConfig,
    ) -> io::Result<Vec<DeviceQueue>> {
        (1..config.threads + config.reserve)
            .map(|index| self.queue(self.clone_fd(), index, config))
            .collect()
    }

    fn spare(&self, config: &QueueConfig) -> Spare {
        Spare { reserve: config.reserve, unused: 0 }
    }

    fn control(&self) -> Arc<dyn Control> {
        Arc::new(DeviceControl { fd: Arc::clone(&self.main), workers: Arc::clone(&self.workers) })
    }

    fn report(&self) -> TransportReport {
        TransportReport {
            in_use: TransportInUse::DevFuse,
            reason: None,
            rings: None,
            uring_unavailable: None,
        }
    }
}

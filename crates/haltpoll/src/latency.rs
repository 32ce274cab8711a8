//! The kernel's own way to keep CPUs awake: a request for a wake-up latency of zero.
//!
//! While a process holds such a request on `/dev/cpu_dma_latency`, the idle loop takes no state
//! that is slower to leave than that: it polls (`POLL`, state 0 of the cpuidle driver). A CPU that
//! polls so is woken by a store, without an interrupt, which in a virtual machine is an exit less
//! than any thread of ours could save. It counts as idle in every respect: for the scheduler, for
//! control groups, for accounting.
//!
//! The request holds for every CPU of the machine. The kernel drops it with the last descriptor, so
//! a process that dies leaves nothing behind, unless a copy of it (fork without exec) lives on that
//! was made in a burst; the limit for single CPUs in sysfs
//! (`cpuN/power/pm_qos_resume_latency_us`) would stay, which is why it is not used.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// On machines with more CPUs than this it is not used: all of them would poll for a pair of them.
pub(crate) const MAX_CPUS: usize = 8;

/// An open `/dev/cpu_dma_latency`.
#[derive(Debug)]
pub(crate) struct Latency {
    file: File,
}

impl Latency {
    /// `PM_QOS_CPU_LATENCY_DEFAULT_VALUE`: no request, in microseconds.
    const ANY_US: i32 = 2_000_000_000;
    /// The device number of `/dev/null`.
    const NULL: u64 = libc::makedev(1, 3);

    /// Opens the device below `dev`; nothing is requested yet.
    ///
    /// # Errors
    /// Errors of the system: `EACCES` without privilege, `ENOENT` in most containers. Also `ENOENT`
    /// where `/dev/null` covers it, as in a fence of `tollgate run`, and takes requests without effect.
    pub(crate) fn open(dev: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).open(dev.join("cpu_dma_latency"))?;
        if file.metadata()?.rdev() == Self::NULL {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        let latency = Self { file };
        latency.request(Self::ANY_US)?;
        Ok(latency)
    }

    /// Whether a request of another process keeps CPUs from halting just now. False where that
    /// cannot be read.
    pub(crate) fn held_by_others(dev: &Path) -> bool {
        let mut now = [0; 4];
        let file = File::open(dev.join("cpu_dma_latency"));
        let read = file.and_then(|mut file| file.read_exact(&mut now));
        read.is_ok() && i32::from_ne_bytes(now) < Self::ANY_US
    }

    /// Idle CPUs poll from now on.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn hold(&self) -> io::Result<()> {
        self.request(0)
    }

    /// Idle CPUs may halt again; they do so at once.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn release(&self) -> io::Result<()> {
        self.request(Self::ANY_US)
    }

    /// The kernel takes a 32-bit number in its own byte order.
    fn request(&self, microseconds: i32) -> io::Result<()> {
        (&self.file).write_all(&microseconds.to_ne_bytes())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "files")]
    fn it_writes_what_the_kernel_reads() {
        let dev = tempfile::tempdir().unwrap();
        assert_eq!(Latency::open(dev.path()).unwrap_err().kind(), io::ErrorKind::NotFound);
        let file = dev.path().join("cpu_dma_latency");
        std::fs::write(&file, "").unwrap();
        let latency = Latency::open(dev.path()).unwrap();
        latency.hold().unwrap();
        latency.release().unwrap();
        let written = std::fs::read(&file).unwrap();
        let numbers: Vec<i32> =
            written.chunks(4).map(|n| i32::from_ne_bytes(n.try_into().unwrap())).collect();
        assert_eq!(numbers, [2_000_000_000, 0, 2_000_000_000]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "files")]
    fn what_is_covered_by_the_null_device_is_not_there() {
        let dev = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/null", dev.path().join("cpu_dma_latency")).unwrap();
        assert_eq!(Latency::open(dev.path()).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    #[cfg_attr(miri, ignore = "files")]
    fn a_request_of_another_process_is_seen() {
        let dev = tempfile::tempdir().unwrap();
        assert!(!Latency::held_by_others(dev.path()));
        let file = dev.path().join("cpu_dma_latency");
        std::fs::write(&file, 5_i32.to_ne_bytes()).unwrap();
        assert!(Latency::held_by_others(dev.path()));
        std::fs::write(&file, Latency::ANY_US.to_ne_bytes()).unwrap();
        assert!(!Latency::held_by_others(dev.path()));
    }
}

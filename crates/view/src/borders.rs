//! File systems that the view does not show: those whose files steer the kernel, or are no files, as
//! message queues.
//!
//! The server's privilege would reach through them what the caller's does not: a proc mounted
//! inside DIR has the settings of the whole machine (`/proc/sys`), and the kernel lets root's
//! process write them.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::lower::{self, Stat};

/// The numbers that statfs(2) has for them (`linux/magic.h`).
const KERNEL_FILE_SYSTEMS: &[u32] = &[
    0x0000_9fa0, // proc
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xf97c_ff8c, // selinuxfs
    0x4341_5d53, // smackfs
    0x5a3c_69f0, // apparmorfs
    0xcafe_4a11, // bpf
    0x6265_6570, // configfs
    0x6165_676c, // pstore
    0xde5e_81e4, // efivarfs
    0x4249_4e4d, // binfmt_misc
    0x6573_5543, // fusectl
    0x0000_1cd1, // devpts
    0x6e73_6673, // nsfs
    0x0765_5821, // resctrl
    0xabba_1974, // xenfs
    0x6c6f_6f70, // binder
    0x1980_0202, // mqueue
];

/// Whether `fd` lies in such a file system. What cannot be asked does.
pub fn is_kernel_file_system(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(fd).map_or(true, |found| {
        // The numbers have 32 bits, of which some kernels extend the sign.
        let number = found.f_type & 0xffff_ffff;
        KERNEL_FILE_SYSTEMS.iter().any(|kernel| i64::from(*kernel) == number)
    })
}

/// Refuses `name` in `dir`, with what was found there, if a kernel file system begins at it. Costs
/// nothing where no mount is crossed.
///
/// # Errors
/// `EACCES` if it does.
pub(crate) fn admit(
    dir_dev: u64,
    dir: BorrowedFd<'_>,
    name: &CStr,
    stat: &Stat,
) -> Result<(), Errno> {
    // A single file of one can be bind-mounted as well; a symbolic link holds nothing.
    if stat.dev() == dir_dev || stat.file_type() == FileType::Symlink {
        return Ok(());
    }
    let fd = lower::open_path(dir, name)?;
    if is_kernel_file_system(fd.as_fd()) { Err(Errno::ACCESS) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(dir: &str, name: &CStr) -> Result<(), Errno> {
        let dir = std::fs::File::open(dir).unwrap();
        let dev = lower::stat_fd(dir.as_fd()).unwrap().dev();
        let stat = lower::stat_at(dir.as_fd(), name).unwrap();
        admit(dev, dir.as_fd(), name, &stat)
    }

    #[test]
    fn only_the_border_of_a_kernel_file_system_is_closed() {
        assert_eq!(admitted("/", c"proc"), Err(Errno::ACCESS));
        assert_eq!(admitted("/", c"sys"), Err(Errno::ACCESS));
        assert_eq!(admitted("/", c"dev"), Ok(()));
        assert_eq!(admitted("/", c"usr"), Ok(()));
    }
}

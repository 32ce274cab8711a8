//! What `run` takes away from CMD beside the raw tree, so that a CMD that runs as root does not
//! reach the tree through a device or make the kernel reach it.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::mountinfo::MountInfo;
use crate::sys;

/// Most device nodes that are covered; a machine with more is refused.
const DEVICES_MAX: usize = 4096;
/// Deepest directory below /dev that is searched for devices.
const DEVICE_DEPTH_MAX: usize = 6;

/// File systems whose files steer the kernel.
pub(super) const KERNEL_FILE_SYSTEMS: &[&str] = &[
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "efivarfs",
    "fusectl",
    "pstore",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];

/// Makes kernel settings read-only: every kernel file system, and /proc/sys and the like. A root
/// CMD could otherwise name a program (`core_pattern`, `modprobe`, a cgroup's `release_agent`) that
/// the kernel starts outside of the view.
pub(super) fn freeze_kernel_settings(mounts: &[MountInfo]) -> anyhow::Result<()> {
    for mount in mounts.iter().filter(|mount| KERNEL_FILE_SYSTEMS.contains(&mount.kind.as_str())) {
        // A mount that another one hides cannot be named, nor used.
        if let Err(error) = read_only(&mount.point)
            && !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT | libc::ENOTDIR))
        {
            let point = mount.point.display();
            return Err(error).with_context(|| format!("cannot make `{point}` read-only"));
        }
    }
    for path in ["/proc/sys", "/proc/sysrq-trigger", "/proc/bus", "/proc/fs", "/proc/irq"] {
        if Path::new(path).exists() {
            rustix::mount::mount_bind(path, path)
                .with_context(|| format!("cannot bind `{path}` to itself"))?;
            read_only(Path::new(path))
                .with_context(|| format!("cannot make `{path}` read-only"))?;
        }
    }
    Ok(())
}

fn read_only(path: &Path) -> std::io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    sys::make_read_only(&path, false)
}

/// Covers the nodes of disks with /dev/null: they carry the raw tree's blocks.
pub(super) fn cover_disks() -> anyhow::Result<()> {
    for device in disks(Path::new("/dev"))? {
        rustix::mount::mount_bind("/dev/null", &device)
            .with_context(|| format!("cannot cover the device `{}`", device.display()))?;
    }
    Ok(())
}

/// Block devices, and the character devices that reach a disk or memory beside the block layer.
fn disks(dev: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut directories = vec![(dev.to_owned(), 0)];
    while let Some((directory, depth)) = directories.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && depth < DEVICE_DEPTH_MAX {
                directories.push((entry.path(), depth + 1));
            } else if kind.is_block_device()
                || (kind.is_char_device() && reaches_disk(&entry.path(), &entry.file_name()))
            {
                found.push(entry.path());
            }
        }
        if found.len() > DEVICES_MAX {
            bail!("there are more than {DEVICES_MAX} device nodes of disks to cover in /dev");
        }
    }
    Ok(found)
}

fn reaches_disk(path: &Path, name: &OsStr) -> bool {
    let name = name.as_bytes();
    let numbered = |prefix: &[u8]| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.first().is_some_and(u8::is_ascii_digit))
    };
    matches!(name, b"mem" | b"kmem" | b"port" | b"loop-control")
        || path.parent().is_some_and(|parent| parent.ends_with("bsg"))
        || [&b"sg"[..], b"nvme", b"ng", b"st", b"nst", b"raw"].into_iter().any(numbered)
}

/// Refuses two system calls, whatever the kernel's own settings are:
///
/// - ioctl `TIOCSTI` and `TIOCLINUX`: they type on the terminal, and the shell that `run` was
///   started from would execute it, outside of the view;
/// - `open_by_handle_at`: it opens by inode, past every path.
pub(super) fn install_filter() -> std::io::Result<()> {
    sys::install_filter(&mut filter())
}

/// Offsets into `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
/// The low half of the second argument, of which ioctl looks at no more.
const COMMAND: u32 = if cfg!(target_endian = "little") { 24 } else { 28 };

/// The system call numbers of one architecture: (`AUDIT_ARCH_*`, ioctl, `open_by_handle_at`).
type Calls = (u32, u32, u32);

#[cfg(target_arch = "x86_64")]
const CALLS: &[Calls] = &[(0xc000_003e, 16, 304), (0x4000_0003, 54, 342)];
#[cfg(target_arch = "aarch64")]
const CALLS: &[Calls] = &[(0xc000_00b7, 29, 265), (0x4000_0028, 54, 371)];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const CALLS: &[Calls] = &[];

/// x86-64 numbers with this bit are the x32 form of the same call.
const X32_BIT: u32 = 0x4000_0000;

fn filter() -> Vec<libc::sock_filter> {
    let mut program = vec![load(ARCHITECTURE)];
    for &(architecture, ioctl, open_by_handle_at) in CALLS {
        program.extend([
            skip_unless(architecture, 8),
            load(NUMBER),
            and(!X32_BIT),
            // From here: to `refuse` over 4, or on to the ioctl.
            skip_if(open_by_handle_at, 4),
            skip_unless(ioctl, 4),
            load(COMMAND),
            skip_if(tiocsti(), 1),
            skip_unless(tioclinux(), 1),
            give(libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned()),
        ]);
        // The accumulator no longer holds the architecture when a call was looked at.
        program.push(load(ARCHITECTURE));
    }
    program.push(give(libc::SECCOMP_RET_ALLOW));
    program
}

fn tiocsti() -> u32 {
    u32::try_from(libc::TIOCSTI).unwrap_or_default()
}

fn tioclinux() -> u32 {
    u32::try_from(libc::TIOCLINUX).unwrap_or_default()
}

fn load(offset: u32) -> libc::sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
}

fn and(value: u32) -> libc::sock_filter {
    instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, value, 0, 0)
}

fn skip_if(value: u32, skip: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, skip, 0)
}

fn skip_unless(value: u32, skip: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, 0, skip)
}

fn give(result: u32) -> libc::sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, result, 0, 0)
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: u16::try_from(code).unwrap_or_default(), jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter as the kernel would.
    fn judge(architecture: u32, number: u32, command: u32) -> u32 {
        let program = filter();
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let step = program[at];
            at += 1;
            match u32::from(step.code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    accumulator = match step.k {
                        NUMBER => number,
                        ARCHITECTURE => architecture,
                        COMMAND => command,
                        other => panic!("loads {other}"),
                    };
                }
                code if code == libc::BPF_ALU | libc::BPF_AND | libc::BPF_K => {
                    accumulator &= step.k;
                }
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => {
                    at += usize::from(if accumulator == step.k { step.jt } else { step.jf });
                }
                code if code == libc::BPF_RET | libc::BPF_K => return step.k,
                other => panic!("code {other}"),
            }
        }
    }

    #[test]
    fn only_typing_on_the_terminal_and_opening_by_handle_are_refused() {
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
        let tcgets = 0x5401;
        for &(architecture, ioctl, by_handle) in CALLS {
            for form in [0, X32_BIT] {
                assert_eq!(judge(architecture, ioctl | form, tiocsti()), refused);
                assert_eq!(judge(architecture, ioctl | form, tioclinux()), refused);
                assert_eq!(judge(architecture, ioctl | form, tcgets), libc::SECCOMP_RET_ALLOW);
                assert_eq!(judge(architecture, by_handle | form, tcgets), refused);
                assert_eq!(judge(architecture, form, tiocsti()), libc::SECCOMP_RET_ALLOW);
            }
        }
        assert_eq!(judge(0x1234_5678, 16, tiocsti()), libc::SECCOMP_RET_ALLOW);
    }

    #[test]
    fn names_of_raw_devices_are_known() {
        let is = |path: &str| {
            let path = Path::new(path);
            reaches_disk(path, path.file_name().unwrap())
        };
        for path in ["/dev/sg0", "/dev/nvme0", "/dev/ng0n1", "/dev/bsg/0:0:0:0", "/dev/mem"] {
            assert!(is(path), "{path}");
        }
        for path in ["/dev/null", "/dev/stdin", "/dev/nginx", "/dev/tty1", "/dev/fuse", "/dev/sgx"]
        {
            assert!(!is(path), "{path}");
        }
    }

    #[test]
    fn block_devices_are_found() {
        let blocks = || -> anyhow::Result<usize> {
            let entries = std::fs::read_dir("/dev")?.flatten();
            Ok(entries.filter(|e| e.file_type().is_ok_and(|k| k.is_block_device())).count())
        };
        let found = disks(Path::new("/dev")).unwrap();
        assert!(found.len() >= blocks().unwrap());
        assert!(!found.contains(&PathBuf::from("/dev/null")));
    }
}

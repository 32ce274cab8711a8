//! The system calls that a server makes once it serves.

use std::collections::BTreeMap;

use anyhow::Context;
use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition as Condition, SeccompRule};

use super::duties::Duties;

/// Calls that are made with whatever arguments.
const FREE: &[libc::c_long] = &[
    // Files of the lower tree, the audit log, the policy.
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_symlinkat,
    libc::SYS_linkat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_syncfs,
    libc::SYS_copy_file_range,
    libc::SYS_splice,
    libc::SYS_pipe2,
    libc::SYS_flock,
    libc::SYS_fcntl,
    libc::SYS_dup3,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_umask,
    libc::SYS_name_to_handle_at,
    libc::SYS_fanotify_mark,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch,
    // On whose behalf.
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_getgroups,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    // Memory and threads.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_setattr,
    libc::SYS_sched_getattr,
    libc::SYS_getpriority,
    libc::SYS_getcpu,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_restart_syscall,
    libc::SYS_getrandom,
    // Time.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    // Waiting and signals.
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    // The processes of `run`, and callers.
    libc::SYS_kill,
    libc::SYS_wait4,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    // Connections that were opened before: control socket, counters, processes of `run`.
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    // A socket in reserve gets its name when work queues start. Without socket(2) there is no other
    // to bind, and the domain says where.
    libc::SYS_bind,
    libc::SYS_listen,
    // Limits and figures.
    libc::SYS_prlimit64,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    // Requests over io_uring, and a ring cannot be made any more unless that is the transport.
    libc::SYS_io_uring_enter,
];

/// The same by older names, which the C library still uses on this architecture.
#[cfg(target_arch = "x86_64")]
const OLDER: &[libc::c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_chmod,
    libc::SYS_pipe,
    libc::SYS_dup2,
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_getdents,
    libc::SYS_arch_prctl,
    // How a request is made in a queue of io_uring.
    libc::SYS_ustat,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[libc::c_long] = &[];

/// The list, for a server with `duties`.
pub(super) fn allowed(duties: Duties) -> anyhow::Result<BTreeMap<i64, Vec<SeccompRule>>> {
    let free = FREE.iter().chain(OLDER).map(|number| (*number, Vec::new()));
    let mut allowed: BTreeMap<i64, Vec<SeccompRule>> = free.collect();
    // Threads of this process, in its namespaces.
    let thread = (libc::CLONE_VM | libc::CLONE_THREAD).cast_unsigned();
    allowed.insert(libc::SYS_clone, vec![with_bits(u64::from(thread))?]);
    // A umask and working directory for each thread.
    allowed.insert(libc::SYS_unshare, vec![equal(0, u64::from(libc::CLONE_FS.cast_unsigned()))?]);
    allowed.insert(libc::SYS_prctl, one_of(0, PROCESS_CONTROLS)?);
    let mut controls = one_of(1, DEVICE_CONTROLS)?;
    if duties.runs {
        controls.extend(one_of(1, JOB_CONTROLS)?);
    }
    allowed.insert(libc::SYS_ioctl, controls);
    if duties.connects {
        let unix = u64::from(libc::AF_UNIX.cast_unsigned());
        allowed.insert(libc::SYS_socket, vec![equal(0, unix)?]);
        allowed.insert(libc::SYS_connect, Vec::new());
    }
    if duties.rings {
        // Queues are set up, and set up again, by their threads.
        for call in [libc::SYS_io_uring_setup, libc::SYS_io_uring_register] {
            allowed.insert(call, Vec::new());
        }
    }
    Ok(allowed)
}

/// The options of prctl(2) that are used.
const PROCESS_CONTROLS: &[u64] = &[
    libc::PR_SET_NAME as u64,
    libc::PR_GET_NAME as u64,
    libc::PR_CAPBSET_READ as u64,
    libc::PR_SET_TIMERSLACK as u64,
    libc::PR_GET_TIMERSLACK as u64,
    // Whether huge pages are switched off: asked by the first buffers, also after a reload.
    libc::PR_GET_THP_DISABLE as u64,
    // Names of memory, given by the C library.
    libc::PR_SET_VMA as u64,
    // `PR_GET_AUXV`: rustix looks for the clock of the vDSO when it is first asked for the time.
    0x4155_5856,
];

/// Which process group has the terminal.
const JOB_CONTROLS: &[u64] = &[libc::TIOCGPGRP, libc::TIOCSPGRP];

/// The commands of ioctl(2) that are used: none of them acts on a terminal or makes a device.
const DEVICE_CONTROLS: &[u64] = &[
    // `FUSE_DEV_IOC_BACKING_OPEN`, `FUSE_DEV_IOC_BACKING_CLOSE`, `FUSE_DEV_IOC_CLONE`
    0x4010_e501,
    0x4004_e502,
    0x8004_e500,
    // `FS_IOC_GETFLAGS`: whether a directory is case-insensitive.
    0x8008_6601,
    // Of the standard library: whether standard error is a terminal, sockets that do not block.
    libc::TCGETS,
    libc::FIONBIO,
    libc::FIOCLEX,
];

fn one_of(argument: u8, values: &[u64]) -> anyhow::Result<Vec<SeccompRule>> {
    values.iter().map(|value| equal(argument, *value)).collect()
}

fn with_bits(bits: u64) -> anyhow::Result<SeccompRule> {
    rule(Condition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(bits), bits)?)
}

fn equal(argument: u8, value: u64) -> anyhow::Result<SeccompRule> {
    rule(Condition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)?)
}

fn rule(condition: Condition) -> anyhow::Result<SeccompRule> {
    SeccompRule::new(vec![condition]).context("a rule of the sandbox")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_out_is_not_on_the_list() {
        let all = allowed(Duties { rings: true, ..Duties::default() }).unwrap();
        for call in [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_setns,
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_open_tree,
            libc::SYS_move_mount,
            libc::SYS_fsmount,
            libc::SYS_pivot_root,
            libc::SYS_chroot,
            libc::SYS_socket,
            libc::SYS_connect,
            libc::SYS_bpf,
            libc::SYS_keyctl,
            libc::SYS_init_module,
            libc::SYS_perf_event_open,
            libc::SYS_userfaultfd,
            libc::SYS_pidfd_getfd,
            libc::SYS_kexec_load,
            libc::SYS_reboot,
            libc::SYS_seccomp,
            libc::SYS_clone3,
        ] {
            assert!(!all.contains_key(&call), "{call}");
        }
        let run = allowed(Duties::default()).unwrap();
        assert!(!run.contains_key(&libc::SYS_io_uring_setup));
    }
}

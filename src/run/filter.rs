//! The system calls that CMD does not get, whatever the kernel's own settings are.
//!
//! * ioctl `TIOCSTI` and `TIOCLINUX`: they type on the terminal, and the shell that `run` was
//!   started from would execute it, outside of the view. `TIOCEXCL` and `TIOCSETD`: nobody else could
//!   open it any more, or use it, also when `run` has ended.
//! * `open_by_handle_at`: it opens by inode, past every path.
//! * `add_key`, `request_key`, `keyctl`: the keyrings are those of the user outside, and for a key
//!   that is not there the kernel starts `/sbin/request-key` outside.
//! * Kernel modules and `kexec`.
//! * `setpriority` and `ioprio_set` for a process group or a user: the group of CMD is the one that
//!   `run` was started in, and so has processes outside.
//! * New cgroup namespaces: in one, root may mount a cgroup hierarchy of its own, writable.
//!   `clone3` hides its flags from filters, so it is answered as by a kernel that does not have it,
//!   and the C library uses `clone`.

use super::bpf::{
    ALLOW, ARCHITECTURE, FIRST, NUMBER, REFUSE, SECOND, UNKNOWN, X32_BIT, and, give, load, skip_if,
    skip_if_any_bit, skip_unless,
};
use crate::sys;

/// Installs the filter on this process and what it becomes.
pub(super) fn install() -> std::io::Result<()> {
    sys::install_filter(&mut program())
}

/// The system call numbers of one architecture.
struct Calls {
    /// `AUDIT_ARCH_*`
    architecture: u32,
    ioctl: &'static [u32],
    /// clone and unshare: their first argument are flags.
    clone: [u32; 2],
    /// Its first argument says whose priority it is.
    setpriority: u32,
    /// The same.
    ioprio_set: u32,
    refused: &'static [u32],
}

/// The same number on every architecture.
const CLONE3: u32 = 435;

#[cfg(target_arch = "x86_64")]
const CALLS: &[Calls] = &[
    Calls {
        architecture: 0xc000_003e,
        // 514 and 528 are ioctl and kexec_load of x32.
        ioctl: &[16, 514],
        clone: [56, 272],
        setpriority: 141,
        ioprio_set: 251,
        refused: &[304, 248, 249, 250, 175, 313, 176, 246, 320, 528],
    },
    Calls {
        architecture: 0x4000_0003,
        ioctl: &[54],
        clone: [120, 310],
        setpriority: 97,
        ioprio_set: 289,
        refused: &[342, 286, 287, 288, 128, 350, 129, 283],
    },
];
#[cfg(target_arch = "aarch64")]
const CALLS: &[Calls] = &[
    Calls {
        architecture: 0xc000_00b7,
        ioctl: &[29],
        clone: [220, 97],
        setpriority: 140,
        ioprio_set: 30,
        refused: &[265, 217, 218, 219, 105, 273, 106, 104, 294],
    },
    Calls {
        architecture: 0x4000_0028,
        ioctl: &[54],
        clone: [120, 337],
        setpriority: 97,
        ioprio_set: 314,
        refused: &[371, 309, 310, 311, 128, 379, 129, 347, 401],
    },
];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const CALLS: &[Calls] = &[];

fn program() -> Vec<libc::sock_filter> {
    let mut program = Vec::new();
    for calls in CALLS {
        let body = of_architecture(calls);
        let past = u8::try_from(body.len()).expect("a body is shorter than a jump is far");
        program.extend([load(ARCHITECTURE), skip_unless(calls.architecture, past)]);
        program.extend(body);
    }
    program.push(give(libc::SECCOMP_RET_ALLOW));
    program
}

/// What is done with the calls of one architecture; it leaves through one of its `give`s.
fn of_architecture(calls: &Calls) -> Vec<libc::sock_filter> {
    // The ends, in this order, after the comparisons; each comparison jumps to the first
    // instruction of one. They are built backwards, as each knows how many follow.
    let clone = [load(FIRST), skip_if_any_bit(new_cgroup(), 1), give(ALLOW)];
    let io_priority = refuse(FIRST, [IOPRIO_WHO_PGRP, IOPRIO_WHO_USER], clone.len());
    let behind = io_priority.len() + clone.len();
    let priority = refuse(FIRST, [PRIO_PGRP, PRIO_USER], behind);
    let ioctl = refuse(SECOND, of_terminals(), priority.len() + behind);
    let to_ioctl = 1;
    let to_priority = to_ioctl + ioctl.len();
    let to_io_priority = to_priority + priority.len();
    let to_clone = to_io_priority + io_priority.len();
    let to_refuse = to_clone + clone.len();
    let to_unknown = to_refuse + 1;
    let mut targets: Vec<(u32, usize)> = vec![(CLONE3, to_unknown)];
    targets.extend(calls.refused.iter().map(|number| (*number, to_refuse)));
    targets.extend(calls.clone.map(|number| (number, to_clone)));
    targets.extend(calls.ioctl.iter().map(|number| (*number, to_ioctl)));
    targets.extend([(calls.setpriority, to_priority), (calls.ioprio_set, to_io_priority)]);
    let mut body = vec![load(NUMBER), and(!X32_BIT)];
    for (at, (number, target)) in targets.iter().enumerate() {
        let distance = targets.len() - at - 1 + target;
        body.push(skip_if(*number, u8::try_from(distance).expect("there are few comparisons")));
    }
    body.push(give(ALLOW));
    body.extend([ioctl, priority, io_priority].concat());
    body.extend(clone);
    body.extend([give(REFUSE), give(UNKNOWN)]);
    body
}

/// Refuses some values of an argument; the `give(REFUSE)` comes after `behind` more instructions.
fn refuse<const N: usize>(
    argument: u32,
    values: [u32; N],
    behind: usize,
) -> Vec<libc::sock_filter> {
    let distance = |index: usize| u8::try_from(N - index + behind).expect("a few instructions");
    let mut body = vec![load(argument)];
    body.extend(values.iter().zip(0..).map(|(value, index)| skip_if(*value, distance(index))));
    body.push(give(ALLOW));
    body
}

const PRIO_PGRP: u32 = 1;
const PRIO_USER: u32 = 2;
const IOPRIO_WHO_PGRP: u32 = 2;
const IOPRIO_WHO_USER: u32 = 3;

fn of_terminals() -> [u32; 4] {
    let commands = [libc::TIOCSTI, libc::TIOCLINUX, libc::TIOCEXCL, libc::TIOCSETD];
    commands.map(|command| u32::try_from(command).unwrap_or_default())
}

fn new_cgroup() -> u32 {
    libc::CLONE_NEWCGROUP.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter as the kernel would.
    fn judge(architecture: u32, number: u32, first: u32, second: u32) -> u32 {
        let program = program();
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let step = program[at];
            at += 1;
            match u32::from(step.code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    accumulator = match step.k {
                        NUMBER => number,
                        ARCHITECTURE => architecture,
                        FIRST => first,
                        SECOND => second,
                        other => panic!("loads {other}"),
                    };
                }
                code if code == libc::BPF_ALU | libc::BPF_AND | libc::BPF_K => {
                    accumulator &= step.k;
                }
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => {
                    at += usize::from(if accumulator == step.k { step.jt } else { step.jf });
                }
                code if code == libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K => {
                    at += usize::from(if accumulator & step.k != 0 { step.jt } else { step.jf });
                }
                code if code == libc::BPF_RET | libc::BPF_K => return step.k,
                other => panic!("code {other}"),
            }
        }
    }

    #[test]
    fn what_is_listed_is_refused_and_nothing_else() {
        let tcgets = 0x5401;
        let flags = new_cgroup() | libc::CLONE_NEWNS.cast_unsigned();
        for calls in CALLS {
            let listed = |number| calls.refused.contains(&number);
            let judge = |number, first, second| judge(calls.architecture, number, first, second);
            for number in 0..600 {
                for form in [0, X32_BIT] {
                    let (mut bare, mut typing, mut cgroup) = (ALLOW, ALLOW, ALLOW);
                    if listed(number) {
                        (bare, typing, cgroup) = (REFUSE, REFUSE, REFUSE);
                    } else if number == CLONE3 {
                        (bare, typing, cgroup) = (UNKNOWN, UNKNOWN, UNKNOWN);
                    } else if calls.ioctl.contains(&number) {
                        typing = REFUSE;
                    } else if calls.clone.contains(&number) {
                        cgroup = REFUSE;
                    }
                    assert_eq!(judge(number | form, 0, tcgets), bare, "{number}");
                    for command in of_terminals() {
                        assert_eq!(judge(number | form, 0, command), typing, "{number}");
                    }
                    assert_eq!(judge(number | form, flags, 0), cgroup, "{number}");
                }
            }
        }
        assert_eq!(judge(0x1234_5678, 16, 0, of_terminals()[0]), ALLOW);
    }
    #[test]
    fn priorities_are_set_for_processes_alone() {
        for calls in CALLS {
            for (number, refused) in [(calls.setpriority, [1, 2]), (calls.ioprio_set, [2, 3])] {
                for which in 0..6 {
                    let expected = if refused.contains(&which) { REFUSE } else { ALLOW };
                    for form in [0, X32_BIT] {
                        let judged = judge(calls.architecture, number | form, which, 0);
                        assert_eq!(judged, expected, "{number} of {which}");
                    }
                }
            }
        }
    }
}

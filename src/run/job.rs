//! CMD as a job of the shell that `run` was called from.
//!
//! The shell waits for `tollgate`. When CMD stops, by itself (vim's Ctrl-Z) or by its terminal,
//! `tollgate` stops in the same way, so that the shell takes the terminal back; when the shell has
//! `tollgate` go on, CMD goes on. The order matters: signals by which a terminal stops its job are
//! read here like others and do not stop `tollgate`, since CMD may do something first, or not stop at
//! all.
//!
//! What `run` was called from may be a script. The shell sees a job stopped when the process that it
//! started is, which is the script. So, while the job has the terminal, the rest of the process group
//! is stopped too, as it would be if CMD had been called without `tollgate`.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid};

use super::signals;
use crate::sys::{self, Arrived};

/// How long a CMD in the job's process group has to go on by the SIGCONT that a shell sends to all of
/// that. Another one would have it go on alone where it stopped again at once: what reads the terminal
/// in the background does that.
const PATIENCE: Duration = Duration::from_millis(50);

/// CMD's process.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) process: Pid,
    /// It stays that process's when the number is another's.
    pub(super) open: OwnedFd,
}

impl Command {
    /// `None`: it has ended.
    pub(super) fn open(process: Pid) -> Option<Self> {
        let open = rustix::process::pidfd_open(process, PidfdFlags::empty()).ok()?;
        Some(Self { process, open })
    }

    /// Has it go on, if it is stopped.
    pub(super) fn go_on(&self) {
        // It may have ended by now.
        let _ = rustix::process::pidfd_send_signal(&self.open, Signal::CONT);
    }

    /// Sends it what a process sent to this one for it.
    pub(super) fn pass_on(&self, arrived: &Arrived) {
        if let Some(signal) = Signal::from_named_raw(arrived.signal)
            && signals::is_for_command(arrived)
        {
            // It may have ended by now.
            let _ = rustix::process::pidfd_send_signal(&self.open, signal);
        }
    }
}

/// The job that this process belongs to.
#[derive(Debug)]
pub(super) struct Job {
    /// Opened while files may be.
    terminal: Option<OwnedFd>,
    /// Its process group, which a server may leave; 0 in a `run` inside `run`, where it cannot be seen.
    group: i32,
    /// The process that the shell waits for, where it is not this one.
    front: Option<Pid>,
    /// While CMD is stopped.
    stopped: Option<Stopped>,
    /// When CMD is sent SIGCONT, unless it has gone on by then.
    goes_on_at: Option<Instant>,
}

/// How CMD was when it stopped.
#[derive(Debug)]
struct Stopped {
    /// The group of its own that had the terminal.
    foreground: Option<i32>,
    /// Whether it is in the job's own group.
    is_in_group: bool,
}

impl Job {
    /// The job of the calling process; `front` stands for it in front of the shell.
    pub(super) fn of_this_process(front: Option<Pid>) -> Self {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = rustix::fs::open("/dev/tty", flags, Mode::empty()).ok();
        Self { terminal, group: sys::process_group(), front, stopped: None, goes_on_at: None }
    }

    /// CMD `command` has stopped by `signal`: stops this process until it is to go on, or the one in
    /// front of it, which goes on alone.
    pub(super) fn stop(&mut self, command: &Command, signal: libc::c_int) {
        // Somebody may have had it go on before this process learned that it stopped.
        let Some(own_group) = group_if_stopped(&command.open) else { return };
        self.goes_on_at = None;
        let foreground = self.foreground();
        let has_terminal = foreground.is_some_and(|it| it == self.group || it == own_group);
        let foreground = foreground.filter(|it| has_terminal && *it != self.group);
        self.stopped = Some(Stopped { foreground, is_in_group: own_group == self.group });
        match self.front {
            // Its own stop is among what it does.
            Some(front) if has_terminal => send(front, Signal::TSTP),
            Some(front) => send(front, Signal::STOP),
            None => {
                if has_terminal {
                    stop_group(signal);
                } else {
                    stop_alone(signal);
                }
                self.go_on(command);
            }
        }
    }

    /// There is no CMD yet, and the job is to stop by `signal`.
    pub(super) fn stop_before_command(&self, signal: libc::c_int) {
        match self.front {
            Some(front) => send(front, Signal::STOP),
            None => stop_alone(signal),
        }
    }

    /// This process is to go on, and so is CMD, if it was stopped.
    pub(super) fn go_on(&mut self, command: &Command) {
        let Some(Stopped { foreground, is_in_group }) = self.stopped.take() else { return };
        // The shell gave the terminal to the group that it knows.
        if let Some(group) = foreground
            && self.foreground() == Some(self.group)
        {
            self.give_terminal(group);
        }
        let patience = if is_in_group { PATIENCE } else { Duration::ZERO };
        self.goes_on_at = Some(Instant::now() + patience);
        self.go_on_in_time(command);
    }

    /// How long at most until something is to be done that nothing announces.
    pub(super) fn patience(&self) -> Option<Timespec> {
        let rest = self.goes_on_at?.saturating_duration_since(Instant::now());
        Timespec::try_from(rest).ok()
    }

    /// Sends CMD what is due.
    pub(super) fn go_on_in_time(&mut self, command: &Command) {
        if self.goes_on_at.is_some_and(|time| time <= Instant::now()) {
            self.goes_on_at = None;
            command.go_on();
        }
    }

    /// CMD has gone on.
    pub(super) fn continued(&mut self) {
        self.goes_on_at = None;
    }

    /// CMD and all that it started have ended: a terminal that one of them had is given back.
    pub(super) fn end(&self) {
        let Some(foreground) = self.foreground().and_then(Pid::from_raw) else { return };
        if rustix::process::test_kill_process_group(foreground) == Err(Errno::SRCH) {
            self.give_terminal(self.group);
        }
    }

    /// To a group that can be seen.
    fn give_terminal(&self, group: i32) {
        if let (Some(terminal), Some(group)) = (&self.terminal, Pid::from_raw(group)) {
            let _ = rustix::termios::tcsetpgrp(terminal, group);
        }
    }

    fn foreground(&self) -> Option<i32> {
        sys::foreground_group(self.terminal.as_ref()?).ok()
    }
}

/// Stops this process and all others of its process group until they are to go on, as the terminal
/// would. What `tollgate` needs meanwhile has the signal blocked. `signal` is the one that stopped CMD.
///
/// A shell that sees another process of the group stop may have all go on at once, before this one
/// has stopped: then the signal, which waits for this process, is gone, and nothing stops it.
pub(super) fn stop_group(signal: libc::c_int) {
    let _ = rustix::process::kill_current_process_group(Signal::TSTP);
    if !sys::stop_by_waiting(libc::SIGTSTP) {
        stop_without_shell(signal);
    }
}

fn stop_alone(signal: libc::c_int) {
    Signal::from_named_raw(signal).into_iter().for_each(|signal| send(getpid(), signal));
    if !sys::stop_by_waiting(signal) {
        stop_without_shell(signal);
    }
}

/// Where no shell waits for the group, the signals of a terminal stop nothing. By SIGTSTP, CMD goes on
/// at once; what reads a terminal that it may not read would try it again for ever.
fn stop_without_shell(signal: libc::c_int) {
    if signal != libc::SIGTSTP {
        send(getpid(), Signal::STOP);
        sys::stop_by_waiting(libc::SIGSTOP);
    }
}

/// The process may have ended by now.
fn send(process: Pid, signal: Signal) {
    let _ = rustix::process::kill_process(process, signal);
}

/// The process group of a process that is stopped.
fn group_if_stopped(process: &OwnedFd) -> Option<i32> {
    // Its number in this /proc, which may be that of an outer process namespace.
    let info =
        std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).ok()?;
    let process = info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim();
    let stat = std::fs::read(format!("/proc/{process}/stat")).ok()?;
    // Its name, in parentheses, may hold anything.
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut words = std::str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace();
    // Stopped; stopped, and somebody traces it.
    let is_stopped = words.next().is_some_and(|state| matches!(state, "T" | "t"));
    let group = words.nth(1)?.parse().ok()?;
    is_stopped.then_some(group)
}

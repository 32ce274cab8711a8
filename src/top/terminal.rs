//! A screen that is drawn again and again, and keys and signals that end it. Whoever stops it has the
//! terminal as it was before.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_current_process_group, kill_process};
use rustix::termios::{LocalModes, OptionalActions, Termios};

use crate::inherited;
use crate::sys::{self, SignalFd};

/// What ends it.
const ENDING: &[libc::c_int] = &[libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// What ends it where a terminal is drawn over.
const ENDING_AT_A_TERMINAL: &[libc::c_int] =
    &[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
/// The same where a terminal is drawn over, and what stops it there. By their default actions the
/// shell would get the terminal as it is drawn over.
const AT_A_TERMINAL: &[libc::c_int] =
    &[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGTSTP, libc::SIGCONT];
/// The alternate screen without a cursor, and the way back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Where the tables go: a terminal is drawn over, anything else gets one after the other.
pub(super) struct Screen {
    signals: SignalFd,
    /// The settings of the keyboard to restore, where it is one that was changed.
    keyboard: Option<Termios>,
    drawn_over: bool,
    /// Whether the terminal shows what is drawn, and its settings are changed.
    is_entered: bool,
}

impl Screen {
    /// Takes the terminal, if standard output is one and `draw` wants to draw over it.
    pub(super) fn take(draw: bool) -> anyhow::Result<Self> {
        let drawn_over = draw && io::stdout().is_terminal();
        let signals = inherited::without_ignored(if drawn_over { AT_A_TERMINAL } else { ENDING });
        sys::block_signals(&signals).context("cannot block signals")?;
        let signals = SignalFd::new(&signals).context("cannot read signals")?;
        let mut screen = Self { signals, keyboard: None, drawn_over, is_entered: false };
        if drawn_over {
            screen.enter();
        } else {
            sys::end_on_closed_pipe();
        }
        Ok(screen)
    }

    /// Begins to draw over the terminal, once it is in the foreground. Where a signal ends it before, the
    /// terminal, which somebody else has, stays as it is.
    fn enter(&mut self) {
        self.is_entered = wait_for_foreground();
        if !self.is_entered {
            return;
        }
        let before = single_keys();
        // They are not those of before where they were not restored (SIGSTOP).
        if self.keyboard.is_none() {
            self.keyboard = before;
        }
        print_now(ENTER);
    }

    /// Leaves the terminal as it was.
    fn leave(&mut self) {
        if !std::mem::take(&mut self.is_entered) {
            return;
        }
        print_now(LEAVE);
        if let Some(before) = self.keyboard.take() {
            let _ = rustix::termios::tcsetattr(io::stdin(), OptionalActions::Now, &before);
        }
    }

    /// Stops, as the terminal wants (Ctrl-Z), until it is to go on. Where no shell waits for it, it goes on at
    /// once.
    fn stop(&mut self) {
        self.leave();
        let _ = kill_process(getpid(), Signal::TSTP);
        sys::stop_by_waiting(libc::SIGTSTP);
        self.enter();
    }

    /// Shows a text.
    pub(super) fn show(&self, text: &str) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        if !self.drawn_over {
            return out.write_all(text.as_bytes()).context("cannot print");
        }
        let size = rustix::termios::tcgetwinsize(&out).ok();
        let size = size.filter(|size| size.ws_row > 0 && size.ws_col > 0);
        let (rows, columns) = size.map_or((24, 80), |size| (size.ws_row, size.ws_col));
        let mut frame = String::from("\x1b[H");
        for line in text.lines().take(usize::from(rows) - 1) {
            frame.extend(line.chars().take(usize::from(columns)));
            // The rest of the old line goes.
            frame += "\x1b[K\r\n";
        }
        frame += "\x1b[J";
        out.write_all(frame.as_bytes()).and_then(|()| out.flush()).context("cannot draw")
    }

    /// Waits; true when a signal or the key `q` ends it meanwhile.
    pub(super) fn ended_within(&mut self, time: Duration) -> anyhow::Result<bool> {
        let timeout = Timespec::try_from(time).context("interval")?;
        let stdin = io::stdin();
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        if self.keyboard.is_some() {
            fds.push(PollFd::new(&stdin, PollFlags::IN));
        }
        match poll(&mut fds, Some(&timeout)) {
            // It was stopped, and goes on.
            Err(Errno::INTR) => return Ok(false),
            ready => ready.context("cannot wait")?,
        };
        let signalled = !fds[0].revents().is_empty();
        let key = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        if signalled {
            return self.ended_by_signal();
        }
        // Any other key draws at once.
        Ok(key && matches!(read_key(), None | Some(b'q' | b'Q')))
    }

    /// Whether the signal that has arrived ends it. Others draw at once.
    fn ended_by_signal(&mut self) -> anyhow::Result<bool> {
        match self.signals.read().context("cannot read signals")?.signal {
            libc::SIGTSTP => self.stop(),
            // Somebody else has stopped it (SIGSTOP), and a shell may have used the terminal since.
            libc::SIGCONT => {
                print_now(LEAVE);
                self.enter();
            }
            _ => return Ok(true),
        }
        // One that ends it has come while it was in the background.
        Ok(!self.is_entered)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A terminal that is gone shows nothing.
fn print_now(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Stops, as its process group does that changes a terminal from the background, until it has that. Asking
/// for the settings of the keyboard stops nobody: those of whoever has the terminal would be taken for
/// those of before. Where no shell waits for the group, or SIGTTOU is ignored, it goes on at once. `false`
/// when a signal that ends it has come meanwhile: it is blocked, and could be read only after the wait.
fn wait_for_foreground() -> bool {
    const SIGNAL: libc::c_int = libc::SIGTTOU;
    let is_elsewhere =
        || sys::foreground_group(&io::stdin()).is_ok_and(|group| group != sys::process_group());
    // It would stop those of the group that do not ignore it.
    if inherited::is_ignored(SIGNAL) {
        return true;
    }
    let ending = inherited::without_ignored(ENDING_AT_A_TERMINAL);
    while is_elsewhere() {
        if sys::is_any_pending(&ending) {
            return false;
        }
        let sent = sys::block_signals(&[SIGNAL]).is_ok()
            && kill_current_process_group(Signal::TTOU).is_ok();
        let continued = sent && sys::stop_by_waiting(SIGNAL);
        let _ = sys::unblock_signals(&[SIGNAL]);
        if !continued {
            break;
        }
    }
    true
}

/// Has the keyboard give each key at once and unseen; the settings before.
fn single_keys() -> Option<Termios> {
    let stdin = io::stdin();
    let old = rustix::termios::tcgetattr(&stdin).ok()?;
    let mut new = old.clone();
    new.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
    rustix::termios::tcsetattr(&stdin, OptionalActions::Now, &new).ok()?;
    Some(old)
}

/// The next key; `None` at the end.
fn read_key() -> Option<u8> {
    let mut key = [0];
    (rustix::io::read(io::stdin(), &mut key).ok()? == 1).then_some(key[0])
}

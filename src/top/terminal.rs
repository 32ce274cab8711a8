//! A screen that is drawn again and again, and keys that end it.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios};

use crate::sys::{self, SignalFd};

const ENDING: &[libc::c_int] = &[libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// The alternate screen without a cursor, and the way back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Where the tables go: a terminal is drawn over, anything else gets one after the other.
pub(super) struct Screen {
    signals: SignalFd,
    /// The settings of the keyboard to restore, where it is one.
    keyboard: Option<Termios>,
    drawn_over: bool,
}

impl Screen {
    /// Takes the terminal, if standard output is one and `draw` wants to draw over it.
    pub(super) fn take(draw: bool) -> anyhow::Result<Self> {
        sys::block_signals(ENDING).context("cannot block signals")?;
        let signals = SignalFd::new(ENDING).context("cannot read signals")?;
        let drawn_over = draw && io::stdout().is_terminal();
        let keyboard = if drawn_over { single_keys() } else { None };
        if !drawn_over {
            sys::end_on_closed_pipe();
        }
        let screen = Self { signals, keyboard, drawn_over };
        if drawn_over {
            print!("{ENTER}");
        }
        Ok(screen)
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
    pub(super) fn ended_within(&self, time: Duration) -> anyhow::Result<bool> {
        let timeout = Timespec::try_from(time).context("interval")?;
        let stdin = io::stdin();
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        if self.keyboard.is_some() {
            fds.push(PollFd::new(&stdin, PollFlags::IN));
        }
        poll(&mut fds, Some(&timeout)).context("cannot wait")?;
        if !fds[0].revents().is_empty() {
            return Ok(true);
        }
        let key = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        // Any other key draws at once.
        Ok(key && matches!(read_key(), None | Some(b'q' | b'Q')))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.drawn_over {
            print!("{LEAVE}");
            let _ = io::stdout().flush();
        }
        if let Some(old) = &self.keyboard {
            let _ = rustix::termios::tcsetattr(io::stdin(), OptionalActions::Now, old);
        }
    }
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

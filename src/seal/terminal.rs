//! Passphrases from the terminal.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};

use anyhow::{Context, Result, bail};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

/// Longest passphrase in bytes.
pub(super) const LONGEST: u64 = 64 << 10;

/// Asks at the terminal, without showing what is typed; `instead` are options that answer it.
///
/// # Errors
/// If there is no terminal, with what can be given instead.
pub(super) fn ask(question: &str, instead: &str) -> Result<Zeroizing<Vec<u8>>> {
    let terminal = File::options().read(true).write(true).open("/dev/tty");
    let mut terminal = terminal.with_context(|| {
        format!("there is no terminal to ask for the passphrase; give {instead}")
    })?;
    let before = tcgetattr(&terminal)?;
    let mut silent = before.clone();
    silent.local_modes -= LocalModes::ECHO;
    let shown = Shown { terminal: &terminal.try_clone()?, before };
    tcsetattr(&terminal, OptionalActions::Flush, &silent)?;
    write!(terminal, "{question}: ")?;
    let mut line = Zeroizing::new(Vec::with_capacity(1024));
    BufReader::new((&terminal).take(LONGEST)).read_until(b'\n', &mut line)?;
    drop(shown);
    writeln!(terminal)?;
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    if line.is_empty() {
        bail!("the passphrase is empty");
    }
    Ok(line)
}

/// Shows again what is typed.
struct Shown<'a> {
    terminal: &'a File,
    before: Termios,
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        // A terminal that is gone shows nothing.
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}

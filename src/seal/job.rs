//! What is the same for all files of a command.

use std::io::IsTerminal;
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::Timespec;
use tollgate_seal::MasterKeys;

use crate::cli::ProgressArg;

/// What is the same for every file.
pub(super) struct Job<'a> {
    pub(super) keys: &'a MasterKeys,
    pub(super) domain: &'a [u8],
    /// The keyring's directory.
    pub(super) dir: &'a Path,
    /// When the file was read last, before this command did.
    pub(super) accessed: Timespec,
    pub(super) progress: &'a Progress,
}

/// How far it is, on a terminal.
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// For so many bytes.
    pub(super) fn new(bytes: u64, when: ProgressArg) -> Progress {
        if when == ProgressArg::Off || !std::io::stderr().is_terminal() {
            return Progress(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(bytes);
        let style = "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        Progress(bar)
    }

    pub(super) fn bytes(&self, length: usize) {
        self.0.inc(length as u64);
    }

    pub(super) fn end(&self) {
        self.0.finish_and_clear();
    }
}

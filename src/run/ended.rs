//! How CMD ended, or why it did not begin.

use std::ffi::OsStr;

/// How CMD ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandEnd {
    /// By itself, with this exit code.
    Exited(u8),
    /// By this signal.
    Signalled(i32),
}

/// CMD could not be executed, with the exit status that shells give that.
#[derive(Debug)]
pub(crate) struct NotExecuted {
    command: String,
    errno: i32,
}

impl NotExecuted {
    /// 127 when there is no such file, else 126.
    pub(crate) fn exit_code(&self) -> u8 {
        if self.errno == libc::ENOENT { 127 } else { 126 }
    }
}

impl std::fmt::Display for NotExecuted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { command, errno } = self;
        match *errno {
            libc::ENOENT if command.contains('/') => {
                write!(f, "CMD `{command}` (or the interpreter it names) does not exist")
            }
            libc::ENOENT => write!(f, "CMD `{command}` is not found in PATH"),
            errno => {
                let error = std::io::Error::from_raw_os_error(errno);
                write!(f, "CMD `{command}` cannot be executed: {error}")
            }
        }
    }
}

impl std::error::Error for NotExecuted {}

/// A signal came before CMD was started: `run` ends by it, as CMD would have.
#[derive(Debug)]
pub(crate) struct EndedBySignal(pub(crate) i32);

impl std::fmt::Display for EndedBySignal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ended by signal {} before CMD was started", self.0)
    }
}

impl std::error::Error for EndedBySignal {}

pub(super) fn not_executed(command: &OsStr, errno: i32) -> anyhow::Error {
    NotExecuted { command: command.to_string_lossy().into_owned(), errno }.into()
}

pub(super) fn end(status: i32) -> CommandEnd {
    if libc::WIFSIGNALED(status) {
        CommandEnd::Signalled(libc::WTERMSIG(status))
    } else {
        CommandEnd::Exited(u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(u8::MAX))
    }
}

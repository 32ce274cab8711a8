//! The words of the policy language: actions, operations, kinds, modes, verdicts.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// What a rule does with what it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Allowed; the kernel reads and writes the lower file directly.
    Passthrough,
    /// Reading and listing allowed, writing and creating refused with `EROFS`.
    ReadOnly,
    /// Refused with `EACCES`.
    Deny,
    /// As if the name did not exist: `ENOENT`, and absent from listings.
    Hide,
    /// Allowed; every read and write travels through the server.
    Userspace,
    /// Allowed; a directory that shows the lower one itself, with all that is below it.
    Native,
    /// Reading allowed, with secrets masked; writing and creating refused with `EROFS`.
    Redact,
    /// Allowed; the lower files are encrypted, and plain in the view.
    Seal,
}

impl Action {
    /// Every action, in the order in which errors list them.
    pub const ALL: [Self; 8] = [
        Self::Passthrough,
        Self::ReadOnly,
        Self::Deny,
        Self::Hide,
        Self::Userspace,
        Self::Native,
        Self::Redact,
        Self::Seal,
    ];

    /// The word in a policy file.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::ReadOnly => "read-only",
            Self::Deny => "deny",
            Self::Hide => "hide",
            Self::Userspace => "userspace",
            Self::Native => "native",
            Self::Redact => "redact",
            Self::Seal => "seal",
        }
    }

    /// Whether refusing is all that it does: such a rule can be tried out with `mode = "audit"`.
    pub const fn refuses(self) -> bool {
        matches!(self, Self::ReadOnly | Self::Deny | Self::Hide)
    }

    /// The answer of this action to `operation`.
    pub const fn verdict(self, operation: Operation) -> Verdict {
        match self {
            Self::Passthrough | Self::Userspace | Self::Native | Self::Seal => Verdict::Allow,
            Self::ReadOnly | Self::Redact => match operation {
                Operation::Read | Operation::List => Verdict::Allow,
                Operation::Write | Operation::Create => Verdict::ReadOnly,
            },
            Self::Deny => Verdict::Deny,
            Self::Hide => Verdict::Hide,
        }
    }

    /// The I/O mode that this action asks for. Actions that only restrict ask for none. What is
    /// native has no mode where it is mounted; where it cannot be, it passes through.
    pub const fn mode(self) -> Option<Mode> {
        match self {
            Self::Passthrough | Self::Native => Some(Mode::Passthrough),
            Self::Userspace => Some(Mode::Userspace),
            Self::Seal => Some(Mode::Sealed),
            Self::Redact => Some(Mode::Redacted),
            Self::ReadOnly | Self::Deny | Self::Hide => None,
        }
    }
}

/// What a caller is about to do. `docs/policy.md` says which system call is which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Open for reading, execute, readlink, read an extended attribute.
    Read,
    /// Open for writing, truncate, change attributes, remove or rename away or over.
    Write,
    /// Make the name: create, mkdir, mknod, symlink, target of link or rename.
    Create,
    /// List the directory.
    List,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Create, Self::List];

    /// The word in a policy file.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Create => "create",
            Self::List => "list",
        }
    }
}

bitflags::bitflags! {
    /// A set of [`Operation`]s.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct OperationSet: u8 {
        /// [`Operation::Read`]
        const READ = 1;
        /// [`Operation::Write`]
        const WRITE = 1 << 1;
        /// [`Operation::Create`]
        const CREATE = 1 << 2;
        /// [`Operation::List`]
        const LIST = 1 << 3;
    }
}

impl OperationSet {
    /// Whether `operation` is in the set.
    pub const fn has(self, operation: Operation) -> bool {
        self.contains(Self::only(operation))
    }

    /// The set of one operation.
    pub const fn only(operation: Operation) -> Self {
        match operation {
            Operation::Read => Self::READ,
            Operation::Write => Self::WRITE,
            Operation::Create => Self::CREATE,
            Operation::List => Self::LIST,
        }
    }
}

impl FromIterator<Operation> for OperationSet {
    fn from_iter<I: IntoIterator<Item = Operation>>(operations: I) -> Self {
        operations.into_iter().fold(Self::empty(), |set, one| set | Self::only(one))
    }
}

impl fmt::Display for OperationSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for operation in Operation::ALL.into_iter().filter(|one| self.has(*one)) {
            write!(f, "{separator}{operation}")?;
            separator = ", ";
        }
        Ok(())
    }
}

/// The type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link (the link itself).
    Symlink,
    /// A named pipe.
    Fifo,
    /// A Unix-domain socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl Kind {
    /// Every kind, in the order in which errors list them.
    pub const ALL: [Self; 7] = [
        Self::File,
        Self::Directory,
        Self::Symlink,
        Self::Fifo,
        Self::Socket,
        Self::CharDevice,
        Self::BlockDevice,
    ];

    /// The word in a policy file.
    pub const fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
            Self::CharDevice => "char-device",
            Self::BlockDevice => "block-device",
        }
    }

    /// The kind that the file type bits of a mode (`st_mode`, `S_IFMT`) say. Bits that Linux does
    /// not define count as a regular file.
    #[must_use]
    pub const fn from_mode(mode: u32) -> Self {
        match mode & 0o170_000 {
            0o040_000 => Self::Directory,
            0o120_000 => Self::Symlink,
            0o010_000 => Self::Fifo,
            0o140_000 => Self::Socket,
            0o020_000 => Self::CharDevice,
            0o060_000 => Self::BlockDevice,
            _ => Self::File,
        }
    }

    /// The kind's bit in a [`KindSet`].
    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of [`Kind`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KindSet(u8);

impl KindSet {
    pub(crate) const ALL: Self = Self(0x7f);

    pub(crate) const fn has(self, kind: Kind) -> bool {
        self.0 & kind.bit() != 0
    }
}

impl FromIterator<Kind> for KindSet {
    fn from_iter<I: IntoIterator<Item = Kind>>(kinds: I) -> Self {
        Self(kinds.into_iter().fold(0, |set, one| set | one.bit()))
    }
}

impl fmt::Display for KindSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for kind in Kind::ALL.into_iter().filter(|one| self.has(*one)) {
            write!(f, "{separator}{kind}")?;
            separator = ", ";
        }
        Ok(())
    }
}

/// How the bytes of an inode travel, from lax to strict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The kernel reads and writes the lower file.
    Passthrough,
    /// The server sees every read and write.
    Userspace,
    /// The server decrypts what is read, and encrypts what is written.
    Sealed,
    /// The server masks secrets in what is read. A file that would be sealed under another name, or by
    /// another policy, cannot be opened ([`Made::is_contradictory`](crate::Made::is_contradictory)).
    Redacted,
}

impl Mode {
    /// Whether the view makes the bytes that a reader gets, so that the lower file's own must not
    /// be seen.
    #[must_use]
    pub const fn is_made(self) -> bool {
        matches!(self, Self::Sealed | Self::Redacted)
    }
}

/// The answer to one operation, from lax to strict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Go ahead.
    Allow,
    /// Refuse with `EROFS`.
    ReadOnly,
    /// Refuse with `EACCES`.
    Deny,
    /// Refuse with `ENOENT`.
    Hide,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allowed",
            Self::ReadOnly => "refused with EROFS",
            Self::Deny => "refused with EACCES",
            Self::Hide => "hidden (ENOENT)",
        })
    }
}

/// A word that is not in the list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} `{found}`; allowed: {allowed}")]
pub struct UnknownWord {
    what: &'static str,
    found: String,
    allowed: String,
}

fn find<T: Copy>(
    what: &'static str,
    all: &[T],
    word: impl Fn(T) -> &'static str,
    found: &str,
) -> Result<T, UnknownWord> {
    all.iter().copied().find(|one| word(*one) == found).ok_or_else(|| UnknownWord {
        what,
        found: found.to_owned(),
        allowed: all.iter().map(|one| word(*one)).collect::<Vec<_>>().join(", "),
    })
}

impl FromStr for Action {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        find("action", &Self::ALL, Self::word, text)
    }
}

impl FromStr for Operation {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        find("operation", &Self::ALL, Self::word, text)
    }
}

impl FromStr for Kind {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        find("kind", &Self::ALL, Self::word, text)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Passthrough => "passthrough",
            Self::Userspace => "userspace",
            Self::Sealed => "sealed",
            Self::Redacted => "redacted",
        })
    }
}

impl Serialize for OperationSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(Operation::ALL.into_iter().filter(|one| self.has(*one)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_round_trip() {
        for action in Action::ALL {
            assert_eq!(action.word().parse(), Ok(action));
        }
        for operation in Operation::ALL {
            assert_eq!(operation.word().parse(), Ok(operation));
        }
        for kind in Kind::ALL {
            assert_eq!(kind.word().parse(), Ok(kind));
        }
    }

    #[test]
    fn an_unknown_word_lists_what_is_allowed() {
        let error = "rd".parse::<Operation>().unwrap_err();
        assert_eq!(error.to_string(), "unknown operation `rd`; allowed: read, write, create, list");
    }

    #[test]
    fn a_mode_has_a_kind() {
        assert_eq!(Kind::from_mode(0o100_644), Kind::File);
        assert_eq!(Kind::from_mode(0o041_777), Kind::Directory);
        assert_eq!(Kind::from_mode(0o120_777), Kind::Symlink);
        assert_eq!(Kind::from_mode(0o010_600), Kind::Fifo);
        assert_eq!(Kind::from_mode(0o140_600), Kind::Socket);
        assert_eq!(Kind::from_mode(0o020_600), Kind::CharDevice);
        assert_eq!(Kind::from_mode(0o060_600), Kind::BlockDevice);
    }

    #[test]
    fn strictness_is_the_order() {
        assert!(Mode::Userspace > Mode::Passthrough);
        assert!(Mode::Sealed > Mode::Userspace);
        assert!(Mode::Redacted > Mode::Sealed);
        assert!(Verdict::Hide > Verdict::Deny);
        assert!(Verdict::Deny > Verdict::ReadOnly);
        assert!(Verdict::ReadOnly > Verdict::Allow);
    }
}

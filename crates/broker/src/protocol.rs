//! The messages, byte for byte as in docs/broker.md: what the privileged process needs of them. The
//! client's half is in `asking.rs`.
//!
//! Request and reply have 16 bytes each and travel as one packet. All numbers are little-endian.

use rustix::io::Errno;
use thiserror::Error;

/// The version that this crate speaks.
pub const VERSION: u16 = 1;
/// Bytes of a request, and of a reply.
pub const MESSAGE_BYTES: usize = 16;

pub(crate) const MAGIC: [u8; 4] = *b"TGbk";

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first message: this is my connection to the kernel. One descriptor, of `/dev/fuse`.
    Hello,
    /// Register the file of the one descriptor that comes along. Answered with its id. The number is
    /// that of the CPU where the answer is waited for.
    Register(u32),
    /// Drop the registration with this id. Not answered.
    Close(u32),
}

impl Request {
    /// Reads a message.
    ///
    /// # Errors
    /// [`Refusal::Version`] for a message of another version, whatever its length, and
    /// [`Refusal::Malformed`] for everything else that is no request.
    pub fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        match fields(bytes)? {
            (1, 0) => Ok(Self::Hello),
            (2, cpu) => Ok(Self::Register(cpu)),
            (3, id) if id != 0 => Ok(Self::Close(id)),
            _ => Err(Refusal::Malformed),
        }
    }
}

/// A reply: a number, or why not.
pub type Reply = Result<u32, Refusal>;

/// The message of a reply.
#[must_use]
pub fn encode_reply(reply: Reply) -> [u8; MESSAGE_BYTES] {
    let (code, value) = reply.map_or_else(Refusal::code, |value| (0, value));
    message(code, value)
}

pub(crate) fn message(code: u16, value: u32) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6..8].copy_from_slice(&code.to_le_bytes());
    bytes[8..12].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// What [`message`] was made of.
pub(crate) fn fields(bytes: &[u8]) -> Result<(u16, u32), Refusal> {
    if bytes.len() < 8 || bytes[..4] != MAGIC {
        return Err(Refusal::Malformed);
    }
    if bytes[4..6] != VERSION.to_le_bytes() {
        return Err(Refusal::Version(u16::from_le_bytes([bytes[4], bytes[5]])));
    }
    match bytes[6..] {
        [c0, c1, a, b, c, d, 0, 0, 0, 0] => {
            Ok((u16::from_le_bytes([c0, c1]), u32::from_le_bytes([a, b, c, d])))
        }
        _ => Err(Refusal::Malformed),
    }
}

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)+) => {
        /// Why the broker does not do what it was asked for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
        pub enum Refusal {
            /// The other side speaks another version of the protocol, this one.
            #[error("the message has version {0} of the broker's protocol, this program speaks {VERSION}")]
            Version(u16),
            /// The kernel refused the registration with this error.
            #[error("the kernel refused the file (error number {})", .0.raw_os_error())]
            Kernel(#[from] Errno),
            $($(#[$doc])* #[error($text)] $name,)+
        }

        impl Refusal {
            pub(crate) fn code(self) -> (u16, u32) {
                match self {
                    Self::Version(_) => (1, u32::from(VERSION)),
                    Self::Kernel(errno) => (2, errno.raw_os_error().unsigned_abs()),
                    $(Self::$name => ($code, 0),)+
                }
            }

            /// Every refusal, those with a number with one number.
            pub const ALL: &[Self] = &[Self::Version(VERSION), Self::Kernel(Errno::PERM), $(Self::$name),+];
        }
    };
}

refusals! {
    /// The packet is no request, carries descriptors that it should not, or came out of turn: HELLO
    /// comes first, and once.
    Malformed = 3, "the message is not the next one of the broker's protocol";
    /// `--user-group`.
    NotAllowed = 6, "this user is not in the group that may use the broker (--user-group)";
    /// Of this user.
    TooManyConnections = 7, "this user has too many connections to the broker";
    /// Of this connection, at a time or in a short time.
    TooManyFiles = 8, "too many files are registered for this connection";
    /// HELLO came with something else.
    NotFuse = 10, "the descriptor is not one of /dev/fuse, open for reading and writing";
    /// Nothing is mounted with this descriptor of `/dev/fuse`, or another user mounted it.
    NotYours = 12, "the descriptor of /dev/fuse is not that of a mount of this user";
    /// `O_RDONLY`, `O_WRONLY`, `O_PATH` or `O_APPEND`.
    NotReadWrite = 13, "the file is not open for reading and writing, or for appending only";
    /// A directory, a device, a FIFO, a socket.
    NotRegular = 15, "it is not a regular file";
    /// `chattr +i` or `chattr +a`.
    Protected = 16, "the file is immutable or append-only";
    /// Not on the list of file systems.
    FileSystem = 17, "the file is on a file system that the broker does not register files of";
    /// Mounted with `noexec`.
    NoExec = 18, "the file is on a file system that is mounted noexec";
    /// A memfd that is sealed or can be.
    Sealed = 19, "the file has seals, or can be sealed";
}

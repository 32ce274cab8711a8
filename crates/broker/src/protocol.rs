//! The messages, byte for byte as in docs/broker.md.
//!
//! Request and reply have 16 bytes each and travel as one packet. All numbers are little-endian.

use thiserror::Error;

/// The version that this crate speaks.
pub const VERSION: u16 = 1;
/// Bytes of a request, and of a reply.
pub const MESSAGE_BYTES: usize = 16;
/// Where the broker listens unless it is told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/tollgate/broker.sock";

const MAGIC: [u8; 4] = *b"TGbk";

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first message: this is my connection to the kernel. One descriptor, of `/dev/fuse`.
    Hello,
    /// Register the file of the one descriptor that comes along. Answered with its id.
    Register,
    /// Drop the registration with this id. Not answered.
    Close(u32),
}

impl Request {
    /// The message.
    #[must_use]
    pub fn encode(self) -> [u8; MESSAGE_BYTES] {
        let (operation, argument) = match self {
            Self::Hello => (1, 0),
            Self::Register => (2, 0),
            Self::Close(id) => (3, id),
        };
        message(operation, argument)
    }

    /// Reads a message.
    ///
    /// # Errors
    /// [`Refusal::Version`] for a message of another version, whatever its length, and
    /// [`Refusal::Malformed`] for everything else that is no request.
    pub fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        match fields(bytes)? {
            (1, 0) => Ok(Self::Hello),
            (2, 0) => Ok(Self::Register),
            (3, id) if id != 0 => Ok(Self::Close(id)),
            _ => Err(Refusal::Malformed),
        }
    }

    /// Descriptors that come with it.
    #[must_use]
    pub fn descriptors(self) -> usize {
        match self {
            Self::Hello | Self::Register => 1,
            Self::Close(_) => 0,
        }
    }
}

/// A reply: a number, or why not.
pub type Reply = Result<u32, Refusal>;

/// The message of a reply.
#[must_use]
pub fn encode_reply(reply: Reply) -> [u8; MESSAGE_BYTES] {
    match reply {
        Ok(value) => message(0, value),
        Err(refusal) => {
            let (code, value) = refusal.code();
            message(code, value)
        }
    }
}

/// Reads a reply.
///
/// # Errors
/// [`Refusal::Version`] and [`Refusal::Malformed`], if it is none.
pub fn decode_reply(bytes: &[u8]) -> Result<Reply, Refusal> {
    match fields(bytes)? {
        (0, value) => Ok(Ok(value)),
        (code, value) => Refusal::of(code, value).map(Err).ok_or(Refusal::Malformed),
    }
}

fn message(code: u16, value: u32) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6..8].copy_from_slice(&code.to_le_bytes());
    bytes[8..12].copy_from_slice(&value.to_le_bytes());
    bytes
}

fn fields(bytes: &[u8]) -> Result<(u16, u32), Refusal> {
    let (head, rest) = bytes.split_first_chunk::<8>().ok_or(Refusal::Malformed)?;
    let [m0, m1, m2, m3, v0, v1, c0, c1] = *head;
    if [m0, m1, m2, m3] != MAGIC {
        return Err(Refusal::Malformed);
    }
    if u16::from_le_bytes([v0, v1]) != VERSION {
        return Err(Refusal::Version(VERSION));
    }
    match *rest {
        [a, b, c, d, 0, 0, 0, 0] => {
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
            /// It speaks another version, this one.
            #[error("the broker speaks version {0} of its protocol, this program {VERSION}")]
            Version(u16),
            /// The kernel refused the registration with this error number.
            #[error("the kernel refused the file (error number {0})")]
            Kernel(i32),
            $($(#[$doc])* #[error($text)] $name,)+
        }

        impl Refusal {
            fn code(self) -> (u16, u32) {
                match self {
                    Self::Version(version) => (1, u32::from(version)),
                    Self::Kernel(errno) => (2, errno.unsigned_abs()),
                    $(Self::$name => ($code, 0),)+
                }
            }

            fn of(code: u16, value: u32) -> Option<Self> {
                Some(match (code, value) {
                    (1, version) => Self::Version(u16::try_from(version).ok()?),
                    (2, errno) => Self::Kernel(i32::try_from(errno).ok()?),
                    $(($code, 0) => Self::$name,)+
                    _ => return None,
                })
            }

            /// Every refusal, those with a number with one number.
            pub const ALL: &[Self] = &[Self::Version(7), Self::Kernel(1), $(Self::$name),+];
        }
    };
}

refusals! {
    /// The packet is no request.
    Malformed = 3, "the message is not one of the broker's protocol";
    /// More or fewer descriptors than the request has.
    Descriptors = 4, "the message carries the wrong number of descriptors";
    /// A second HELLO, or another request before the first.
    OutOfTurn = 5, "the message came out of turn: HELLO comes first, and once";
    /// `--user-group`.
    NotAllowed = 6, "this user is not in the group that may use the broker (--user-group)";
    /// Of this user.
    TooManyConnections = 7, "this user has too many connections to the broker";
    /// Of this connection.
    TooManyFiles = 8, "too many files are registered for this connection";
    /// Registrations of this connection, per second.
    TooFast = 9, "too many files were registered in a short time";
    /// HELLO came with something else.
    NotFuse = 10, "the descriptor is not one of /dev/fuse, open for reading and writing";
    /// Nothing is mounted with this descriptor of `/dev/fuse`, or not any more.
    NotMounted = 11, "nothing is mounted with this descriptor of /dev/fuse";
    /// Another user mounted it.
    NotYours = 12, "the descriptor of /dev/fuse belongs to a mount of another user";
    /// `O_RDONLY`, `O_WRONLY` or `O_PATH`.
    NotReadWrite = 13, "the file is not open for reading and writing";
    /// `O_APPEND`.
    Append = 14, "the file is open for appending only";
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_arrives_as_it_was_sent() {
        for request in [Request::Hello, Request::Register, Request::Close(u32::MAX)] {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        let bytes = *b"TGbk\x01\0\x03\0\x07\0\0\0\0\0\0\0";
        assert_eq!(Request::Close(7).encode(), bytes);
    }

    #[test]
    fn a_reply_arrives_as_it_was_sent() {
        let refusals = Refusal::ALL.iter().map(|refusal| Err(*refusal));
        for reply in refusals.chain([Ok(0), Ok(u32::MAX)]) {
            assert_eq!(decode_reply(&encode_reply(reply)), Ok(reply));
        }
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let good = Request::Close(7).encode();
        for len in 0..MESSAGE_BYTES {
            assert_eq!(Request::decode(&good[..len]), Err(Refusal::Malformed), "{len} bytes");
        }
        let long = [&good[..], &[0]].concat();
        assert_eq!(Request::decode(&long), Err(Refusal::Malformed));
        // Magic, operation 0, the argument of an operation that has none, what is reserved.
        for (at, value) in [(0, b'X'), (6, 0), (6, 1), (6, 4), (7, 1), (12, 1), (15, 1)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(Request::decode(&bad), Err(Refusal::Malformed), "byte {at} is {value}");
        }
        assert_eq!(Request::decode(&message(3, 0)), Err(Refusal::Malformed));
    }

    #[test]
    fn another_version_is_told_apart_at_every_length() {
        let mut later = [0_u8; 40];
        later[..4].copy_from_slice(&MAGIC);
        later[4] = 2;
        for len in 8..later.len() {
            assert_eq!(Request::decode(&later[..len]), Err(Refusal::Version(VERSION)));
        }
    }
}

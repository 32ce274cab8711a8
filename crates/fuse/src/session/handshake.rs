//! The INIT exchange, over the first queue.

use std::io::IoSlice;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::{InitOut, OutHeader};
use crate::init::{self, Handshake, InitError, Negotiated, Proposal};
use crate::message::Message;
use crate::operation::{Dialect, Operation};
use crate::session::error::SessionError;
use crate::transport::{Queue, RawRequest, ReceiveError, ReplySink};

/// Receives INIT and replies to it.
pub(crate) fn handshake<Q: Queue>(
    queue: &mut Q,
    proposal: &Proposal,
) -> Result<Negotiated, SessionError> {
    let sink = queue.sink();
    loop {
        let raw = match queue.receive() {
            Ok(received) => received.raw,
            Err(ReceiveError::Retry) => continue,
            Err(ReceiveError::Unmounted | ReceiveError::Aborted) => return Err(SessionError::Gone),
            Err(ReceiveError::Io(e)) if e.raw_os_error() == Some(libc::EPERM) => {
                return Err(SessionError::NotMounted);
            }
            Err(ReceiveError::Io(e)) => return Err(SessionError::Receive(e)),
        };
        let agreed = reply_to_init(raw, &*sink, proposal)?;
        queue.finish(0);
        if let Some(agreed) = agreed {
            return Ok(agreed);
        }
    }
}

/// `None` if the kernel is to ask again.
fn reply_to_init(
    raw: RawRequest<'_>,
    sink: &dyn ReplySink,
    proposal: &Proposal,
) -> Result<Option<Negotiated>, SessionError> {
    let message = Message::parse(raw).map_err(|_| InitError::Malformed { len: 0, opcode: 0 })?;
    let unique = message.header().unique;
    let operation = Operation::decode(&message, Dialect::default());
    let Ok(Operation::Init { args }) = operation else {
        let (len, opcode) = (message.header().len as usize, message.header().opcode);
        refuse(sink, unique);
        return Err(InitError::Malformed { len, opcode }.into());
    };
    let (agreed, out) = match init::negotiate(args, proposal) {
        Ok(Handshake::Agreed(agreed, out)) => (Some(agreed), out),
        Ok(Handshake::AskAgain(out)) => (None, out),
        Err(error) => {
            refuse(sink, unique);
            return Err(error.into());
        }
    };
    let header = OutHeader { len: init_reply_bytes(), error: 0, unique };
    let parts = [header.as_bytes(), out.as_bytes()].map(IoSlice::new);
    sink.commit(&parts).map_err(SessionError::Reply)?;
    Ok(agreed)
}

/// Ends the handshake for the kernel: every use of the mount then fails instead of waiting.
fn refuse(sink: &dyn ReplySink, unique: u64) {
    let error = -Errno::PROTO.raw_os_error();
    let header = OutHeader { len: 16, error, unique };
    // If the kernel's end is gone already, nothing is left to do.
    let _ = sink.commit(&[IoSlice::new(header.as_bytes())]);
}

#[expect(clippy::cast_possible_truncation, reason = "80 bytes")]
const fn init_reply_bytes() -> u32 {
    (size_of::<OutHeader>() + size_of::<InitOut>()) as u32
}

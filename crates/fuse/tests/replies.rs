//! Replies that are out of the ordinary: each caller gets an answer, over each transport.

mod common;

use std::sync::Arc;
use std::sync::mpsc;

use common::clients::SOON;
use common::odd::Odd;
use rustix::io::Errno;
use tollgate_fuse::abi::{self, opcode};
use tollgate_fuse::memory::{self, Kernel, request};
use tollgate_fuse::*;
use zerocopy::IntoBytes;

/// A session over memory whose replies to READ are `answers`.
fn play(
    config: SessionConfig,
    answers: impl Fn(Reply<'_, [u8]>, usize) -> bool + Send + Sync + 'static,
) -> (Kernel, Running, Arc<Odd>) {
    let (transport, kernel) = memory::pair();
    kernel.send_init(45, InitFlags::all()).unwrap();
    let fs = Odd::new(Box::new(answers));
    let running = Session::with_transport(transport, Arc::clone(&fs), config).start().unwrap();
    kernel.reply(SOON).unwrap();
    (kernel, running, fs)
}

/// The reply to a READ of `size` bytes.
fn read(kernel: &Kernel, unique: u64, size: u32) -> (i32, Vec<u8>) {
    let args = abi::ReadIn { size, ..abi::ReadIn::default() };
    kernel.send(&request(opcode::READ, unique, 2, &[args.as_bytes()])).unwrap();
    let (header, body) = kernel.reply(SOON).expect("a reply");
    assert_eq!(header.unique, unique);
    (-header.error, body)
}

/// However much is asked for, what is lent is bounded as an attached reply's is.
#[test]
fn a_detached_reply_lends_no_more_than_the_connection_takes() {
    for max in [usize::MAX, 1 << 40, 2 << 20] {
        let (lent, is_lent) = mpsc::channel();
        let (kernel, _running, fs) = play(SessionConfig::default(), move |reply, _| {
            reply.detach().fill(max, |buffer| {
                lent.send(buffer.len()).unwrap();
                buffer.fill(7);
                Ok(10)
            })
        });
        assert_eq!(read(&kernel, 4, 4096), (0, vec![7; 10]));
        assert_eq!((is_lent.recv().unwrap(), fs.was_sent()), (1 << 20, true), "{max}");
    }
}

#[test]
fn a_detached_reply_lends_what_was_asked_for() {
    let (lent, is_lent) = mpsc::channel();
    let (kernel, _running, _) = play(SessionConfig::default(), move |reply, size| {
        reply.detach().fill(size, |buffer| {
            lent.send(buffer.len()).unwrap();
            assert!(buffer.iter().all(|&byte| byte == 0));
            Err(Errno::NOSPC)
        })
    });
    assert_eq!(read(&kernel, 4, 4097).0, Errno::NOSPC.raw_os_error());
    assert_eq!(is_lent.recv().unwrap(), 4097);
}

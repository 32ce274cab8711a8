//! Replies that are out of the ordinary: each caller gets an answer, over each transport.

mod common;

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::mpsc;

use common::clients::SOON;
use common::odd::{Odd, ServedOdd};
use common::transports;
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

/// writev(2) takes 1,024 parts.
#[test]
fn any_number_of_slices_is_sent() {
    for transport in transports() {
        for count in [15, 16, 1022, 1023, 1024, 2000, 5000] {
            let data: Vec<u8> = (0..=250).cycle().take(count).collect();
            let expected = data.clone();
            let served = ServedOdd::new(transport, move |reply, _| {
                let slices: Vec<_> = data.chunks(1).map(IoSlice::new).collect();
                reply.vectored(&slices)
            });
            assert_eq!(served.read(8192).unwrap(), expected, "{transport}, {count}");
            assert!(served.fs.was_sent(), "{transport}, {count}");
            assert_eq!(served.running.connection().counts().undelivered, 0);
        }
    }
}

/// write(2) takes 2 GiB less a page, and the header of a reply counts its bytes in 32 bits.
#[test]
fn a_reply_that_no_transport_takes_is_eio() {
    for transport in transports() {
        for chunks in [33, 65] {
            let served = ServedOdd::new(transport, move |reply, _| {
                let chunk = vec![0; 64 << 20];
                reply.vectored(&vec![IoSlice::new(&chunk); chunks])
            });
            let error = served.read(4096).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()), "{transport}");
            assert!(!served.fs.was_sent(), "{transport}, {chunks}");
            let counts = served.running.connection().counts();
            assert_eq!((counts.undelivered, counts.dropped), (1, 0), "{transport}, {chunks}");
        }
    }
}

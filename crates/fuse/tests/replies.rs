//! Replies that are out of the ordinary: each caller gets an answer, over each transport.

mod common;

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::mpsc;

use common::clients::SOON;
use common::odd::{Odd, ServedOdd, within};
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

/// The kernel takes errors from 1 to 511 only.
#[test]
fn an_error_that_the_kernel_does_not_take_is_eio_and_counted() {
    for (raw, is_taken) in [(1, true), (511, true), (512, false), (4000, false)] {
        let (kernel, running, fs) = play(SessionConfig::default(), move |reply, _| {
            reply.error(Errno::from_raw_os_error(raw))
        });
        let got = read(&kernel, 4, 4096).0;
        assert_eq!(got, if is_taken { raw } else { Errno::IO.raw_os_error() });
        assert_eq!(fs.was_sent(), is_taken, "{raw}");
        let undelivered = running.connection().counts().undelivered;
        assert_eq!(undelivered, u64::from(!is_taken), "{raw}");
    }
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// It is known how much each caller takes: what is longer is refused alike by all transports.
#[test]
fn a_reply_that_is_longer_than_asked_is_eio() {
    for transport in transports() {
        for extra in [0, 1, 5000] {
            let long =
                move |reply: Reply<'_, [u8]>, size: usize| reply.data(&vec![b'x'; size + extra]);
            let served = ServedOdd::new(transport, long);
            let (file, link) = (served.at.path().join("file"), served.at.path().join("link"));
            let read = served.read(4096).map(|data| data.len());
            let link = within(move || std::fs::read_link(link)).map(|to| to.as_os_str().len());
            let value = within(move || {
                let n = rustix::fs::getxattr(file, "user.x", &mut vec![0; 100][..])?;
                Ok::<_, std::io::Error>(n)
            });
            for (what, result, len) in
                [("read", read, 4096), ("link", link, 4095), ("value", value, 100)]
            {
                let context = format!("{transport}: {what} of {extra} more");
                assert_eq!(served.fs.was_sent(), extra == 0, "{context}");
                match extra {
                    0 => assert_eq!(result.unwrap(), len, "{context}"),
                    _ => assert_eq!(errno(result), Errno::IO.raw_os_error(), "{context}"),
                }
            }
            let undelivered = served.running.connection().counts().undelivered;
            assert_eq!(undelivered, if extra == 0 { 0 } else { 3 }, "{transport}, {extra}");
        }
    }
}

/// GETXATTR of size 0 asks for a length, every other one for a value.
#[test]
fn a_length_is_no_value_and_a_value_no_length() {
    for transport in transports() {
        for (size, says_length) in [(0, false), (0, true), (100, false), (100, true)] {
            let served = ServedOdd::new(transport, move |reply, asked| {
                assert_eq!(asked, size);
                if says_length { reply.size(7) } else { reply.data(b"") }
            });
            let file = served.at.path().join("file");
            let found = within(move || {
                let n = match size {
                    0 => rustix::fs::getxattr_query(file, "user.x"),
                    _ => rustix::fs::getxattr(file, "user.x", &mut vec![0; size][..]),
                };
                n.map_err(std::io::Error::from)
            });
            let fits = (size == 0) == says_length;
            let context = format!("{transport}, {size}, {says_length}");
            assert_eq!(served.fs.was_sent(), fits, "{context}");
            match fits {
                true => assert_eq!(found.unwrap(), if says_length { 7 } else { 0 }, "{context}"),
                false => assert_eq!(errno(found), Errno::IO.raw_os_error(), "{context}"),
            }
            let undelivered = served.running.connection().counts().undelivered;
            assert_eq!(undelivered, u64::from(!fits), "{context}");
        }
    }
}

/// `fill` and detached replies are held to the same.
#[test]
fn what_was_filled_or_detached_is_measured_too() {
    for (how, is_detached) in [("fill", false), ("fill", true), ("data", true)] {
        let (kernel, running, fs) = play(SessionConfig::default(), move |reply, size| {
            let reply = if is_detached { reply.detach() } else { reply };
            match how {
                "fill" => reply.fill(2 * size, |buffer| Ok(buffer.len())),
                _ => reply.data(&vec![1; size + 1]),
            }
        });
        assert_eq!(read(&kernel, 4, 4096), (Errno::IO.raw_os_error(), vec![]), "{how}");
        assert!(!fs.was_sent(), "{how}");
        assert_eq!(running.connection().counts().undelivered, 1);
    }
}

/// What lies behind the lent bytes is nobody's data, and to cut the claim off would invent an end.
#[test]
fn who_claims_to_have_filled_more_than_was_lent_is_refused() {
    let claims: [fn(usize) -> usize; 3] = [|lent| lent + 1, |lent| 2 * lent, |_| usize::MAX];
    for (claim, is_detached) in claims.into_iter().flat_map(|one| [(one, false), (one, true)]) {
        let (kernel, running, fs) = play(SessionConfig::default(), move |reply, size| {
            let reply = if is_detached { reply.detach() } else { reply };
            reply.fill(size, |buffer| Ok(claim(buffer.len())))
        });
        for unique in [4, 6] {
            let (error, data) = read(&kernel, unique, 4096);
            assert_eq!((error, data.len()), (Errno::IO.raw_os_error(), 0));
            assert!(!fs.was_sent(), "detached: {is_detached}");
        }
        let counts = running.connection().counts();
        assert_eq!((counts.undelivered, counts.panics, counts.dropped), (2, 0, 0));
    }
}

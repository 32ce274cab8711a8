//! What a peer wrote to a buffer by its descriptor is seen by no later owner, and by its own owner
//! only within the length that he had.
#![expect(unsafe_code, reason = "writes to a buffer by its descriptor")]

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use tollgate_hugepage::{Backing, Buffer, Pool, state::Taken};

const BUFFER: usize = 8192;

/// A pool of one buffer that can be shared.
fn pool() -> Pool {
    let pool = Pool::builder().class(BUFFER, 1).ladder(&[Backing::Base]);
    pool.shareable().leak_check(true).build().unwrap()
}

/// Has the peer write a 7 at each of `places`.
struct Peer(File, u64);

impl Peer {
    fn of(buffer: &mut Buffer<Taken>) -> Self {
        // SAFETY: this test alone has the descriptor, and writes only between uses of the buffer.
        let (file, offset) = unsafe { buffer.descriptor() }.expect("shareable");
        Self(File::from(file.as_fd().try_clone_to_owned().unwrap()), offset)
    }

    fn write(&self, places: &[u64]) {
        places.iter().for_each(|place| self.0.write_all_at(&[7], self.1 + place).unwrap());
    }
}

/// Places of the bytes that are other than zero.
fn written(bytes: &[u8]) -> Vec<usize> {
    (0..bytes.len()).filter(|&place| bytes[place] != 0).collect()
}

#[test]
fn nothing_that_a_peer_wrote_is_left_for_the_next_owner() {
    for longer in [false, true] {
        let pool = pool();
        let mut buffer = pool.take(100).unwrap();
        let peer = Peer::of(&mut buffer);
        if longer {
            buffer.resize(BUFFER).unwrap();
        }
        peer.write(&[50, 8001]);
        drop(buffer);
        assert_eq!(written(&pool.take(BUFFER).unwrap()), [], "made longer: {longer}");
    }
}

#[test]
fn resize_shows_zeroes_whatever_a_peer_wrote_there() {
    let pool = pool();
    let mut buffer = pool.take(100).unwrap();
    let peer = Peer::of(&mut buffer);
    for _ in 0..2 {
        peer.write(&[50, 4000, 8001]);
        buffer.resize(4096).unwrap();
        assert_eq!(written(&buffer), [50]);
        peer.write(&[4001, 8002]);
        buffer.resize(BUFFER).unwrap();
        assert_eq!(written(&buffer), [50, 4001]);
        buffer.resize(100).unwrap();
    }
    // As long as it was, and through the hands of somebody whom Rust does not see.
    buffer.resize(BUFFER).unwrap();
    let mut raw = buffer.into_raw();
    peer.write(&[8003]);
    // SAFETY: nobody used the address.
    buffer = unsafe { raw.into_buffer() };
    buffer.resize(100).unwrap();
    raw = buffer.into_raw();
    peer.write(&[8004]);
    // SAFETY: as above.
    buffer = unsafe { raw.into_buffer() };
    buffer.resize(BUFFER).unwrap();
    assert_eq!(written(&buffer), [50]);
    peer.write(&[8005]);
    drop(buffer);
    assert_eq!(written(&pool.take(BUFFER).unwrap()), []);
}

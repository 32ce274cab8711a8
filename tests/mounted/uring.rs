//! Reads and writes through io_uring: on passthrough files, which the kernel serves from the file
//! beneath, and on files that go through the server.
#![expect(unsafe_code, reason = "the kernel works on buffers that outlive the call")]

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use io_uring::squeue::{Entry, Flags};
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};

use crate::async_io::{BLOCK, BLOCKS, Block, pattern};
use crate::harness::{View, can_mount};

/// A ring with room for one request a block. `None` after saying why there is none: that is a
/// matter of the machine's settings, and never required.
fn ring() -> Option<IoUring> {
    match IoUring::new(u32::try_from(BLOCKS).unwrap()) {
        Ok(ring) => Some(ring),
        Err(error) => {
            let refused = [libc::EPERM, libc::EACCES, libc::ENOSYS, libc::ENOMEM];
            let known = error.raw_os_error().is_some_and(|code| refused.contains(&code));
            assert!(known, "io_uring: {error}");
            println!("skipped: io_uring is not allowed here ({error})");
            None
        }
    }
}

/// Submits all `entries` at once and waits for every one; the results in the order of the entries.
fn submit_all(ring: &mut IoUring, entries: Vec<Entry>) -> Vec<i32> {
    let mut results = vec![i32::MIN; entries.len()];
    for (number, entry) in (0_u64..).zip(entries) {
        // SAFETY: each entry's buffer and file belong to the caller, who has this function wait for
        // all.
        unsafe { ring.submission().push(&entry.user_data(number)).unwrap() };
    }
    let submitted = ring.submit_and_wait(results.len()).unwrap();
    assert_eq!(submitted, results.len());
    for completion in ring.completion() {
        results[usize::try_from(completion.user_data()).unwrap()] = completion.result();
    }
    results
}

/// One transfer for each block, with `make` of its file, address, length and offset.
fn transfers(
    blocks: &mut [Block],
    flags: Flags,
    make: impl Fn(*mut u8, u32, u64) -> Entry,
) -> Vec<Entry> {
    let len = u32::try_from(BLOCK).unwrap();
    let entry = |(number, block): (u64, &mut Block)| {
        make(block.0.as_mut_ptr(), len, number * u64::from(len)).flags(flags)
    };
    (0..).zip(blocks).map(entry).collect()
}

/// Every block is written and read back through the ring; `how` are the flags of the requests. In
/// between, every byte beneath is changed by `change`.
fn write_and_read_back(view: &View, name: &str, open: i32, how: Flags, change: u8) {
    let Some(mut ring) = ring() else { return };
    let mut options = fs::File::options();
    options.read(true).write(true).create(true).custom_flags(open);
    let file = options.open(view.at(name)).unwrap();
    let fd = Fd(file.as_raw_fd());
    let whole = vec![i32::try_from(BLOCK).unwrap(); BLOCKS];

    let mut blocks: Vec<Block> = (0..BLOCKS).map(pattern).collect();
    let write = |at: *mut u8, len, offset| opcode::Write::new(fd, at, len).offset(offset).build();
    assert_eq!(submit_all(&mut ring, transfers(&mut blocks, how, write)), whole);
    assert_eq!(submit_all(&mut ring, vec![opcode::Fsync::new(fd).build()]), [0]);
    let expected: Vec<u8> = (0..BLOCKS).flat_map(|number| pattern(number).0).collect();
    assert!(fs::read(view.below(name)).unwrap() == expected, "the file beneath has other bytes");

    let beneath: Vec<u8> = expected.iter().map(|byte| byte ^ change).collect();
    fs::write(view.below(name), &beneath).unwrap();
    let mut back = vec![Block([0; BLOCK]); BLOCKS];
    let read = |at: *mut u8, len, offset| opcode::Read::new(fd, at, len).offset(offset).build();
    assert_eq!(submit_all(&mut ring, transfers(&mut back, how, read)), whole);
    assert!(back.iter().flat_map(|block| block.0).eq(beneath), "other bytes come back");
    // Beyond the end there is nothing.
    let end = expected.len() as u64;
    let beyond = opcode::Read::new(fd, back[0].0.as_mut_ptr(), 4096).offset(end).build();
    assert_eq!(submit_all(&mut ring, vec![beyond]), [0]);
}

/// Buffered and direct; by the submitter, and (`ASYNC`) by the kernel's own threads.
const WAYS: [(i32, Flags); 4] = [
    (0, Flags::empty()),
    (0, Flags::ASYNC),
    (libc::O_DIRECT, Flags::empty()),
    (libc::O_DIRECT, Flags::ASYNC),
];

#[test]
fn requests_of_a_ring_on_a_passthrough_file_stay_in_the_kernel() {
    if !can_mount() {
        return;
    }
    let view = View::new("");
    for (number, (open, how)) in WAYS.into_iter().enumerate() {
        // Nothing between the caller and the file beneath has kept what was written.
        write_and_read_back(&view, &format!("f{number}"), open, how, 0xff);
    }
    assert_eq!((view.count("read"), view.count("write")), (0, 0));
}

#[test]
fn requests_of_a_ring_go_through_user_space() {
    if !can_mount() {
        return;
    }
    let view = View::new("default = 'userspace'");
    for (number, (open, how)) in WAYS.into_iter().enumerate() {
        write_and_read_back(&view, &format!("f{number}"), open, how, 0);
    }
}

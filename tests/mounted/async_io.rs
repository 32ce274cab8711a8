//! Asynchronous and direct I/O on passthrough files.
#![expect(unsafe_code, reason = "the kernel's asynchronous I/O takes raw structures")]

use std::fs;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use crate::harness::{View, can_mount};

pub(crate) const BLOCK: usize = 4096;
pub(crate) const BLOCKS: usize = 64;
/// The result of each request.
const WHOLE: [i64; BLOCKS] = [4096; BLOCKS];

/// One block of memory, aligned as direct I/O wants it.
#[derive(Clone)]
#[repr(C, align(4096))]
pub(crate) struct Block(pub(crate) [u8; BLOCK]);

/// The kernel's `struct io_event`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Event {
    data: u64,
    request: u64,
    result: i64,
    result2: i64,
}

/// `IOCB_CMD_PREAD`, `IOCB_CMD_PWRITE`
#[derive(Clone, Copy)]
enum Command {
    Read = 0,
    Write = 1,
}

/// Submits one request for each block at once and waits for all; returns how many bytes each moved.
fn submit_all(file: &fs::File, command: Command, blocks: &mut [Block]) -> Vec<i64> {
    let mut context: libc::c_ulong = 0;
    // SAFETY: the kernel writes the context to the address given, which is that of a live variable.
    let made = unsafe { libc::syscall(libc::SYS_io_setup, BLOCKS, &raw mut context) };
    assert_eq!(made, 0, "io_setup: {}", Error::last_os_error());
    let requests: Vec<libc::iocb> =
        (0_u64..).zip(blocks.iter_mut()).map(|(n, b)| request(file, command, n, b)).collect();
    let pointers: Vec<*const libc::iocb> = requests.iter().map(std::ptr::from_ref).collect();
    // SAFETY: as many pointers as said, each to a request that lives until all have ended below.
    let taken =
        unsafe { libc::syscall(libc::SYS_io_submit, context, pointers.len(), pointers.as_ptr()) };
    assert_eq!(usize::try_from(taken).unwrap(), blocks.len(), "{}", Error::last_os_error());
    let mut events = vec![Event::default(); blocks.len()];
    let (all, none) = (events.len(), std::ptr::null::<libc::timespec>());
    // SAFETY: room for as many events as said. All requests have ended when it returns.
    let ended = unsafe {
        libc::syscall(libc::SYS_io_getevents, context, all, all, events.as_mut_ptr(), none)
    };
    assert_eq!(usize::try_from(ended).unwrap(), all);
    // SAFETY: the context is this function's own, with nothing under way.
    unsafe { libc::syscall(libc::SYS_io_destroy, context) };
    events.iter().map(|event| event.result).collect()
}

/// Submits a write of each block, one behind the other, at once; returns how many bytes each moved.
pub(crate) fn write_blocks(file: &fs::File, blocks: &mut [Block]) -> Vec<i64> {
    submit_all(file, Command::Write, blocks)
}

fn request(file: &fs::File, command: Command, number: u64, block: &mut Block) -> libc::iocb {
    // SAFETY: a request is made of integers.
    let mut request: libc::iocb = unsafe { std::mem::zeroed() };
    request.aio_lio_opcode = command as u16;
    request.aio_fildes = u32::try_from(file.as_raw_fd()).unwrap();
    request.aio_buf = block.0.as_mut_ptr().addr() as u64;
    request.aio_nbytes = BLOCK as u64;
    request.aio_offset = i64::try_from(number * BLOCK as u64).unwrap();
    request
}

/// What block `number` is filled with.
pub(crate) fn pattern(number: usize) -> Block {
    Block([u8::try_from(number * 3 % 251).unwrap(); BLOCK])
}

fn write_and_read_back(policy: &str, flags: i32) {
    let view = View::new(policy);
    let mut options = fs::File::options();
    options.read(true).write(true).create(true).custom_flags(flags);
    let file = options.open(view.at("f")).unwrap();
    let mut blocks: Vec<Block> = (0..BLOCKS).map(pattern).collect();
    assert_eq!(submit_all(&file, Command::Write, &mut blocks), WHOLE);
    let below = fs::read(view.below("f")).unwrap();
    let expected: Vec<u8> = (0..BLOCKS).flat_map(|number| pattern(number).0).collect();
    assert_eq!(below.len(), expected.len());
    assert!(below == expected, "the file beneath has other bytes");
    let mut back = vec![Block([0; BLOCK]); BLOCKS];
    assert_eq!(submit_all(&file, Command::Read, &mut back), WHOLE);
    assert!(back.iter().enumerate().all(|(number, block)| block.0 == pattern(number).0));
}

#[test]
fn asynchronous_requests_on_a_passthrough_file() {
    if can_mount() {
        write_and_read_back("", 0);
        write_and_read_back("", libc::O_DIRECT);
    }
}

#[test]
fn asynchronous_requests_through_user_space() {
    if can_mount() {
        write_and_read_back("default = 'userspace'", 0);
        write_and_read_back("default = 'userspace'", libc::O_DIRECT);
    }
}

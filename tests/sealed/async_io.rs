//! Asynchronous appends, which come to the server in parts that are under way together.
#![expect(unsafe_code, reason = "the kernel's asynchronous I/O takes raw structures")]

use std::fs::{self, File};
use std::io::Error;
use std::os::fd::AsRawFd;

use crate::harness::{Place, can_mount};

/// The kernel's `struct io_event`.
#[derive(Default)]
#[repr(C)]
struct Event {
    data: u64,
    request: u64,
    result: i64,
    result2: i64,
}

/// One at a time.
struct Queue(libc::c_ulong);

impl Queue {
    fn new() -> Queue {
        let mut context = 0;
        // SAFETY: the kernel writes the context to the address given, which is that of a live variable.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) };
        assert_eq!(made, 0, "io_setup: {}", Error::last_os_error());
        Queue(context)
    }

    /// Has `file` written by one request, and waits for it.
    fn write(&self, file: &File, bytes: &[u8]) {
        const WRITE: u16 = 1;
        // SAFETY: a request is made of integers.
        let mut request: libc::iocb = unsafe { std::mem::zeroed() };
        request.aio_lio_opcode = WRITE;
        request.aio_fildes = u32::try_from(file.as_raw_fd()).unwrap();
        request.aio_buf = bytes.as_ptr().addr() as u64;
        request.aio_nbytes = bytes.len() as u64;
        let (pointer, mut event) = (std::ptr::from_ref(&request), Event::default());
        // SAFETY: one pointer, to a request that lives until it has ended below, and so do its bytes.
        let taken = unsafe { libc::syscall(libc::SYS_io_submit, self.0, 1, &raw const pointer) };
        assert_eq!(taken, 1, "{}", Error::last_os_error());
        let none = std::ptr::null::<libc::timespec>();
        // SAFETY: room for one event.
        let ended =
            unsafe { libc::syscall(libc::SYS_io_getevents, self.0, 1, 1, &raw mut event, none) };
        assert_eq!((ended, event.result), (1, i64::try_from(bytes.len()).unwrap()));
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the context is this one's own, with nothing under way.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

#[test]
fn parts_of_an_append_are_in_order() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let view = place.mount(&[]);
    let queue = Queue::new();
    // Three requests, and five: more than there are workers, on two CPUs.
    for (length, rounds) in [(2_500_000_u32, 40), (4_500_000, 20)] {
        let bytes: Vec<u8> = (0..length / 4).flat_map(u32::to_le_bytes).collect();
        for round in 0..rounds {
            let path = view.at("vault/log");
            let file = File::options().append(true).create(true).open(&path).unwrap();
            queue.write(&file, &bytes);
            queue.write(&file, &bytes[..1_100_000]);
            drop(file);
            let text = fs::read(&path).unwrap();
            assert!(text[..bytes.len()] == bytes, "{length} {round}");
            assert!(text[bytes.len()..] == bytes[..1_100_000], "{length} {round}");
            fs::remove_file(&path).unwrap();
        }
    }
}

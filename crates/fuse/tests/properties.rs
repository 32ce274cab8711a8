//! Properties of decoding and encoding, for any input.
//!
//! Pure, and so fit for the interpreter:
//! `PROPTEST_CASES=16 MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test -p tollgate-fuse
//! --test properties -- --skip session`.

use std::ffi::CString;
use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate_fuse::abi::{self, Dirent, EntryOut, InHeader, opcode};
use tollgate_fuse::memory::{self, request};
use tollgate_fuse::*;
use zerocopy::{FromBytes, IntoBytes};

const SOON: Duration = Duration::from_secs(5);

/// Size of each operation's fixed arguments, with `SETXATTR_EXT`.
const FIXED: &[(u32, usize)] = &[
    (opcode::FORGET, 8),
    (opcode::GETATTR, 16),
    (opcode::SETATTR, 88),
    (opcode::MKNOD, 16),
    (opcode::MKDIR, 8),
    (opcode::RENAME, 8),
    (opcode::LINK, 8),
    (opcode::OPEN, 8),
    (opcode::READ, 40),
    (opcode::WRITE, 40),
    (opcode::RELEASE, 24),
    (opcode::FSYNC, 16),
    (opcode::SETXATTR, 16),
    (opcode::GETXATTR, 8),
    (opcode::LISTXATTR, 8),
    (opcode::FLUSH, 24),
    (opcode::OPENDIR, 8),
    (opcode::READDIR, 40),
    (opcode::RELEASEDIR, 24),
    (opcode::FSYNCDIR, 16),
    (opcode::GETLK, 48),
    (opcode::SETLK, 48),
    (opcode::SETLKW, 48),
    (opcode::ACCESS, 8),
    (opcode::CREATE, 16),
    (opcode::INTERRUPT, 8),
    (opcode::IOCTL, 32),
    (opcode::BATCH_FORGET, 8),
    (opcode::FALLOCATE, 32),
    (opcode::READDIRPLUS, 40),
    (opcode::RENAME2, 16),
    (opcode::LSEEK, 24),
    (opcode::COPY_FILE_RANGE, 56),
    (opcode::TMPFILE, 16),
    (opcode::STATX, 24),
    (opcode::COPY_FILE_RANGE_64, 56),
];

const DIALECT: Dialect = Dialect { setxattr_ext: true };

fn decode(bytes: &[u8]) -> Result<Operation<'_>, DecodeError> {
    Operation::decode(&Message::contiguous(bytes)?, DIALECT)
}

fn name() -> impl Strategy<Value = CString> {
    vec(1u8.., 1..300).prop_filter_map("a path component", |bytes| {
        let name = CString::new(bytes).ok()?;
        Name::new(&name).is_ok().then_some(name)
    })
}

fn entry() -> impl Strategy<Value = Entry> {
    (any::<[u64; 6]>(), any::<[u32; 6]>(), any::<[i64; 3]>()).prop_map(|(long, short, times)| {
        Entry {
            node: NodeId(long[0]),
            generation: long[1],
            entry_valid: Duration::new(long[2], short[0] % 1_000_000_000),
            attr: Attr {
                ino: long[3],
                size: long[4],
                blocks: long[5],
                atime: (times[0], short[1]),
                mtime: (times[1], short[2]),
                ctime: (times[2], short[3]),
                mode: short[4],
                nlink: short[5],
                ..Attr::default()
            },
            attr_valid: Duration::ZERO,
        }
    })
}

proptest! {
    #[test]
    fn any_bytes_decode_or_are_refused(bytes in vec(any::<u8>(), 0..512)) {
        let _ = decode(&bytes);
        let header = request(u32::from(bytes.first().copied().unwrap_or(0)) % 60, 2, 1, &[&bytes]);
        let _ = decode(&header);
        let (fixed, rest) = bytes.split_at(bytes.len() / 2);
        if let Ok(message) = Message::split(&header, fixed, rest) {
            let _ = Operation::decode(&message, Dialect::default());
            let _ = message.supplementary_group();
        }
    }

    #[test]
    fn extensions_of_any_bytes_are_read_or_refused(
        bytes in vec(any::<u8>(), 0..128),
        declared in 0u16..20,
    ) {
        let mut whole = request(opcode::MKDIR, 2, 1, &[&bytes]);
        whole[36..38].copy_from_slice(&declared.to_ne_bytes());
        match Message::contiguous(&whole) {
            Ok(message) => drop(message.supplementary_group()),
            Err(_) => prop_assert!(usize::from(declared) * 8 > bytes.len()),
        }
    }

    #[test]
    fn a_request_cut_within_its_fixed_arguments_is_refused(
        which in 0..FIXED.len(),
        cut in 0usize..88,
    ) {
        let (code, size) = FIXED[which];
        let cut = cut % size;
        let bytes = request(code, 2, 1, &[&[0xff; 88][..cut]]);
        let short = matches!(decode(&bytes), Err(DecodeError::Truncated { .. }));
        prop_assert!(short, "{} with {cut} of {size} bytes", opcode::name(code));
        // A header that says more than was received is refused whatever the operation.
        let whole = request(code, 2, 1, &[&[0; 88]]);
        let lying = matches!(decode(&whole[..40 + cut]), Err(DecodeError::Length { .. }));
        prop_assert!(lying);
    }

    #[test]
    fn a_header_cut_anywhere_is_refused(len in 0usize..40) {
        let bytes = request(opcode::LOOKUP, 2, 1, &[]);
        let short = matches!(decode(&bytes[..len]), Err(DecodeError::Truncated { .. }));
        prop_assert!(short);
    }

    #[test]
    fn names_and_data_come_out_as_they_went_in(
        one in name(),
        two in name(),
        data in vec(any::<u8>(), 0..2000),
        flags: u32,
        offset: u64,
    ) {
        let head = abi::Rename2In { newdir: 77, flags, padding: 0 };
        let args = [head.as_bytes(), one.as_bytes_with_nul(), two.as_bytes_with_nul()];
        let bytes = request(opcode::RENAME2, 2, 1, &args);
        let Ok(Operation::Rename(args)) = decode(&bytes) else {
            return Err(TestCaseError::fail("not a rename"));
        };
        prop_assert_eq!((args.name.as_c_str(), args.new_name.as_c_str()), (&*one, &*two));
        prop_assert_eq!((args.new_parent, args.flags), (NodeId(77), flags));

        let size = u32::try_from(data.len()).unwrap();
        let head = abi::WriteIn { fh: 3, offset, size, ..Default::default() };
        let bytes = request(opcode::WRITE, 2, 1, &[head.as_bytes(), &data]);
        let expected = Operation::Write(args::Write {
            handle: FileHandle(3),
            offset,
            data: &data,
            from_cache: false,
            appends: false,
            durable: args::Durable::Later,
            kill_suidgid: false,
        });
        prop_assert_eq!(decode(&bytes), Ok(expected));
        // The same in three pieces, with the padding that io_uring puts after the fixed arguments.
        let padded = [head.as_bytes(), &[0xaa; 88]].concat();
        let message = Message::split(&bytes[..40], &padded, &data).unwrap();
        prop_assert_eq!(Operation::decode(&message, DIALECT), Ok(expected));
        // One byte less than it says.
        if !data.is_empty() {
            let bytes = request(opcode::WRITE, 2, 1, &[head.as_bytes(), &data[1..]]);
            prop_assert!(decode(&bytes).is_err());
        }
    }

    #[test]
    fn an_attribute_is_read_in_both_dialects(name in name(), value in vec(any::<u8>(), 0..500)) {
        let size = u32::try_from(value.len()).unwrap();
        let new = abi::SetxattrIn { size, flags: 1, setxattr_flags: 1, padding: 0 };
        let old = abi::SetxattrCompatIn { size, flags: 1 };
        for (head, setxattr_ext) in [(new.as_bytes(), true), (old.as_bytes(), false)] {
            let args = [head, name.as_bytes_with_nul(), &value];
            let bytes = request(opcode::SETXATTR, 2, 1, &args);
            let message = Message::contiguous(&bytes).unwrap();
            let expected = Operation::Setxattr(args::Setxattr {
                name: &name,
                value: &value,
                flags: 1,
                acl_kill_sgid: setxattr_ext,
            });
            prop_assert_eq!(Operation::decode(&message, Dialect { setxattr_ext }), Ok(expected));
        }
    }

    #[test]
    fn entries_have_the_kernels_form(entry in entry(), handle: u64, id in 1u32..) {
        let mut out = [0; MAX_ANSWER_BYTES];
        let opened = Opened {
            handle: FileHandle(handle),
            flags: OpenReply::PASSTHROUGH,
            backing: Some(BackingId(id)),
        };
        let len = Created { entry, opened }.encode(&mut out);
        prop_assert_eq!(len, 128 + 16);
        let (wire, rest) = EntryOut::read_from_prefix(&out).unwrap();
        prop_assert_eq!((wire.nodeid, wire.generation), (entry.node.0, entry.generation));
        prop_assert_eq!(wire.entry_valid, entry.entry_valid.as_secs());
        prop_assert_eq!(wire.entry_valid_nsec, entry.entry_valid.subsec_nanos());
        prop_assert_eq!(wire.attr.mtime.cast_signed(), entry.attr.mtime.0);
        prop_assert_eq!((wire.attr.size, wire.attr.mode), (entry.attr.size, entry.attr.mode));
        let (open, _) = abi::OpenOut::read_from_prefix(rest).unwrap();
        prop_assert_eq!((open.fh, open.open_flags, open.backing_id), (handle, 1 << 7, id));
    }
}

/// Lists its names, as many as fit; everything else is refused.
struct Lister(Vec<CString>);

impl Filesystem for Lister {
    fn readdir(&self, _: &Request<'_>, _: NodeId, args: args::Readdir, mut reply: DirReply<'_>) {
        let from = usize::try_from(args.offset).unwrap_or(usize::MAX);
        for (i, name) in self.0.iter().enumerate().skip(from) {
            let fits = reply.fits(name.as_bytes().len(), false);
            let added = reply.add(i as u64 + 10, 8, i as u64 + 1, name.as_bytes());
            assert_eq!(fits, added);
            if !added {
                break;
            }
        }
        reply.send();
    }
}

fn session(fs: impl Filesystem) -> (memory::Kernel, Running) {
    let (transport, kernel) = memory::pair();
    kernel.send_init(45, InitFlags::all()).unwrap();
    let session = Session::with_transport(transport, Arc::new(fs), SessionConfig::default());
    let running = session.start().unwrap();
    kernel.reply(SOON).unwrap();
    (kernel, running)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn session_listings_hold_each_name_once_and_no_more_bytes_than_asked(
        names in vec(name(), 0..40),
        size in 400u32..4000,
    ) {
        let (kernel, _running) = session(Lister(names.clone()));
        let mut listed = Vec::new();
        let (mut offset, mut unique) = (0, 4);
        loop {
            let args = abi::ReadIn { offset, size, ..Default::default() };
            kernel.send(&request(opcode::READDIR, unique, 1, &[args.as_bytes()])).unwrap();
            let (header, body) = kernel.reply(SOON).unwrap();
            prop_assert!(header.error == 0 && body.len() <= size as usize && body.len() % 8 == 0);
            let mut left = &body[..];
            while let Ok((head, after)) = Dirent::read_from_prefix(left) {
                let len = head.namelen as usize;
                listed.push(after[..len].to_vec());
                offset = head.off;
                left = &left[(24 + len).next_multiple_of(8)..];
            }
            if body.is_empty() {
                break;
            }
            unique += 2;
        }
        prop_assert_eq!(listed, names.into_iter().map(CString::into_bytes).collect::<Vec<_>>());
    }

    #[test]
    fn session_survives_any_request_and_answers_each_once(
        requests in vec((0u32..60, any::<u64>(), vec(any::<u8>(), 0..200)), 1..20),
    ) {
        let (kernel, _running) = session(Lister(Vec::new()));
        for (code, unique, args) in requests {
            kernel.send(&request(code, unique, 1, &[&args])).unwrap();
            let silent = [opcode::FORGET, opcode::BATCH_FORGET, opcode::INTERRUPT];
            if !silent.contains(&code) {
                let (header, _) = kernel.reply(SOON).expect("a reply");
                prop_assert_eq!(header.unique, unique);
            }
        }
        let last: InHeader = InHeader::default();
        kernel.send(&request(opcode::STATFS, 1 << 40, last.nodeid, &[])).unwrap();
        let answered = std::iter::from_fn(|| kernel.reply(SOON)).any(|(h, _)| h.unique == 1 << 40);
        prop_assert!(answered);
    }
}

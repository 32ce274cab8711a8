//! Entries that a listing cannot have, and those that it can.

mod common;

use std::fs;
use std::sync::Arc;

use common::clients::SOON;
use common::odd::within;
use common::{VALID, transports};
use rustix::io::Errno;
use tollgate_fuse::abi::{self, opcode};
use tollgate_fuse::memory::{self, request};
use tollgate_fuse::*;
use zerocopy::IntoBytes;

type Fills = fn(&mut DirReply<'_>);

/// Its root is filled by a test. Nothing else is there.
struct Lists(Fills);

fn attributes(node: NodeId) -> Attr {
    let mode = if node == NodeId::ROOT { 0o040_755 } else { 0o100_644 };
    Attr { ino: node.0, mode, nlink: 1, ..Attr::default() }
}

fn entry(node: u64) -> Entry {
    let attr = attributes(NodeId(node));
    Entry { node: NodeId(node), generation: 0, entry_valid: VALID, attr, attr_valid: VALID }
}

impl Lists {
    fn list(&self, offset: u64, mut reply: DirReply<'_>) {
        if offset == 0 {
            (self.0)(&mut reply);
        }
        reply.send();
    }
}

impl Filesystem for Lists {
    fn lookup(&self, _: &Request<'_>, _: NodeId, _: Name<'_>, reply: Reply<'_, Entry>) {
        reply.ok(&entry(9));
    }

    fn getattr(
        &self,
        _: &Request<'_>,
        node: NodeId,
        _: Option<FileHandle>,
        reply: Reply<'_, Attributes>,
    ) {
        reply.ok(&Attributes { attr: attributes(node), valid: VALID });
    }

    fn opendir(&self, _: &Request<'_>, _: NodeId, _: u32, reply: Reply<'_, Opened>) {
        reply.ok(&Opened { handle: FileHandle(1), flags: OpenReply::empty(), backing: None });
    }

    fn readdir(&self, _: &Request<'_>, _: NodeId, args: args::Readdir, reply: DirReply<'_>) {
        self.list(args.offset, reply);
    }

    fn readdirplus(&self, _: &Request<'_>, _: NodeId, args: args::Readdir, reply: DirReply<'_>) {
        self.list(args.offset, reply);
    }
}

/// What a listing over memory replies: the error, and its bytes.
fn listed(plus: bool, fills: Fills) -> (i32, usize) {
    let (transport, kernel) = memory::pair();
    kernel.send_init(45, InitFlags::all()).unwrap();
    let config = SessionConfig::default();
    let session = Session::with_transport(transport, Arc::new(Lists(fills)), config);
    let running = session.start().unwrap();
    kernel.reply(SOON).unwrap();
    let args = abi::ReadIn { size: 4096, ..abi::ReadIn::default() };
    let code = if plus { opcode::READDIRPLUS } else { opcode::READDIR };
    kernel.send(&request(code, 4, 1, &[args.as_bytes()])).unwrap();
    let (header, body) = kernel.reply(SOON).unwrap();
    let counts = running.connection().counts();
    assert_eq!((counts.panics, counts.dropped), (0, 0));
    (-header.error, body.len())
}

#[test]
fn no_name_is_so_long_that_it_overflows() {
    let fills: Fills = |reply| {
        for len in [1025, 1 << 40, usize::MAX - 200, usize::MAX - 8, usize::MAX] {
            assert!(!reply.fits(len, false) && !reply.fits(len, true), "{len}");
        }
        assert!(reply.fits(1024, false) && reply.fits(1024, true));
    };
    assert_eq!([false, true].map(|plus| listed(plus, fills)), [(0, 0); 2]);
}

#[test]
fn a_name_that_cannot_be_breaks_the_listing() {
    let bad: [Fills; 5] = [
        |reply| assert!(!reply.add(5, 8, 2, b"")),
        |reply| assert!(!reply.add(5, 8, 2, b"a/b")),
        |reply| assert!(!reply.add(5, 8, 2, b"a\0b")),
        |reply| assert!(!reply.add(5, 8, 2, &[b'n'; 1025])),
        |reply| {
            assert!(reply.add(5, 8, 1, b"before"));
            assert!(!reply.add(5, 8, 2, b"/"));
            assert!(!reply.add(5, 8, 3, b"behind"));
        },
    ];
    for fills in bad {
        for plus in [false, true] {
            assert_eq!(listed(plus, fills), (Errno::IO.raw_os_error(), 0));
        }
    }
    let attributes: Fills = |reply| assert!(!reply.add_plus(&entry(5), 8, 1, b"name"));
    assert_eq!(listed(false, attributes), (Errno::IO.raw_os_error(), 0));
}

/// In READDIRPLUS, an entry without attributes is one that the kernel looks up.
#[test]
fn names_and_entries_with_attributes_are_listed_together() {
    let fills: Fills = |reply| {
        assert!(reply.add(5, 8, 1, b"name"));
        let with_attributes = reply.add_plus(&entry(6), 8, 2, b"entry");
        assert!(with_attributes && reply.add(7, 8, 3, &[b'l'; 255]));
    };
    assert_eq!(listed(true, fills), (0, 160 + 160 + 408));
    for transport in transports() {
        let at = tempfile::tempdir().unwrap();
        let (device, _mount) = mount(at.path(), &MountOptions::default()).unwrap();
        let config = SessionConfig { transport, ..SessionConfig::default() };
        let fills: Fills = |reply| {
            assert!(reply.add(5, 8, 1, b"a"));
            // The first listing of a directory is READDIRPLUS.
            assert!(reply.add_plus(&entry(6), 8, 2, b"b"));
        };
        let running = Session::new(device, Arc::new(Lists(fills)), config).start().unwrap();
        let path = at.path().to_path_buf();
        let names = within(move || {
            let entries = fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.file_name()));
            entries.collect::<Result<Vec<_>, _>>()
        });
        assert_eq!(names.unwrap(), ["a", "b"], "{transport}");
        let counts = running.connection().counts();
        assert_eq!((counts.panics, counts.undelivered), (0, 0), "{transport}");
        assert!(fs::metadata(at.path().join("a")).unwrap().is_file());
    }
}

/// Lists names only, of which there are more than one reply holds.
struct Names;

const NAMES: u64 = 2000;

impl Filesystem for Names {
    fn lookup(&self, _: &Request<'_>, _: NodeId, name: Name<'_>, reply: Reply<'_, Entry>) {
        let number = str::from_utf8(name.as_bytes()).ok().and_then(|name| name.parse().ok());
        let found = number.filter(|number| *number < NAMES).map(|number: u64| entry(number + 2));
        reply.send(found.ok_or(Errno::NOENT));
    }

    fn getattr(
        &self,
        _: &Request<'_>,
        node: NodeId,
        _: Option<FileHandle>,
        reply: Reply<'_, Attributes>,
    ) {
        reply.ok(&Attributes { attr: attributes(node), valid: VALID });
    }

    fn readdir(&self, _: &Request<'_>, _: NodeId, args: args::Readdir, mut reply: DirReply<'_>) {
        let fits = |n: &u64| reply.add(n + 2, 8, n + 1, n.to_string().as_bytes());
        (args.offset..NAMES).take_while(fits).for_each(drop);
        reply.send();
    }
}

/// The kernel asks for attributes, too, where it was told that the server can do that.
#[test]
fn who_lists_names_alone_is_listed_with_whatever_the_kernel_asks() {
    let plus_alone = InitFlags::SUGGESTED - InitFlags::READDIRPLUS_AUTO;
    for (transport, want) in
        transports().into_iter().flat_map(|one| [(one, InitFlags::SUGGESTED), (one, plus_alone)])
    {
        let at = tempfile::tempdir().unwrap();
        let (device, _mount) = mount(at.path(), &MountOptions::default()).unwrap();
        let config = SessionConfig { transport, want, ..SessionConfig::default() };
        let _running = Session::new(device, Arc::new(Names), config).start().unwrap();
        for _ in 0..2 {
            let path = at.path().to_path_buf();
            let numbers = within(move || {
                let entries = fs::read_dir(path)?.map(|entry| {
                    let entry = entry?;
                    assert!(entry.metadata()?.is_file());
                    Ok(entry.file_name().into_string().unwrap().parse::<u64>().unwrap())
                });
                entries.collect::<std::io::Result<Vec<_>>>()
            });
            assert_eq!(numbers.unwrap(), (0..NAMES).collect::<Vec<_>>(), "{transport}, {want:?}");
        }
    }
}

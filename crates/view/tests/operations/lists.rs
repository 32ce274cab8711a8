//! Listing directories.

use std::collections::BTreeMap;

use rustix::io::Errno;
use tollgate_fuse::abi::{Dirent, EntryOut, FsyncIn, OpenIn, OpenOut, ReadIn, ReleaseIn, opcode};
use zerocopy::{FromBytes, IntoBytes};

use crate::kernel::{Played, ROOT};

const HIDE: &str = "
[[rule]]
path = '**/hidden*'
action = 'hide'
[[rule]]
path = 'closed'
operation = 'list'
action = 'deny'
";

fn open_dir(view: &Played, node: u64) -> Result<u64, Errno> {
    let args = OpenIn::default();
    view.ask(opcode::OPENDIR, node, &[args.as_bytes()]).map(|out: OpenOut| out.fh)
}

fn read_dir(
    view: &Played,
    plus: bool,
    (node, fh): (u64, u64),
    offset: u64,
    size: u32,
) -> Result<Vec<(String, u64, u64)>, Errno> {
    let args = ReadIn { fh, offset, size, ..ReadIn::default() };
    let code = if plus { opcode::READDIRPLUS } else { opcode::READDIR };
    let body = view.call(code, node, &[args.as_bytes()])?;
    let (mut rest, mut entries) = (&body[..], Vec::new());
    while !rest.is_empty() {
        let mut nodeid = 0;
        let mut len = 0;
        if plus {
            let (entry, after) = EntryOut::read_from_prefix(rest).unwrap();
            nodeid = entry.nodeid;
            rest = after;
            len += size_of::<EntryOut>();
        }
        let (head, after) = Dirent::read_from_prefix(rest).unwrap();
        let name = String::from_utf8(after[..head.namelen as usize].to_vec()).unwrap();
        len += size_of::<Dirent>() + name.len();
        let padding = len.next_multiple_of(8) - len;
        rest = &after[name.len() + padding..];
        entries.push((name, nodeid, head.off));
    }
    Ok(entries)
}

/// Every entry of `node`, in requests of `size` bytes, with its node.
fn list(view: &Played, node: u64, plus: bool, size: u32) -> BTreeMap<String, u64> {
    let fh = open_dir(view, node).unwrap();
    let (mut all, mut offset) = (BTreeMap::new(), 0);
    loop {
        let entries = read_dir(view, plus, (node, fh), offset, size).unwrap();
        let Some((_, _, next)) = entries.last() else { break };
        offset = *next;
        for (name, node, _) in entries {
            assert!(all.insert(name, node).is_none(), "an entry was listed twice");
        }
    }
    let args = ReleaseIn { fh, ..ReleaseIn::default() };
    view.call(opcode::RELEASEDIR, node, &[args.as_bytes()]).unwrap();
    all
}

#[test]
fn a_listing_has_every_entry_once_however_small_the_requests_are() {
    let files: Vec<_> = (0..300).map(|n| format!("file-{n}")).collect();
    let files: Vec<_> = files.iter().map(|name| (name.as_str(), "")).collect();
    let view = Played::with("", &files);
    for (plus, size) in [(false, 4096), (true, 4096), (false, 512), (true, 1 << 20)] {
        let all = list(&view, ROOT, plus, size);
        assert_eq!(all.len(), 302);
        assert!(all.contains_key(".") && all.contains_key("..") && all.contains_key("file-299"));
    }
    assert_eq!(view.view().snapshot().nodes, 301, "only the listing with attributes counts");
    assert_eq!(view.view().snapshot().directory_handles, 0);
}

#[test]
fn entries_listed_with_attributes_are_looked_up() {
    let view = Played::with("", &[("a", "text"), ("dir/b", "")]);
    let all = list(&view, ROOT, true, 4096);
    assert_eq!(all["a"], view.node("a"));
    assert_eq!(view.attributes(all["dir"]).unwrap().mode & 0o170_000, 0o040_000);
    assert_eq!((all["."], all[".."]), (0, 0), "the kernel takes no lookup for them");
}

#[test]
fn what_is_hidden_is_not_listed() {
    let view = Played::with(HIDE, &[("a", ""), ("hidden", ""), ("dir/hidden-too/x", "")]);
    for plus in [false, true] {
        let names: Vec<_> = list(&view, ROOT, plus, 4096).into_keys().collect();
        assert_eq!(names, [".", "..", "a", "dir"]);
        let dir = view.node("dir");
        assert_eq!(list(&view, dir, plus, 4096).into_keys().collect::<Vec<_>>(), [".", ".."]);
    }
    assert_eq!(view.counts().hidden, 4);
}

#[test]
fn what_may_not_be_listed_is_not_opened() {
    let view = Played::with(HIDE, &[("closed/a", "")]);
    assert_eq!(open_dir(&view, view.node("closed")).unwrap_err(), Errno::ACCESS);
    assert!(view.lookup("closed/a").is_some());
}

#[test]
fn a_listing_goes_on_after_changes() {
    let view = Played::with("", &[("a", ""), ("b", "")]);
    let fh = open_dir(&view, ROOT).unwrap();
    assert_eq!(read_dir(&view, false, (ROOT, fh), 0, 4096).unwrap().len(), 4);
    std::fs::write(view.below("c"), "").unwrap();
    let again = read_dir(&view, false, (ROOT, fh), 0, 4096).unwrap();
    assert_eq!(again.len(), 5, "a listing from the start shows the directory as it is");
    std::fs::remove_file(view.below("a")).unwrap();
    assert_eq!(read_dir(&view, true, (ROOT, fh), 0, 4096).unwrap().len(), 4);
}

#[test]
fn directory_handles_end_with_their_release() {
    let view = Played::with("", &[("a", "")]);
    let fh = open_dir(&view, ROOT).unwrap();
    assert_eq!(view.view().snapshot().directory_handles, 1);
    let args = FsyncIn { fh, ..FsyncIn::default() };
    view.call(opcode::FSYNCDIR, ROOT, &[args.as_bytes()]).unwrap();
    let release = ReleaseIn { fh, ..ReleaseIn::default() };
    view.call(opcode::RELEASEDIR, ROOT, &[release.as_bytes()]).unwrap();
    assert_eq!(read_dir(&view, false, (ROOT, fh), 0, 4096).unwrap_err(), Errno::BADF);
    assert_eq!(open_dir(&view, view.node("a")).unwrap_err(), Errno::NOTDIR);
}

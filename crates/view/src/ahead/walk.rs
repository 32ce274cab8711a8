//! The files of a tree in the order in which directories list them, from one file on: the order in
//! which `grep -r` and `tar` open them.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::FileType;
use tollgate_fuse::NodeId;

use crate::fds::Descriptors;
use crate::lower::{self, DirStream};
use crate::table::{Node, Table};

/// Most bytes of names of one directory that are looked at; what follows in a larger one is not read
/// ahead. Some 50,000 names.
const MAX_BYTES: usize = 1 << 20;
/// Most directories that lie between the first one and those walked now.
const MAX_DEPTH: usize = 64;

/// What is walked.
pub(crate) struct Tree {
    pub(crate) table: Arc<Table>,
    pub(crate) fds: Arc<Descriptors>,
    /// The device of the lower directory: others are not entered.
    pub(crate) dev: u64,
}

/// A regular file, as a directory lists it.
pub(super) struct Listed {
    pub(super) dir: Arc<Node>,
    pub(super) name: Box<CStr>,
}

/// Where a walk stands.
pub(super) struct Walk {
    /// Each is in the one before; the last one is walked.
    frames: Vec<Frame>,
    /// A file that was given and not taken.
    given_back: Option<Listed>,
}

struct Frame {
    dir: Arc<Node>,
    names: Names,
    /// A directory that the kernel did not know when its turn came.
    unknown: Option<Box<CStr>>,
}

impl Walk {
    /// From the file behind `node` on; `None` where it is not listed.
    pub(super) fn after(tree: &Tree, node: &Node) -> Option<Self> {
        let place = node.place()?;
        let frame = Frame::after(tree, &place.parent, &place.name)?;
        Some(Self { frames: vec![frame], given_back: None })
    }

    /// Goes on to behind `node` if that is one of the next `most` files.
    pub(super) fn advance_to(&mut self, tree: &Tree, node: &Node, most: usize) -> bool {
        let Some(place) = node.place() else { return false };
        let mut passed = 0;
        while passed < most
            && let Some(file) = self.next(tree)
        {
            if file.dir.id == place.parent.id && *file.name == *place.name {
                return true;
            }
            passed += 1;
        }
        false
    }

    /// The next file. `None` at the end, and where a directory follows that the kernel does not
    /// know: nobody can open anything there before it is listed or looked up. It may be known when
    /// this is called again.
    pub(super) fn next(&mut self, tree: &Tree) -> Option<Listed> {
        if let Some(file) = self.given_back.take() {
            return Some(file);
        }
        loop {
            let frame = self.frames.last_mut()?;
            if let Some(name) = frame.unknown.take() {
                match known_directory(tree, &frame.dir, &name) {
                    Known::Yes(dir) => self.enter(tree, &dir),
                    Known::NotYet => {
                        frame.unknown = Some(name);
                        return None;
                    }
                    Known::Never => {}
                }
                continue;
            }
            match frame.names.next() {
                Some((name, true)) => frame.unknown = Some(name),
                Some((name, false)) => return Some(Listed { dir: Arc::clone(&frame.dir), name }),
                None => self.leave(tree),
            }
        }
    }

    /// `file` comes next again.
    pub(super) fn give_back(&mut self, file: Listed) {
        self.given_back = Some(file);
    }

    fn enter(&mut self, tree: &Tree, dir: &Arc<Node>) {
        if self.frames.len() < MAX_DEPTH
            && let Some(frame) = Frame::of(tree, dir)
        {
            self.frames.push(frame);
        }
    }

    /// Goes on behind the directory that was walked.
    fn leave(&mut self, tree: &Tree) {
        let Some(left) = self.frames.pop() else { return };
        if self.frames.is_empty()
            && left.dir.id != NodeId::ROOT
            && let Some(place) = left.dir.place()
        {
            self.frames.extend(Frame::after(tree, &place.parent, &place.name));
        }
    }
}

impl Frame {
    fn of(tree: &Tree, dir: &Arc<Node>) -> Option<Self> {
        let fd = tree.fds.path(dir).ok()?;
        let mut stream = DirStream::new(lower::open_dir(fd.as_fd(), c".").ok()?);
        let mut names = Names::default();
        while let Ok(Some(entry)) = stream.peek() {
            let is_dir = entry.kind == libc::DT_DIR;
            let is_wanted = entry.child_name().is_some() && (is_dir || entry.kind == libc::DT_REG);
            if is_wanted && !names.add(entry.name, is_dir) {
                break;
            }
            stream.advance();
        }
        Some(Self { dir: Arc::clone(dir), names, unknown: None })
    }

    /// Directory `dir` behind `name`; `None` if it is not listed.
    fn after(tree: &Tree, dir: &Arc<Node>, name: &CStr) -> Option<Self> {
        let mut frame = Self::of(tree, dir)?;
        frame.names.by_ref().find(|(listed, _)| **listed == *name)?;
        Some(frame)
    }
}

/// Names of files and directories, one after the other: `f` or `d`, the name, and a NUL.
#[derive(Default)]
struct Names {
    bytes: Vec<u8>,
    next: usize,
}

impl Names {
    /// Whether there was room for it.
    fn add(&mut self, name: &CStr, is_dir: bool) -> bool {
        let name = name.to_bytes_with_nul();
        let fits = self.bytes.len() + name.len() < MAX_BYTES;
        if fits {
            self.bytes.push(if is_dir { b'd' } else { b'f' });
            self.bytes.extend_from_slice(name);
        }
        fits
    }
}

impl Iterator for Names {
    type Item = (Box<CStr>, bool);

    fn next(&mut self) -> Option<Self::Item> {
        let (kind, rest) = self.bytes.get(self.next..)?.split_first()?;
        let name = CStr::from_bytes_until_nul(rest).ok()?;
        self.next += 1 + name.to_bytes_with_nul().len();
        Some((Box::from(name), *kind == b'd'))
    }
}

enum Known {
    Yes(Arc<Node>),
    NotYet,
    /// It is gone, or of another file system.
    Never,
}

fn known_directory(tree: &Tree, parent: &Arc<Node>, name: &CStr) -> Known {
    let stat = tree.fds.path(parent).and_then(|fd| lower::stat_at(fd.as_fd(), name));
    match stat {
        Ok(stat) if stat.dev() == tree.dev && stat.file_type() == FileType::Directory => {
            tree.table.find(&stat.key()).map_or(Known::NotYet, Known::Yes)
        }
        _ => Known::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_in_their_order_as_far_as_there_is_room() {
        let mut names = Names::default();
        for (name, is_dir) in [(c"a", false), (c"d\n", true), (c"\xff", false)] {
            assert!(names.add(name, is_dir));
        }
        let found: Vec<_> = names.map(|(name, is_dir)| (name.into_c_string(), is_dir)).collect();
        let expected = [(c"a", false), (c"d\n", true), (c"\xff", false)];
        assert_eq!(found, expected.map(|(name, is_dir)| (name.to_owned(), is_dir)));
        let mut many = Names::default();
        let added = (0..MAX_BYTES).take_while(|_| many.add(c"12345678", false)).count();
        assert_eq!((added, many.count()), (MAX_BYTES / 10, MAX_BYTES / 10));
    }
}

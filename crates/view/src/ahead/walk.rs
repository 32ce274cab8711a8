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

/// Most names of one directory that are looked at; what follows in a larger one is not read ahead.
const MAX_NAMES: usize = 4096;
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
}

struct Frame {
    dir: Arc<Node>,
    /// With whether each is a directory.
    names: std::vec::IntoIter<(Box<CStr>, bool)>,
    /// A directory that the kernel did not know when its turn came.
    unknown: Option<Box<CStr>>,
}

impl Walk {
    /// From the file behind `node` on; `None` where it is not listed.
    pub(super) fn after(tree: &Tree, node: &Node) -> Option<Self> {
        let place = node.place()?;
        let frame = Frame::after(tree, &place.parent, &place.name)?;
        Some(Self { frames: vec![frame] })
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
        let mut names = Vec::new();
        while names.len() < MAX_NAMES
            && let Ok(Some(entry)) = stream.peek()
        {
            let is_dir = entry.kind == libc::DT_DIR;
            if entry.child_name().is_some() && (is_dir || entry.kind == libc::DT_REG) {
                names.push((Box::from(entry.name), is_dir));
            }
            stream.advance();
        }
        Some(Self { dir: Arc::clone(dir), names: names.into_iter(), unknown: None })
    }

    /// Directory `dir` behind `name`; `None` if it is not listed.
    fn after(tree: &Tree, dir: &Arc<Node>, name: &CStr) -> Option<Self> {
        let mut frame = Self::of(tree, dir)?;
        frame.names.by_ref().find(|(listed, _)| **listed == *name)?;
        Some(frame)
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

//! Hidden names that the kernel was told do not exist.

use std::ffi::CStr;

use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use tollgate_fuse::{Name, NodeId};

/// Most names that are remembered.
const MAX: usize = 4096;

/// Names, each with its directory.
pub(crate) type Names = FxHashSet<(NodeId, Box<CStr>)>;

/// Remembers names, so that the kernel can be told when they are not hidden any more.
#[derive(Debug, Default)]
pub(crate) struct Concealed(Mutex<Names>);

impl Concealed {
    /// Beyond the maximum a name is not kept; the kernel asks for it again when its timeout ends.
    pub(crate) fn add(&self, dir: NodeId, name: Name<'_>) {
        let mut names = self.0.lock();
        if names.len() < MAX {
            names.insert((dir, name.as_c_str().into()));
        }
    }

    /// All of them; they are not remembered any longer.
    pub(crate) fn take(&self) -> Names {
        std::mem::take(&mut self.0.lock())
    }
}

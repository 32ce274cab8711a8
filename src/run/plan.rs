//! What the processes of `run` have in common.

use std::path::PathBuf;

use super::fence::{Control, Fence};
use super::limits;
use super::network::Network;
use super::start::Start;
use crate::tree::Tree;

/// What the processes need to know.
#[derive(Debug)]
pub(super) struct Plan {
    /// The tree to cover. Its path has no symbolic links.
    pub(super) tree: Tree,
    pub(super) start: Start,
    /// Paths, relative to DIR, of the directories to mount natively.
    pub(super) native: Vec<PathBuf>,
    /// Where CMD's servers put their control sockets.
    pub(super) control: Option<Control>,
    /// `None`: CMD writes wherever its user may.
    pub(super) fence: Option<Fence>,
    pub(super) network: Network,
    pub(super) limits: limits::Kept,
    /// Whether others may join.
    pub(super) is_session: bool,
}

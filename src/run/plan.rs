//! What the processes of `run` have in common.

use super::fence::{Control, Fence};
use super::limits;
use super::network::Network;
use super::start::Start;
use super::views::{InOrder, Shown};
use crate::tree::Tree;

/// What the processes need to know.
#[derive(Debug)]
pub(super) struct Plan {
    /// The trees to cover. Their paths have no symbolic links.
    pub(super) views: InOrder<Shown>,
    pub(super) start: Start,
    /// Where CMD's servers put their control sockets.
    pub(super) control: Option<Control>,
    /// `None`: CMD writes wherever its user may.
    pub(super) fence: Option<Fence>,
    pub(super) network: Network,
    pub(super) limits: limits::Kept,
    /// Whether others may join.
    pub(super) is_session: bool,
}

impl Plan {
    /// DIR.
    pub(super) fn tree(&self) -> &Tree {
        &self.views.dir.tree
    }
}

//! Names with a stricter I/O mode, for files that are open.
//!
//! A file that is open keeps its mode until the last handle is closed: the kernel reads and writes
//! it without asking. If it could get a name whose bytes the server has to see, whoever holds it
//! would go on past the audit log. Such a rename or link is refused with `EXDEV`, as between file
//! systems, so that `mv` and `ln` copy: the copy is a file of its own, opened in its own mode.
//!
//! A name with the rules of one that it has changes nothing, whatever its mode: a file that grew over
//! the size that a rule is about, say, while it was open.

use tollgate_policy::{InodeFacts, Kind, Mode};

use crate::admission::Subject;
use crate::mode::IoMode;
use crate::table::Node;
use crate::view::View;

impl View {
    /// Whether `node`, which is `subject`, is open in a laxer mode than its name `target` would ask for,
    /// by other rules than those about a name that it has.
    pub(super) fn is_open_more_freely<'p>(
        &self,
        node: &Node,
        subject: &Subject<'p>,
        target: &Subject<'p>,
    ) -> bool {
        is_open_freely(node) && target.mode() >= Mode::Userspace && !subject.has_name_like(target)
    }

    /// Whether a file below the directory at `old` is open in a laxer mode than it would have if
    /// the directory were at `new`.
    pub(super) fn subtree_is_open_more_freely(&self, old: &[u8], new: &[u8]) -> bool {
        let policy = self.admission.policy();
        if policy.subtree_move_is_neutral(old, new) {
            return false;
        }
        let moves = |path: &[u8]| {
            let rest = path.strip_prefix(old).filter(|rest| rest.starts_with(b"/"))?;
            Some([new, rest].concat())
        };
        let facts = InodeFacts { kind: Kind::File, size: u64::MAX, head: None };
        self.table.all().iter().filter(|node| is_open_freely(node)).any(|node| {
            let paths = self.paths.of(node).unwrap_or_default();
            paths.iter().filter_map(|path| Some((path, moves(path)?))).any(|(old, new)| {
                let size = self.stat(node).map_or(facts.size, |stat| stat.size());
                let rules = policy.at(&new);
                rules.mode(&InodeFacts { size, ..facts }).0 >= Mode::Userspace
                    && !policy.at(old).is_like(&rules)
            })
        })
    }
}

pub(super) fn is_open_freely(node: &Node) -> bool {
    let io = node.io.lock();
    io.is_open() && io.mode() != Some(IoMode::Direct)
}

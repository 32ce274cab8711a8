//! File systems that show what is outside wherever they are mounted. Who may read debugfs, root, finds the
//! processes of the whole machine in it (`sched/debug`), and in tracefs what they do. An mqueue has the
//! message queues of the IPC namespace that mounted it: who may read one takes its messages.

use std::path::Path;

use super::kept::{Kept, open_path};
use super::layers;
use super::shape::Fence;
use crate::{mountinfo, tree};

const SHOW_WHAT_IS_OUTSIDE: [&str; 3] = ["debugfs", "mqueue", "tracefs"];

/// Something empty in the place of each one that is mounted, but where a view shows, or what is
/// allowed names it or something in it.
pub(super) fn hidden(fence: &Fence, dir: &Path) -> anyhow::Result<Vec<Kept>> {
    let mounts = mountinfo::read()?;
    let is_shown = |point: &Path| {
        let mut allowed = fence.allowed.iter().map(|allowed| allowed.path.as_path());
        allowed.any(|path| point.starts_with(path) || path.starts_with(point))
            || point.starts_with(dir)
            || fence.is_in_a_view(point)
    };
    let points = mounts.iter().filter(|mount| SHOW_WHAT_IS_OUTSIDE.contains(&mount.kind.as_str()));
    let points = points.map(|mount| mount.point.as_path()).filter(|point| !is_shown(point));
    let mut hidden = Vec::new();
    for point in points {
        // What another mount covers does not show.
        let Ok(place) = open_path(point) else { continue };
        let mut empty = if tree::is_directory(&place) {
            Kept::read_only(point, layers::memory(&place)?)?
        } else {
            let mut null = Kept::node(Path::new("/dev/null"))?;
            null.path = point.to_owned();
            null
        };
        empty.hides = true;
        hidden.push(empty);
    }
    Ok(hidden)
}

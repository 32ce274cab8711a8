//! The fence: CMD reads what lies outside of DIR, and changes nothing there.
//!
//! Every mount is made read-only. On top come private places (`/tmp` and the like, a writable copy
//! of the home directory), what the user named (`--allow`), and the view. All of it happens in the
//! first mount namespace, so that CMD, in the second one, finds it locked like the view.

mod allow;
mod control;
mod devices;
mod home;
mod kept;
mod places;
mod scope;
mod shape;

use std::path::{Path, PathBuf};

use anyhow::Context;

pub(super) use allow::check;
pub(super) use control::{Control, protect};
pub(super) use home::{Written, of as home_of, told};
pub(super) use scope::confine_signals_and_sockets;
pub(super) use shape::Fence;

use super::privilege::Privilege;
use crate::sys;
use kept::Kept;

/// What came out besides.
#[derive(Debug, Default)]
pub(super) struct Built {
    /// What CMD writes to its copy of the home directory.
    pub(super) written: Option<Written>,
    /// What a user should know.
    pub(super) warnings: Vec<String>,
}

/// Builds the fence. `views` are the paths at which the view shows, DIR first; `cwd` is CMD's
/// working directory; `control`, where its servers put their sockets.
pub(super) fn build(
    fence: &Fence,
    views: &[PathBuf],
    cwd: &Path,
    control: Option<&Control>,
    privilege: Privilege,
) -> anyhow::Result<Built> {
    let dir = &views[0];
    let shown = views.iter().map(|view| Kept::taken_away(view)).collect::<anyhow::Result<Vec<_>>>();
    let mut kept = places::kept(fence, dir, cwd)?;
    kept.extend(allow::kept(&fence.allowed)?);
    kept.extend(control.map(Control::kept).transpose()?.into_iter().flatten());
    if privilege == Privilege::Mounter {
        kept.extend(devices::kept()?);
    }
    let home = fence.home.as_deref().filter(|home| home::wants_copy(home, dir, &fence.allowed));
    let home_below = home.map(home::mounts_below).transpose()?.unwrap_or_default();
    let home = home.map(|path| kept::open_path(path).map(|fd| (path, fd))).transpose()?;
    sys::restrict_all_mounts(privilege == Privilege::Mounter)
        .context("cannot make the mounts outside of DIR read-only")?;
    let mut built = Built::default();
    if let Some((path, lower)) = home {
        match home::copy(path, &lower) {
            Ok((copy, written)) => {
                kept.push(copy);
                kept.extend(home_below);
                built.written = Some(written);
            }
            Err(error) => built.warnings.push(format!(
                "the home directory `{}` is read-only for CMD: no private copy of it can be had \
                 ({error:#})",
                path.display()
            )),
        }
    }
    places::cover(fence, privilege)?;
    if privilege == Privilege::Mounter {
        devices::cover()?;
    }
    kept.extend(shown?);
    attach(kept, dir)?;
    if privilege == Privilege::Mounter {
        devices::finish()?;
    }
    Ok(built)
}

/// Attaches from the outside in, so that nothing covers what is attached later. Of two for one
/// place, the later one counts.
fn attach(mut kept: Vec<Kept>, dir: &Path) -> anyhow::Result<()> {
    kept.sort_by_key(|kept| kept.path.components().count());
    for kept in kept {
        let required = kept.path == dir;
        match kept.attach() {
            // Another path to the view, in a place that is covered now: nothing shows there.
            Err(_) if kept.optional && !required => {}
            other => other.with_context(|| {
                format!("cannot keep `{}` accessible inside the fence", kept.path.display())
            })?,
        }
    }
    Ok(())
}

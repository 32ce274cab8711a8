//! The fence: CMD reads what of the machine is nobody's own, and changes nothing outside of DIR.
//!
//! Every mount is made read-only. On top come private places (`/tmp` and the like, a home directory
//! with what is listed of the real one), what the user named (`--allow`), and the view. All of it happens in the
//! first mount namespace, so that CMD, in the second one, finds it locked like the view.

mod allow;
mod by_kind;
mod control;
mod devices;
mod elsewhere;
mod extent;
mod here_document;
mod home;
mod homes;
mod in_place;
mod kept;
mod layers;
mod listed;
mod own;
mod places;
mod scope;
mod services;
mod settings;
mod shape;
mod shell;
mod why;
mod written;

use std::path::{Path, PathBuf};

use anyhow::Context;

pub(super) use allow::check;
pub(super) use control::{Control, prepare_for_guests, protect, session_directory};
pub(super) use own::{Own, refuse_own};
pub(super) use scope::confine_signals_and_sockets;
pub(super) use shape::Fence;
pub(super) use why::Outside;
pub(super) use written::{Written, told};

use crate::sys;
use elsewhere::Covers;
use home::Home;
use homes::Homes;
use kept::Kept;
use layers::Layers;

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
) -> anyhow::Result<Built> {
    let dir = &views[0];
    // From the inside out: one view may lie in another.
    let mut inner_first: Vec<&PathBuf> = views.iter().collect();
    inner_first.sort_by_key(|view| std::cmp::Reverse(view.components().count()));
    let shown = inner_first.into_iter().map(|view| Kept::taken_away(view));
    let shown = shown.collect::<anyhow::Result<Vec<_>>>();
    let mut built = Built::default();
    let mut kept = places::kept(fence, dir, cwd)?;
    kept.extend(allow::kept(&fence.allowed)?);
    kept.extend(control::hidden(fence, dir, &mut built.warnings)?);
    kept.extend(control::others(fence, dir, control)?);
    kept.extend(control.map(Control::kept).transpose()?.into_iter().flatten());
    kept.extend(devices::kept()?);
    let mut homes = Homes::open(fence, dir, cwd)?;
    let (elsewhere, covers) = Covers::of(&homes.elsewhere)?;
    // Before what stays at the same path.
    kept.extend(covers);
    kept.append(&mut homes.kept);
    kept.extend(services::kept(&fence.allowed)?);
    kept.extend(by_kind::hidden(fence, dir)?);
    sys::restrict_all_mounts().context("cannot make the mounts outside of DIR read-only")?;
    // Where CMD gets no /proc of its own, a `run` in it maps its users by this one. What in it
    // steers the kernel stays read-only by mounts of its own.
    sys::make_writable(c"/proc").context("cannot keep /proc")?;
    let copy =
        homes.own.take().map(|home| copy(home, &mut kept, &mut built.warnings)).transpose()?;
    places::cover(fence)?;
    homes.cover_others()?;
    devices::cover()?;
    kept.extend(shown?);
    attach(kept, &[std::slice::from_ref(dir), &fence.further].concat())?;
    homes::finish(&homes.others)?;
    elsewhere.finish()?;
    devices::finish()?;
    built.written = copy.map(Written::watch).transpose()?;
    Ok(built)
}

/// The private copy of CMD's home directory.
fn copy(
    home: Home,
    kept: &mut Vec<Kept>,
    warnings: &mut Vec<String>,
) -> anyhow::Result<home::Copy> {
    let mut layers = Layers::prepare()?;
    let result = home.copy(&mut layers, warnings);
    layers.finish()?;
    let (in_home, copy) = result?;
    kept.extend(in_home);
    Ok(copy)
}

/// Attaches from the outside in, so that nothing covers what is attached later. Of two for one
/// place, the later one counts.
fn attach(mut kept: Vec<Kept>, directories: &[PathBuf]) -> anyhow::Result<()> {
    kept.sort_by_key(|kept| kept.path.components().count());
    for kept in kept {
        // Where a view does not show the place, there is nothing to hide.
        if kept.hides && kept::open_path(&kept.path).is_err() {
            continue;
        }
        let kept = match kept.is_of_view {
            // The views around it are attached.
            true => match kept.as_shown() {
                Some(shown) => shown,
                None => continue,
            },
            false => kept,
        };
        let required = directories.contains(&kept.path);
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

//! The views of one `run`: that of DIR, and those of further directories (`[[view]]`).

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::user::User;
use crate::cli::RunArgs;
use crate::native::Beside;
use crate::policy_choice::{self, Origin};
use crate::policy_views::{self, Further, place_beside};
use crate::serve::{ServerKind, Spec};
use crate::tree::{self, Tree};

/// A directory that a view shows.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) tree: Tree,
    /// Paths, relative to it, of the directories to mount natively.
    pub(super) native: Vec<PathBuf>,
}

/// A view before it is served.
pub(super) struct Prepared {
    pub(super) spec: Spec,
    pub(super) source: OwnedFd,
    pub(super) tree: Tree,
}

impl Prepared {
    pub(super) fn shown(&self) -> Shown {
        Shown { tree: self.tree.clone(), native: self.spec.native().to_vec() }
    }
}

/// All views, in the order in which they are mounted and served: one that holds DIR comes before
/// that of DIR, the others after it.
#[derive(Debug)]
pub(super) struct InOrder<T> {
    pub(super) around: Option<T>,
    pub(super) dir: T,
    pub(super) beside: Vec<T>,
}

impl<T> InOrder<T> {
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.around.iter().chain([&self.dir]).chain(&self.beside)
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.around.iter_mut().chain([&mut self.dir]).chain(&mut self.beside)
    }

    /// Those of the further directories.
    pub(super) fn further(&self) -> impl Iterator<Item = &T> {
        self.around.iter().chain(&self.beside)
    }

    pub(super) fn map<U>(&self, of: impl Fn(&T) -> U) -> InOrder<U> {
        InOrder {
            around: self.around.as_ref().map(&of),
            dir: of(&self.dir),
            beside: self.beside.iter().map(of).collect(),
        }
    }
}

/// Prepares the views of the further directories that the policy of DIR names, beside that of DIR.
///
/// # Errors
/// When one of them cannot be shown, or its policy is wrong.
pub(super) fn beside(
    args: &RunArgs,
    origin: &Origin,
    mut dir: Prepared,
) -> anyhow::Result<InOrder<Prepared>> {
    let home = match args.fence.user.as_deref() {
        Some(user) => User::find(user)?.home(),
        None => std::env::home_dir(),
    };
    let was_named = args.serve.policy.is_some();
    let further = policy_views::of(origin, was_named, &dir.tree.path, home.as_deref())?;
    let (mut around, mut others, mut paths) = (None, Vec::new(), Vec::new());
    for one in &further {
        let (path, holds_dir) = place_beside(one, Some(&dir.tree.path), &paths)?;
        let covered = dir.tree.path.strip_prefix(&path).ok().filter(|_| holds_dir);
        let prepared = prepare(args, &path, one, covered)?;
        paths.push(path);
        match holds_dir {
            true => around = Some(prepared),
            false => others.push(prepared),
        }
    }
    dir.spec = dir.spec.with_further(paths, policy_views::named(&further));
    let mut views = InOrder { around, dir, beside: others };
    check_native(&mut views);
    Ok(views)
}

/// In a native directory nothing is judged: it is none where a file of it has a name that the rules
/// of another view protect.
fn check_native(views: &mut InOrder<Prepared>) {
    let all: Vec<_> = views
        .all()
        .map(|view| (view.tree.path.clone(), view.spec.policy(), view.spec.mount_points()))
        .collect();
    let sources: Vec<_> = views.all().map(|view| view.source.try_clone()).collect();
    let others = |own: &Path| -> Vec<Beside<'_>> {
        let others = all.iter().zip(&sources).filter(|((dir, ..), _)| dir != own);
        let beside = others.filter_map(|((dir, policy, left_out), source)| {
            Some(Beside { dir, policy, source: source.as_ref().ok()?, left_out })
        });
        beside.collect()
    };
    let Prepared { spec, source, tree } = &mut views.dir;
    spec.leave_out_linked(source, &others(&tree.path));
    for Prepared { spec, source, tree } in views.around.iter_mut().chain(&mut views.beside) {
        spec.leave_out_linked(source, &others(&tree.path));
    }
}

fn prepare(
    args: &RunArgs,
    path: &Path,
    further: &Further,
    covered: Option<&Path>,
) -> anyhow::Result<Prepared> {
    let name = further.place();
    let (tree, source) = tree::open_as(path, &name)?;
    tree::refuse_kernel_file_system(&name, &source)?;
    let origin = further.origin.clone().covering(covered);
    let chosen = policy_choice::load(origin, &tree.path)?;
    let mut spec = Spec::load(&args.serve, chosen, &tree, &source, ServerKind::Run)?;
    if let Some(covered) = covered {
        spec = spec.covering(covered.to_owned());
    }
    // What is not available is said of DIR.
    Ok(Prepared { spec: spec.quietly_if(true).beside_another(), source, tree })
}

//! `--allow`: what the user opens in the fence.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};

use super::kept::Kept;
use crate::cli::AllowArg;
use crate::mountinfo::{self, MountInfo};
use crate::run::guard::KERNEL_FILE_SYSTEMS;
use crate::tree;

/// A path outside of DIR that CMD gets as it is.
#[derive(Clone, Debug)]
pub(crate) struct Allowed {
    /// Without symbolic links.
    pub(crate) path: PathBuf,
    /// Else it is read-only.
    pub(crate) writable: bool,
}

/// Checks what was named.
///
/// # Errors
/// When a path does not exist, belongs to the view, or leads into a kernel file system.
pub(crate) fn check(
    args: &[AllowArg],
    dir: &Path,
    further: &[PathBuf],
) -> anyhow::Result<Vec<Allowed>> {
    let mounts = mountinfo::read()?;
    args.iter().map(|arg| check_one(arg, dir, further, &mounts)).collect()
}

/// A file system that takes no file but those of its own terminals.
const TERMINALS: &str = "/dev/pts";

/// The path that exists, and what was written behind its colon, of `PATH:x`.
fn with_another_mode(path: &Path) -> Option<(&str, &str)> {
    path.to_str()?.rsplit_once(':').filter(|(path, _)| Path::new(path).exists())
}

/// A socket or a FIFO: it connects no program in a view with one outside.
fn connects_programs(path: &Path) -> bool {
    let kind = std::fs::symlink_metadata(path).map(|about| about.file_type());
    kind.is_ok_and(|kind| kind.is_socket() || kind.is_fifo())
}

fn check_one(
    arg: &AllowArg,
    dir: &Path,
    further: &[PathBuf],
    mounts: &[MountInfo],
) -> anyhow::Result<Allowed> {
    let shown = arg.path.display();
    let path = match std::fs::canonicalize(&arg.path) {
        Ok(path) => path,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if let Some((named, mode)) = with_another_mode(&arg.path) {
                bail!(
                    "--allow: `{shown}` does not exist, and `{named}` does: after a path stands \
                     `:ro` or `:rw`, not `:{mode}`"
                );
            }
            if arg.path.starts_with("~") {
                bail!(
                    "--allow: `{shown}` does not exist: the shell has left the `~` as it is, as it does in \
                     quotes and in some shells before a `:`; write `$HOME`"
                );
            }
            bail!(
                "--allow: `{shown}` does not exist{}; make it first: `mkdir -p {}`",
                crate::nearest::path(&arg.path),
                crate::escape::word(&arg.path)
            )
        }
        Err(error) => bail!("--allow: `{shown}` {}", tree::why(&error)),
    };
    ensure!(
        !path.starts_with(dir),
        "--allow: `{shown}` lies inside DIR `{}`, where the policy decides{}",
        dir.display(),
        if connects_programs(&path) {
            "; it connects CMD with programs outside only if it lies in a directory with `action = \"native\"`"
        } else {
            ""
        }
    );
    if let Some(view) = further.iter().find(|view| path.starts_with(view)) {
        let view = view.display();
        bail!("--allow: `{shown}` lies in the `[[view]]` of `{view}`, whose rules decide");
    }
    ensure!(
        path.parent() != Some(Path::new(TERMINALS)),
        "--allow: `{shown}` is a terminal, and CMD's own are in `{TERMINALS}`; `--allow \
         {TERMINALS}` shows all of the machine's in their place"
    );
    ensure!(path.parent().is_some(), "--allow: `/` would open everything; use --fence off");
    let kind = mountinfo::covering(mounts, &path).map(|mount| mount.kind.as_str());
    let steers = kind.is_some_and(|kind| kind == "proc" || KERNEL_FILE_SYSTEMS.contains(&kind));
    ensure!(
        !(steers && arg.writable),
        "--allow: `{shown}` steers the kernel, which would act for CMD outside of the fence; it \
         stays read-only"
    );
    Ok(Allowed { path, writable: arg.writable })
}

/// The mounts of what is allowed.
pub(super) fn kept(allowed: &[Allowed]) -> anyhow::Result<Vec<Kept>> {
    let kept = |allowed: &Allowed| Kept::allowed(&allowed.path, allowed.writable);
    allowed.iter().map(kept).collect()
}

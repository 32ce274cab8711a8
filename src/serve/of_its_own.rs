//! Files that a server writes must be none of those that it reads: what it says would make another
//! policy of one, or a key that opens nothing.

use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::cli::ServeArgs;
use crate::escape::shown;
use crate::policy_choice::Origin;
use crate::{mountinfo, other_mounts, seal};

/// Files with what they are for, in the words of an error.
pub(crate) type Used = Vec<(PathBuf, &'static str)>;

/// What a server of `dir` reads: its policy, what opens the keyring, and that.
pub(crate) fn read_ones(args: &ServeArgs, policy: &Origin, dir: &Path) -> Used {
    let policies =
        policy.files().into_iter().map(|file| (file.to_owned(), "the policy is read from"));
    let keys = seal::secret_files(&args.seal);
    let keys = keys.into_iter().map(|file| (file, "the keyring is opened with"));
    let ring = [seal::IN_DIR, seal::LOCK_IN_DIR, seal::NEW_IN_DIR].map(|name| dir.join(name));
    let ring = ring.into_iter().map(|file| (file, "the keys of sealed files are kept in"));
    policies.chain(keys).chain(ring).collect()
}

/// Refuses a file to write to that has another use.
///
/// # Errors
/// If `file`, which is called `what`, is one of those that are `used`. It may not be there yet.
pub(crate) fn refuse(what: &str, file: &Path, used: &Used) -> anyhow::Result<()> {
    let real = resolved(file);
    for (other, why) in used {
        let other_real = resolved(other);
        if real == other_real || real.exists() && other_mounts::is_same(&real, &other_real) {
            bail!(
                "{what} file `{}`: {why} `{}`; name a file of its own",
                shown(file),
                shown(other)
            );
        }
    }
    Ok(())
}

/// Refuses a file to write to where the view will be: a server would wait for itself, and nobody would see
/// the file.
///
/// # Errors
/// If `file`, which is called `what`, lies below `mnt`.
pub(crate) fn refuse_below(what: &str, file: &Path, mnt: &Path) -> anyhow::Result<()> {
    if other_mounts::paths_in(&mountinfo::read()?, mnt, &resolved(file)).is_empty() {
        return Ok(());
    }
    bail!(
        "{what} file `{}` lies inside the mount point `{}`, where the view will be; name one elsewhere",
        shown(file),
        shown(mnt)
    )
}

/// The path without symbolic links; of what is not there, that of its directory.
fn resolved(file: &Path) -> PathBuf {
    let in_directory = || {
        let path = std::path::absolute(file).ok()?;
        Some(std::fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?))
    };
    std::fs::canonicalize(file).ok().or_else(in_directory).unwrap_or_else(|| file.to_owned())
}

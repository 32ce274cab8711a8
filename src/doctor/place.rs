//! The directory to be shown, and the file system beneath it.

use std::path::Path;

use super::check::Check;
use crate::{mountinfo, policy_choice, tree};

pub(super) fn checks(dir: &Path) -> Vec<Check> {
    let mut checks = vec![file_system(dir)];
    checks.extend(case(dir));
    checks.push(policy(dir));
    checks
}

fn file_system(dir: &Path) -> Check {
    const NAME: &str = "file system of DIR";
    if dir.parent().is_none() {
        return Check::broken(NAME, "DIR is `/`, which a view cannot cover")
            .mended_by("name a directory below it");
    }
    let mounts = match mountinfo::read() {
        Ok(mounts) => mounts,
        Err(error) => {
            let found = crate::messages::in_words(&error);
            return Check::without(NAME, found, "other paths to DIR are not found");
        }
    };
    let Some(mount) = mountinfo::covering(&mounts, dir) else {
        return Check::note(NAME, "not found in /proc/self/mountinfo");
    };
    let point = mount.point.display();
    let found = format!("{}, mounted at `{point}`", mount.kind);
    match mount.kind.as_str() {
        kind if kind.starts_with("fuse") => Check::without(
            NAME,
            found,
            "files of another FUSE file system cannot be registered: they are served by tollgate",
        ),
        "nfs" | "nfs4" | "cifs" | "smb3" | "9p" | "ceph" | "virtiofs" => Check::without(
            NAME,
            found,
            "what other machines change is seen when the kernel's cache of this file system expires",
        ),
        "overlay" => Check::ok(
            NAME,
            format!("{found}; whoever reaches its layers has the files without a policy"),
        ),
        _ => Check::ok(NAME, found),
    }
}

/// Names that differ in case may be one file: then no policy can tell them apart.
fn case(dir: &Path) -> Option<Check> {
    let (_, source) = tree::open(dir).ok()?;
    let directory = rustix::fs::openat(
        &source,
        ".",
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .ok()?;
    let flags = rustix::fs::ioctl_getflags(&directory).ok()?;
    (flags.bits() & CASEFOLD != 0).then(|| {
        Check::without(
            "case of names",
            "DIR ignores the case of names (casefold)",
            "a policy about parts of DIR is refused: `ID_RSA` would be another way to `id_rsa`",
        )
        .mended_by("chattr -F on a new, empty directory, and move the files there")
    })
}

/// `FS_CASEFOLD_FL`
const CASEFOLD: u32 = 0x4000_0000;

fn policy(dir: &Path) -> Check {
    const NAME: &str = "policy of DIR";
    match policy_choice::quietly(dir) {
        Ok(policy) => Check::ok(NAME, policy),
        Err(error) => Check::broken(NAME, crate::messages::in_words(&error))
            .mended_by("tollgate check --dir DIR says what is wrong, where"),
    }
}

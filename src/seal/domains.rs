//! What a file is bound to: the domain that the command line names, or what a policy's rules say.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use tollgate_policy::{Facts, HEAD_LEN, Kind, Made, Mode, Policy};

use crate::cli::SealFilesArgs;
use crate::policy_choice::{self, Origin};
use crate::policy_views;
use crate::seal::secret::shown;
use crate::seal::unfinished;

/// Where the domains come from.
pub(super) enum Domains {
    /// One for all files.
    Named(String),
    /// Of the rule that decides about the file. A file that no rule seals is left out.
    ByPolicy(Box<ByPolicy>),
}

pub(super) struct ByPolicy {
    policy: Policy,
    /// The directory that the rules are about, without links.
    top: PathBuf,
    /// Files that the policy is in, without links: sealed, nobody could read it.
    own: Vec<PathBuf>,
}

impl Domains {
    /// # Errors
    /// If the policy cannot be read, or is wrong.
    pub(super) fn of(args: &SealFilesArgs, dir: &Path) -> Result<Domains> {
        let Some(named) = &args.policy else {
            return Ok(Domains::Named(args.domain.clone().unwrap_or_default()));
        };
        let top = std::fs::canonicalize(dir).with_context(|| shown(dir))?;
        let origin = policy_views::of_directory(Origin::named(named), &top)?;
        let policy = origin.parse(&top)?;
        // What a view does not hide, as it is only recorded, it seals.
        let policy = policy.enforced().unwrap_or(policy);
        ensure!(
            policy.seals(),
            "policy `{origin}` has no rule with `action = \"seal\"`; name the domain with `--domain`"
        );
        let own = [origin.file(), Some(top.join(policy_choice::IN_DIR))].into_iter().flatten();
        let own = own.filter_map(|file| std::fs::canonicalize(file).ok()).collect();
        Ok(Domains::ByPolicy(Box::new(ByPolicy { policy, top, own })))
    }

    /// The domain of a file whose path without links is `real`; `None` if it is not to be sealed.
    ///
    /// # Errors
    /// If it is not in the directory that the policy is about, or cannot be looked at.
    pub(super) fn of_file(&self, path: &Path, real: &Path) -> Result<Option<String>> {
        match self {
            Domains::Named(domain) => Ok(Some(domain.clone())),
            Domains::ByPolicy(rules) => rules.of_file(path, real),
        }
    }
}

impl ByPolicy {
    fn of_file(&self, path: &Path, real: &Path) -> Result<Option<String>> {
        let Ok(below) = real.strip_prefix(&self.top) else {
            bail!("is not in {}, which the policy is about", shown(&self.top));
        };
        if self.own.iter().any(|own| own == real) {
            return Ok(None);
        }
        let rules = self.policy.at(below.as_os_str().as_bytes());
        if rules.hidden(Kind::File).is_some() {
            return Ok(None);
        }
        let file = unfinished::open(path)?;
        let size = file.metadata()?.len();
        let mut head = vec![0; HEAD_LEN];
        let head = match rules.needs_head(Kind::File, size) {
            true => {
                let length = file.read_at(&mut head, 0)?;
                Some(&head[..length])
            }
            false => None,
        };
        let facts = Facts { path: b"", kind: Kind::File, size, head }.inode();
        if rules.mode(&facts).0 != Mode::Sealed {
            return Ok(None);
        }
        let mut made = Made::default();
        rules.made(&facts, &mut made);
        match &made.domains[..] {
            [domain] => Ok(Some((**domain).to_owned())),
            several => bail!("is to be sealed for {} domains at once", several.len()),
        }
    }
}

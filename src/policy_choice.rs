//! Which policy is in force: the one that was named, or the first of those that may be there.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tollgate_policy::{Action, Kind, Operation, Policy, PolicyFile, Rule, Verdict};

use crate::escape::{escaped, shown, word};
use crate::policy_file::FoundIn;
use crate::presets::{Preset, escape_glob, toml_string};
use crate::user_config::UserConfig;
use crate::{messages, policy_file, policy_masked, policy_places};

/// The policy of a directory, in it.
pub(crate) const IN_DIR: &str = ".tollgate.toml";
/// The rules that every policy gets before its own: about the files of policies, and the keyring.
pub(crate) const BUILT_IN: [&str; 3] = ["policy files", "keyring", policy_masked::RULE];
/// Set by `run`: the directory of the view.
pub(crate) const IN_RUN: &str = "TOLLGATE_RUN";
/// The word for a view without a policy.
const NONE: &str = "none";

/// Before the name of a preset, where a file is named otherwise.
const PRESET: &str = "preset:";
/// After the names of rules of DIR's policy that the other policy has, too.
const SUFFIX: &str = " (.tollgate.toml)";

/// The policy to enforce.
pub(crate) struct Chosen {
    pub(crate) policy: Policy,
    /// Where it comes from, to read it again.
    pub(crate) origin: Origin,
}

/// Where the policy comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// No policy.
    None,
    /// A built-in one.
    Preset(Preset),
    /// A file that somebody named.
    File(PathBuf),
    /// The policy of DIR, in it, that nobody named.
    Found(PathBuf),
    /// What the user configured, and the policy of DIR, which can only make it stricter.
    Tightened(Box<Origin>, PathBuf),
    /// A `[[view]]` of a file.
    View {
        file: PathBuf,
        /// The directory as the file has it.
        dir: String,
        /// What in it another view covers, relative to it: nothing in there is this view's.
        covered: Option<PathBuf>,
    },
}

impl Origin {
    /// `none`, the name of a preset, or a file.
    pub(crate) fn named(name: &Path) -> Self {
        match name.to_str() {
            Some(NONE) => Self::None,
            Some(text) => match Preset::named(text) {
                Some(preset) => Self::Preset(preset),
                None => Self::File(name.to_owned()),
            },
            None => Self::File(name.to_owned()),
        }
    }

    /// Reads the policy for the directory `dir`, with warnings on standard error.
    ///
    /// # Errors
    /// When a file cannot be read, or is wrong, or two policies cannot hold together.
    pub(crate) fn load(&self, dir: &Path) -> anyhow::Result<Policy> {
        let (policy, warnings) = self.parse_warned(dir)?;
        warnings.iter().for_each(|warning| messages::say(warning));
        Ok(policy)
    }

    /// Reads the policy, and what is to be said of it.
    fn parse_warned(&self, dir: &Path) -> anyhow::Result<(Policy, Vec<String>)> {
        let (policy, of_preset) = self.parse_fitted(dir)?;
        let own = of_preset.into_iter().chain(self.warning_of_empty(&policy));
        let own = own.map(|text| format!("warning: {text}"));
        let all = own.chain(policy.warnings().iter().map(ToString::to_string)).collect();
        Ok((policy, all))
    }

    /// A file without rules may be one that was saved in part.
    pub(crate) fn warning_of_empty(&self, policy: &Policy) -> Option<String> {
        let is_open = policy.rules().is_empty() && policy.default_action() == Action::Passthrough;
        // Other directories may have rules, and DIR needs none.
        let is_meant = || matches!(self, Self::None) || self.has_views();
        (is_open && !is_meant()).then(|| {
            format!(
                "policy `{}` has no rules and allows everything; `tollgate init` writes one, and \
                 `--policy none` says that it is meant",
                escaped(&self.to_string())
            )
        })
    }

    /// Whether the policy is about several directories.
    fn has_views(&self) -> bool {
        let has_some = |file: &&Path| {
            policy_file::parse_all(file, None).is_ok_and(|whole| !whole.views.is_empty())
        };
        matches!(self, Self::View { .. }) || self.files().iter().any(has_some)
    }

    /// Whether the table of this view was dropped from a policy that is right otherwise.
    pub(crate) fn was_dropped(&self) -> bool {
        let has_none = |file: &Path, named: &str| {
            let whole = policy_file::parse_all(file, None);
            whole.is_ok_and(|whole| whole.views.iter().all(|view| view.dir != named))
        };
        matches!(self, Self::View { file, dir, .. } if has_none(file, dir))
    }

    /// As [`Origin::load`], without warnings.
    ///
    /// # Errors
    /// As [`Origin::load`].
    pub(crate) fn parse(&self, dir: &Path) -> anyhow::Result<Policy> {
        Ok(self.parse_fitted(dir)?.0)
    }

    /// The same with what a preset, fitted to `dir`, warns of.
    fn parse_fitted(&self, dir: &Path) -> anyhow::Result<(Policy, Option<String>)> {
        let policy = match self {
            Self::None => Policy::allow_all(),
            Self::Preset(preset) => return preset.policy(dir),
            Self::File(file) | Self::Found(file) => self.read(file, dir)?.policy,
            Self::View { file, dir: named, .. } => {
                let views = self.read(file, dir)?.views;
                let own = views.into_iter().find(|view| view.dir == *named);
                own.map(|view| view.policy).with_context(|| {
                    format!("policy `{}` has no `[[view]]` of `{named}` any more", shown(file))
                })?
            }
            Self::Tightened(configured, own) => {
                let (first, of_preset) = configured.parse_fitted(dir)?;
                let both =
                    first.joined(self.read(own, dir)?.policy, SUFFIX).with_context(|| {
                        format!(
                            "`{}` cannot hold together with the policy that you configured \
                         ({configured}); change one of them, or name one with `--policy`",
                            shown(own)
                        )
                    })?;
                return Ok((both, of_preset));
            }
        };
        Ok((policy, None))
    }

    /// Reads `file`, one of [`Origin::files`], for the directory `dir`.
    ///
    /// # Errors
    /// When it cannot be read, or is wrong, or was found in `dir` and leads out of it.
    pub(crate) fn read(&self, file: &Path, dir: &Path) -> anyhow::Result<PolicyFile> {
        let is_found = match self {
            Self::Found(own) | Self::Tightened(_, own) => own == file,
            _ => false,
        };
        policy_file::parse_all(file, is_found.then(|| FoundIn::policy(dir)))
    }

    /// The policy as a view enforces it: with the rules that keep policy files as they are.
    ///
    /// # Errors
    /// As [`Origin::load`], and when a policy file lies where nothing can keep it.
    pub(crate) fn in_force(&self, dir: &Path) -> anyhow::Result<Policy> {
        Ok(self.read_again(dir)?.0)
    }

    /// The same with its warnings.
    ///
    /// # Errors
    /// As [`Origin::in_force`].
    pub(crate) fn read_again(&self, dir: &Path) -> anyhow::Result<(Policy, Vec<String>)> {
        // Before the rules that are built in come to it.
        let (policy, warnings) = self.parse_warned(dir)?;
        Ok((keep(policy, self, dir)?, warnings))
    }

    /// What `status` calls it: a file, or `preset:NAME`; `None` without a policy.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        match self {
            Self::None => None,
            Self::Preset(preset) => Some(format!("{PRESET}{}", preset.name()).into()),
            Self::File(file) | Self::Found(file) | Self::View { file, .. } => {
                std::path::absolute(file).ok()
            }
            Self::Tightened(configured, own) => configured.file().or_else(|| Some(own.clone())),
        }
    }

    /// The policy of DIR that holds beside the one that was configured.
    pub(crate) fn tightened_by(&self) -> Option<&Path> {
        match self {
            Self::Tightened(_, own) => Some(own),
            _ => None,
        }
    }

    /// The same for a directory in which another view covers `covered`.
    pub(crate) fn covering(self, covered: Option<&Path>) -> Self {
        match self {
            Self::View { file, dir, .. } => {
                Self::View { file, dir, covered: covered.map(Path::to_owned) }
            }
            other => other,
        }
    }

    /// The same from any working directory.
    fn absolute(self) -> Self {
        let absolute = |file: PathBuf| std::path::absolute(&file).unwrap_or(file);
        match self {
            Self::File(file) => Self::File(absolute(file)),
            Self::Found(file) => Self::Found(absolute(file)),
            Self::View { file, dir, covered } => Self::View { file: absolute(file), dir, covered },
            Self::Tightened(configured, own) => {
                Self::Tightened(Box::new(configured.absolute()), absolute(own))
            }
            other => other,
        }
    }

    /// The same with each file at the path that `now` has for it.
    ///
    /// # Errors
    /// Those of `now`.
    pub(crate) fn relocated(
        &self,
        now: &impl Fn(&Path) -> anyhow::Result<PathBuf>,
    ) -> anyhow::Result<Self> {
        Ok(match self {
            Self::None | Self::Preset(_) => self.clone(),
            Self::File(file) => Self::File(now(file)?),
            Self::Found(file) => Self::Found(now(file)?),
            Self::View { file, dir, covered } => {
                Self::View { file: now(file)?, dir: dir.clone(), covered: covered.clone() }
            }
            Self::Tightened(configured, own) => {
                Self::Tightened(Box::new(configured.relocated(now)?), now(own)?)
            }
        })
    }

    /// A file that decides over a view of `dir` and leads into it, but is named by a path outside of it:
    /// a link leads there, or the user's configuration is in it.
    pub(crate) fn leads_into(&self, dir: &Path) -> Option<PathBuf> {
        let linked = self.files().into_iter().filter(|file| !file.starts_with(dir));
        let all = linked.map(Path::to_owned).chain(UserConfig::places());
        all.into_iter().find(|file| !policy_places::inside(file, dir).is_empty())
    }

    /// The files that it is read from.
    pub(crate) fn files(&self) -> Vec<&Path> {
        match self {
            Self::None | Self::Preset(_) => Vec::new(),
            Self::File(file) | Self::Found(file) | Self::View { file, .. } => vec![file],
            Self::Tightened(configured, own) => {
                configured.files().into_iter().chain([own.as_path()]).collect()
            }
        }
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str(NONE),
            Self::Preset(preset) => write!(f, "preset {}", preset.name()),
            Self::File(file) | Self::Found(file) => file.display().fmt(f),
            Self::View { file, dir, .. } => write!(f, "[[view]] {dir} of {}", file.display()),
            Self::Tightened(configured, own) => {
                write!(f, "{configured}, tightened by {}", own.display())
            }
        }
    }
}

/// Finds the policy for DIR: `--policy`; else `$TOLLGATE_POLICY` or the user's configuration (for
/// `command` first), tightened by `.tollgate.toml` of DIR; else that file; else the preset `agent`.
/// Says which it is where nobody named it for this call, unless `quiet`.
///
/// # Errors
/// When the configuration or the policy cannot be read, or is wrong.
pub(crate) fn choose(
    named: Option<&Path>,
    dir: &Path,
    command: Option<&OsStr>,
    quiet: bool,
) -> anyhow::Result<Chosen> {
    let (origin, note) = search(named, dir, command)?;
    tell(note.filter(|_| !quiet), named, dir);
    load(origin, dir)
}

/// The policy of `origin` for the directory `dir`, with warnings on standard error.
///
/// # Errors
/// When the policy cannot be read, or is wrong.
pub(crate) fn load(origin: Origin, dir: &Path) -> anyhow::Result<Chosen> {
    let policy = keep(origin.load(dir)?, &origin, dir)?;
    // A daemon leaves its working directory, and the sandbox does not let it ask for one.
    Ok(Chosen { policy, origin: origin.absolute() })
}

/// Where the policy for DIR comes from; see [`choose`].
///
/// # Errors
/// When the user's configuration is wrong.
pub(crate) fn find(
    named: Option<&Path>,
    dir: &Path,
    command: Option<&OsStr>,
) -> anyhow::Result<Origin> {
    let (origin, note) = search(named, dir, command)?;
    tell(note, named, dir);
    Ok(origin)
}

fn tell(note: Option<String>, named: Option<&Path>, dir: &Path) {
    if let Some(note) = note {
        messages::note(&note);
    }
    if named.is_none()
        && let Some(above) = above(dir)
    {
        let (file, dir, top) = (above.join(IN_DIR), shown(dir), word(&above));
        messages::warn(&format!(
            "`{}` is not in force, as DIR is `{dir}`, below it; for that policy name its directory: \
             `tollgate run {top} -- CMD`",
            shown(&file)
        ));
    }
}

/// The nearest directory above DIR that has a policy, where DIR has none. Whoever worked in that
/// directory could make DIR a repository, so that a later call takes it for the project.
fn above(dir: &Path) -> Option<PathBuf> {
    let dir = std::fs::canonicalize(dir).ok()?;
    let has = |dir: &Path| std::fs::symlink_metadata(dir.join(IN_DIR)).is_ok();
    if has(&dir) {
        return None;
    }
    dir.ancestors().skip(1).find(|above| has(above)).map(Path::to_owned)
}

/// The policy that would hold for DIR, in words.
///
/// # Errors
/// As [`choose`].
pub(crate) fn quietly(dir: &Path) -> anyhow::Result<String> {
    let (origin, _) = search(None, dir, None)?;
    origin.in_force(dir)?;
    Ok(origin.to_string())
}

/// The policy, and what to say of it.
fn search(
    named: Option<&Path>,
    dir: &Path,
    command: Option<&OsStr>,
) -> anyhow::Result<(Origin, Option<String>)> {
    if let Some(name) = named {
        return Ok((Origin::named(name), None));
    }
    let variable = std::env::var_os("TOLLGATE_POLICY").filter(|value| !value.is_empty());
    let configured = match variable {
        Some(name) => Some((PathBuf::from(name), None)),
        None => UserConfig::read()?.policy_for(command).map(|(name, why)| (name, Some(why))),
    };
    let own = dir.join(IN_DIR);
    // A link that leads nowhere is a mistake that reading reports.
    let own = std::fs::symlink_metadata(&own).is_ok().then_some(own);
    Ok(match (configured, own) {
        (Some((name, why)), own) => {
            let first = Origin::named(&name);
            let own = own.filter(|own| !first.files().iter().any(|file| is_same(file, own)));
            let said = |why: String| format!("policy `{}` ({why})", shown(&name));
            match own {
                None => (first, why.map(said)),
                Some(own) => {
                    let why = why.unwrap_or_else(|| "$TOLLGATE_POLICY".to_owned());
                    let note = format!(
                        "{}, and `{}`, which can only make it stricter",
                        said(why),
                        shown(&own)
                    );
                    (Origin::Tightened(Box::new(first), own), Some(note))
                }
            }
        }
        (None, Some(own)) => {
            let note = format!("policy `{}`", shown(&own));
            (Origin::Found(own), Some(note))
        }
        (None, None) => (Origin::Preset(Preset::Agent), Some(of_nobody(dir))),
    })
}

/// What is said where no policy was named.
fn of_nobody(dir: &Path) -> String {
    let is_inside = std::env::var_os(IN_RUN).is_some_and(|run| is_same(Path::new(&run), dir));
    let rest = match is_inside {
        true => "; the policy of the `run` around is not shown here, `tollgate why PATH` asks it",
        false => " (`tollgate init` writes one to change; `--policy none` for a view without)",
    };
    format!("no policy was named: the built-in preset `agent` holds{rest}")
}

/// Whether both paths lead to one place.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    real(one).is_some() && real(one) == real(other)
}

/// Where files are sealed, nobody in the view sees the keyring, nor the lock of who writes, nor what
/// is about to replace a file, or was replaced: rules are about the name that it has otherwise.
fn hide_keyring(policy: Policy) -> anyhow::Result<Policy> {
    if !policy.seals() {
        return Ok(policy);
    }
    let hidden = [crate::seal::IN_DIR, crate::seal::LOCK_IN_DIR, crate::seal::NEW_IN_DIR];
    let hidden = hidden.map(toml_string).join(", ");
    let name = BUILT_IN[1];
    let text = format!("[[rule]]\nname = \"{name}\"\npath = [{hidden}]\naction = \"hide\"\n");
    let rule = Policy::parse(&text, "built-in")?;
    policy
        .preceded_by(rule)
        .context("the keyring lies in a native directory, where nothing hides it")
}

/// What another view covers is not there in this one, should that view lose its mount because the
/// directory is moved outside.
fn leave_covered(policy: Policy, origin: &Origin) -> anyhow::Result<Policy> {
    let Origin::View { covered: Some(covered), .. } = origin else { return Ok(policy) };
    let covered = covered.to_str().with_context(|| {
        format!("DIR `{}` lies in a `[[view]]`, and its name is not UTF-8", shown(covered))
    })?;
    let enforced = policy.enforced();
    let enforced = enforced.as_ref().unwrap_or(&policy);
    let hides = |path: &Path| enforced.hidden(path.as_os_str().as_bytes(), Kind::Directory);
    if let Some(rule) = Path::new(covered).ancestors().find_map(hides) {
        let rule = enforced.rule(rule);
        bail!(
            "DIR `{}` does not show in the {origin}: rule `{}` (line {}) hides it",
            escaped(covered),
            escaped(rule.name()),
            rule.line()
        );
    }
    let glob = toml_string(&format!("{}/**", escape_glob(covered)));
    let text = format!("[[rule]]\nname = \"DIR\"\npath = {glob}\naction = \"deny\"\n");
    policy.preceded_by(Policy::parse(&text, "built-in")?).with_context(|| {
        format!("DIR lies in a native directory of {origin}, where nothing keeps it apart")
    })
}

/// Whether a policy may let somebody make or change something.
fn lets_change(policy: &Policy) -> bool {
    let changes = [Operation::Write, Operation::Create];
    may_answer(policy, &changes, |verdict| verdict == Verdict::Allow)
}

/// Whether a policy may refuse somebody something.
fn refuses(policy: &Policy) -> bool {
    may_answer(policy, &Operation::ALL, |verdict| verdict != Verdict::Allow)
}

/// Whether the default, or a rule about one of `operations`, but for what is only recorded, has such a
/// verdict for it.
fn may_answer(policy: &Policy, operations: &[Operation], is_such: fn(Verdict) -> bool) -> bool {
    let enforced = policy.enforced();
    let policy = enforced.as_ref().unwrap_or(policy);
    operations.iter().any(|operation| {
        let about_it = |rule: &&Rule| rule.operations().has(*operation);
        let rules = policy.rules().iter().filter(about_it).map(Rule::action);
        let mut actions = std::iter::once(policy.default_action()).chain(rules);
        actions.any(|action| is_such(action.verdict(*operation)))
    })
}

/// The globs for the names in `dir` on which it depends what the policy is.
///
/// # Errors
/// When such a name is not UTF-8.
fn own_files(origin: &Origin, dir: &Path) -> anyhow::Result<Vec<String>> {
    let files = origin.files().into_iter().map(|file| policy_places::globs(file, dir));
    Ok(files.collect::<anyhow::Result<Vec<_>>>()?.concat())
}

/// Whether no policy file can be made in DIR. The rule for that is about names, which has a price:
/// files are searched for further names at the start, and a directory in which names have several
/// spellings cannot be shown. Policies with rules about names pay it anyway, and so do those in DIR,
/// for their `own` files. Of the others, one that refuses something and lets something be made is
/// worth it, as the next start would go by what was made. Where nothing is refused there is nothing
/// to lose, and where nothing can be made nothing has to be kept.
fn keeps_everywhere(policy: &Policy, origin: &Origin, own: &[String]) -> bool {
    // Where files are sealed, the keyring is hidden.
    let protects = origin.has_views() || policy.seals() || refuses(policy);
    !own.is_empty() || policy.tells_names_apart() || protects && lets_change(policy)
}

/// Whether nobody in a view of `dir` makes or changes files of policies.
///
/// # Errors
/// When the policy lies in `dir` and its name is not UTF-8.
pub(crate) fn are_files_kept(policy: &Policy, origin: &Origin, dir: &Path) -> anyhow::Result<bool> {
    let own = own_files(origin, dir)?;
    Ok(keeps_everywhere(policy, origin, &own) || !lets_change(policy))
}

/// The policy with a rule that keeps the files of policies from being changed or made through the
/// view: who may do that would decide over the next start, also of one in a subdirectory.
fn keep(policy: Policy, origin: &Origin, dir: &Path) -> anyhow::Result<Policy> {
    let policy = leave_covered(hide_keyring(policy)?, origin)?;
    let mut inside = own_files(origin, dir)?;
    if !keeps_everywhere(&policy, origin, &inside) {
        return Ok(policy);
    }
    for place in UserConfig::places() {
        inside.extend(policy_places::globs(&place, dir)?);
    }
    inside.sort_unstable();
    inside.dedup();
    // Of what another directory of the policy holds, nothing is in force.
    let policy = match origin {
        Origin::View { .. } => policy,
        _ => policy_masked::mask(policy, &dir.join(IN_DIR), dir)?,
    };
    // A native directory, into which no rule may reach, leaves the top alone to be kept.
    let reach = if policy.native().is_empty() { "**/" } else { "" };
    inside.push(toml_string(&format!("{reach}{IN_DIR}")));
    let text = format!(
        "[[rule]]\nname = \"{}\"\npath = [{}]\noperation = [\"write\", \"create\"]\n\
         action = \"read-only\"\n",
        BUILT_IN[0],
        inside.join(", ")
    );
    let rule = Policy::parse(&text, "built-in")?;
    match policy.preceded_by(rule) {
        Some(policy) => Ok(policy),
        None => bail!(
            "policy `{origin}`, or your configuration, lies in a native directory of DIR, where \
             nothing keeps it from being changed; move it"
        ),
    }
}

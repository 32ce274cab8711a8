//! The user's configuration: which policy holds where none is named.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};

use crate::escape::shown;
use crate::messages;

/// `config.toml` in `$XDG_CONFIG_HOME/tollgate`, or in `~/.config/tollgate`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UserConfig {
    policy: Option<PathBuf>,
    #[serde(default)]
    commands: BTreeMap<String, CommandConfig>,
    /// Where it was read.
    #[serde(skip)]
    file: PathBuf,
}

/// The policy beside the configuration, which holds where that names none.
const POLICY: &str = "policy.toml";

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table such as { policy = \"agent\" }")]
struct CommandConfig {
    policy: PathBuf,
}

/// Whether the file or its directory is a link to what is not there.
fn leads_nowhere(file: &Path) -> bool {
    let is_link = |path: &Path| path.is_symlink() && !path.exists();
    is_link(file) || file.parent().is_some_and(is_link)
}

impl UserConfig {
    /// Reads the file; without one, nothing is configured.
    ///
    /// # Errors
    /// With the place of what is wrong in it.
    pub(crate) fn read() -> anyhow::Result<Self> {
        let Some(file) = Self::file() else { return Ok(Self::default()) };
        let empty = Self { file: file.clone(), ..Self::default() };
        let shown = shown(&file);
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            // What the link led to held until it went away.
            Err(error) if error.kind() == NotFound && leads_nowhere(&file) => {
                return Err(error).with_context(|| {
                    format!("configuration `{shown}` cannot be read, as a link leads nowhere")
                });
            }
            // Where the home is no directory (`HOME=/dev/null`), it cannot be there.
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(empty),
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("configuration `{shown}` cannot be read"));
            }
        };
        let config: Self = toml::from_str(&text).map_err(|error| {
            anyhow!(
                "configuration `{shown}` is wrong\n{}",
                messages::in_toml(&shown, &text, &error)
            )
        })?;
        Ok(Self { file, ..config })
    }

    fn file() -> Option<PathBuf> {
        let home = || std::env::var_os("HOME").filter(|home| !home.is_empty());
        let base = std::env::var_os("XDG_CONFIG_HOME")
            .filter(|base| Path::new(base).is_absolute())
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(home()?).join(".config")))?;
        Some(base.join("tollgate/config.toml"))
    }

    /// What decides over the next start: the directory, the file, and the policy beside it.
    pub(crate) fn places() -> Vec<PathBuf> {
        let Some(file) = Self::file() else { return Vec::new() };
        let beside = file.with_file_name(POLICY);
        file.parent().map(Path::to_owned).into_iter().chain([file, beside]).collect()
    }

    /// The policy for a command, with why.
    pub(crate) fn policy_for(&self, command: Option<&OsStr>) -> Option<(PathBuf, String)> {
        let file = shown(&self.file);
        let name = command.and_then(|command| Path::new(command).file_name()?.to_str());
        let own = name.and_then(|name| Some((name, self.commands.get(name)?)));
        if let Some((name, own)) = own {
            return Some((self.resolve(&own.policy), format!("[commands.{name}] in `{file}`")));
        }
        if let Some(policy) = &self.policy {
            return Some((self.resolve(policy), format!("`policy` in `{file}`")));
        }
        let beside = self.file.with_file_name(POLICY);
        let why = || "of your configuration".to_owned();
        // A link that leads nowhere is an error when it is read.
        let is_there = || beside.symlink_metadata().is_ok();
        (!self.file.as_os_str().is_empty() && is_there()).then(|| (beside, why()))
    }

    /// Names of presets as they are; files relative to the configuration's directory.
    fn resolve(&self, policy: &Path) -> PathBuf {
        let preset = policy
            .to_str()
            .is_some_and(|name| name == "none" || crate::presets::Preset::named(name).is_some());
        match self.file.parent() {
            Some(directory) if !preset => directory.join(policy),
            _ => policy.to_owned(),
        }
    }
}

//! git's configuration files: which there are, and the settings in them.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::syntax::{self, Setting};
use crate::files;

/// Largest file that is read, in bytes.
const MAX_LEN: u64 = 1 << 20;

/// The settings of a file, in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    settings: Vec<Setting>,
    /// Of the file, in bytes.
    len: usize,
}

impl Config {
    /// Reads a file of a repository; one that is missing, too large, or cannot be read has no settings.
    pub(crate) fn read(file: &Path) -> Self {
        Self::try_read(file).unwrap_or_default()
    }

    /// The same, with the error.
    ///
    /// # Errors
    /// As [`files::read_at_most`].
    pub(crate) fn try_read(file: &Path) -> io::Result<Self> {
        Ok(Self::parse(&files::read_at_most(file, MAX_LEN - 1)?))
    }

    /// The same of a file of the user's. One that may not be read has no settings, as for git.
    ///
    /// # Errors
    /// As [`files::read_own_at_most`], but for that.
    pub(crate) fn try_read_own(file: &Path) -> io::Result<Self> {
        match files::read_own_at_most(file, MAX_LEN - 1) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Self::default()),
            read => Ok(Self::parse(&read?)),
        }
    }

    fn parse(text: &[u8]) -> Self {
        Self { settings: syntax::parse(text), len: text.len() }
    }

    /// How long the file is, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether the file is there and too large to be read.
    pub(crate) fn is_too_large(file: &Path) -> bool {
        std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.len() >= MAX_LEN)
    }

    /// The files with what holds for every repository, there or not: the system's, the user's.
    pub(crate) fn files_of_user() -> Vec<PathBuf> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let system = variable("GIT_CONFIG_SYSTEM").unwrap_or_else(|| "/etc/gitconfig".into());
        let mut files = vec![PathBuf::from(system)];
        if let Some(named) = variable("GIT_CONFIG_GLOBAL") {
            files.push(PathBuf::from(named));
            return files;
        }
        let home = variable("HOME").map(PathBuf::from);
        let xdg = variable("XDG_CONFIG_HOME").map(PathBuf::from);
        let xdg = xdg.or_else(|| Some(home.as_ref()?.join(".config")));
        files.extend(xdg.map(|xdg| xdg.join("git/config")));
        files.extend(home.map(|home| home.join(".gitconfig")));
        files
    }

    /// The files that these settings include, under whatever condition.
    pub(crate) fn included(&self) -> impl Iterator<Item = PathBuf> {
        self.values("include.path").chain(self.values_of_any("includeif", "path")).map(pathname)
    }

    /// The directories of hooks that these settings name.
    pub(crate) fn hooks(&self) -> impl Iterator<Item = PathBuf> {
        self.values("core.hookspath").map(pathname)
    }

    /// The directories that new repositories get their hooks from.
    pub(crate) fn templates(&self) -> impl Iterator<Item = PathBuf> {
        self.values("init.templatedir").map(pathname)
    }

    /// All settings, in their order.
    pub(crate) fn settings(&self) -> impl Iterator<Item = &Setting> {
        self.settings.iter()
    }

    /// The values of `section.key` in lower case, in their order.
    pub(crate) fn values(&self, name: &str) -> impl Iterator<Item = &OsStr> {
        let (section, key) = name.split_once('.').unwrap_or((name, ""));
        let wanted = move |one: &&Setting| {
            *one.section == *section && one.subsection.is_none() && one.key == key
        };
        self.settings.iter().filter(wanted).map(|one| one.value.as_os_str())
    }

    /// The values of `key` in every subsection of `section`.
    pub(crate) fn values_of_any(&self, section: &str, key: &str) -> impl Iterator<Item = &OsStr> {
        let wanted = move |one: &&Setting| *one.section == *section && one.key == key;
        self.settings.iter().filter(wanted).map(|one| one.value.as_os_str())
    }
}

/// The path in a value, with the home directory in the place of `~`.
fn pathname(value: &OsStr) -> PathBuf {
    let value = value.as_bytes();
    let value = value.strip_prefix(b":(optional)").unwrap_or(value);
    let home: Option<OsString> = std::env::var_os("HOME");
    match (value.strip_prefix(b"~/"), home) {
        (Some(rest), Some(home)) => Path::new(&home).join(OsStr::from_bytes(rest)),
        _ => PathBuf::from(OsStr::from_bytes(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_and_bytes_that_are_not_utf8_hide_no_setting() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = b"\xef\xbb\xbf[core]\nhooksPath = h\n[user]\nname = J\xfcrgen\n";
        std::fs::write(file.path(), text).unwrap();
        assert_eq!(Config::read(file.path()).hooks().collect::<Vec<_>>(), [Path::new("h")]);
    }

    #[test]
    fn values_are_found_by_name() {
        let config = Config::parse(
            b"[core]\n\tbare = false # no\n\tHooksPath = \"a ; b\" ; c\n[submodule \"x y\"]\npath=p\n\
              [alias]\n  st = status\n[core]\nhookspath = two\n",
        );
        assert_eq!(config.values("core.hookspath").collect::<Vec<_>>(), ["a ; b", "two"]);
        assert_eq!(config.values_of_any("submodule", "path").collect::<Vec<_>>(), ["p"]);
        assert_eq!(config.values("core.bare").collect::<Vec<_>>(), ["false"]);
        assert_eq!(config.values("submodule.path").count(), 0);
    }
}

//! The arguments of `tollgate run` that say what CMD gets outside of DIR.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
pub(crate) struct FenceArgs {
    /// Whether CMD is fenced in: outside of DIR it changes nothing, and has /tmp, /run and what it
    /// writes to the home directory for itself, until it ends [default: on]
    #[arg(long, value_name = "WHEN", value_enum)]
    pub(crate) fence: Option<FenceWhen>,

    /// What CMD gets outside of DIR as it is, to read (the default) or also to change; may be
    /// repeated
    #[arg(long, value_name = "PATH[:ro|rw]")]
    pub(crate) allow: Vec<AllowArg>,

    /// The user to run CMD as, with that user's groups, or with GID alone
    #[arg(long, value_name = "NAME|UID[:GID]")]
    pub(crate) user: Option<String>,
}

/// `--fence`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FenceWhen {
    /// Always
    On,
    /// Never: CMD writes wherever its user may
    Off,
}

/// `PATH[:ro|rw]` as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllowArg {
    pub(crate) path: PathBuf,
    /// Else it is only read.
    pub(crate) writable: bool,
}

impl FromStr for AllowArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, writable) = match text.rsplit_once(':') {
            Some((path, "rw")) => (path, true),
            Some((path, "ro")) => (path, false),
            _ => (text, false),
        };
        if path.is_empty() {
            return Err("expected PATH, PATH:ro or PATH:rw".to_owned());
        }
        Ok(Self { path: path.into(), writable })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_only_unless_it_says_otherwise() {
        let parsed = |text: &str| {
            text.parse::<AllowArg>()
                .map(|arg| (arg.path.to_str().unwrap().to_owned(), arg.writable))
        };
        assert_eq!(parsed("/a"), Ok(("/a".to_owned(), false)));
        assert_eq!(parsed("/a:ro"), Ok(("/a".to_owned(), false)));
        assert_eq!(parsed("/a:rw"), Ok(("/a".to_owned(), true)));
        assert_eq!(parsed("/a:b"), Ok(("/a:b".to_owned(), false)));
        assert_eq!(parsed("/a:b:rw"), Ok(("/a:b".to_owned(), true)));
        assert!(parsed("").is_err() && parsed(":rw").is_err());
    }
}

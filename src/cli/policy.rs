//! The arguments of `tollgate check` and `tollgate explain`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use tollgate_policy::{CallerFacts, Names};

use crate::accounts::Accounts;
use crate::presets::Preset;

pub(super) const CHECK_EXAMPLES: &str = "\
Prints the warnings of a policy that can be read (exit status 0), or the file, line and column
of what is wrong (exit status 1).

Examples:
  tollgate check                   the policy that would hold here
  tollgate check policy.toml
  tollgate check --dir ~/project node
  tollgate check --dir . --json | jq .uncovered";

pub(super) const INIT_EXAMPLES: &str = "\
Examples:
  tollgate init                    .tollgate.toml with the preset that suits this repository
  tollgate init node --dir ~/web
  tollgate init agent --output -   print it";

pub(super) const TEST_EXAMPLES: &str = "\
Exit status 0 if every expectation holds, 1 if one does not. The form of the file is described in
docs/policy.md.

Example:
  tollgate test policy.tests.toml";

pub(super) const BRIEF_EXAMPLES: &str = "\
Example:
  tollgate brief >> AGENTS.md";

pub(super) const EXPLAIN_EXAMPLES: &str = "\
Rules about other paths are counted; --verbose shows them. PATH is taken from the working directory
if that lies in DIR, else from DIR. The file's kind, size and first bytes are read. Without --dir, a
PATH that is not there is taken for an empty regular file (for a directory with a slash at its end);
with --dir it is an error. What is to be made (--operation create, mkdir, symlink) need not be there.

Examples:
  tollgate explain --policy p.toml src/main.rs
  tollgate explain --policy p.toml --dir ~/project --operation write docs/a.md
  tollgate explain --policy p.toml --as uid=1000,exe=/usr/bin/node --json .env
  tollgate explain --policy node --exit-code --operation read .env config/app.json
  tollgate explain --dir ~/project --to .git/hooks scripts";

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Look at the files in DIR: how many each rule decides over, which rules match nothing, which
    /// files look like secrets and can be read, which hidden ones git tracks
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// The policy, named as for other commands
    #[arg(long = "policy", value_name = "POLICY", conflicts_with = "policy")]
    pub(crate) named: Option<PathBuf>,

    /// The policy: a file or a built-in preset; left out, the one that would hold for DIR, or for the
    /// directory that `run` would take
    pub(crate) policy: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// Replace a policy that is there
    #[arg(long)]
    pub(crate) force: bool,

    /// The directory to look at; left out, the top of the git working tree around the working
    /// directory, or that directory itself
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// Where to write; `-` prints; left out, .tollgate.toml in DIR
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Print what was found as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// The preset to begin with; left out, the one that suits DIR
    #[arg(value_enum)]
    pub(crate) preset: Option<Preset>,
}

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// The file with the tests; left out, .tollgate.tests.toml of the working directory
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct BriefArgs {
    /// The policy: a file or a built-in preset; left out, the one that would hold for DIR
    #[arg(long, short, value_name = "POLICY")]
    pub(crate) policy: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// The directory; left out, $TOLLGATE_RUN, or the top of the git working tree around the
    /// working directory, or that directory itself
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The policy: a file, a built-in preset or `none`; left out, the one that would hold for DIR
    #[arg(long, short, value_name = "POLICY")]
    pub(crate) policy: Option<PathBuf>,

    /// End with status 3 if something that was asked about is refused
    #[arg(long)]
    pub(crate) exit_code: bool,

    /// The directory that PATH is in; left out, the git working tree around the working directory,
    /// or that directory itself
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// Only this operation; left out, all four
    #[arg(long, value_name = "OPERATION", value_enum)]
    pub(crate) operation: Option<OperationArg>,

    /// What moving PATH gets, if NEW is to be its name: of a directory with all that is in it
    #[arg(long, value_name = "NEW", conflicts_with = "operation")]
    pub(crate) to: Option<OsString>,

    /// Who asks: uid=USER, gid=GROUP, exe=PATH, separated by commas, users and groups by name or
    /// number, symbolic links of PATH followed; left out, you, without a program
    #[arg(long = "as", value_name = "WHO", value_parser = caller)]
    pub(crate) caller: Option<CallerArg>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// The paths to explain, relative to DIR, or to the working directory if it lies in DIR
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
}

/// The operations that a policy distinguishes, and two that make something that is no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OperationArg {
    /// Open for reading, execute, read a link or an extended attribute
    Read,
    /// Open for writing, truncate, change attributes, remove or rename a name
    Write,
    /// Make a name
    Create,
    /// List a directory
    List,
    /// Make a directory
    Mkdir,
    /// Make a symbolic link
    Symlink,
}

/// The caller named by `--as`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallerArg {
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) exe: Option<String>,
}

impl CallerArg {
    /// What a policy asks of a caller; you, where nothing was given.
    pub(crate) fn facts(&self) -> CallerFacts<'_> {
        CallerFacts {
            uid: self.uid.unwrap_or_else(|| rustix::process::getuid().as_raw()),
            gid: self.gid.unwrap_or_else(|| rustix::process::getgid().as_raw()),
            exe: self.exe.as_deref().map(str::as_bytes),
        }
    }
}

pub(crate) fn caller(text: &str) -> Result<CallerArg, String> {
    let mut caller = CallerArg::default();
    for part in text.split(',') {
        let is_given = match part.split_once('=') {
            Some(("uid", _)) => caller.uid.is_some(),
            Some(("gid", _)) => caller.gid.is_some(),
            Some(("exe", _)) => caller.exe.is_some(),
            _ => false,
        };
        if is_given {
            return Err(format!("`{part}`: a caller has one of it, and it is given twice"));
        }
        match part.split_once('=') {
            Some(("uid", who)) => caller.uid = Some(id("uid", who, Accounts.user(who))?),
            Some(("gid", who)) => caller.gid = Some(id("gid", who, Accounts.group(who))?),
            Some(("exe", path)) if path.starts_with('/') => caller.exe = Some(path.to_owned()),
            Some(("exe", path)) => return Err(format!("exe=`{path}` is not an absolute path")),
            _ => return Err(format!("`{part}` is none of uid=USER, gid=GROUP, exe=PATH")),
        }
    }
    Ok(caller)
}

fn id(what: &str, text: &str, named: Option<u32>) -> Result<u32, String> {
    text.parse().ok().or(named).ok_or_else(|| {
        format!(
            "{what}=`{text}` is no name that is known here, nor a number from 0 to {}",
            u32::MAX
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_read_part_by_part() {
        let parsed = caller("uid=5,exe=/bin/a=b").unwrap();
        let expected = CallerArg { uid: Some(5), gid: None, exe: Some("/bin/a=b".to_owned()) };
        assert_eq!(parsed, expected);
        assert!(caller("uid=-1").unwrap_err().contains("uid=`-1`"));
        assert!(caller("exe=node").unwrap_err().contains("absolute"));
        assert!(caller("pid=1").unwrap_err().contains("`pid=1`"));
        assert!(caller("").is_err());
        assert!(caller("uid=1,gid=1,uid=2").unwrap_err().contains("`uid=2`: a caller has one"));
    }
}

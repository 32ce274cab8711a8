//! Who is compared: the bare directory, Tollgate in each of its ways, other servers.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::options::TreeOptions;
use super::user::{LATENCY, User};
use crate::mounts::{Launcher, Server, threads};

/// The bare directory.
pub(super) const BARE: &str = "bare";
/// Tollgate as a user gets it, without any option.
pub(super) const TOLLGATE: &str = "tollgate";
/// Tollgate with the CPUs left to halt.
pub(super) const NOT_AWAKE: &str = "tollgate keep-awake off";
/// Tollgate as an ordinary user has it, with the broker. Programs in this column are the user's, too.
pub(super) const USER: &str = "tollgate user";
/// The same user as a member of the group that may write [`LATENCY`]. Measured if it is named.
pub(super) const USER_AWAKE: &str = "tollgate user awake";
/// The minimal server on the `fuser` crate.
pub(super) const PEER: &str = "fuser peer";

/// Whether the kernel serves FUSE over io_uring: `Y` or `N`.
const URING_PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// One column: its name, and how its server is started.
#[derive(Debug, Clone)]
pub(super) struct Contestant {
    pub(super) name: String,
    how: How,
}

#[derive(Debug, Clone)]
enum How {
    Bare,
    Tollgate { binary: PathBuf, arguments: Vec<String> },
    User { binary: PathBuf, arguments: Vec<String>, awake: bool },
    Peer,
    Other { command: Vec<String> },
}

impl Contestant {
    fn new(name: &str, how: How) -> Contestant {
        Contestant { name: name.to_owned(), how }
    }

    /// Whether this is Tollgate, in whatever way.
    pub(super) fn is_tollgate(&self) -> bool {
        matches!(self.how, How::Tollgate { .. } | How::User { .. })
    }

    /// Whether its mounts have a policy already, beside which there can be no other.
    pub(super) fn has_policy(&self) -> bool {
        let (How::Tollgate { arguments, .. } | How::User { arguments, .. }) = &self.how else {
            return false;
        };
        arguments.iter().any(|argument| argument.starts_with("--policy"))
    }

    /// Whether server and programs are an ordinary user's.
    pub(super) fn is_of_user(&self) -> bool {
        matches!(self.how, How::User { .. })
    }

    /// Whether that user may keep CPUs awake as root does.
    pub(super) fn is_awake(&self) -> bool {
        matches!(self.how, How::User { awake: true, .. })
    }

    /// Whether this is the bare directory, which has no server.
    pub(super) fn is_bare(&self) -> bool {
        matches!(self.how, How::Bare)
    }

    /// The `tollgate` binary of this column.
    pub(super) fn binary(&self) -> Option<&Path> {
        match &self.how {
            How::Tollgate { binary, .. } | How::User { binary, .. } => Some(binary),
            How::Bare | How::Peer | How::Other { .. } => None,
        }
    }

    /// Mounts a view of `lower`, as `user` if it is a user's; `None` for the bare directory.
    /// `further` are more arguments for `tollgate mount`.
    ///
    /// # Errors
    /// If nothing is mounted, with what the server said.
    pub(super) fn start(
        &self,
        lower: &Path,
        mount_point: &Path,
        user: Option<&User>,
        further: &[OsString],
    ) -> Result<Option<Server>> {
        let server = match &self.how {
            How::Bare => return Ok(None),
            How::Tollgate { binary, arguments } => {
                let mut command = Command::new(binary);
                command
                    .env("TOLLGATE_POLICY", "none")
                    .arg("mount")
                    .args(arguments)
                    .args(further)
                    .arg(lower);
                Server::start(command, mount_point)?
            }
            How::User { arguments, .. } => {
                let user = user.context("there is no user")?;
                user.mount(arguments, lower, mount_point, further)?
            }
            How::Peer => Launcher::peer(threads(), lower, mount_point)?,
            How::Other { command } => {
                let mut program = Command::new(&command[0]);
                program.args(&command[1..]).arg(lower);
                Server::start(program, mount_point)?
            }
        };
        Ok(Some(server))
    }
}

/// The columns of this run: those that this build of `tollgate` and this kernel have, then those
/// that the options add, of which `--columns` picks.
///
/// # Errors
/// If there is no `tollgate` binary, an option names what there is not, or two columns have one name.
pub(super) fn select(options: &TreeOptions, notes: &mut Vec<String>) -> Result<Vec<Contestant>> {
    let launcher = Launcher::new()?;
    let mut all = known(launcher.binary(), notes)?;
    for added in &options.add {
        all.push(parse_added(added, launcher.binary())?);
    }
    for added in &options.add_user {
        let added = parse_added(added, launcher.binary())?;
        let How::Tollgate { binary, arguments } = added.how else { continue };
        all.push(Contestant::new(&added.name, How::User { binary, arguments, awake: false }));
    }
    for server in &options.server {
        let (name, command) = named(server)?;
        all.push(Contestant::new(name, How::Other { command }));
    }
    pick(all, &options.columns)
}

/// Those of `all` that `columns` names, all but one if it names none.
fn pick(mut all: Vec<Contestant>, columns: &[String]) -> Result<Vec<Contestant>> {
    // Figures are kept by name, and files in a directory that is named after the column.
    for (at, one) in all.iter().enumerate() {
        let alike = all[..at].iter().find(|other| work_name(&other.name) == work_name(&one.name));
        if let Some(other) = alike {
            bail!("column {:?} has the name of another one, {:?}", one.name, other.name);
        }
    }
    for (at, wanted) in columns.iter().enumerate() {
        ensure!(!columns[..at].contains(wanted), "--columns names {wanted:?} twice");
    }
    if columns.is_empty() {
        all.retain(|contestant| !contestant.is_awake());
        return Ok(all);
    }
    let names: Vec<_> = all.iter().map(|c| c.name.clone()).collect();
    let mut picked = vec![Contestant::new(BARE, How::Bare)];
    for wanted in columns.iter().filter(|wanted| *wanted != BARE) {
        match all.iter().find(|c| c.name == *wanted) {
            Some(found) => picked.push(found.clone()),
            None => bail!("there is no column {wanted:?}; there are: {}", names.join(", ")),
        }
    }
    Ok(picked)
}

/// The name of the directory of a column.
pub(super) fn work_name(column: &str) -> String {
    format!("work-{}", column.replace([' ', '/'], "-"))
}

fn known(binary: &Path, notes: &mut Vec<String>) -> Result<Vec<Contestant>> {
    let help = Command::new(binary).args(["mount", "--help"]).output();
    let help = help.with_context(|| format!("cannot run {}", binary.display()))?.stdout;
    let help = String::from_utf8_lossy(&help).into_owned();
    let ours = |name: &str, arguments: &[&str]| {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Contestant::new(name, How::Tollgate { binary: binary.to_owned(), arguments })
    };
    let mut all = vec![Contestant::new(BARE, How::Bare), ours(TOLLGATE, &[])];
    if help.contains("--transport") {
        all.push(ours("tollgate devfuse", &["--transport", "devfuse"]));
        if std::fs::read_to_string(URING_PARAMETER).is_ok_and(|text| text.trim() == "Y") {
            all.push(ours("tollgate uring", &["--transport", "uring"]));
        } else {
            notes.push(format!(
                "tollgate uring: not measured: switch it on with `echo Y > {URING_PARAMETER}`."
            ));
        }
    }
    if help.contains("--keep-awake") {
        all.push(ours(NOT_AWAKE, &["--keep-awake", "off"]));
    }
    if help.contains("--broker") {
        let user = |awake| How::User { binary: binary.to_owned(), arguments: Vec::new(), awake };
        all.push(Contestant::new(USER, user(false)));
        if Path::new(LATENCY).exists() {
            all.push(Contestant::new(USER_AWAKE, user(true)));
        }
    }
    all.push(Contestant::new(PEER, How::Peer));
    Ok(all)
}

fn parse_added(text: &str, default: &Path) -> Result<Contestant> {
    let (name, mut arguments) = named(text)?;
    let mut binary = default.to_owned();
    if arguments.first().is_some_and(|word| word.contains('/') && !word.starts_with('-')) {
        binary = PathBuf::from(arguments.remove(0));
        ensure!(binary.is_file(), "--add {text}: there is no file {}", binary.display());
    }
    Ok(Contestant::new(name, How::Tollgate { binary, arguments }))
}

/// `NAME=WORDS`.
fn named(text: &str) -> Result<(&str, Vec<String>)> {
    let (name, words) = text.split_once('=').with_context(|| format!("`{text}`: no `NAME=`"))?;
    let words: Vec<_> = words.split_whitespace().map(str::to_owned).collect();
    ensure!(!name.is_empty() && !words.is_empty(), "`{text}`: NAME=WORDS is wanted");
    Ok((name, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_columns_of_one_name_are_refused() {
        let all = |added: &[&str]| {
            let added = added.iter().map(|text| parse_added(text, Path::new("/bin/sh")).unwrap());
            let mut all = vec![Contestant::new(BARE, How::Bare), Contestant::new(PEER, How::Peer)];
            all.extend(added);
            all
        };
        let picked = |columns: &[&str], added: &[&str]| {
            let columns: Vec<_> = columns.iter().map(|&name| name.to_owned()).collect();
            pick(all(added), &columns)
                .map(|all| all.into_iter().map(|one| one.name).collect::<Vec<_>>())
                .map_err(|error| error.to_string())
        };
        assert_eq!(picked(&[], &["a=x", "b=x"]).unwrap(), [BARE, PEER, "a", "b"]);
        assert_eq!(picked(&["b", BARE], &["a=x", "b=x"]).unwrap(), [BARE, "b"]);
        for added in [&["a=x", "a=y"][..], &["bare=x"], &["a b=x", "a-b=x"], &["fuser/peer=x"]] {
            let name = added[added.len() - 1].split_once('=').unwrap().0;
            let error = picked(&[], added).unwrap_err();
            assert!(error.contains(&format!("{name:?}")), "{added:?}: {error}");
        }
        let error = picked(&["a", "a"], &["a=x"]).unwrap_err();
        assert!(error.contains("names \"a\" twice"), "{error}");
    }

    #[test]
    fn an_added_column_may_name_its_own_binary() {
        let ours = parse_added("slow=--attr-timeout 0", Path::new("/bin/sh")).expect("well formed");
        assert_eq!((ours.name.as_str(), ours.binary()), ("slow", Some(Path::new("/bin/sh"))));
        let other = parse_added("old=/bin/ls --threads 1", Path::new("/bin/sh")).expect("exists");
        assert_eq!(other.binary(), Some(Path::new("/bin/ls")));
        for wrong in ["", "x", "=a", "x=", "old=/no/such/file"] {
            assert!(parse_added(wrong, Path::new("/bin/sh")).is_err(), "{wrong:?}");
        }
    }
}

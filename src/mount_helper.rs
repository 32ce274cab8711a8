//! The program under the names `mount.fuse.tollgate` and `umount.fuse.tollgate`, by which mount(8)
//! and umount(8) look for helpers: their arguments as those of `tollgate mount` and `umount`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use anyhow::{Context, bail};
use clap::CommandFactory;

use crate::cli::Cli;

/// The start of the name for a helper of mount(8).
const MOUNT: &str = "mount.";
/// The start of the name for a helper of umount(8).
const UMOUNT: &str = "umount.";

/// Options that are for mount(8), fstab(5) and systemd, or hold for every view anyway.
const WITHOUT_EFFECT: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nosuid",
    "nodev",
    "async",
    "exec",
    "rw",
    "atime",
    "relatime",
    "diratime",
    "nodiratime",
    "lazytime",
    "nolazytime",
    "nomand",
    "silent",
    "loud",
    "default_permissions",
    "comment",
];
/// Options that a view cannot have, and why.
const IMPOSSIBLE: &[(&str, &str)] = &[
    ("suid", "a view never has set-user-id programs"),
    ("dev", "a view never has device nodes"),
    ("remount", "a view's options are fixed: unmount it and mount it again"),
    ("bind", "a view is no bind mount"),
    ("rbind", "a view is no bind mount"),
    ("sync", "writes are as synchronous as on the file system of DIR"),
    ("dirsync", "writes are as synchronous as on the file system of DIR"),
    ("strictatime", "access times go by the file system of DIR"),
    ("nosymfollow", "programs follow the symbolic links of a view as those of DIR"),
    ("iversion", "the kernel counts no changes of a view's files"),
    ("mand", "Linux has no mandatory locks any more"),
];
/// Arguments that are named as fstab(5) names them.
const IN_WORDS_OF_FSTAB: &[&str] = &["read-only", "noexec", "noatime"];
/// Arguments of `tollgate mount` that are no options of a mount.
const NOT_OPTIONS: &[&str] = &["daemon", "fake", "help", "verbose", "allow-other"];

/// The command line that stands for `arguments`, if the program was called as a helper.
pub(crate) fn command_line(arguments: &[OsString]) -> Option<anyhow::Result<Vec<OsString>>> {
    let (name, arguments) = arguments.split_first()?;
    let name = Path::new(name).file_name()?.to_str()?;
    if name.starts_with(MOUNT) {
        Some(mount(arguments))
    } else if name.starts_with(UMOUNT) {
        Some(umount(arguments))
    } else {
        None
    }
}

/// An error about arguments of `tollgate mount`, in the words of mount options: without usage, and
/// `--audit-level` as `audit_level`.
pub(crate) fn in_words_of_options(text: &str) -> String {
    let about = text.split("\n\nUsage:").next().unwrap_or_default();
    let mut known = long_arguments();
    // `audit` begins like `audit_level`.
    known.sort_by_key(|(long, _)| std::cmp::Reverse(long.len()));
    known.iter().fold(about.trim_end().to_owned(), |text, (long, _)| {
        let option = long.replace('-', "_");
        let text = text.replace(&format!("--{long} <"), &format!("{option}=<"));
        text.replace(&format!("--{long}"), &option)
    })
}

/// `mount.TYPE SPEC DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`, see mount(8).
fn mount(arguments: &[OsString]) -> anyhow::Result<Vec<OsString>> {
    let given = Given::read(arguments)?;
    let [source, mnt] = &given.places[..] else {
        bail!("expected DIR and MNT, as in `mount -t fuse.tollgate DIR MNT`");
    };
    let mut line: Vec<OsString> = ["tollgate", "mount", "--daemon"].map(OsString::from).to_vec();
    if given.fake_or_force {
        line.push("--fake".into());
    }
    let mut flags = Flags { source: source.clone(), ..Flags::default() };
    for option in split(given.options.as_bytes()) {
        line.extend(flags.take(&option)?);
    }
    line.extend(flags.arguments());
    line.extend(["--".into(), source.clone(), mnt.clone()]);
    Ok(line)
}

/// `umount.TYPE MNT [-flnrv] [-N NAMESPACE] [-t TYPE]`, see umount(8).
fn umount(arguments: &[OsString]) -> anyhow::Result<Vec<OsString>> {
    let given = Given::read(arguments)?;
    let [mnt] = &given.places[..] else { bail!("expected MNT alone, as in `umount MNT`") };
    let mut line: Vec<OsString> = ["tollgate", "umount"].map(OsString::from).to_vec();
    // Detaching ends what waits for a dead server, which is what force is for.
    if given.lazy || given.fake_or_force {
        line.push("--lazy".into());
    }
    line.extend(["--".into(), mnt.clone()]);
    Ok(line)
}

/// A helper's arguments, taken apart.
#[derive(Debug, Default)]
struct Given {
    places: Vec<OsString>,
    /// All that `-o` gave, joined by commas.
    options: OsString,
    lazy: bool,
    /// `-f`, which is `--fake` of mount(8) and `--force` of umount(8).
    fake_or_force: bool,
}

impl Given {
    fn read(arguments: &[OsString]) -> anyhow::Result<Self> {
        let mut given = Self::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().with_context(|| format!("{argument:?} has no value"));
            match argument.to_str() {
                Some("-o") => {
                    given.options.push(value()?);
                    given.options.push(",");
                }
                Some("-t") => drop(value()?),
                Some("-N") => bail!("-N is not supported: enter the namespace with nsenter(1)"),
                Some("-l") => given.lazy = true,
                Some("-f") => given.fake_or_force = true,
                Some("-s" | "-n" | "-v" | "-r") => {}
                Some(flag) if flag.starts_with('-') => bail!("`{flag}` is not known"),
                _ => given.places.push(argument.clone()),
            }
        }
        Ok(given)
    }
}

/// What fstab(5) has other names for. Of several that contradict each other, the last one holds.
#[derive(Debug, Default)]
struct Flags {
    source: OsString,
    read_only: bool,
    noexec: bool,
    noatime: bool,
    allow_other: Option<bool>,
}

impl Flags {
    /// Takes note of an option, or answers the argument that stands for it.
    fn take(&mut self, option: &[u8]) -> anyhow::Result<Option<OsString>> {
        let equals = option.iter().position(|byte| *byte == b'=').unwrap_or(option.len());
        let (name, value) = (&option[..equals], option.get(equals + 1..));
        let shown = String::from_utf8_lossy(option);
        let name = std::str::from_utf8(name)
            .with_context(|| format!("mount option `{shown}` is not UTF-8"))?;
        match (name, value) {
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("noexec", None) => self.noexec = true,
            ("exec", None) => self.noexec = false,
            ("noatime", None) => self.noatime = true,
            ("atime" | "relatime", None) => self.noatime = false,
            ("allow_other", None) => self.allow_other = Some(true),
            ("noallow_other", None) => self.allow_other = Some(false),
            ("source" | "fsname", Some(value)) => self.source = OsString::from_vec(value.to_vec()),
            (name, _) if name.starts_with("x-") || name.starts_with("X-") => {}
            (name, _) if WITHOUT_EFFECT.contains(&name) => {}
            (name, value) => return argument(name, value, &shown).map(Some),
        }
        Ok(None)
    }

    fn arguments(self) -> Vec<OsString> {
        let mut line = vec![with_value("source", self.source.as_bytes())];
        let mut flag = |on: bool, argument: &str| {
            if on {
                line.push(argument.into());
            }
        };
        flag(self.read_only, "--read-only");
        flag(self.noexec, "--noexec");
        flag(self.noatime, "--noatime");
        flag(self.allow_other == Some(true), "--allow-other=on");
        flag(self.allow_other == Some(false), "--allow-other=off");
        line
    }
}

/// The argument of `tollgate mount` that an option names.
fn argument(name: &str, value: Option<&[u8]>, shown: &str) -> anyhow::Result<OsString> {
    if let Some((_, why)) = IMPOSSIBLE.iter().find(|(impossible, _)| *impossible == name) {
        bail!("mount option `{shown}` is not possible: {why}");
    }
    let known = long_arguments();
    let long = name.replace('_', "-");
    let Some((_, takes_value)) = known.iter().find(|(known, _)| *known == long) else {
        let others = known.iter().filter(|(name, _)| !IN_WORDS_OF_FSTAB.contains(&name.as_str()));
        let names: Vec<_> = others.map(|(name, _)| name.replace('-', "_")).collect();
        bail!(
            "mount option `{shown}` is not known; there are ro, noexec, noatime, allow_other, {}, \
             and those of mount(8) and systemd.mount(5)",
            names.join(", ")
        );
    };
    match (takes_value, value) {
        (true, Some(value)) => Ok(with_value(&long, value)),
        (false, None) => Ok(format!("--{long}").into()),
        (true, None) => bail!("mount option `{shown}` has no value: `{name}=VALUE`"),
        (false, Some(_)) => bail!("mount option `{shown}` takes no value: `{name}`"),
    }
}

/// The long arguments of `tollgate mount`, and whether each takes a value.
fn long_arguments() -> Vec<(String, bool)> {
    let mut cli = Cli::command();
    cli.build();
    let mount = cli.find_subcommand("mount");
    let arguments = mount.into_iter().flat_map(clap::Command::get_arguments);
    let named = arguments.filter_map(|argument| {
        Some((argument.get_long()?.to_owned(), argument.get_action().takes_values()))
    });
    named.filter(|(name, _)| !NOT_OPTIONS.contains(&name.as_str())).collect()
}

fn with_value(long: &str, value: &[u8]) -> OsString {
    let mut argument = OsString::from(format!("--{long}="));
    argument.push(OsStr::from_bytes(value));
    argument
}

/// Options between commas; a comma within double quotes is part of a value.
fn split(text: &[u8]) -> Vec<Vec<u8>> {
    let mut options = vec![Vec::new()];
    let mut quoted = false;
    for &byte in text {
        match (byte, options.last_mut()) {
            (b'"', _) => quoted = !quoted,
            (b',', _) if !quoted => options.push(Vec::new()),
            (byte, Some(option)) => option.push(byte),
            (_, None) => {}
        }
    }
    options.retain(|option| !option.is_empty());
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(arguments: &[&str]) -> Result<String, String> {
        let arguments: Vec<_> = arguments.iter().map(OsString::from).collect();
        let line =
            command_line(&arguments).expect("a helper").map_err(|error| error.to_string())?;
        Ok(line.join(OsStr::new(" ")).into_string().unwrap())
    }

    fn with_options(options: &str) -> Result<String, String> {
        line(&["/sbin/mount.fuse.tollgate", "/d", "/m", "-o", options])
    }

    #[test]
    fn other_names_are_no_helpers() {
        for name in ["tollgate", "/usr/bin/tollgate", "./mount"] {
            assert!(command_line(&[name.into(), "/d".into()]).is_none(), "{name}");
        }
        assert!(command_line(&[]).is_none());
    }

    #[test]
    fn options_become_arguments() {
        assert_eq!(with_options("rw").unwrap(), "tollgate mount --daemon --source=/d -- /d /m");
        let all = "ro,noexec,noatime,allow_other,source=x y,policy=\"/p,1\",audit_level=all,nofail,\
                   x-systemd.automount";
        assert_eq!(
            with_options(all).unwrap(),
            "tollgate mount --daemon --policy=/p,1 --audit-level=all --source=x y --read-only \
             --noexec --noatime --allow-other=on -- /d /m"
        );
        assert!(!with_options("ro,rw,noexec,exec").unwrap().contains("read-only"));
    }

    #[test]
    fn a_fake_mount_only_checks() {
        assert_eq!(
            line(&["mount.fuse.tollgate", "/d", "/m", "-f", "-o", "rw"]).unwrap(),
            "tollgate mount --daemon --fake --source=/d -- /d /m"
        );
        assert!(with_options("fake").unwrap_err().contains("`fake` is not known"));
    }

    #[test]
    fn a_wrong_option_is_named_with_what_would_be_right() {
        for (options, named) in [
            ("polcy=/p", "`polcy=/p` is not known; there are ro"),
            ("policy", "`policy` has no value: `policy=VALUE`"),
            ("ro=1", "`ro=1` is not known"),
            ("suid", "`suid` is not possible"),
            ("remount", "unmount it and mount it again"),
            ("daemon", "`daemon` is not known"),
            ("verbose", "`verbose` is not known"),
        ] {
            let error = with_options(options).unwrap_err();
            assert!(error.contains(named), "{options}: {error}");
        }
        assert!(line(&["mount.fuse.tollgate", "/d"]).unwrap_err().contains("DIR and MNT"));
        assert!(line(&["mount.fuse.tollgate", "/d", "/m", "-o"]).unwrap_err().contains("-o"));
    }

    #[test]
    fn errors_about_arguments_name_options() {
        let said = "error: invalid value 'x' for '--audit-level <LEVEL>'\n\nUsage: tollgate";
        assert_eq!(in_words_of_options(said), "error: invalid value 'x' for 'audit_level=<LEVEL>'");
    }

    #[test]
    fn umount_takes_its_flags() {
        assert_eq!(
            line(&["umount.fuse.tollgate", "/m", "-l", "-t", "fuse.tollgate"]).unwrap(),
            "tollgate umount --lazy -- /m"
        );
        assert_eq!(
            line(&["umount.fuse.tollgate", "/m", "-f"]).unwrap(),
            "tollgate umount --lazy -- /m"
        );
        assert!(line(&["umount.fuse.tollgate"]).is_err());
    }
}

//! The environment of CMD: without what looks like a secret, and without the addresses of services
//! that the fence hides.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::secrets::is_secret;
use crate::cli::EnvArg;

/// Where a service listens that acts for the user: hidden, so the names lead nowhere.
const SERVICES: &[&str] = &[
    "SSH_AUTH_SOCK",
    "SSH_AGENT_PID",
    "GPG_AGENT_INFO",
    "GNOME_KEYRING_CONTROL",
    "KEYRING_CONTROL",
    "DBUS_SESSION_BUS_ADDRESS",
    "DBUS_SYSTEM_BUS_ADDRESS",
    "DBUS_STARTER_ADDRESS",
    "SESSION_MANAGER",
    "TMUX",
    "STY",
    "SWAYSOCK",
    "I3SOCK",
    "KITTY_LISTEN_ON",
    "NVIM",
    "NVIM_LISTEN_ADDRESS",
    "EMACS_SERVER_FILE",
    "VSCODE_IPC_HOOK",
    "VSCODE_IPC_HOOK_CLI",
    "VSCODE_GIT_IPC_HANDLE",
    "VSCODE_GIT_ASKPASS_MAIN",
    "GIT_ASKPASS",
    "SSH_ASKPASS",
    "SUDO_ASKPASS",
    "DOCKER_HOST",
    "CONTAINER_HOST",
    "PODMAN_HOST",
    "CONTAINERD_ADDRESS",
    "NOTIFY_SOCKET",
    "LISTEN_FDS",
    "LISTEN_PID",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
];

/// What an agent is given of its own: its key, without which it does not start.
const OF_AGENTS: &[(&str, &[&str])] = &[
    ("claude", &["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"]),
    ("codex", &["OPENAI_API_KEY"]),
    ("gemini", &["GEMINI_API_KEY", "GOOGLE_API_KEY"]),
    ("aider", &["OPENAI_API_KEY", "ANTHROPIC_API_KEY"]),
    ("goose", &["OPENAI_API_KEY", "ANTHROPIC_API_KEY"]),
    ("opencode", &["OPENAI_API_KEY", "ANTHROPIC_API_KEY"]),
];

/// What CMD's environment has less and more than that of `tollgate`.
#[derive(Clone, Debug, Default)]
pub(super) struct Environment {
    /// Looks like a secret.
    pub(super) secrets: Vec<OsString>,
    /// Leads to what is hidden.
    services: Vec<OsString>,
    /// Set in their place, or besides.
    pub(super) set: Vec<(OsString, OsString)>,
    /// Were to be passed on, and are not set.
    unset: Vec<OsString>,
}

impl Environment {
    /// Of a CMD with a fence around it. `shown` are paths that it does get.
    pub(super) fn fenced(args: &[EnvArg], command: Option<&OsStr>, shown: &[&Path]) -> Self {
        Self::of(std::env::vars_os().collect(), args, command, shown)
    }

    /// Of a CMD without a fence.
    pub(super) fn open(args: &[EnvArg]) -> Self {
        let all = std::env::vars_os().collect::<Vec<_>>();
        Self { set: named(args), unset: unset(args, &all), ..Self::default() }
    }

    fn of(
        all: Vec<(OsString, OsString)>,
        args: &[EnvArg],
        command: Option<&OsStr>,
        shown: &[&Path],
    ) -> Self {
        let own = of_agent(command);
        let kept = |name: &OsStr| {
            args.iter().any(|arg| arg.name == *name) || own.iter().any(|own| *name == **own)
        };
        let unset = unset(args, &all);
        let runtime_dir = all.iter().find(|(name, _)| name == "XDG_RUNTIME_DIR");
        let runtime_dir = runtime_dir.map(|(_, value)| PathBuf::from(value)).unwrap_or_default();
        let mut environment = Self { set: named(args), unset, ..Self::default() };
        for (name, value) in all.into_iter().filter(|(name, _)| !kept(name)) {
            let (text, lossy) = (name.to_string_lossy().into_owned(), value.to_string_lossy());
            if SERVICES.contains(&text.as_str()) {
                // libwayland takes a name alone as one in this directory.
                let is_in = (text == "WAYLAND_DISPLAY").then_some(&runtime_dir);
                let value = is_in.map_or(value.clone(), |dir| dir.join(&value).into());
                if !paths_in(&value).any(|path| is_below(path, shown)) {
                    environment.services.push(name);
                }
            } else if is_secret(&text, &lossy) {
                environment.secrets.push(name);
            }
        }
        environment.secrets.sort();
        environment
    }

    /// Names that CMD does not get.
    pub(super) fn dropped(&self) -> impl Iterator<Item = &OsString> {
        self.secrets.iter().chain(&self.services)
    }

    /// What is said of it before CMD starts; never a value.
    pub(super) fn told(&self) -> Vec<String> {
        let secrets = list(&self.secrets).map(|names| {
            format!(
                "CMD does not get these variables, which look like secrets: {names}; `--env NAME` \
                 passes one on"
            )
        });
        secrets.into_iter().collect()
    }

    /// What was asked for and cannot be had.
    pub(super) fn missing(&self) -> Option<String> {
        list(&self.unset).map(|names| {
            format!(
                "--env: not set here, so CMD does not get it: {names}; `--env NAME=VALUE` sets it"
            )
        })
    }
}

/// The paths that the address of a service names: alone, behind `unix:` or `unix://`, or as
/// `unix:path=PATH,KEY=VALUE;...` of D-Bus. Tmux has two numbers behind its path.
fn paths_in(address: &OsStr) -> impl Iterator<Item = &Path> {
    let parts = address.as_bytes().split(|byte| matches!(byte, b',' | b';'));
    let paths = parts.map(|part| {
        let part = part.strip_prefix(b"unix:").unwrap_or(part);
        let named = part.strip_prefix(b"path=").or_else(|| part.strip_prefix(b"//"));
        named.unwrap_or(part)
    });
    // A path may hold such a byte itself.
    let all = std::iter::once(address.as_bytes()).chain(paths);
    all.map(|path| Path::new(OsStr::from_bytes(path))).filter(|path| path.is_absolute())
}

/// Whether `path` lies at or below one of `shown`, which have no symbolic links in them.
fn is_below(path: &Path, shown: &[&Path]) -> bool {
    let lies = |path: &Path| shown.iter().any(|shown| path.starts_with(shown));
    let by_links = || std::fs::canonicalize(path).is_ok_and(|real| lies(&real));
    !shown.is_empty() && (lies(path) || by_links())
}

fn list(names: &[OsString]) -> Option<String> {
    let names: Vec<_> = names.iter().map(|name| name.to_string_lossy()).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// What was to be passed on from `all`, and is not there.
fn unset(args: &[EnvArg], all: &[(OsString, OsString)]) -> Vec<OsString> {
    let is_set = |name: &OsString| all.iter().any(|(other, _)| other == name);
    let without = args.iter().filter(|arg| arg.value.is_none() && !is_set(&arg.name));
    without.map(|arg| arg.name.clone()).collect()
}

fn named(args: &[EnvArg]) -> Vec<(OsString, OsString)> {
    args.iter().filter_map(|arg| Some((arg.name.clone(), arg.value.clone()?))).collect()
}

fn of_agent(command: Option<&OsStr>) -> &'static [&'static str] {
    let name = command.and_then(|command| Path::new(command).file_name()?.to_str());
    OF_AGENTS.iter().find(|(agent, _)| Some(*agent) == name).map_or(&[], |(_, names)| names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(all: &[(&str, &str)], args: &[&str], command: &str, shown: &[&str]) -> Environment {
        let all = all.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let args: Vec<EnvArg> = args.iter().map(|arg| arg.parse().unwrap()).collect();
        let shown: Vec<_> = shown.iter().map(Path::new).collect();
        Environment::of(all, &args, Some(OsStr::new(command)), &shown)
    }

    #[test]
    fn what_is_named_is_kept_or_set_and_the_rest_dropped() {
        let all = [("A_TOKEN", "1"), ("B_TOKEN", "2"), ("C_TOKEN", "3"), ("LANG", "C")];
        let environment = of(&all, &["B_TOKEN", "C_TOKEN=new", "D=x=y"], "sh", &[]);
        assert_eq!(environment.secrets, ["A_TOKEN"]);
        let set = [("C_TOKEN".into(), "new".into()), ("D".into(), "x=y".into())];
        assert_eq!(environment.set, set);
        let told = environment.told();
        assert!(told.len() == 1 && told[0].contains("A_TOKEN"), "{told:?}");
        assert!(!told[0].contains("B_TOKEN"), "{told:?}");
        let missing = of(&all, &["NOT_SET"], "sh", &[]).missing();
        assert!(missing.as_ref().is_some_and(|text| text.contains("NOT_SET")), "{missing:?}");
    }

    #[test]
    fn services_are_dropped_unless_their_socket_is_shown() {
        let all = [("SSH_AUTH_SOCK", "/run/agent/s"), ("TMUX", "/tmp/tmux-0/default,1,0")];
        let names = |shown: &[&str]| -> Vec<OsString> {
            of(&all, &[], "sh", shown).dropped().cloned().collect()
        };
        assert_eq!(names(&[]), ["SSH_AUTH_SOCK", "TMUX"]);
        assert_eq!(names(&["/run/agent"]), ["TMUX"]);
        assert_eq!(names(&["/tmp/tmux-0/default"]), ["SSH_AUTH_SOCK"]);
    }

    #[test]
    fn a_name_of_wayland_alone_is_one_in_the_runtime_directory() {
        let runtime_dir = ("XDG_RUNTIME_DIR", "/run/user/5");
        let is_dropped = |all: &[_], shown: &[&str]| {
            of(all, &[], "sh", shown).dropped().any(|name| name == "WAYLAND_DISPLAY")
        };
        for display in ["wayland-0", "/run/user/5/wayland-0"] {
            let all = [runtime_dir, ("WAYLAND_DISPLAY", display)];
            assert!(!is_dropped(&all, &["/run/user/5/wayland-0"]), "{display}");
            assert!(is_dropped(&all, &["/run/user/5/wayland-1"]), "{display}");
        }
        assert!(is_dropped(&[("WAYLAND_DISPLAY", "wayland-0")], &["/run/user/5/wayland-0"]));
    }

    #[test]
    fn paths_are_found_in_addresses() {
        let found = |address: &str| -> Vec<String> {
            let paths = paths_in(OsStr::new(address));
            paths.map(|path| path.to_str().unwrap().to_owned()).collect()
        };
        for (address, path) in [
            ("unix:path=/run/bus", "/run/bus"),
            ("unix:abstract=/tmp/x;unix:guid=1,path=/run/bus", "/run/bus"),
            ("unix:///run/docker.sock", "/run/docker.sock"),
            ("unix:/tmp/kitty", "/tmp/kitty"),
        ] {
            assert_eq!(found(address), [path], "{address}");
        }
        assert!(found("/run/a").contains(&"/run/a".to_owned()));
        assert!(found("/run/a,b").contains(&"/run/a,b".to_owned()));
        for none in ["", "tcp://host:1", "unix:@/tmp/x", "host:1", "tcp://host/run/bus"] {
            assert_eq!(found(none), [""; 0], "{none}");
        }
    }

    #[test]
    fn an_agent_gets_its_own_key() {
        let all = [("ANTHROPIC_API_KEY", "k"), ("OPENAI_API_KEY", "k")];
        assert_eq!(of(&all, &[], "/usr/bin/claude", &[]).secrets, ["OPENAI_API_KEY"]);
        assert_eq!(of(&all, &[], "sh", &[]).secrets.len(), 2);
    }
}

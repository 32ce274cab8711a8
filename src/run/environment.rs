//! The environment of CMD: without what looks like a secret, and without the addresses of services
//! that the fence hides.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::cli::EnvArg;

/// Words of a name, between underscores, that say it holds a secret.
const SECRET_WORDS: &[&str] = &[
    "APIKEY",
    "AUTH",
    "BEARER",
    "COOKIE",
    "CREDENTIAL",
    "CREDENTIALS",
    "CREDS",
    "JWT",
    "PASS",
    "PASSPHRASE",
    "PASSWD",
    "PASSWORD",
    "PAT",
    "PRIVATEKEY",
    "PSK",
    "PWD",
    "SECRET",
    "SECRETKEY",
    "SECRETS",
    "TOKEN",
    "TOKENS",
];
/// Two words that say it together.
const SECRET_PAIRS: &[(&str, &str)] = &[
    ("ACCESS", "KEY"),
    ("ACCOUNT", "KEY"),
    ("API", "KEY"),
    ("DEPLOY", "KEY"),
    ("ENCRYPTION", "KEY"),
    ("MASTER", "KEY"),
    ("PRIVATE", "KEY"),
    ("SESSION", "KEY"),
    ("SIGNING", "KEY"),
    ("SSH", "KEY"),
    ("STORAGE", "KEY"),
    ("CONNECTION", "STRING"),
];
/// Names that hold no secret although a word says so.
const PLAIN: &[&str] = &["PWD", "OLDPWD", "SSH_AUTH_SOCK", "GPG_TTY", "XAUTHORITY"];
/// How values begin that are secrets, whatever their name.
const SECRET_VALUES: &[&str] = &[
    "-----BEGIN ",
    "AKIA",
    "ASIA",
    "AIza",
    "Bearer ",
    "SG.",
    "dckr_pat_",
    "dop_v1_",
    "eyJhbGciOi",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "hf_",
    "hvs.",
    "npm_",
    "pypi-",
    "sk-",
    "sk_live_",
    "rk_live_",
    "xoxb-",
    "xoxp-",
    "ya29.",
];
/// Shortest value that is judged by how it begins.
const SECRET_VALUE_MIN: usize = 16;

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
}

impl Environment {
    /// Of a CMD with a fence around it. `shown` are paths that it does get.
    pub(super) fn fenced(args: &[EnvArg], command: Option<&OsStr>, shown: &[&Path]) -> Self {
        Self::of(std::env::vars_os().collect(), args, command, shown)
    }

    /// Of a CMD without a fence.
    pub(super) fn open(args: &[EnvArg]) -> Self {
        Self { set: named(args), ..Self::default() }
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
        let mut environment = Self { set: named(args), ..Self::default() };
        for (name, value) in all.into_iter().filter(|(name, _)| !kept(name)) {
            let (text, lossy) = (name.to_string_lossy().into_owned(), value.to_string_lossy());
            if SERVICES.contains(&text.as_str()) {
                let is_shown = shown.iter().any(|path| Path::new(&value).starts_with(path));
                if !is_shown {
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
    pub(super) fn told(&self) -> Option<String> {
        if self.secrets.is_empty() {
            return None;
        }
        let names: Vec<_> = self.secrets.iter().map(|name| name.to_string_lossy()).collect();
        Some(format!(
            "CMD does not get these variables, which look like secrets: {}; `--env NAME` passes \
             one on",
            names.join(", ")
        ))
    }
}

fn named(args: &[EnvArg]) -> Vec<(OsString, OsString)> {
    args.iter().filter_map(|arg| Some((arg.name.clone(), arg.value.clone()?))).collect()
}

fn of_agent(command: Option<&OsStr>) -> &'static [&'static str] {
    let name = command.and_then(|command| Path::new(command).file_name()?.to_str());
    OF_AGENTS.iter().find(|(agent, _)| Some(*agent) == name).map_or(&[], |(_, names)| names)
}

/// Whether a variable, or a setting of a file, looks like a secret.
pub(super) fn is_secret(name: &str, value: &str) -> bool {
    // What is empty, or a switch, is none.
    if value.is_empty() || PLAIN.contains(&name) {
        return false;
    }
    is_secret_name(name) || is_secret_value(value)
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let ends_so = |word: &&str| {
        ["TOKEN", "PASSWORD", "SECRET", "APIKEY"].iter().any(|end| word.ends_with(end))
    };
    words.iter().any(|word| SECRET_WORDS.contains(word))
        || words.iter().any(ends_so)
        || words.windows(2).any(|pair| SECRET_PAIRS.contains(&(pair[0], pair[1])))
}

fn is_secret_value(value: &str) -> bool {
    let long = value.len() >= SECRET_VALUE_MIN;
    (long && SECRET_VALUES.iter().any(|start| value.starts_with(start))) || has_password(value)
}

/// An address with a user and a password: `scheme://user:password@host`.
fn has_password(value: &str) -> bool {
    value.match_indices("://").any(|(at, found)| {
        let rest = &value[at + found.len()..];
        let authority = rest.split(['/', '?', '#', ' ', '"', '\'']).next().unwrap_or_default();
        let user = authority.rsplit_once('@').map(|(user, _)| user);
        user.and_then(|user| user.split_once(':')).is_some_and(|(_, password)| !password.is_empty())
    })
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
    fn what_looks_like_a_secret_is_known() {
        for (name, value) in [
            ("GITHUB_TOKEN", "x"),
            ("AWS_SECRET_ACCESS_KEY", "x"),
            ("AWS_ACCESS_KEY_ID", "x"),
            ("MY_API_KEY", "x"),
            ("npm_config__authToken", "x"),
            ("PGPASSWORD", "x"),
            ("MYSQL_PWD", "x"),
            ("DATABASE_URL", "postgres://me:pw@db/x"),
            ("HARMLESS", "ghp_0123456789abcdef"),
            ("KEYS", "-----BEGIN PRIVATE KEY-----"),
        ] {
            assert!(is_secret(name, value), "{name}={value}");
        }
        for (name, value) in [
            ("PATH", "/usr/bin:/bin"),
            ("PWD", "/tmp"),
            ("OLDPWD", "/tmp"),
            ("KEYBOARD", "us"),
            ("TOKEN", ""),
            ("AUTHOR", "me"),
            ("GIT_AUTHOR_NAME", "me"),
            ("COMPASS", "north"),
            ("HTTP_PROXY", "http://proxy:3128"),
            ("URL", "https://me@host/a:b@c"),
            ("SECRETARIAT", "x"),
        ] {
            assert!(!is_secret(name, value), "{name}={value}");
        }
    }

    #[test]
    fn what_is_named_is_kept_or_set_and_the_rest_dropped() {
        let all = [("A_TOKEN", "1"), ("B_TOKEN", "2"), ("C_TOKEN", "3"), ("LANG", "C")];
        let environment = of(&all, &["B_TOKEN", "C_TOKEN=new", "D=x=y"], "sh", &[]);
        assert_eq!(environment.secrets, ["A_TOKEN"]);
        let set = [("C_TOKEN".into(), "new".into()), ("D".into(), "x=y".into())];
        assert_eq!(environment.set, set);
        let told = environment.told().unwrap();
        assert!(told.contains("A_TOKEN") && !told.contains("B_TOKEN"), "{told}");
    }

    #[test]
    fn services_are_dropped_unless_their_socket_is_shown() {
        let all = [("SSH_AUTH_SOCK", "/run/agent/s"), ("TMUX", "/tmp/tmux-0/default,1,0")];
        let names = |shown: &[&str]| -> Vec<OsString> {
            of(&all, &[], "sh", shown).dropped().cloned().collect()
        };
        assert_eq!(names(&[]), ["SSH_AUTH_SOCK", "TMUX"]);
        assert_eq!(names(&["/run/agent"]), ["TMUX"]);
    }

    #[test]
    fn an_agent_gets_its_own_key() {
        let all = [("ANTHROPIC_API_KEY", "k"), ("OPENAI_API_KEY", "k")];
        assert_eq!(of(&all, &[], "/usr/bin/claude", &[]).secrets, ["OPENAI_API_KEY"]);
        assert_eq!(of(&all, &[], "sh", &[]).secrets.len(), 2);
    }
}

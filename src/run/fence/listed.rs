//! What of a home directory CMD sees: tool chains, caches and settings of tools, and what an agent
//! needs of its own. Everything else in it is hidden.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Names in a home directory, files and directories. Directories with keys in them (`.cargo`,
/// `.gradle`, `.m2`) are listed by their parts.
const LISTED: &[&str] = &[
    // Settings, of which lines that look like secrets are left out.
    ".bash_aliases",
    ".bash_profile",
    ".bashrc",
    ".cargo/config",
    ".cargo/config.toml",
    ".cargo/env",
    ".clang-format",
    ".condarc",
    ".config/git/attributes",
    ".config/git/config",
    ".config/git/ignore",
    ".config/pip/pip.conf",
    ".config/uv/uv.toml",
    ".editorconfig",
    ".gitattributes",
    ".gitconfig",
    ".gitignore",
    ".gitignore_global",
    ".inputrc",
    ".npmrc",
    ".nvmrc",
    ".pip/pip.conf",
    ".profile",
    ".rustfmt.toml",
    ".tool-versions",
    ".vimrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".zprofile",
    ".zshenv",
    ".zshrc",
    // Editors.
    ".config/helix",
    ".config/nvim",
    ".local/share/nvim",
    ".vim",
    // Tool chains.
    ".asdf",
    ".bun",
    ".cargo/bin",
    ".deno",
    ".dotnet",
    ".fnm",
    ".gem",
    ".ghcup",
    ".local/bin",
    ".local/lib",
    ".local/share/claude",
    ".local/share/fnm",
    ".local/share/mise",
    ".local/share/pipx",
    ".local/share/pnpm",
    ".local/share/uv",
    ".nix-profile",
    ".npm-global",
    ".nvm",
    ".opam",
    ".pyenv",
    ".rbenv",
    ".rustup",
    ".sdkman/candidates",
    ".volta",
    "go/bin",
    "miniconda3",
    "miniforge3",
    // Caches.
    ".cabal/packages",
    ".cache/bazel",
    ".cache/ccache",
    ".cache/deno",
    ".cache/go-build",
    ".cache/ms-playwright",
    ".cache/node",
    ".cache/node-gyp",
    ".cache/pip",
    ".cache/pnpm",
    ".cache/pre-commit",
    ".cache/puppeteer",
    ".cache/pypoetry",
    ".cache/sccache",
    ".cache/uv",
    ".cache/yarn",
    ".cargo/git",
    ".cargo/registry",
    ".ccache",
    ".conda/pkgs",
    ".gradle/caches",
    ".gradle/wrapper",
    ".m2/repository",
    ".m2/wrapper",
    ".node-gyp",
    ".npm",
    ".nuget/packages",
    ".pnpm-store",
    ".yarn",
    "go/pkg",
];

/// What an agent has of its own, sessions and credentials for its service included.
const OF_AGENTS: &[(&str, &[&str])] = &[
    ("aider", &[".aider.conf.yml", ".aider"]),
    ("claude", &[".claude", ".claude.json"]),
    ("codex", &[".codex"]),
    ("gemini", &[".gemini"]),
    ("goose", &[".config/goose", ".local/share/goose"]),
    ("opencode", &[".config/opencode", ".local/share/opencode"]),
];

/// Variables that name a tool chain or a cache elsewhere than in its usual place, and what of that
/// directory is listed; nothing: all of it.
const NAMED_BY: &[(&str, &[&str])] = &[
    ("ASDF_DATA_DIR", &[]),
    ("BUN_INSTALL", &[]),
    ("CARGO_HOME", &["bin", "config", "config.toml", "env", "git", "registry"]),
    ("CCACHE_DIR", &[]),
    ("CONDA_PREFIX", &[]),
    ("CURL_CA_BUNDLE", &[]),
    ("DENO_DIR", &[]),
    ("FNM_DIR", &[]),
    ("GIT_SSL_CAINFO", &[]),
    ("GOCACHE", &[]),
    ("GOMODCACHE", &[]),
    ("GOPATH", &["bin", "pkg"]),
    ("GOROOT", &[]),
    ("JAVA_HOME", &[]),
    ("NODE_EXTRA_CA_CERTS", &[]),
    ("NVM_DIR", &[]),
    ("PIP_CACHE_DIR", &[]),
    ("PNPM_HOME", &[]),
    ("PYENV_ROOT", &[]),
    ("REQUESTS_CA_BUNDLE", &[]),
    ("RUSTUP_HOME", &[]),
    ("SCCACHE_DIR", &[]),
    ("SSL_CERT_DIR", &[]),
    ("SSL_CERT_FILE", &[]),
    ("UV_CACHE_DIR", &[]),
    ("VIRTUAL_ENV", &[]),
    ("VOLTA_HOME", &[]),
    ("npm_config_cache", &[]),
];

/// What is listed of `home` for `command`, in no particular order; it may not exist.
pub(super) fn of_home(home: &Path, command: Option<&OsStr>) -> Vec<PathBuf> {
    let name = command.and_then(|command| Path::new(command).file_name()?.to_str());
    let own = OF_AGENTS.iter().find(|(agent, _)| Some(*agent) == name);
    let own = own.map_or(&[][..], |(_, names)| names);
    LISTED.iter().chain(own).map(|name| home.join(name)).collect()
}

/// What variables name: tool chains, caches, and the directories of `PATH`.
pub(super) fn by_environment() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).collect())
        .unwrap_or_default();
    for (variable, parts) in NAMED_BY {
        let Some(place) = std::env::var_os(variable).map(PathBuf::from) else { continue };
        if parts.is_empty() {
            paths.push(place);
        } else {
            paths.extend(parts.iter().map(|part| place.join(part)));
        }
    }
    paths.retain(|path| path.is_absolute());
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_with_keys_in_it_is_listed_and_an_agent_has_its_own() {
        let home = Path::new("/h");
        let listed = of_home(home, Some(OsStr::new("sh")));
        for secret in [
            ".ssh",
            ".aws",
            ".gnupg",
            ".netrc",
            ".git-credentials",
            ".config/git/credentials",
            ".cargo/credentials.toml",
            ".docker",
            ".kube",
            ".claude",
            ".mozilla",
            ".local/share/keyrings",
            ".m2/settings.xml",
            ".config/gh",
        ] {
            let secret = home.join(secret);
            let shows = |path: &&PathBuf| secret.starts_with(path) || path.starts_with(&secret);
            assert_eq!(listed.iter().find(shows), None);
        }
        let claude = of_home(home, Some(OsStr::new("/usr/bin/claude")));
        assert!(claude.contains(&home.join(".claude")));
    }
}

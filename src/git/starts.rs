//! Which settings have git start a program.

use std::os::unix::ffi::OsStrExt;

use super::syntax::Setting;

impl Setting {
    /// What git starts: a command line for a shell, without the mark that it is one. None where it
    /// starts nothing, and where it names a file or a directory for git itself.
    pub(crate) fn command(&self) -> Option<&[u8]> {
        let is_path = matches!(
            (&*self.section, self.key.as_str()),
            ("core", "hookspath") | ("include" | "includeif", "path") | ("init", "templatedir")
        );
        let value = self.value.as_bytes();
        let value = value.strip_prefix(b"!").or(value.strip_prefix(b"ext::")).unwrap_or(value);
        (starts_program(self) && !is_path).then_some(value)
    }

    /// Whether it is a command of the user's own, which may be about any file.
    pub(crate) fn is_alias(&self) -> bool {
        &*self.section == "alias"
    }
}

/// Whether git, or a tool of git's, starts what this setting says.
pub(super) fn starts_program(setting: &Setting) -> bool {
    let value = setting.value.to_string_lossy();
    let (section, key) = (&*setting.section, setting.key.as_str());
    match (section, key) {
        ("core", "fsmonitor") => !is_boolean(&value),
        ("core", "hookspath" | "sshcommand" | "pager" | "editor" | "askpass" | "gitproxy") => true,
        // `alias.NAME`; newer versions have `alias.NAME.command` besides.
        ("alias", _) if setting.subsection.is_none() => value.starts_with('!'),
        ("submodule", "update") => value.starts_with('!'),
        ("pager", _) => !is_boolean(&value),
        ("diff", "external" | "textconv") | ("merge", "driver") => true,
        ("filter", "clean" | "smudge" | "process") => true,
        ("credential", "helper") | ("sequence", "editor") | ("interactive", "difffilter") => true,
        ("include" | "includeif", "path") | ("init", "templatedir") => true,
        ("remote", "uploadpack" | "receivepack" | "vcs") => true,
        ("remote", "url" | "pushurl") => value.starts_with("ext::"),
        ("url", "insteadof" | "pushinsteadof") => {
            setting.subsection.as_ref().is_some_and(|url| url.starts_with("ext::"))
        }
        ("mergetool" | "difftool" | "browser" | "man" | "lfs", "path") => true,
        ("lfs", "clean" | "smudge") => true,
        ("imap", "tunnel") | ("instaweb", "httpd" | "browser") => true,
        ("sendemail", "smtpserver") => value.starts_with('/'),
        // `diff.X.command`, `gpg.X.program`, `uploadpack.packObjectsHook`, `hook.X.command`, and
        // those of git's tools and of later versions.
        _ => ["command", "cmd", "program", "hook"].iter().any(|end| key.ends_with(end)),
    }
}

fn is_boolean(value: &str) -> bool {
    matches!(value.to_lowercase().as_str(), "" | "true" | "false" | "yes" | "no" | "on" | "off")
        || value.bytes().all(|byte| byte.is_ascii_digit())
}

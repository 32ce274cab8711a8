//! Which records are shown.

use std::time::{Duration, SystemTime};

use anyhow::{anyhow, bail};
use tollgate_policy::{CallerFacts, Facts, Kind, Operation, Policy, Verdict};

use crate::audit::read::Line;
use crate::audit::timestamp;
use crate::cli::AuditArgs;

/// Conditions, all of which hold for what is shown.
pub(super) struct Filter {
    rule: Option<String>,
    path: Option<Policy>,
    exe: Option<Policy>,
    refused: bool,
    /// As records have it.
    since: Option<String>,
}

impl Filter {
    /// # Errors
    /// When a glob or a time cannot be read.
    pub(super) fn new(args: &AuditArgs) -> anyhow::Result<Self> {
        let glob = |key: &str, glob: &Option<String>| {
            glob.as_deref().map(|glob| policy(key, glob)).transpose()
        };
        Ok(Self {
            rule: args.rule.clone(),
            path: glob("path", &args.path)?,
            exe: glob("exe", &args.exe)?,
            refused: args.refused,
            since: args.since.as_deref().map(|text| since(text, SystemTime::now())).transpose()?,
        })
    }

    /// Whether the record is shown. Records about whole runs are, unless they are too old.
    pub(super) fn shows(&self, line: &Line) -> bool {
        if self.since.as_ref().is_some_and(|since| line.time < *since) {
            return false;
        }
        if !line.is_about_files() {
            return true;
        }
        let by_rule = |rule: &String| line.rule.as_ref() == Some(rule);
        let at_path = |policy: &Policy| {
            let names = [&line.path, &line.to];
            names.into_iter().flatten().any(|path| refuses(policy, path, None))
        };
        let by_exe =
            |policy: &Policy| line.exe.as_ref().is_some_and(|exe| refuses(policy, "x", Some(exe)));
        (!self.refused || line.is_refusal())
            && self.rule.as_ref().is_none_or(by_rule)
            && self.path.as_ref().is_none_or(at_path)
            && self.exe.as_ref().is_none_or(by_exe)
    }
}

/// A policy that denies what the glob matches: globs mean here what they mean in policies.
fn policy(key: &str, glob: &str) -> anyhow::Result<Policy> {
    let value = serde_json::to_string(glob)?;
    let path = if key == "path" { "" } else { "path = \"**\"\n" };
    let text = format!("[[rule]]\n{key} = {value}\n{path}action = \"deny\"\n");
    Policy::parse(&text, &format!("--{key}"))
        .map_err(|error| anyhow!("--{key} `{glob}`: {}", error.problem()))
}

fn refuses(policy: &Policy, path: &str, exe: Option<&str>) -> bool {
    let facts = Facts { path: path.as_bytes(), kind: Kind::File, size: 0, head: None };
    let exe = exe.unwrap_or_default().as_bytes();
    let caller = CallerFacts { uid: 0, gid: 0, exe: Some(exe) };
    policy.decide(&facts, Operation::Read, &caller).verdict == Verdict::Deny
}

/// `10m`, `2h`, `3d` before now, or the beginning of a time as records have it.
fn since(text: &str, now: SystemTime) -> anyhow::Result<String> {
    let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
    for (unit, seconds) in units {
        if let Some(Ok(count)) = text.strip_suffix(unit).map(str::parse::<u32>) {
            let ago = Duration::from_secs(u64::from(count) * seconds);
            return Ok(timestamp(now.checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH)));
        }
    }
    let form = "0000-00-00T00:00:00.000000";
    let time = text.strip_suffix('Z').unwrap_or(text);
    let fits = |(found, wanted): (char, char)| match wanted {
        '0' => found.is_ascii_digit(),
        'T' => matches!(found, 'T' | ' '),
        other => found == other,
    };
    if time.len() < 10 || time.len() > form.len() || !time.chars().zip(form.chars()).all(fits) {
        bail!(
            "--since `{text}` is no time; write 30s, 10m, 2h or 3d, or a time in UTC such as \
             2026-01-31 or 2026-01-31T09:15"
        );
    }
    Ok(time.replace(' ', "T"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_spans_or_dates() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(7200);
        assert_eq!(since("1h", now).unwrap(), "1970-01-01T01:00:00.000000Z");
        assert_eq!(since("2026-01-31 09:15", now).unwrap(), "2026-01-31T09:15");
        assert_eq!(since("2026-01-31T09:15:00Z", now).unwrap(), "2026-01-31T09:15:00");
        for wrong in ["", "yesterday", "5", "1w", "2026"] {
            assert!(since(wrong, now).is_err(), "{wrong}");
        }
    }

    #[test]
    fn globs_mean_what_they_mean_in_policies() {
        let keys = policy("path", "**/id_*").unwrap();
        assert!(refuses(&keys, "keys/id_rsa", None) && !refuses(&keys, "a", None));
        let git = policy("exe", "**/git").unwrap();
        assert!(refuses(&git, "x", Some("/usr/bin/git")) && !refuses(&git, "x", Some("/bin/sh")));
        assert!(policy("path", "[").is_err());
    }
}

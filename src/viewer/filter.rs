//! Which records are shown.

use std::time::{Duration, SystemTime};

use anyhow::{anyhow, bail};
use tollgate_policy::{CallerFacts, Facts, Kind, Operation, Policy, Verdict};

use crate::audit::read::{Known, Line};
use crate::audit::timestamp;
use crate::cli::AuditArgs;

/// Conditions, all of which hold for what is shown.
pub(super) struct Filter {
    rule: Option<String>,
    path: Option<Pattern>,
    exe: Option<Pattern>,
    refused: bool,
    /// As records have it.
    since: Option<String>,
}

impl Filter {
    /// # Errors
    /// When a glob or a time cannot be read.
    pub(super) fn new(args: &AuditArgs) -> anyhow::Result<Self> {
        let glob = |key: &str, glob: &Option<String>| {
            glob.as_deref().map(|glob| Pattern::new(key, glob)).transpose()
        };
        Ok(Self {
            rule: args.rule.clone(),
            path: glob("path", &args.path)?,
            exe: glob("exe", &args.exe)?,
            refused: args.refused,
            since: args.since.as_deref().map(|text| since(text, SystemTime::now())).transpose()?,
        })
    }

    /// Whether the record fits, and is shown. Records about whole runs are, unless they are too old.
    pub(super) fn fits(&self, line: &Line) -> Fits {
        if self.since.as_ref().is_some_and(|since| line.time < *since) {
            return Fits::No;
        }
        if !line.is_about_files() {
            return Fits::Yes;
        }
        let is_by_rule = |rule: &String| line.rule.as_ref() == Some(rule);
        if self.refused && !line.is_refusal() || !self.rule.as_ref().is_none_or(is_by_rule) {
            return Fits::No;
        }
        let (path, to, exe) = (line.known_path(), line.known_to(), line.known_exe());
        let fits = |pattern: &Option<Pattern>, names: &[Option<Known>]| {
            let Some(pattern) = pattern else { return Fits::Yes };
            names.iter().flatten().map(|name| pattern.fits(name)).max().unwrap_or(Fits::No)
        };
        fits(&self.path, &[path, to]).min(fits(&self.exe, &[exe]))
    }
}

/// Whether a record fits all conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fits {
    No,
    /// What the log has of a path is not enough to tell.
    Perhaps,
    Yes,
}

/// A glob, which means here what it means in policies.
struct Pattern {
    /// Denies what the glob matches.
    policy: Policy,
    is_of_exe: bool,
    /// What every path begins with that the glob matches.
    start: Vec<u8>,
}

impl Pattern {
    fn new(key: &str, glob: &str) -> anyhow::Result<Self> {
        let value = serde_json::to_string(glob)?;
        let is_of_exe = key == "exe";
        let path = if is_of_exe { "path = \"**\"\n" } else { "" };
        let text = format!("[[rule]]\n{key} = {value}\n{path}action = \"deny\"\n");
        let policy = Policy::parse(&text, &format!("--{key}"))
            .map_err(|error| anyhow!("--{key} `{glob}`: {}", error.problem()))?;
        let start = glob.split(['*', '?', '[', '{', '\\']).next().unwrap_or_default();
        Ok(Pattern { policy, is_of_exe, start: start.as_bytes().to_vec() })
    }

    fn fits(&self, name: &Known) -> Fits {
        let Known { bytes, is_cut } = name;
        let can_begin = || bytes.iter().zip(&self.start).all(|(found, wanted)| found == wanted);
        match self.matches(bytes) {
            true => Fits::Yes,
            false if *is_cut && can_begin() => Fits::Perhaps,
            false => Fits::No,
        }
    }

    fn matches(&self, name: &[u8]) -> bool {
        let (path, exe) = if self.is_of_exe { (&b"x"[..], name) } else { (name, &b""[..]) };
        let facts = Facts { path, kind: Kind::File, size: 0, head: None };
        let caller = CallerFacts { uid: 0, gid: 0, exe: Some(exe) };
        self.policy.decide(&facts, Operation::Read, &caller).verdict == Verdict::Deny
    }
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
    // A date, with whole hours, minutes and seconds behind it, and a part of a second.
    let is_whole = matches!(time.len(), 10 | 13 | 16 | 19 | 21..=26);
    let why = match is_whole && time.chars().zip(form.chars()).all(fits) {
        true => impossible(time),
        false => Some(String::new()),
    };
    if let Some(why) = why {
        bail!(
            "--since `{text}` is no time{why}; write 30s, 10m, 2h or 3d, or a time in UTC such as \
             2026-01-31 or 2026-01-31T09:15"
        );
    }
    Ok(time.replace(' ', "T"))
}

/// Why there is no such time, which has the form of one.
fn impossible(time: &str) -> Option<String> {
    let digits = |at: std::ops::Range<usize>| time.get(at)?.parse::<u32>().ok();
    let (year, month) = (digits(0..4)?, digits(5..7)?);
    let days = match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    };
    let parts = [
        ("month", 5, 1..=12),
        ("day", 8, 1..=days),
        ("hour", 11, 0..=23),
        ("minute", 14, 0..=59),
        ("second", 17, 0..=59),
    ];
    parts.into_iter().find_map(|(what, at, possible)| {
        let found = digits(at..at + 2).filter(|found| !possible.contains(found))?;
        let of = if what == "day" { format!("in {} ", &time[..7]) } else { String::new() };
        Some(format!(": {of}there is no {what} {found:02}"))
    })
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
        for wrong in ["", "yesterday", "5", "1w", "2026", "2026-01-31T0", "2026-01-31T09:15:"] {
            assert!(since(wrong, now).is_err(), "{wrong}");
        }
        for right in ["2024-02-29", "2000-02-29T23", "2026-12-31T23:59:59.9"] {
            assert_eq!(since(right, now).unwrap(), right);
        }
        for (wrong, why) in [
            ("2026-13-45", "there is no month 13"),
            ("0000-00-00", "there is no month 00"),
            ("2026-02-30", "in 2026-02 there is no day 30"),
            ("2100-02-29", "in 2100-02 there is no day 29"),
            ("2026-11-26T25:99", "there is no hour 25"),
            ("2026-11-26 23:60Z", "there is no minute 60"),
            ("2026-11-26T23:59:60.5", "there is no second 60"),
        ] {
            let said = since(wrong, now).unwrap_err().to_string();
            assert!(said.contains(&format!("is no time: {why}; write 30s")), "{said}");
        }
    }

    #[test]
    fn globs_mean_what_they_mean_in_policies() {
        let keys = Pattern::new("path", "**/id_*").unwrap();
        assert!(keys.matches(b"keys/id_rsa") && !keys.matches(b"a"));
        let git = Pattern::new("exe", "**/git").unwrap();
        assert!(git.matches(b"/usr/bin/git") && !git.matches(b"/bin/sh"));
        assert!(Pattern::new("path", "[").is_err());
    }
}

//! Reading a log: lines to records. A damaged line is named and left out.

use std::collections::BTreeMap;
use std::io::BufRead;

use serde::Deserialize;

/// Longest line in bytes that is read; longer ones are damaged.
pub(crate) const MAX_LINE: usize = 64 << 10;

/// One record, as far as it is known here. The fields are described in docs/audit.md.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Line {
    pub(crate) time: String,
    pub(crate) event: String,
    pub(crate) run: Option<String>,
    pub(crate) operation: String,
    pub(crate) outcome: String,
    pub(crate) errno: Option<String>,
    pub(crate) uid: u32,
    pub(crate) pid: u32,
    pub(crate) exe: Option<String>,
    pub(crate) exe_hex: Option<String>,
    pub(crate) exe_length: Option<usize>,
    pub(crate) path: Option<String>,
    pub(crate) path_hex: Option<String>,
    pub(crate) path_length: Option<usize>,
    pub(crate) rule: Option<String>,
    pub(crate) access: Option<String>,
    pub(crate) content: Option<String>,
    pub(crate) to: Option<String>,
    pub(crate) to_hex: Option<String>,
    pub(crate) to_length: Option<usize>,
    pub(crate) size: Option<u64>,
    pub(crate) mode: Option<String>,
    pub(crate) owner: Option<u32>,
    pub(crate) group: Option<u32>,
    pub(crate) attribute: Option<String>,
    pub(crate) offset: Option<u64>,
    pub(crate) bytes: Option<u64>,
    /// By detector.
    pub(crate) masked: Option<BTreeMap<String, u64>>,
    pub(crate) count: Option<u64>,
    /// Of a whole run, in its `stop`.
    pub(crate) dropped: u64,
    pub(crate) failed: u64,
    pub(crate) dir: Option<String>,
    pub(crate) mount_point: Option<String>,
    pub(crate) policy: Option<String>,
    pub(crate) policy_sha256: Option<String>,
}

/// Records that are in no log, by run: what its `stop` says, or what was told before that is missing.
#[derive(Debug, Default)]
pub(crate) struct Lost(BTreeMap<String, OfRun>);

/// Found no free slot, and could not be written.
#[derive(Clone, Copy, Debug, Default)]
struct OfRun {
    told: [u64; 2],
    in_all: [u64; 2],
}

/// Most runs that are told apart.
const MAX_RUNS: usize = 4096;

/// What it means that so many runs have no end in the logs.
pub(crate) fn without_an_end(runs: usize) -> String {
    let runs = if runs == 1 { "1 run".to_owned() } else { format!("{runs} runs") };
    format!(
        "{runs} without an end in the logs, so something may be missing: a server goes on, was killed, or could not \
         write."
    )
}

/// So many records, with the verb that says what became of them.
pub(crate) fn records_were(count: u64) -> String {
    if count == 1 { "1 record was".to_owned() } else { format!("{count} records were") }
}

/// Which runs have an end.
#[derive(Debug, Default)]
pub(crate) struct Ends(BTreeMap<String, bool>);

impl Ends {
    pub(crate) fn take(&mut self, line: &Line) {
        let Some(run) = &line.run else { return };
        let has_ended = line.event == "stop";
        if let Some(ended) = self.0.get_mut(run) {
            *ended |= has_ended;
        } else if self.0.len() < MAX_RUNS {
            self.0.insert(run.clone(), has_ended);
        }
    }

    /// Runs that have none, of the first 4,096.
    pub(crate) fn missing(&self) -> usize {
        self.0.values().filter(|ended| !**ended).count()
    }
}

impl Lost {
    pub(crate) fn take(&mut self, line: &Line) {
        let count = line.count.unwrap_or(0);
        let (told, in_all) = match line.event.as_str() {
            "dropped" => ([count, 0], [0; 2]),
            "failed" => ([0, count], [0; 2]),
            "stop" => ([0; 2], [line.dropped, line.failed]),
            _ => return,
        };
        let run = line.run.clone().unwrap_or_default();
        let known = self.0.contains_key(&run) || self.0.len() < MAX_RUNS;
        let of_run = self.0.entry(if known { run } else { String::new() }).or_default();
        for which in 0..2 {
            of_run.told[which] = of_run.told[which].saturating_add(told[which]);
            of_run.in_all[which] = of_run.in_all[which].saturating_add(in_all[which]);
        }
    }

    /// Those that the server dropped, and those that could not be written.
    pub(crate) fn counts(&self) -> [u64; 2] {
        [0, 1].map(|which| {
            let of_each = self.0.values().map(|run| run.told[which].max(run.in_all[which]));
            of_each.fold(0, u64::saturating_add)
        })
    }
}

/// What a record has of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) bytes: Vec<u8>,
    /// The path has more, which is not in the record.
    pub(crate) is_cut: bool,
}

impl Known {
    /// Of a field, of what goes by its name with `_hex` behind it, and `_length`.
    fn new(text: &Option<String>, hex: &Option<String>, length: Option<usize>) -> Option<Self> {
        let text = text.as_ref()?;
        let bytes = hex.as_deref().and_then(bytes_of).unwrap_or_else(|| text.clone().into_bytes());
        Some(Self { bytes, is_cut: length.is_some() })
    }
}

/// What pairs of hexadecimal digits stand for; `None` for anything else.
pub(crate) fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digit =
        |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, []) = hex.as_bytes().as_chunks() else { return None };
    pairs.iter().map(|[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect()
}

impl Line {
    /// What is known of `path`.
    pub(crate) fn known_path(&self) -> Option<Known> {
        Known::new(&self.path, &self.path_hex, self.path_length)
    }

    /// What is known of `to`.
    pub(crate) fn known_to(&self) -> Option<Known> {
        Known::new(&self.to, &self.to_hex, self.to_length)
    }

    /// What is known of `exe`.
    pub(crate) fn known_exe(&self) -> Option<Known> {
        Known::new(&self.exe, &self.exe_hex, self.exe_length)
    }

    /// Whether it is about something that was done, once or more often.
    pub(crate) fn is_about_files(&self) -> bool {
        matches!(self.event.as_str(), "request" | "repeated")
    }

    /// How many events it stands for.
    pub(crate) fn events(&self) -> u64 {
        if self.event == "repeated" { self.count.unwrap_or(1) } else { 1 }
    }

    /// Whether the policy refused it, or would have.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self.outcome.as_str(), "refused" | "would-refuse")
    }
}

/// Reads one line.
///
/// # Errors
/// What is wrong with it, in words.
pub(crate) fn parse(line: &[u8]) -> Result<Line, String> {
    let line: Line = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    if line.event.is_empty() || line.time.is_empty() {
        return Err("no `event` or no `time`".to_owned());
    }
    for (field, hex) in
        [("path_hex", &line.path_hex), ("to_hex", &line.to_hex), ("exe_hex", &line.exe_hex)]
    {
        if hex.as_deref().is_some_and(|hex| bytes_of(hex).is_none()) {
            return Err(format!("`{field}` is not pairs of hexadecimal digits"));
        }
    }
    Ok(line)
}

/// Reads the next line without its end into `buffer`; `None` at the end of the file, `Some(false)`
/// for a line that is too long, of which nothing is kept.
///
/// # Errors
/// Those of reading.
pub(crate) fn next_line(
    from: &mut impl BufRead,
    buffer: &mut Vec<u8>,
) -> std::io::Result<Option<bool>> {
    buffer.clear();
    let mut too_long = false;
    loop {
        let available = from.fill_buf()?;
        if available.is_empty() {
            return Ok((too_long || !buffer.is_empty()).then_some(!too_long));
        }
        let end = available.iter().position(|byte| *byte == b'\n');
        let part = &available[..end.unwrap_or(available.len())];
        too_long |= buffer.len() + part.len() > MAX_LINE;
        if too_long {
            buffer.clear();
        } else {
            buffer.extend_from_slice(part);
        }
        let used = end.map_or(available.len(), |end| end + 1);
        from.consume(used);
        if end.is_some() {
            return Ok(Some(!too_long));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_and_what_is_unknown_is_left_out() {
        let line = br#"{"time":"t","event":"request","path":"a","new_field":{"x":1}}"#;
        assert_eq!(parse(line).unwrap().path.as_deref(), Some("a"));
        assert!(parse(b"{\"time\":\"t\"}").is_err());
        assert!(parse(b"{\"time\":\"t\",\"eve").unwrap_err().contains("EOF"));
        assert!(parse(b"[]").is_err() && parse(b"").is_err());
        for (hex, is_right) in
            [("6aFf", true), ("", true), ("zz", false), ("fff", false), ("+f", false)]
        {
            let line = format!(r#"{{"time":"t","event":"request","path":"a","path_hex":"{hex}"}}"#);
            assert_eq!(parse(line.as_bytes()).is_ok(), is_right, "{hex}");
        }
    }

    #[test]
    fn lines_are_bounded() {
        let text = [&b"one\n"[..], &vec![b'x'; MAX_LINE + 1], b"\ntwo"].concat();
        let mut from = std::io::BufReader::with_capacity(7, &text[..]);
        let mut buffer = Vec::new();
        let mut next = || (next_line(&mut from, &mut buffer).unwrap(), buffer.clone());
        assert_eq!(next(), (Some(true), b"one".to_vec()));
        assert_eq!(next(), (Some(false), Vec::new()));
        assert_eq!(next(), (Some(true), b"two".to_vec()));
        assert_eq!(next().0, None);
    }
}

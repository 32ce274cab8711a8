//! Records as lines of text.

use std::collections::BTreeMap;

use crate::audit::read::{Ends, Line, Lost, records_were, without_an_end};
use crate::escape::escaped;
use crate::messages;

/// Escape sequences, or nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Colours {
    on: bool,
}

const RED: &str = "31";
const YELLOW: &str = "33";
const MAGENTA: &str = "35";
const DIM: &str = "2";

impl Colours {
    /// Where standard output is a terminal, unless `NO_COLOR` says otherwise.
    pub(super) fn of_stdout() -> Self {
        use std::io::IsTerminal;
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { on: std::io::stdout().is_terminal() && !unwanted }
    }

    fn paint(self, colour: &str, text: &str) -> String {
        if self.on { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// A line about `line`, without its end.
pub(super) fn text(line: &Line, colours: Colours) -> String {
    let time = escaped(line.time.get(..23).unwrap_or(&line.time)).replace('T', " ");
    let time = colours.paint(DIM, &time);
    if !line.is_about_files() {
        return format!("{time}  {}", colours.paint(DIM, &about_run(line)));
    }
    let outcome = format!("{:<12}", escaped(&line.outcome));
    let outcome = match line.outcome.as_str() {
        "refused" => colours.paint(RED, &outcome),
        "would-refuse" => colours.paint(YELLOW, &outcome),
        "failed" => colours.paint(MAGENTA, &outcome),
        _ => outcome,
    };
    let what = format!("{:<11}", escaped(&line.operation));
    let more = colours.paint(DIM, &details(line));
    format!("{time}  {outcome} {what} {}  {more}", path(line)).trim_end().to_owned()
}

fn about_run(line: &Line) -> String {
    let run = escaped(line.run.as_deref().unwrap_or("?"));
    let dir = escaped(line.dir.as_deref().unwrap_or("?"));
    let digest: String = line.policy_sha256.iter().flat_map(|sum| sum.chars().take(12)).collect();
    let policy = match &line.policy {
        Some(file) if digest.is_empty() => format!("policy {}", escaped(file)),
        Some(file) => format!("policy {} ({})", escaped(file), escaped(&digest)),
        None => "no policy file".to_owned(),
    };
    match line.event.as_str() {
        "start" => format!("run {run} starts over {dir}, {policy}"),
        "continued" => format!("run {run} over {dir} goes on, {policy}"),
        "reload" => format!("run {run}: {policy} is in force"),
        "stop" => format!("run {run} ends"),
        "dropped" => format!("{} dropped", records_were(line.count.unwrap_or(0))),
        "failed" => {
            let count = usize::try_from(line.count.unwrap_or(0)).unwrap_or(usize::MAX);
            format!("{} could not be written", messages::count(count, "record"))
        }
        other => escaped(other),
    }
}

fn path(line: &Line) -> String {
    let shown = |text: &Option<String>, length: Option<usize>| match text.as_deref() {
        None => "(various)".to_owned(),
        Some("") => ".".to_owned(),
        Some(text) if length.is_some() => format!("{}...", escaped(text)),
        Some(text) => escaped(text),
    };
    let from = shown(&line.path, line.path_length);
    match &line.to {
        Some(_) => format!("{from} -> {}", shown(&line.to, line.to_length)),
        None => from,
    }
}

fn details(line: &Line) -> String {
    let mut words = Vec::new();
    words.extend(line.errno.clone());
    words.extend(line.access.clone());
    words.extend(line.size.map(|size| format!("to {size} bytes")));
    words.extend(line.mode.clone());
    words.extend(line.owner.map(|owner| format!("owner {owner}")));
    words.extend(line.group.map(|group| format!("group {group}")));
    words.extend(line.attribute.clone());
    if let (Some(offset), Some(bytes)) = (line.offset, line.bytes) {
        words.push(format!("{bytes} bytes at {offset}"));
    }
    let masked = line.masked.iter().flatten();
    words.extend(masked.map(|(detector, count)| format!("{detector} {count}")));
    if line.event == "repeated" {
        words.push(match line.events() {
            1 => "once more".to_owned(),
            times => format!("{times} times more"),
        });
    }
    words.extend(line.rule.as_ref().map(|rule| format!("rule {rule}")));
    let exe = line.exe.as_deref().map(|exe| exe.rsplit('/').next().unwrap_or(exe));
    words.push(format!("{}[{}] uid {}", exe.unwrap_or("?"), line.pid, line.uid));
    escaped(&words.join(", "))
}

/// Sums over what was shown.
#[derive(Default)]
pub(super) struct Totals {
    runs: u64,
    lost: Lost,
    ends: Ends,
    outcomes: BTreeMap<String, u64>,
    rules: BTreeMap<String, u64>,
}

/// Most outcomes and rules that are told apart.
const MAX_TOLD_APART: usize = 64;

impl Totals {
    pub(super) fn add(&mut self, line: &Line) {
        self.runs += u64::from(line.event == "start");
        self.lost.take(line);
        self.ends.take(line);
        if !line.is_about_files() {
            return;
        }
        add(&mut self.outcomes, &line.outcome, line.events());
        if line.is_refusal() {
            add(&mut self.rules, line.rule.as_deref().unwrap_or("the default"), line.events());
        }
    }

    /// Lines, each with its end.
    pub(super) fn text(&self) -> String {
        let list = |sums: &BTreeMap<String, u64>| {
            let mut sums: Vec<_> = sums.iter().collect();
            sums.sort_by(|a, b| b.1.cmp(a.1));
            let words: Vec<_> =
                sums.iter().map(|(name, count)| format!("{} {count}", escaped(name))).collect();
            words.join(", ")
        };
        let events: u64 = self.outcomes.values().sum();
        let counted =
            |number: u64, what| messages::count(usize::try_from(number).unwrap_or(0), what);
        let runs = counted(self.runs, "run");
        let mut text = format!("{}, {runs} begun", counted(events, "event"));
        if events > 0 {
            text += &format!(": {}", list(&self.outcomes));
        }
        text.push('\n');
        if !self.rules.is_empty() {
            text += &format!("refused by rule: {}\n", list(&self.rules));
        }
        let (lost, endless) = (self.lost.counts(), self.ends.missing());
        // What a run lost in all is in its end.
        let at_least = if endless > 0 { "at least " } else { "" };
        for (count, what) in
            lost.into_iter().zip(["dropped by the server", "lost: the log could not be written"])
        {
            if count > 0 {
                text += &format!("{at_least}{} {what}\n", records_were(count));
            }
        }
        if endless > 0 {
            text += &without_an_end(endless);
            text.push('\n');
        }
        text
    }
}

fn add(sums: &mut BTreeMap<String, u64>, name: &str, count: u64) {
    let known = sums.contains_key(name) || sums.len() < MAX_TOLD_APART;
    *sums.entry(if known { name } else { "others" }.to_owned()).or_default() += count;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        serde_json::from_str(text).unwrap()
    }

    const REFUSED: &str = r#"{"time":"2026-01-31T09:15:02.936979Z","event":"repeated","count":4,
        "operation":"open","outcome":"refused","errno":"EACCES","uid":7,"pid":9,"exe":"/bin/cat",
        "path":"a\u001b[2J","rule":"keys"}"#;

    #[test]
    fn columns_are_escaped_and_coloured_on_terminals_alone() {
        let plain = text(&line(REFUSED), Colours { on: false });
        assert_eq!(
            plain,
            "2026-01-31 09:15:02.936  refused      open        a\\x1b[2J  \
             EACCES, 4 times more, rule keys, cat[9] uid 7"
        );
        let coloured = text(&line(REFUSED), Colours { on: true });
        assert!(coloured.contains("\x1b[31mrefused"), "{coloured}");
    }

    #[test]
    fn what_was_lost_of_a_run_without_an_end_is_a_part() {
        let mut totals = Totals::default();
        totals.add(&line(r#"{"time":"t","run":"a","event":"start"}"#));
        totals.add(&line(r#"{"time":"t","run":"a","event":"failed","count":1}"#));
        let text = totals.text();
        assert!(
            text.contains("at least 1 record was lost: the log could not be written\n"),
            "{text}"
        );
        assert!(text.ends_with("a server goes on, was killed, or could not write.\n"), "{text}");
        totals.add(&line(r#"{"time":"t","run":"a","event":"stop","failed":2}"#));
        let text = totals.text();
        assert!(
            text.ends_with("begun\n2 records were lost: the log could not be written\n"),
            "{text}"
        );
    }

    #[test]
    fn totals_count_what_repeated() {
        let mut totals = Totals::default();
        totals.add(&line(REFUSED));
        totals.add(&line(r#"{"time":"t","event":"start"}"#));
        totals.add(&line(r#"{"time":"t","event":"request","outcome":"done"}"#));
        let text = totals.text();
        assert!(text.starts_with("5 events, 1 run begun: refused 4, done 1\n"), "{text}");
        assert!(text.contains("refused by rule: keys 4"), "{text}");
    }
}

//! The corpus: `secrets.txt` and `others.txt`, one case per line.
//!
//! `DETECTOR | TEXT`, where `DETECTOR` is a name, `default` or `env`; what must be masked stands
//! between `\xab` and `\xbb` (the quotation marks of French), `\n`, `\t` and `\e` (ESC) in it are written out.
//! Every secret is made up.

use tollgate_redact::{Detectors, Redactor};

#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) expected: String,
}

impl Case {
    pub(crate) fn detectors(&self) -> Detectors {
        match self.name.as_str() {
            "default" => Detectors::default(),
            name => Detectors::only(&[name.parse().expect("a detector of the corpus")]),
        }
    }

    /// What is wrong, if anything.
    pub(crate) fn fault(&self) -> Option<String> {
        let mut bytes = self.text.clone().into_bytes();
        let mut found = Vec::new();
        Redactor::new(self.detectors())
            .mask_all(&mut bytes, |one| found.push((one.rule.to_string(), one.bytes)));
        let masked = String::from_utf8_lossy(&bytes);
        let text = &self.text;
        (masked != self.expected).then(|| {
            format!(
                "text     {text:?}\nmasked   {masked:?}\nexpected {:?}\n{found:?}",
                self.expected
            )
        })
    }
}

pub(crate) fn secrets() -> Vec<Case> {
    read(include_str!("secrets.txt"))
}

pub(crate) fn others() -> Vec<Case> {
    read(include_str!("others.txt"))
}

fn read(list: &str) -> Vec<Case> {
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with("## "));
    lines.map(case).collect()
}

fn case(line: &str) -> Case {
    let (name, marked) = line.split_once(" | ").unwrap_or_else(|| panic!("no ` | `: {line}"));
    let marked = marked.replace("\\\\", "\u{0}").replace("\\n", "\n").replace("\\t", "\t");
    let marked = marked.replace("\\e", "\u{1b}").replace('\u{0}', "\\");
    let (mut text, mut expected, mut inside) = (String::new(), String::new(), false);
    for character in marked.chars() {
        match character {
            '«' => inside = true,
            '»' => inside = false,
            other => {
                text.push(other);
                // One mark for each byte.
                let masked = if inside && other != '\n' {
                    "*".repeat(other.len_utf8())
                } else {
                    other.into()
                };
                expected += &masked;
            }
        }
    }
    Case { name: name.trim().to_owned(), text, expected }
}

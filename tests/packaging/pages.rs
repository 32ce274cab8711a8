//! Pages show commands that work: blocks marked `console tested` are run, and what they print is
//! compared with what stands there. `...` stands for any lines, `[...]` for any part of a line.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::helper::can_mount;

/// A command of a page, and what it is to print.
#[derive(Debug, Default, PartialEq, Eq)]
struct Step {
    line: usize,
    command: String,
    expected: Vec<String>,
}

/// The steps of all marked blocks of a page.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut inside = false;
    for (number, line) in (1..).zip(page.lines()) {
        if line.starts_with("```") {
            inside = line == "```console tested";
        } else if !inside {
        } else if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { line: number, command: command.to_owned(), ..Step::default() });
        } else {
            let step = steps.last_mut().expect("a block begins with a command");
            match line.strip_prefix('>') {
                Some(more) if step.expected.is_empty() => {
                    step.command += "\n";
                    step.command += more.strip_prefix(' ').unwrap_or(more);
                }
                _ => step.expected.push(line.to_owned()),
            }
        }
    }
    steps
}

/// Runs the steps in one shell, in a home directory of their own, and answers what each printed.
/// /dev/fuse is accessible to everybody, in a mount namespace of the shell's own.
fn run(steps: &[Step]) -> Vec<Vec<String>> {
    const MARK: &str = "==== next step ====";
    let home = tempfile::Builder::new().prefix("pages").tempdir_in("/var/tmp").unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(home.path(), open).unwrap();
    let mut script = "mknod -m 666 .fuse c 10 229 && mount --bind .fuse /dev/fuse\n\
                      umask 0; exec 2>&1\n"
        .to_owned();
    for step in steps {
        script += &format!("printf '\\n{MARK}\\n'\n{}\n", step.command);
    }
    let bin = Path::new(env!("CARGO_BIN_EXE_tollgate")).parent().unwrap();
    let output = Command::new("unshare")
        .args(["-m", "bash", "-c", &script])
        .env_clear()
        .env("HOME", home.path())
        .env("LC_ALL", "C.UTF-8")
        .env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display()))
        .current_dir(home.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let mark = format!("\n{MARK}\n");
    let parts = printed.split(&mark).skip(1);
    let parts: Vec<_> =
        parts.map(|part| part.trim_end().lines().map(str::to_owned).collect()).collect();
    assert_eq!(parts.len(), steps.len(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    parts
}

fn fits(expected: &[String], printed: &[String]) -> bool {
    match (expected, printed) {
        ([], []) => true,
        ([any, rest @ ..], _) if any == "..." => {
            (0..=printed.len()).any(|skipped| fits(rest, &printed[skipped..]))
        }
        ([line, rest @ ..], [found, more @ ..]) => line_fits(line, found) && fits(rest, more),
        _ => false,
    }
}

fn line_fits(expected: &str, found: &str) -> bool {
    let Some((before, after)) = expected.split_once("[...]") else { return expected == found };
    let Some(rest) = found.strip_prefix(before) else { return false };
    let mut starts = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    starts.any(|at| line_fits(after, &rest[at..]))
}

fn check(page: &str) {
    if !can_mount() {
        return;
    }
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
    let steps = steps(&text);
    assert!(steps.len() > 2, "{page} has no tested block");
    let mut faults = String::new();
    for (step, printed) in steps.iter().zip(run(&steps)) {
        if !fits(&step.expected, &printed) {
            faults += &format!("{page}:{}: {}\n{}\n", step.line, step.command, printed.join("\n"));
        }
    }
    assert!(faults.is_empty(), "printed something else:\n{faults}");
}

#[test]
fn the_page_for_agents_holds() {
    check("docs/agents.md");
}

#[test]
fn the_page_for_ci_holds() {
    check("docs/ci.md");
}

#[test]
fn the_readme_holds() {
    check("README.md");
}

#[test]
fn blocks_are_read_and_compared() {
    let page = "x\n```console tested\n$ a\n1\n$ b <<E\n> t\n> E\n```\n```console\n$ c\n```\n";
    let found = steps(page);
    assert_eq!(found.len(), 2);
    assert_eq!((found[0].command.as_str(), &found[0].expected[..]), ("a", &["1".to_owned()][..]));
    assert_eq!(found[1].command, "b <<E\nt\nE");
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let yes = |expected, printed| fits(&lines(expected), &lines(printed));
    assert!(yes("a\n...\nd", "a\nb\nc\nd") && yes("...", "") && yes("a [...] c", "a b c"));
    assert!(!yes("a", "b") && !yes("a\n...\nd", "a\nb") && !yes("", "a") && !yes("a [...] c", "a"));
}

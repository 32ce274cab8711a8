//! Every command has a page, completions and an example that can be typed.

use std::collections::BTreeSet;
use std::process::Command;

/// What a call printed. It must succeed.
fn answer(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The help of a command, which is given by the words that it is called by.
fn help(command: &[String]) -> String {
    let words = command.iter().map(String::as_str).chain(["--help"]);
    answer(&words.collect::<Vec<_>>())
}

/// The commands that `--help` shows, `["wq", "dump"]` among them; the first is the program itself.
fn commands() -> Vec<Vec<String>> {
    let mut found = vec![Vec::new()];
    let mut at = 0;
    while let Some(command) = found.get(at).cloned() {
        found.extend(subcommands(&help(&command)).map(|name| [&command[..], &[name]].concat()));
        at += 1;
    }
    assert!(found.len() > 20 && found.contains(&vec!["wq".to_owned(), "dump".to_owned()]));
    found
}

/// What stands in the lists before the options, under whatever headings; arguments have brackets.
fn subcommands(help: &str) -> impl Iterator<Item = String> {
    let lines = help.lines().skip_while(|line| !line.starts_with("Usage:"));
    let lines = lines.take_while(|line| *line != "Options:");
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let is_name = |name: &&str| name.starts_with(|first: char| first.is_ascii_lowercase());
    let names = names.filter(is_name).filter(|name| *name != "help").map(str::to_owned);
    names.collect::<Vec<_>>().into_iter()
}

#[test]
fn every_command_has_an_example_of_its_own() {
    for command in commands() {
        let help = help(&command);
        let (_, examples) = help.split_once("Example").unwrap_or_else(|| panic!("{command:?}"));
        let typed = [&["tollgate".to_owned()], &command[..]].concat().join(" ");
        assert!(examples.contains(&typed), "no `{typed}` in the examples of {command:?}");
    }
}

#[test]
fn every_command_has_a_page_with_its_examples_and_there_are_no_others() {
    let dir = tempfile::tempdir().unwrap();
    answer(&["man-pages", dir.path().to_str().unwrap()]);
    let files = std::fs::read_dir(dir.path()).unwrap();
    let written: BTreeSet<_> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    let page =
        |command: &Vec<String>| [&["tollgate".to_owned()], &command[..]].concat().join("-") + ".1";
    let expected: BTreeSet<_> = commands().iter().map(page).collect();
    assert_eq!(written, expected);
    for command in commands() {
        let text = std::fs::read_to_string(dir.path().join(page(&command))).unwrap();
        let typed = [&["tollgate".to_owned()], &command[..]].concat().join(" ");
        let (_, examples) = text.split_once(".SH EXAMPLES\n").unwrap_or_else(|| panic!("{text}"));
        // In roff a hyphen that is to be copied is written with a backslash.
        assert!(examples.replace('\\', "").contains(&typed), "{command:?}: {examples}");
        for section in [".TH ", ".SH NAME\n", ".SH SYNOPSIS\n", ".SH OPTIONS\n", ".SH \"SEE ALSO\""]
        {
            assert!(text.contains(section), "{command:?} has no `{section}`: {text}");
        }
    }
}

#[test]
fn man_pages_have_no_formatting_errors() {
    if Command::new("man").arg("--version").output().is_err() {
        eprintln!("skipped: there is no man(1)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    answer(&["man-pages", dir.path().to_str().unwrap()]);
    let by_hand = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/man");
    let directories = [dir.path(), by_hand.as_path()].map(|dir| std::fs::read_dir(dir).unwrap());
    for file in directories.into_iter().flatten() {
        let file = file.unwrap().path();
        // A page that is another one is looked for in its section.
        if std::fs::read_to_string(&file).unwrap().starts_with(".so ") {
            continue;
        }
        let mut man = Command::new("man");
        man.args(["--warnings", "-Tutf8", "-l"]).arg(&file);
        let output = man.env("MANROFFSEQ", "").env("LC_ALL", "C.UTF-8").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{}: {said}", file.display());
    }
}

/// That page is written by hand: it has no command of its own.
#[test]
fn the_page_of_the_mount_helper_names_every_option() {
    let page = include_str!("../../packaging/man/mount.fuse.tollgate.8");
    let help = answer(&["mount", "--help"]);
    let arguments = help.lines().filter_map(|line| {
        let line = line.trim_start();
        // `-p, --policy <POLICY>`.
        let long = line.strip_prefix("--").or_else(|| line.get(2..)?.strip_prefix(", --"))?;
        let (name, value) = long.split_once(' ').unwrap_or((long, ""));
        Some((name.replace('-', "_"), value.trim_matches(['<', '>']).to_owned()))
    });
    // Flags, and those that fstab(5) has names of its own for.
    let others = ["verbose", "help", "daemon", "read_only", "noexec", "noatime", "allow_other"];
    let arguments: BTreeSet<_> =
        arguments.filter(|(name, _)| !others.contains(&name.as_str())).collect();
    let options = page.lines().filter_map(|line| line.strip_prefix(".BI ")?.split_once("= "));
    let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(options.collect::<BTreeSet<_>>(), arguments);
    assert!(arguments.len() > 15);
    for option in ["ro", "noexec", "noatime", "allow_other", "noallow_other"] {
        let is_named = |line: &str| line.starts_with(".BR ") && line.contains(option);
        assert!(page.lines().any(is_named), "{option}");
    }
}

/// What users get has no symbols in it; `profiling` is for those who look into the program.
#[test]
fn the_release_profile_strips_symbols() {
    let manifest: toml::Table = include_str!("../../Cargo.toml").parse().unwrap();
    assert_eq!(manifest["profile"]["release"]["strip"].as_str(), Some("symbols"));
}

#[test]
fn bash_completes_every_command() {
    let script = answer(&["completions", "bash"]);
    for command in commands().into_iter().filter(|command| !command.is_empty()) {
        let (last, before) = command.split_last().unwrap();
        let words = [&["tollgate".to_owned()], before].concat().join(" ");
        let ask = format!(
            "{script}\nCOMP_WORDS=({words} {last}); COMP_CWORD={}\n\
             _tollgate tollgate {last} {}; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            command.len(),
            before.last().map_or("tollgate", String::as_str)
        );
        let output = Command::new("bash").args(["--norc", "-c", &ask]).output().unwrap();
        let offered = String::from_utf8(output.stdout).unwrap();
        assert!(offered.lines().any(|line| line == last), "{command:?}: {offered:?}");
    }
}

#[test]
fn the_other_shells_know_every_command() {
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let script = answer(&["completions", shell]);
        for command in commands() {
            let Some(last) = command.last() else { continue };
            assert!(script.contains(last.as_str()), "{shell}: {command:?}");
        }
    }
}

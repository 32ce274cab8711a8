//! Every dependency has a licence that deny.toml allows.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Packages whose licence is not allowed, one line each.
pub(crate) fn faults() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("deny.toml")).expect("a file of the tree");
    let allowed = allowed(&text);
    let metadata = metadata(root);
    let packages = metadata["packages"].as_array().expect("by the format of cargo metadata");
    let faults = packages.iter().filter_map(|package| {
        let licence = package["license"].as_str().unwrap_or("none");
        let allows = |name: &str| allowed.iter().any(|allowed| allowed == name);
        let name = package["name"].as_str().unwrap_or("?");
        (!satisfied(licence, &allows)).then(|| format!("{name}: licence {licence}"))
    });
    faults.collect()
}

/// The list `allow` of deny.toml: one quoted name per line.
fn allowed(text: &str) -> Vec<String> {
    let lines = text.lines().skip_while(|line| *line != "allow = [").skip(1);
    let names = lines.take_while(|line| *line != "]").filter_map(|line| line.split('"').nth(1));
    let names: Vec<_> = names.map(str::to_owned).collect();
    assert!(!names.is_empty(), "deny.toml has no list `allow`");
    names
}

/// All packages that are built on this machine.
fn metadata(root: &Path) -> Value {
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).current_dir(root).output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("its output is text")
    };
    let version = run("rustc", &["-vV"]);
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("as ever");
    let filter = ["metadata", "--offline", "--format-version", "1", "--filter-platform", host];
    serde_json::from_str(&run("cargo", &filter)).expect("cargo prints JSON")
}

/// Whether an SPDX expression is satisfied: names joined by OR (or `/`, in old manifests) and AND,
/// with parentheses.
fn satisfied(expression: &str, allows: &dyn Fn(&str) -> bool) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<_> = spaced.split_whitespace().collect();
    let mut at = 0;
    let value = any_of(&words, &mut at, allows);
    value && at == words.len()
}

fn any_of(words: &[&str], at: &mut usize, allows: &dyn Fn(&str) -> bool) -> bool {
    let mut value = all_of(words, at, allows);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        value |= all_of(words, at, allows);
    }
    value
}

fn all_of(words: &[&str], at: &mut usize, allows: &dyn Fn(&str) -> bool) -> bool {
    let mut value = one(words, at, allows);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        value &= one(words, at, allows);
    }
    value
}

fn one(words: &[&str], at: &mut usize, allows: &dyn Fn(&str) -> bool) -> bool {
    let Some(&word) = words.get(*at) else { return false };
    *at += 1;
    if word == "(" {
        let value = any_of(words, at, allows);
        *at += 1;
        return value;
    }
    if words.get(*at) == Some(&"WITH") {
        *at += 2;
        let exception = words.get(*at - 1).copied().unwrap_or_default();
        return allows(&format!("{word} WITH {exception}"));
    }
    allows(word)
}

#[test]
fn expressions_are_read() {
    let allows = |name: &str| matches!(name, "MIT" | "ISC" | "A WITH x");
    for good in ["MIT", "GPL OR MIT", "GPL/MIT", "(GPL OR MIT) AND ISC", "A WITH x OR GPL"] {
        assert!(satisfied(good, &allows), "{good}");
    }
    for bad in ["GPL", "MIT AND GPL", "A", "MIT AND (GPL OR A WITH y)", "", "none", "MIT ISC"] {
        assert!(!satisfied(bad, &allows), "{bad}");
    }
}

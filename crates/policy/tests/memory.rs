//! A short text that would stand for much more memory is refused before it takes that.

use tollgate_policy::Policy;

/// The first line of what is said about a policy that is refused.
#[track_caller]
fn refused(text: &str) -> String {
    let error = Policy::parse(text, "p.toml").map(drop).unwrap_err();
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

#[track_caller]
fn is_refused(text: &str, parts: &[&str]) {
    let error = refused(text);
    assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
    assert!(error.len() < 500, "{error}");
}

fn rule(path: &str) -> String {
    format!("[[rule]]\npath = [{path}]\naction = \"deny\"\n")
}

#[test]
fn a_glob_is_no_longer_than_it_needs_to_be() {
    let glob = |length: usize| "x".repeat(length);
    let fits = rule(&format!("\"{}\"", glob(65_536)));
    Policy::parse(&fits, "p.toml").unwrap();
    let parts = ["p.toml:2:", "65537 bytes", "at most 65536"];
    is_refused(&rule(&format!("\"{}\"", glob(65_537))), &parts);
    let exe = format!("[[rule]]\npath = 'a'\nexe = '/{}'\naction = 'deny'\n", glob(65_536));
    is_refused(&exe, &["p.toml:3:", "65537 bytes"]);
    let braces = format!("\"{}{}\"", "{a,b}".repeat(8), glob(4_000_000));
    is_refused(&rule(&braces), &["p.toml:2:", "4000040 bytes"]);
}

#[test]
fn alternatives_of_a_glob_are_bounded_by_what_they_stand_for() {
    let (braces, long) = ("{a,b}".repeat(8), "x".repeat(60_000));
    let class = format!("[{}]", "az".repeat(30_000));
    let choice = format!("{}{}", "{a,b}".repeat(4), "x".repeat(5_000));
    let choices = vec![choice; 10].join(",");
    let parts = ["p.toml:2:", "more than 1048576 characters", "write several globs"];
    for glob in [
        format!("{braces}{long}"),
        format!("{long}{braces}"),
        format!("{braces}{class}"),
        format!("{class}{braces}"),
        format!("{{{choices}}}{}", "x".repeat(2_000)),
    ] {
        is_refused(&rule(&format!("\"{glob}\"")), &parts);
    }
}

#[test]
fn globs_together_are_bounded_by_what_they_stand_for() {
    let glob = |number| format!("\"{number}{}{}\"", "{a,b}".repeat(8), "x".repeat(4_000));
    let globs = |count: usize| (0..count).map(glob).collect::<Vec<_>>();
    Policy::parse(&rule(&globs(3).join(",")), "p.toml").unwrap();
    let parts = ["more than 4194304 characters", "one policy", "braces spread out"];
    let (in_one_rule, in_many) = (globs(6).join(","), globs(6));
    is_refused(&rule(&in_one_rule), &parts);
    is_refused(&in_many.iter().map(|glob| rule(glob)).collect::<String>(), &parts);
    let view = format!("[[view]]\ndir = '/a'\n[[view.rule]]\npath = [{in_one_rule}]\n");
    is_refused(&(view + "action = \"deny\"\n"), &parts);
    let exes = in_one_rule.replace(",\"", ",\"/").replacen('"', "\"/", 1);
    is_refused(&format!("[[rule]]\npath = 'a'\nexe = [{exes}]\naction = 'deny'\n"), &parts);
}

#[test]
fn regular_expressions_together_are_bounded() {
    let parts = ["regular expressions", "256 MiB", "all together", "write"];
    let content = "[[rule]]\npath = 'a'\ncontent = { regex = '(a)' }\naction = 'deny'\n";
    Policy::parse(&content.repeat(100), "p.toml").unwrap();
    is_refused(&content.repeat(2_000), &parts);
    let names: String = (0..60).map(|number| format!("n{number} = '(a)', ")).collect();
    let redact =
        format!("[[rule]]\npath = 'a'\nregexes = {{ {names} n = 'a' }}\naction = 'redact'\n");
    Policy::parse(&redact, "p.toml").unwrap();
    is_refused(&redact.repeat(40), &parts);
}

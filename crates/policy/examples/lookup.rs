//! What a decision costs, for policies of several sizes:
//! `cargo run --release -p tollgate-policy --example lookup`.

use std::hint::black_box;
use std::time::Instant;

use tollgate_policy::{CallerFacts, Facts, InodeFacts, Kind, Operation, Policy};

const ROUNDS: u32 = 5;
const PATHS: [&[u8]; 4] = [
    b"Cargo.toml",
    b"src/main.rs",
    b"crates/policy/src/glob/index.rs",
    b"node_modules/@scope/package/dist/esm/internal/util/deep/file.min.js",
];

fn main() {
    println!(
        "{:<42} {:>9} {:>10} {:>10} {:>10}",
        "policy", "parse, ms", "hidden, ns", "decide, ns", "open, ns"
    );
    row("3 rules, 6 plain globs", &small());
    row("10 rules, 10 globs with wildcards", &rules(10, 1, |n| format!("crates/**/m{n}*/?x.rs")));
    row("50 rules, 50 globs of each form", &rules(50, 1, mixed));
    row("1,000 rules, 10,000 paths", &rules(1000, 10, |n| format!("pkg{n}/secret")));
    row("1,000 rules, 10,000 names anywhere", &rules(1000, 10, |n| format!("**/name{n}")));
    row("1,000 rules, 10,000 endings anywhere", &rules(1000, 10, |n| format!("**/*.e{n}")));
    row("1,000 rules, 10,000 in own directories", &rules(1000, 10, |n| format!("pkg{n}/**/*x*.c")));
    row("1,000 rules, 10,000 starts and ends", &rules(1000, 10, |n| format!("**/n{n}*b")));
    row("1,000 rules, 10,000 middles anywhere", &rules(1000, 10, |n| format!("**/*n{n}*")));
}

/// The forms of globs that policies have, in turn.
fn mixed(n: usize) -> String {
    match n % 5 {
        0 => format!("secret{n}"),
        1 => format!("**/*.k{n}"),
        2 => format!("**/id_{n}*"),
        3 => format!("pkg{n}/**/*.c"),
        _ => format!("**/.env{n}"),
    }
}

fn small() -> String {
    "[[rule]]\npath = ['**/*.pem', '**/id_*', '**/.env']\naction = 'deny'\n\
     [[rule]]\npath = 'secrets'\naction = 'hide'\n\
     [[rule]]\npath = ['docs/**', 'LICENSE']\noperation = ['write', 'create']\naction = 'read-only'\n"
        .to_owned()
}

fn rules(rules: usize, globs: usize, glob: impl Fn(usize) -> String) -> String {
    let mut text = String::new();
    for rule in 0..rules {
        let list: Vec<_> = (0..globs).map(|n| format!("'{}'", glob(rule * globs + n))).collect();
        // One `hide` rule, so that `hidden` has to look.
        let action = if rule == 0 { "hide" } else { "deny" };
        text += &format!("[[rule]]\npath = [{}]\naction = '{action}'\n", list.join(","));
    }
    text
}

fn row(name: &str, text: &str) {
    let start = Instant::now();
    let policy = match Policy::parse(text, "policy.toml") {
        Ok(policy) => policy,
        Err(error) => return println!("{error}"),
    };
    let parse_ms = start.elapsed().as_secs_f64() * 1e3;
    let caller = CallerFacts { uid: 1000, gid: 1000, exe: Some(b"/usr/bin/cat") };
    let hidden = best_ns(|path| {
        black_box(policy.hidden(black_box(path), Kind::File));
    });
    let decide = best_ns(|path| {
        let facts = Facts { path: black_box(path), kind: Kind::File, size: 10, head: None };
        black_box(policy.decide(&facts, Operation::Read, &caller));
    });
    // What an open asks: is the content or the executable needed, what is the verdict, the mode?
    let open = best_ns(|path| {
        let rules = policy.at(black_box(path));
        let inode = InodeFacts { kind: Kind::File, size: 10, head: None };
        black_box(rules.needs_head(inode.kind, inode.size));
        black_box(rules.needs_caller(inode.kind));
        black_box(rules.decide(&inode, Operation::Read, &caller));
        black_box(rules.mode(&inode));
    });
    println!("{name:<42} {parse_ms:>9.2} {hidden:>10.0} {decide:>10.0} {open:>10.0}");
}

/// Nanoseconds for one path, the best round.
fn best_ns(ask: impl Fn(&[u8])) -> f64 {
    let round = |turns: u32| {
        let start = Instant::now();
        for _ in 0..turns {
            PATHS.iter().for_each(|path| ask(path));
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(turns) / 4.0
    };
    // Slow ones get fewer turns.
    let turns = if round(10) > 1e4 { 50 } else { 50_000 };
    (0..ROUNDS).map(|_| round(turns)).fold(f64::INFINITY, f64::min)
}

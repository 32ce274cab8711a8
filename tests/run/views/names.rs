//! Files with names in several views, and views that others move.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use super::*;

/// A further name of a file.
fn link(project: &Project, from: &str, to: &str) {
    fs::hard_link(project.path(from), project.path(to)).unwrap();
}

/// Runs `script`, and `meanwhile` when it says that it is ready, and waits for a line.
fn with_a_pause(mut command: Command, script: &str, meanwhile: impl FnOnce()) -> Output {
    command.args(["--", "sh", "-c", script]).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    assert_eq!(first_line(&mut child), "ready");
    meanwhile();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"\n").unwrap();
    child.wait_with_output().unwrap()
}

/// A file that has names in several directories has the rules of all of them, also where DIR has
/// none of its own.
#[test]
fn names_of_a_file_in_other_views_count() {
    if !can_mount() {
        return;
    }
    let project = project();
    let link = |from, to| link(&project, from, to);
    link("notes/secret", "dir/innocent");
    link("notes/old/a", "dir/old-a");
    link("notes/plan", "dir/plan");
    link("dir/.env", "notes/env");
    let script = "cat innocent ../notes/env; ls innocent ../notes | grep env; echo x >>old-a; \
                  rm -f old-a; cat plan old-a; ln plan again && cat again; echo x >>plan";
    let output = sh(run(&project, "several.toml", "dir", &[]), script);
    let said = all(&output);
    assert_eq!(text(&output.stdout), "plan\nold\nplan\n", "{said}");
    assert!(!said.contains(SECRET), "{said}");
    assert_eq!(fs::read_to_string(project.path("notes/plan")).unwrap(), "plan\nx\n", "{said}");
    let policy = fs::read_to_string(project.path("several.toml")).unwrap();
    let at = policy.find("[[view]]").unwrap();
    fs::write(project.path("free.toml"), &policy[at..]).unwrap();
    let output = sh(run(&project, "free.toml", "dir", &[]), "cat innocent; cat plan");
    assert_eq!(text(&output.stdout), "plan\nx\n", "{}", all(&output));

    link("home/.ssh/id", "home/work/dir/innocent");
    link("home/.profile", "home/work/dir/profile");
    let output = sh(run(&project, "home.toml", "home/work/dir", &[]), "cat innocent; cat profile");
    let said = all(&output);
    assert_eq!(text(&output.stdout), "profile\n", "{said}");
    assert!(!said.contains(SECRET), "{said}");
}

/// `why` answers by all names of a file, and says whose rule refuses it: also where the name does not
/// show, and in the view around DIR.
#[test]
fn why_names_the_view_and_the_rule_that_another_name_is_refused_by() {
    if !can_mount() {
        return;
    }
    let project = project();
    let link = |from, to| link(&project, from, to);
    link("notes/secret", "dir/innocent");
    link("notes/old/a", "dir/old-a");
    link("dir/.env", "notes/env");
    link("dir/keys/id_rsa", "dir/again");
    link("notes/plan", "dir/plan");
    link("home/.ssh/id", "home/work/dir/innocent");
    let policy = fs::read_to_string(project.path("several.toml")).unwrap();
    let keys = "[[rule]]\nname = \"keys\"\npath = \"keys/**\"\naction = \"deny\"\n";
    fs::write(project.path("several.toml"), keys.to_owned() + &policy).unwrap();
    let top = fs::canonicalize(project.path("")).unwrap();
    let view = |name: &str| format!("in the view of `{}/{name}`", top.display());
    let notes = view("notes");
    let why = |policy: &str, dir: &str, what: &str| {
        let output = sh(run(&project, policy, dir, &["--quiet"]), &format!("\"$T\" why {what}"));
        assert!(output.status.success(), "{}", all(&output));
        text(&output.stdout)
    };
    for (policy, dir, what, parts) in [
        ("several.toml", "dir", "innocent", ["no (ENOENT)", &notes, "rule `mine`"]),
        ("several.toml", "dir", "--write innocent", ["no (ENOENT)", &notes, "rule `mine`"]),
        ("several.toml", "dir", "--write old-a", ["no (EROFS)", &notes, "rule `old`"]),
        ("several.toml", "dir", "old-a", ["yes", "by the default", ""]),
        ("several.toml", "dir", "plan", ["yes", "by the default", ""]),
        ("several.toml", "dir", "again", ["no (EACCES)", "another one, refused", "rule `keys`"]),
        ("several.toml", "dir", "../notes/env", ["no (ENOENT)", &view("dir"), "rule"]),
        ("home.toml", "home/work/dir", "innocent", ["no (ENOENT)", &view("home"), "rule `keys`"]),
    ] {
        let said = why(policy, dir, what);
        assert!(parts.iter().all(|part| said.contains(part)), "{what}: {parts:?}: {said}");
    }
}

/// Names that others make, and links that were counted elsewhere, while the views are served.
#[test]
fn names_that_come_later_count_in_other_views() {
    if !can_mount() {
        return;
    }
    let project = project();
    let outside = |name: &str| project.path(name);
    fs::write(outside("late"), "late\n").unwrap();
    fs::hard_link(outside("late"), outside("dir/late")).unwrap();
    let script = "cat late; echo ready; read go; cat late; cat late2";
    let mut command = run(&project, "several.toml", "dir", &["--quiet"]);
    command.args(["--", "sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = command.spawn().unwrap();
    let mut said = BufReader::new(running.stdout.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        line
    };
    assert_eq!((&*line(), &*line()), ("late\n", "ready\n"));
    // Into the directory whose rules keep it, by the name that they keep.
    fs::hard_link(outside("late"), outside("notes/old/late")).unwrap();
    fs::remove_file(outside("notes/secret")).unwrap();
    fs::hard_link(outside("late"), outside("notes/secret")).unwrap();
    fs::write(outside("late2"), "late2\n").unwrap();
    fs::hard_link(outside("late2"), outside("dir/late2")).unwrap();
    fs::hard_link(outside("late2"), outside("notes/late2")).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    drop(running.stdin.take());
    assert_eq!(line(), "late2\n");
    running.wait().unwrap();
}

/// Others move DIR, or a directory above it, where the rules of the view around it hold.
#[test]
fn dir_is_shown_by_its_own_rules_alone_wherever_others_move_it() {
    if !can_mount() {
        return;
    }
    for (from, to) in [("home/work", "home/moved"), ("home/work/dir", "home/moved")] {
        for look in ["true", "ls ~/work/dir >/dev/null"] {
            for watch in ["off", "auto"] {
                let project = project();
                let below = if from == "home/work" { "moved/dir" } else { "moved" };
                let options = ["--watch", watch, "--attr-timeout", "0.2"];
                let script = format!(
                    "echo ready; read line; {look}; sleep 0.5; {look}
                    cat ~/{below}/.env ~/{below}/a.txt; ls ~/{below}; cat ~/work/dir/.env; cat ~/.profile"
                );
                let command = run(&project, "home.toml", "home/work/dir", &options);
                let rename = || fs::rename(project.path(from), project.path(to)).unwrap();
                let output = with_a_pause(command, &script, rename);
                let said = all(&output);
                assert_eq!(text(&output.stdout), "profile\n", "{said}");
                assert!(!said.contains(SECRET), "{from}, {look}, {watch}: {said}");
            }
        }
    }
}

/// What has a name in DIR is judged by it, also where DIR looks like a part of the view around it.
#[test]
fn names_in_dir_count_wherever_others_move_it() {
    if !can_mount() {
        return;
    }
    for (from, to) in [("home/work", "home/moved"), ("home/work/dir", "home/moved")] {
        let project = project();
        fs::hard_link(project.path("home/work/dir/.env"), project.path("home/linked")).unwrap();
        let script = "cat ~/linked; echo ready; read line
            for n in 1 2 3 4 5; do cat ~/linked; cat ~/.profile; sleep 0.4; done; echo x >>~/linked";
        let command = run(&project, "home.toml", "home/work/dir", &["--attr-timeout", "0.2"]);
        let rename = || fs::rename(project.path(from), project.path(to)).unwrap();
        let output = with_a_pause(command, script, rename);
        let said = all(&output);
        assert_eq!(text(&output.stdout), "profile\n".repeat(5), "{said}");
        assert!(!said.contains(SECRET), "{from}: {said}");
        assert_eq!(fs::read_to_string(project.path("home/linked")).unwrap(), SECRET, "{from}");
    }
}

/// Nothing is judged in a native directory: one with a file that another view protects is none.
#[test]
fn a_native_directory_holds_no_file_that_another_view_protects() {
    if !can_mount() {
        return;
    }
    let project = project();
    for (from, to) in [("dir/keys/id_rsa", "data/nat/k"), ("notes/secret", "dir/nat/n")] {
        fs::create_dir_all(project.path(to).parent().unwrap()).unwrap();
        link(&project, from, to);
    }
    let top = fs::canonicalize(project.path("")).unwrap();
    let top = top.display();
    let policy = format!(
        "[[rule]]\npath = \"nat\"\naction = \"native\"\n\
         [[rule]]\npath = \"keys/**\"\naction = \"deny\"\n\
         [[view]]\ndir = \"{top}/data\"\n[[view.rule]]\npath = \"nat\"\naction = \"native\"\n\
         [[view]]\ndir = \"{top}/notes\"\n[[view.rule]]\npath = \"secret\"\naction = \"hide\"\n"
    );
    fs::write(project.path("p.toml"), policy).unwrap();
    let output =
        sh(run(&project, "p.toml", "dir", &[]), "cat nat/n ../data/nat/k; echo x >nat/new");
    let said = all(&output);
    assert!(!said.contains(SECRET) && said.contains("is not native but served"), "{said}");
    assert!(project.path("dir/nat/new").exists(), "{said}");
    // Without such a file it stays one.
    fs::remove_file(project.path("dir/nat/n")).unwrap();
    fs::remove_file(project.path("data/nat/k")).unwrap();
    let said = all(&sh(run(&project, "p.toml", "dir", &[]), "echo y >nat/new"));
    assert!(!said.contains("is not native"), "{said}");
}

/// Within a view and across two: a protected file gets no further name. One that nobody protects is
/// free in the view around DIR, too.
#[test]
fn links_of_files_with_names_in_other_views() {
    if !can_mount() {
        return;
    }
    let project = project();
    let link = |from, to| link(&project, from, to);
    link("notes/old/a", "dir/old-a");
    let script = "ln old-a again; ls again; \"$T\" why --write old-a; \"$T\" why --write a.txt";
    let output = sh(run(&project, "several.toml", "dir", &[]), script);
    let said = all(&output);
    assert!(!project.path("dir/again").exists(), "{said}");
    let out = text(&output.stdout);
    let told: Vec<_> = out.lines().collect();
    assert!(told[0].contains("no (EROFS)") && told[0].contains("another one"), "{said}");
    assert!(told[1].contains(": yes, "), "{said}");

    link("home/work/dir/a.txt", "home/free");
    link("home/work/dir/.env", "home/hidden");
    let script = "cat ~/free; echo more >>~/free; cat ~/hidden; cat a.txt";
    let output = sh(run(&project, "home.toml", "home/work/dir", &[]), script);
    let said = all(&output);
    assert_eq!(text(&output.stdout), "plain\nplain\nmore\n", "{said}");
    assert!(!said.contains(SECRET), "{said}");
}

/// Rules are about real paths, whatever path somebody takes to them.
#[test]
fn why_follows_links_on_the_way() {
    if !can_mount() {
        return;
    }
    let project = project();
    let symlink = |to: &str, name: &str| {
        std::os::unix::fs::symlink(project.path(to), project.path(name)).unwrap();
    };
    symlink("dir", "l");
    symlink("dir/docs/guide.md", "guide");
    symlink("notes", "further");
    symlink("dir/docs", "dir/inside");
    symlink("l", "dir/out");
    fs::write(project.path("dir/deny"), "x").unwrap();
    let policy = fs::read_to_string(project.path("several.toml")).unwrap();
    let rules = "[[rule]]\nname = \"deny\"\npath = \"deny\"\naction = \"deny\"\n[[rule]]\n\
                 name = \"docs\"\npath = \"docs/**\"\naction = \"read-only\"\n";
    fs::write(project.path("several.toml"), rules.to_owned() + &policy).unwrap();
    for (what, answer, rule) in [
        ("../l/deny", "no (EACCES)", "deny"),
        ("../l/.env", "no (ENOENT)", "rule"),
        ("--write ../l/docs/guide.md", "no (EROFS)", "docs"),
        ("--write ../guide", "no (EROFS)", "docs"),
        ("../further/secret", "no (ENOENT)", "mine"),
        ("--write ../further/old/a", "no (EROFS)", "old"),
        ("../l/a.txt", "yes", "default"),
        ("--write inside/guide.md", "no (EROFS)", "docs"),
        ("--write out/docs/new", "no (EROFS)", "docs"),
        ("--write inside", "yes", "default"),
    ] {
        let why = format!("\"$T\" why {what}");
        let said = all(&sh(run(&project, "several.toml", "dir", &["--quiet"]), &why));
        assert!(said.contains(answer) && said.contains(rule), "{what}: {said}");
    }
}

//! The policy of DIR in its own view: CMD does not see it, and git does not miss it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::project::{Project, all, can_mount, text, tollgate};

const OWN: &str = "# the-words-of-the-policy\n[[rule]]\npath = \"**/.env\"\naction = \"hide\"\n";
const WORDS: &str = "the-words-of-the-policy";

fn has_git() -> bool {
    let there = Command::new("git").arg("--version").stdout(Stdio::null()).status();
    let there = there.is_ok_and(|status| status.success());
    if !there {
        eprintln!("skipped: no git");
    }
    there
}

struct Place {
    project: Project,
    dir: PathBuf,
}

impl Place {
    /// DIR with a policy of its own.
    fn new() -> Self {
        let project = Project::new();
        let dir = std::fs::canonicalize(project.path("dir")).unwrap();
        std::fs::write(dir.join(".tollgate.toml"), OWN).unwrap();
        Self { project, dir }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.dir).stdin(Stdio::null()).env("GIT_CONFIG_NOSYSTEM", "1");
        command.env("HOME", self.project.path("home")).env_remove("TOLLGATE_POLICY");
        command.env("XDG_CONFIG_HOME", self.project.path("config"));
        command.envs([("GIT_AUTHOR_NAME", "a"), ("GIT_AUTHOR_EMAIL", "a@b")]);
        command.envs([("GIT_COMMITTER_NAME", "a"), ("GIT_COMMITTER_EMAIL", "a@b")]);
        command
    }

    /// A script in DIR, without a view.
    fn bare(&self, script: &str) -> String {
        let output = self.command("sh").args(["-ec", script]).output().unwrap();
        assert!(output.status.success(), "{script}: {}", all(&output));
        text(&output.stdout)
    }

    /// A script in the view.
    fn fenced(&self, options: &[&str], script: &str) -> Output {
        let mut command = self.command(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["run", "--fence", "off"]).args(options).arg(&self.dir);
        command.args(["--", "sh", "-c", script]).env("T", env!("CARGO_BIN_EXE_tollgate"));
        command.output().unwrap()
    }

    fn own(&self) -> PathBuf {
        self.dir.join(".tollgate.toml")
    }
}

fn contents(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn a_policy_that_git_does_not_have_is_not_shown() {
    if !can_mount() || !has_git() {
        return;
    }
    let place = Place::new();
    place
        .bare("git init -q -b main; git add a.txt; git commit -qm a; ln .tollgate.toml other-name");
    let script = "cat .tollgate.toml other-name; ls -A; grep -rs words .; tar c . 2>/dev/null
        echo x >.tollgate.toml; mv a.txt .tollgate.toml; rm -f .tollgate.toml; ln -s a.txt .tollgate.toml
        git status --short; git add -A && git commit -qm all && git ls-files; git stash list
        $T why .tollgate.toml; true";
    for options in [&[][..], &["--policy", "agent"], &["--policy", ".tollgate.toml"]] {
        let output = place.fenced(options, script);
        let said = all(&output);
        assert!(
            !said.contains(WORDS) && !text(&output.stdout).contains(".tollgate.toml\n"),
            "{said}"
        );
        assert!(
            said.contains("docs/guide.md") && said.contains("`policy of this directory`"),
            "{said}"
        );
        assert_eq!(contents(&place.own()), OWN, "{said}");
        place.bare("git reset -q --soft $(git rev-list --max-parents=0 HEAD); git reset -q");
    }
    let output = place.fenced(&["--policy", "none"], "cat .tollgate.toml");
    assert_eq!(text(&output.stdout), OWN, "{}", all(&output));
}

#[test]
fn a_policy_that_git_has_is_read_so_that_git_finds_it_unchanged() {
    if !can_mount() || !has_git() {
        return;
    }
    for split in ["", "git update-index --split-index; echo 1 >new; git add new"] {
        let place = Place::new();
        // As it is right after a clone: git compares contents where times do not tell.
        place.bare(&format!(
            "git init -q -b main; git add -A -- . ':!.env'; git commit -qm a\n{split}"
        ));
        let script = "git status --short --untracked-files=no; git diff HEAD --stat -- .tollgate.toml
            echo more >>a.txt; git add -A; git commit -qm b; git stash list; echo and >>a.txt; git stash -q
            git stash pop -q; git checkout -q -- a.txt; git reset -q --hard; git ls-files
            touch a.txt; git status --short; echo x >>.tollgate.toml; rm -f .tollgate.toml; true";
        let output = place.fenced(&[], script);
        let out = text(&output.stdout);
        assert!(out.contains(".tollgate.toml\n"), "{}", all(&output));
        for mark in [" M .tollgate", "D .tollgate", "M  .tollgate", "1 file changed"] {
            assert!(!out.contains(mark), "{mark}: {}", all(&output));
        }
        assert_eq!(contents(&place.own()), OWN);
        assert_eq!(place.bare("git show HEAD:.tollgate.toml"), OWN);
        // Where git is told to leave the file alone, it is not missed. A split index says so apart
        // from the name, and the file is shown.
        if !split.is_empty() {
            continue;
        }
        place.bare("git update-index --skip-worktree .tollgate.toml");
        let output =
            place.fenced(&[], "cat .tollgate.toml; git add -A; git status --short; git ls-files");
        let out = text(&output.stdout);
        assert!(!out.contains(WORDS) && out.contains(".tollgate.toml\n"), "{}", all(&output));
        assert!(!out.contains("D .tollgate"), "{}", all(&output));
    }
}

/// The repository may begin above DIR, and a link may lead to what git has.
#[test]
fn what_git_has_is_found_wherever_the_repository_begins() {
    if !can_mount() || !has_git() {
        return;
    }
    let place = Place::new();
    place
        .bare("cd ..; git init -q -b main; git add dir/.tollgate.toml dir/a.txt; git commit -qm a");
    let output = place.fenced(&["--quiet"], "cat .tollgate.toml");
    assert_eq!(text(&output.stdout), OWN, "{}", all(&output));
    place.bare(
        "git rm -q --cached .tollgate.toml; mv .tollgate.toml real.toml
                ln -s real.toml .tollgate.toml; git add real.toml",
    );
    let output = place.fenced(&["--quiet"], "cat real.toml; ls -A; cat .tollgate.toml");
    let out = text(&output.stdout);
    assert!(out.contains(WORDS) && !out.contains(".tollgate.toml"), "{}", all(&output));
    place.bare("git rm -q --cached real.toml");
    let output = place.fenced(&["--quiet"], "cat real.toml .tollgate.toml; ls -A");
    assert!(!text(&output.stdout).contains(WORDS), "{}", all(&output));
}

#[test]
fn a_rule_that_names_the_policy_decides_who_reads_it() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let rule =
        |action: &str| format!("[[rule]]\npath = \".tollgate.toml\"\naction = \"{action}\"\n{OWN}");
    for (action, shown) in [("passthrough", true), ("read-only", true), ("deny", false)] {
        std::fs::write(place.own(), rule(action)).unwrap();
        let output = place.fenced(&[], "ls -A; cat .tollgate.toml; echo x >.tollgate.toml; true");
        let out = text(&output.stdout);
        assert!(out.contains(".tollgate.toml\n"), "{action}: {}", all(&output));
        assert_eq!(out.contains(WORDS), shown, "{action}: {}", all(&output));
        assert_eq!(contents(&place.own()), rule(action));
    }
}

/// It stays hidden for rules that are about the policies of other directories, or hold nothing.
#[test]
fn a_rule_about_another_policy_does_not_show_the_one_of_the_directory() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let rules = [
        "path = \"sub/.tollgate.toml\"\naction = \"read-only\"\n",
        "path = \"sub/**/.tollgate.toml\"\naction = \"read-only\"\n",
        "path = [\"*/.tollgate.toml\", \"**/*.toml\"]\naction = \"read-only\"\n",
        "path = \".tollgate.toml\"\naction = \"deny\"\nmode = \"audit\"\n",
    ];
    for rule in rules {
        std::fs::write(place.own(), format!("[[rule]]\n{rule}{OWN}")).unwrap();
        let output = place.fenced(&["--quiet"], "ls -A; cat .tollgate.toml; true");
        assert!(!text(&output.stdout).contains(".tollgate.toml\n"), "{rule}: {}", all(&output));
        assert!(!all(&output).contains(WORDS), "{rule}: {}", all(&output));
    }
    for path in ["**/.tollgate.toml", "**/**/.tollgate.toml"] {
        let rule = format!("[[rule]]\npath = \"{path}\"\naction = \"read-only\"\n{OWN}");
        std::fs::write(place.own(), rule).unwrap();
        let output = place.fenced(&["--quiet"], "cat .tollgate.toml");
        assert!(text(&output.stdout).contains(WORDS), "{path}: {}", all(&output));
    }
}

/// Another `run` inside has the outer policy in force, and says that it does not see it.
#[test]
fn a_run_inside_says_that_it_does_not_see_the_policy_around_it() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let script = "$T run --fence off . -- cat .env a.txt; $T explain a.txt";
    let output = place.fenced(&["--quiet"], script);
    let said = all(&output);
    assert!(said.contains("is not shown here, `tollgate why PATH` asks it"), "{said}");
    assert!(said.contains("plain") && !said.contains(crate::project::SECRET), "{said}");
}

/// What git has is looked at again with each reload.
#[test]
fn a_reload_looks_again_at_what_git_has() {
    if !can_mount() || !has_git() {
        return;
    }
    let place = Place::new();
    place.bare("git init -q -b main");
    let script = "cat .tollgate.toml; touch begun; until test -e go; do sleep 0.05; done; cat .tollgate.toml";
    let mut command = place.command(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["run", "--sandbox", "strict", "--fence", "off", "--quiet"]).arg(&place.dir);
    command.args(["--", "timeout", "30", "sh", "-c", script]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    crate::project::until("CMD runs", || place.dir.join("begun").exists());
    place.bare("git add .tollgate.toml");
    let output = tollgate().arg("reload").arg(&place.dir).output().unwrap();
    std::fs::write(place.dir.join("go"), "").unwrap();
    let done = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", all(&output));
    assert_eq!(text(&done.stdout), OWN, "{}", all(&done));
}

/// What CMD leaves in git's directory is read by the next run, before its fence stands.
#[test]
fn an_index_without_an_end_is_not_read() {
    if !can_mount() || !has_git() {
        return;
    }
    let place = Place::new();
    place.bare("git init -q -b main; echo a >a; git add a");
    for name in [".git/index", ".git/commondir"] {
        std::fs::remove_file(place.dir.join(name)).ok();
        std::os::unix::fs::symlink("/dev/zero", place.dir.join(name)).unwrap();
        // Were it read, memory would end before the machine's does.
        let script = "ulimit -v 3000000; timeout 60 $T run --quiet --fence off . -- echo done; $T check --dir .";
        let mut command = place.command("sh");
        let output = command.args(["-c", script]).env("T", env!("CARGO_BIN_EXE_tollgate")).output();
        let said = all(&output.unwrap());
        assert!(said.contains("done"), "{said}");
        assert!(!said.contains("memory"), "{said}");
    }
    let output = place
        .command(env!("CARGO_BIN_EXE_tollgate"))
        .args(["check", "--dir", "."])
        .output()
        .unwrap();
    assert!(all(&output).contains("it is no regular file"), "{}", all(&output));
}

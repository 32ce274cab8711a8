//! git in the view works, and what it runs later outside stays as it is.

use std::process::Command;

use crate::harness::{PRESETS, Tree, all, has};
use crate::mounting::can_mount;

#[test]
fn git_works_with_submodules_and_working_trees() {
    if !can_mount() || !has("git") {
        return;
    }
    let tree = Tree::new();
    tree.bare(
        "git init -q -b main ../lib; cd ../lib; echo l >l; git add l; git commit -qm l
         git init -q -b main ../p; cd ../p; echo a >a; git add a; git commit -qm a
         git -c protocol.file.allow=always submodule --quiet add ../lib sub; git commit -qm sub
         git clone -q --bare . ../origin.git; git remote add origin ../origin.git; git fetch -q",
    );
    for preset in ["agent", "node", "python", "rust"] {
        tree.works(
            preset,
            "git status --short; git fetch -q origin; git log --oneline >/dev/null
             echo b >>a; git add -A; git commit -qm b; git stash list
             git checkout -q --no-track -b topic; echo c >>a; git commit -qam c
             git checkout -q main; git merge -q --no-edit topic
             git update-ref -d refs/heads/topic
             git tag t; git tag -d t >/dev/null; git gc -q
             git worktree add -q --detach .trees/w; echo w >>.trees/w/a
             git -C .trees/w commit -qam w; git worktree list >/dev/null
             git worktree remove .trees/w; git worktree prune
             git worktree add -q --detach ../w-$$ && git worktree remove ../w-$$
             echo s >>sub/l; git -C sub commit -qam s; git add sub; git commit -qm subs
             git submodule status >/dev/null; git reset -q --hard HEAD~1
             git -C sub checkout -q HEAD~1; git diff --quiet; git push -q origin main --force
             mkdir -p new && cd new && git init -q && echo n >n && git add n && git commit -qm n
             cd .. && rm -rf new",
        );
    }
    tree.works(
        "ci",
        "git --no-optional-locks status --short; git log >/dev/null; git show HEAD >/dev/null",
    );
    tree.works(
        "read-only",
        "git --no-optional-locks status --short; git diff HEAD; git log >/dev/null",
    );
}

/// A hidden tracked file looks deleted: what records that is said when `run` ends.
#[test]
fn a_deletion_of_hidden_files_in_the_index_is_named() {
    if !can_mount() || !has("git") {
        return;
    }
    let tree = Tree::new();
    tree.bare("git init -q -b main; echo A=1 >.env; echo a >a; git add -A; git commit -qm a");
    let said = all(&tree.fenced("agent", "echo b >>a; git add a; git commit -qm b"));
    assert!(!said.contains("could not see"), "{said}");
    let said = all(&tree.fenced("agent", "echo c >>a; git commit -qam c"));
    assert!(said.contains("could not see: `.env`. A commit of it deletes"), "{said}");
    tree.bare("git checkout -q HEAD~1 -- .env; test -f .env; git commit -qm back");
    tree.bare("git update-index --skip-worktree .env");
    let said = all(&tree.fenced("agent", "echo d >>a; git commit -qam d"));
    assert!(!said.contains("could not see"), "{said}");
}

/// Everything by which a command could have git, an editor or a shell run something outside.
#[test]
fn what_runs_later_outside_cannot_be_written() {
    if !can_mount() || !has("git") {
        return;
    }
    for preset in PRESETS {
        try_to_write_what_runs_later(preset);
    }
}

fn try_to_write_what_runs_later(preset: &str) {
    let tree = Tree::new();
    tree.bare(
        "git init -q -b main ../lib; cd ../lib; echo l >l; git add l; git commit -qm l
         cd ../p; git init -q -b main; echo a >a; git add a; git commit -qm a
         git -c protocol.file.allow=always submodule --quiet add ../lib sub; git commit -qm sub
         git config core.hooksPath tools/hooks; git config include.path ../tools/git.inc
         mkdir -p tools/hooks .vscode; echo '#!/bin/sh' >tools/hooks/pre-commit; echo >tools/git.inc
         echo {} >.vscode/tasks.json; echo >.envrc; git add -A; git commit -qm more --no-verify",
    );
    let attempts = [
        "echo x >.git/hooks/post-commit",
        "echo x >>.git/config",
        "git config alias.st '!sh'",
        "git config core.fsmonitor ./x",
        "mv .git/hooks .git/h",
        "rm -rf .git/hooks",
        "echo x >.git/commondir",
        "ln -s /tmp .git/hooks/x",
        "cp a .git/hooks/pre-push",
        "chmod 777 .git/config",
        "echo x >tools/hooks/pre-commit",
        "echo x >tools/hooks/post-commit",
        "rm tools/hooks/pre-commit",
        "mv tools t; mkdir -p tools/hooks; echo x >tools/hooks/pre-commit",
        "echo x >tools/git.inc",
        "echo x >.git/modules/sub/hooks/post-checkout",
        "echo x >>.git/modules/sub/config",
        "mkdir -p .git/modules/sub/info; echo x >.git/modules/sub/info/attributes",
        "echo 'gitdir: /tmp' >sub/.git",
        "rm -f sub/.git",
        "echo x >.vscode/tasks.json",
        "rm .vscode/tasks.json",
        "mv .vscode v",
        "echo x >.envrc",
        "rm .envrc",
        "mkdir -p d; echo x >d/.envrc",
        "mkdir -p d/.vscode; echo x >d/.vscode/tasks.json",
        "echo x >.mcp.json",
        "mkdir -p .claude; echo x >.claude/settings.json",
        "mkdir -p .husky; echo x >.husky/pre-commit",
        "echo x >x.code-workspace",
        "mkdir .devcontainer; echo x >.devcontainer/devcontainer.json",
        "mkdir .zed; echo x >.zed/tasks.json",
        "echo x >opencode.json",
        "echo x >opencode.jsonc",
        "mkdir -p .opencode/plugin; echo x >.opencode/plugin/x.js",
        "mkdir -p .opencode/tools; echo x >.opencode/tools/x.ts",
        "mkdir -p .claude/plugins; echo x >.claude/plugins/x",
        "mkdir .roo; echo x >.roo/mcp.json",
        "mkdir .windsurf; echo x >.windsurf/mcp.json; echo x >.windsurf/hooks.json",
        "mkdir .helix; echo x >.helix/languages.toml; echo x >.helix/config.toml",
        "echo x >.vimrc; echo x >.gvimrc",
        "echo x >y; ln y .git/hooks/z",
        "echo x >y; mv y .git/config",
        "git submodule add ./lib evil",
        // `mv` copies what it may read and removes what it may remove.
        "mv .git .g; cp -r .g .git; echo x >.git/hooks/post-commit",
        "rm -f .git/HEAD; echo x >tools/hooks/pre-commit",
        "echo x >tools/hooks/pre-commit",
    ];
    let state = "find .git/hooks .git/config .git/modules/sub/hooks .git/modules/sub/config tools \
                 .git/modules/sub/info sub/.git .vscode .envrc -printf '%p %m %s %l\\n' | sort; cat .git/config .envrc \
                 .vscode/tasks.json tools/hooks/* tools/git.inc sub/.git; \
                 ls d/.envrc d/.vscode/tasks.json .mcp.json .claude/settings.json .husky/pre-commit \
                 x.code-workspace .devcontainer/devcontainer.json .zed/tasks.json opencode.json \
                 opencode.jsonc .opencode/*/x.* .claude/plugins .roo/mcp.json .windsurf/*.json \
                 .helix/*.toml .vimrc .gvimrc \
                 .git/commondir 2>/dev/null; true";
    let outside = |script: &str| all(&tree.at_home(Command::new("sh").args(["-c", script])));
    let before = outside(state);
    for attempt in attempts {
        tree.fenced(preset, &format!("({attempt}) 2>/dev/null; true"));
        assert_eq!(outside(state), before, "{preset}: {attempt}");
        outside("rm -rf d y h v t .claude .husky .opencode");
    }
}

/// Settings of a repository that the command made would start programs when `git status` outside
/// enters it: `run` says so by name, `check` finds it, and the remedy that is documented holds.
#[test]
fn a_repository_that_starts_programs_is_named() {
    if !can_mount() || !has("git") {
        return;
    }
    let tree = Tree::new();
    tree.bare("git init -q -b main; echo a >a; git add a; git commit -qm a");
    let harmless =
        "mkdir fine && cd fine && git init -q && echo x >x && git add x && git commit -qm x";
    let output = tree.fenced("agent", &format!("{harmless}; cd ..; git add fine 2>/dev/null"));
    assert!(output.status.success() && !all(&output).contains("warning"), "{}", all(&output));
    let mark = tree.path("ran");
    let evil = format!(
        "mkdir new && cd new && git init -q && echo x >x && git add x && git commit -qm x
         git config core.fsmonitor 'touch {}; true'; cd ..; git add new 2>/dev/null
         printf '[submodule \"new\"]\\n path = new\\n url = x\\n ignore = none\\n' >.gitmodules
         mkdir -p b/any && cp -r new/.git/* b/any/",
        mark.display()
    );
    let output = tree.fenced("agent", &evil);
    let said = all(&output);
    for part in ["warning: `new` is a git repository", "core.fsmonitor", "--ignore-submodules=all"]
    {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    assert!(!said.contains("`fine`"), "{said}");
    let mut check = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let output = tree.at_home(check.args(["check", "--json", "--dir", ".", "agent"]));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let found: Vec<_> =
        report["repositories"].as_array().unwrap().iter().map(|one| &one["path"]).collect();
    assert_eq!(found.len(), 2, "{report:#}");
    assert!(
        found.iter().any(|path| *path == "b/any") && found.iter().any(|path| *path == "new/.git")
    );
    assert!(!mark.exists(), "nothing of this runs git");
    tree.bare("git status --ignore-submodules=all >/dev/null");
    assert!(!mark.exists(), "the remedy does not hold");
    // What is warned of is real.
    tree.bare("git status >/dev/null");
    assert!(
        mark.exists(),
        "git does not enter such a repository any more: the page is out of date"
    );
}

/// Repositories that the command did not make: their hooks and settings, and what leads to them.
#[test]
fn repositories_below_the_top_keep_their_hooks_and_settings() {
    if !can_mount() || !has("git") {
        return;
    }
    for preset in PRESETS {
        try_to_write_what_runs_later_below(preset);
    }
}

fn try_to_write_what_runs_later_below(preset: &str) {
    let tree = Tree::new();
    tree.bare(
        "git init -q -b main ../lib; cd ../lib; echo l >l; git add l; git commit -qm l
         cd ../p; git init -q -b main; echo a >a; git add a; git commit -qm a
         git clone -q ../lib 'deep/in it/clone'; cd 'deep/in it/clone'
         git config core.hooksPath own; mkdir own; git config include.path ../more.inc
         git -c protocol.file.allow=always submodule --quiet add ../lib sub
         git worktree add -q --detach ../../w; cd ../../..
         git clone -q --bare ../lib store.git; mkdir tools store.git/hooks -p; echo >tools/hook
         ln -s ../../tools/hook store.git/hooks/update
         git clone -q --separate-git-dir elsewhere ../lib linked",
    );
    let clone = "cd 'deep/in it/clone'";
    let attempts = [
        format!("{clone}; mkdir -p .git/hooks; echo x >.git/hooks/post-commit"),
        format!("{clone}; git config alias.st '!sh'"),
        format!("{clone}; git config --worktree core.fsmonitor x"),
        format!("{clone}; mv .git .g; cp -r .g .git; echo x >>.git/config"),
        format!("{clone}; rm -rf .git/hooks .git/config; git init -q; echo x >.git/hooks/update"),
        format!("{clone}; echo /tmp >.git/commondir"),
        format!("{clone}; echo '* filter=x' >.git/info/attributes"),
        format!("{clone}; mkdir -p own; echo x >own/post-commit"),
        format!("{clone}; echo x >.git/more.inc; echo x >more.inc"),
        format!("{clone}; echo x >>.git/modules/sub/config"),
        format!("{clone}; echo x >.git/modules/sub/hooks/update"),
        format!("{clone}; echo /tmp >.git/worktrees/w/commondir"),
        format!("{clone}; echo 'gitdir: /tmp' >sub/.git"),
        "echo 'gitdir: /tmp' >deep/w/.git".to_owned(),
        "rm -f deep/w/.git; mkdir -p deep/w/.git".to_owned(),
        "echo x >store.git/hooks/post-receive".to_owned(),
        "echo x >>store.git/config".to_owned(),
        "echo x >tools/hook".to_owned(),
        "rm tools/hook; echo x >tools/hook".to_owned(),
        "echo x >elsewhere/hooks/update".to_owned(),
        "echo x >>elsewhere/config".to_owned(),
        "echo 'gitdir: /tmp' >linked/.git".to_owned(),
        "mv linked l; cp -r l linked; echo x >linked/.git".to_owned(),
        "mv deep d; cp -r d deep".to_owned(),
    ];
    let state = "for f in deep/*/clone/.git deep/*/clone/.git/modules/sub store.git elsewhere; do
                   find \"$f/hooks\" \"$f/config\" -printf '%p %m %s %l\\n'; cat \"$f/config\"; done
                 find deep/*/clone/own tools -printf '%p %s\\n'
                 ls deep/*/clone/.git/commondir deep/*/clone/.git/info/attributes more.inc
                 cat deep/w/.git linked/.git deep/*/clone/sub/.git tools/hook
                 cat deep/*/clone/.git/worktrees/w/commondir";
    let outside = |script: &str| all(&tree.at_home(Command::new("sh").args(["-c", script])));
    let before = outside(state);
    for attempt in attempts {
        tree.fenced(preset, &format!("({attempt}) 2>/dev/null; true"));
        assert_eq!(outside(state), before, "{preset}: {attempt}");
        outside("rm -rf l d; rm -f deep/*/clone/more.inc");
    }
    if !matches!(preset, "ci" | "read-only") {
        tree.works(
            preset,
            "cd 'deep/in it/clone'; echo b >>l; git -c core.hooksPath=/ commit -qam b
             git status >/dev/null; git gc -q; git fetch -q; cd sub; echo b >>l; git commit -qam b
             cd ../../../..; git -C deep/w commit -q --allow-empty -m w
             git -C linked commit -q --allow-empty -m l; git -C linked push -q ../store.git HEAD:new
             git init -q made; echo n >made/n; git -C made add n; git -C made commit -qm n
             echo x >made/.git/hooks/post-commit
             git clone -q ../lib made/clone; git clone -q --bare ../lib made/bare.git
             git -C made -c protocol.file.allow=always submodule --quiet add ../../lib sub
             git -C deep/w worktree add -q --detach ../v; git -C deep/w worktree remove ../v
             rm -rf made",
        );
    }
}

/// What the command makes is its own; `run` says so where it starts programs.
#[test]
fn a_hook_in_a_repository_that_the_command_made_is_named() {
    if !can_mount() || !has("git") {
        return;
    }
    let tree = Tree::new();
    // Not a repository itself.
    tree.bare("mkdir -p a/lib; git -C a/lib init -q; git -C a/lib config alias.old '!true'");
    // What was written just before the start would count.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let output = tree.fenced("agent", "echo x >a/lib/file; git -C a/lib add file");
    assert!(output.status.success() && !all(&output).contains("a/lib"), "{}", all(&output));
    let hook = |made: &str| {
        format!("mkdir -p {made}/hooks; cd {made}/hooks; echo '#!/bin/sh' >post-commit; chmod +x *")
    };
    // Under `none`, nothing keeps those that were there.
    let made = "git init -q b; git init -q --bare c.git";
    for (policy, before, git_dir, name) in [
        ("none", "true", "a/lib/.git", "a/lib"),
        ("agent", made, "b/.git", "b"),
        ("agent", made, "c.git", "c.git"),
    ] {
        let said = all(&tree.fenced(policy, &format!("{before}; {}", hook(git_dir))));
        let named = format!("`{name}` is a git repository whose hooks or settings changed");
        for part in [named.as_str(), "hook post-commit"] {
            assert!(said.contains(part), "{part} is not in: {said}");
        }
        tree.bare("rm -rf b c.git");
    }
}

/// The repository of a linked working tree lies elsewhere; git's message has no reason.
#[test]
fn a_repository_outside_of_the_directory_is_named() {
    if !can_mount() || !has("git") {
        return;
    }
    let tree = Tree::new();
    tree.bare(
        "git init -q -b main ../main; echo a >../main/a; git -C ../main add a
         git -C ../main commit -qm a; git -C ../main worktree add -q ../p/linked",
    );
    let run = |options: &[&str], dir: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.arg("run").args(options).arg(tree.path(dir));
        let script = "cd \"$TOLLGATE_RUN\"; echo b >b; git add b && git commit -qm b";
        tree.at_home(command.args(["--", "sh", "-c", script]))
    };
    let output = run(&[], "p/linked");
    let said = all(&output);
    assert!(!output.status.success(), "{said}");
    let git_dir = tree.path("main/.git");
    let note = format!("the repository of DIR is `{}`, outside of DIR", git_dir.display());
    assert!(said.contains(&note), "{said}");
    let mut brief = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let brief = all(&tree.at_home(brief.arg("brief").arg(tree.path("p/linked"))));
    assert!(brief.contains("lies outside of this directory"), "{brief}");
    let output = run(&["--allow", &format!("{}:rw", git_dir.display())], "p/linked");
    assert!(output.status.success() && !all(&output).contains("outside"), "{}", all(&output));
    let output = run(&[], "main");
    assert!(!all(&output).contains("of DIR is"), "{}", all(&output));
}

#[test]
fn a_repository_that_begins_above_the_directory_is_named() {
    if !can_mount() || !has("git") {
        return;
    }
    let tree = Tree::new();
    tree.bare("git init -q -b main; mkdir d");
    let mut run = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    run.arg("run").arg(tree.path("p/d")).args(["--", "git", "status"]);
    let said = all(&tree.at_home(&mut run));
    let top = tree.path("p");
    let note = format!("DIR is a part of the git repository `{}`", top.display());
    assert!(said.contains(&note) && said.contains("not a git repository"), "{said}");
    let mut brief = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let brief = all(&tree.at_home(brief.arg("brief").arg(tree.path("p/d"))));
    assert!(brief.contains("begins above this directory"), "{brief}");
    let mut run = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let said = all(&tree.at_home(run.arg("run").arg(&top).args(["--", "git", "status"])));
    assert!(!said.contains("is a part of"), "{said}");
}

/// Of the repository at the top and of its submodules, in either format of an index.
#[test]
fn hidden_files_that_leave_an_index_are_named() {
    if !can_mount() || !has("git") {
        return;
    }
    let tree = Tree::new();
    let repository = "echo a >.env; echo a >a; git add -f .env a; git commit -qm 1";
    tree.bare(&format!(
        "git init -q -b main --object-format=sha256; {repository}
         git init -q -b main --object-format=sha256 sub; cd sub; {repository}
         cd ..; git add sub 2>/dev/null; git commit -qm 2"
    ));
    let run = |script: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["run", "--policy", "agent"]).arg(tree.path("p"));
        all(&tree.at_home(command.args(["--", "sh", "-ec", script])))
    };
    let lost = "CMD took out of git's index what it could not see: ";
    let said = run("echo b >a; git add a; git -C sub status");
    assert!(!said.contains(lost), "{said}");
    let said = run("git -C sub add -A; git -C sub commit -qm d");
    assert!(said.contains(&format!("{lost}`sub/.env`. ")), "{said}");
    let said = run("git add -A; git commit -qm d");
    assert!(said.contains(&format!("{lost}`.env`. ")), "{said}");
}

/// The rule that docs/run.md offers to whoever wants no such repositories.
#[test]
fn repositories_below_the_top_can_be_refused() {
    if !can_mount() || !has("git") {
        return;
    }
    let tree = Tree::new();
    tree.bare("git init -q -b main; echo a >a; git add a; git commit -qm a");
    let page = include_str!("../../docs/run.md");
    let rule = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    std::fs::write(tree.path("rule.toml"), rule).unwrap();
    let policy = tree.path("rule.toml");
    let attempts = [
        "git init -q new",
        "mkdir x; echo gitdir: ../y >x/.git",
        "mkdir z z/.git",
        "git worktree add -q --detach w",
        "cp -r .git a.git; mkdir v; mv a.git v/.git",
    ];
    for attempt in attempts {
        let output = tree.fenced(policy.to_str().unwrap(), &format!("({attempt}) 2>&1 || true"));
        assert!(output.status.success(), "{}", all(&output));
        let found = tree.at_home(Command::new("sh").args(["-c", "find . -mindepth 2 -name .git"]));
        assert_eq!(all(&found), "", "{attempt}");
    }
    tree.works(policy.to_str().unwrap(), "echo b >>a; git commit -qam b; git gc -q");
}

/// Where `.git` is missing or broken, git takes the directory itself for the repository.
#[test]
fn a_bare_repository_that_the_command_made_of_the_top_is_named() {
    if !can_mount() || !has("git") {
        return;
    }
    let tree = Tree::new();
    // The second directory is a part of a repository that lies outside of it.
    tree.bare("git init -q; mkdir sub; echo a >sub/a; echo a >a; git add .; git commit -qm a");
    let config = "printf '[core]\nbare=false\nworktree=%s\nfsmonitor=\"echo ran >../ran;false\"\n' \
                  \"$PWD\"";
    let made = format!("mkdir objects refs; echo ref: refs/heads/m >HEAD; {config} >config");
    let elsewhere = format!(
        "mkdir -p s/objects s/refs; echo s >commondir; echo ref: refs/heads/m >HEAD; \
         {config} >s/config"
    );
    for (dir, broken, made) in [
        ("p", "rm .git/HEAD", made.as_str()),
        ("p", "echo garbage >.git/HEAD", &made),
        ("p", "rm -rf .git/refs", &made),
        ("p", "mv .git/objects .git/o", &elsewhere),
        ("p/sub", "true", &made),
        ("p/sub", "true", &elsewhere),
    ] {
        tree.bare("cp -a .git ../kept");
        let run = |script: &str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
            command.args(["run", "--policy", "agent"]).arg(tree.path(dir));
            let script = format!("cd \"$TOLLGATE_RUN\"; {script}");
            all(&tree.at_home(command.args(["--", "sh", "-c", &script])))
        };
        let said = run("echo b >>a; git status >/dev/null");
        assert!(!said.contains("repository of DIR") && !said.contains("bare"), "{said}");
        let said = run(&format!("{broken}; {made}"));
        for part in ["DIR itself is a bare git repository", "core.fsmonitor"] {
            assert!(said.contains(part), "{broken}, {made}: {part} is not in: {said}");
        }
        let mut check = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        check.args(["check", "--policy", "agent", "--dir"]).arg(tree.path(dir));
        let said = all(&tree.at_home(&mut check));
        assert!(said.contains("\n  .: core.fsmonitor"), "{said}");
        tree.bare(
            "rm -rf .git; mv ../kept .git
             for d in . sub; do (cd $d; rm -rf HEAD objects refs config commondir s); done",
        );
    }
    // Where DIR has no `.git`, one that leads to what CMD made is as good.
    let said = {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["run", "--policy", "agent"]).arg(tree.path("p/sub"));
        let script = format!(
            "cd \"$TOLLGATE_RUN\"; mkdir -p s/objects s/refs; echo ref: refs/heads/m >s/HEAD; \
             {config} >s/config; echo gitdir: s >.git"
        );
        all(&tree.at_home(command.args(["--", "sh", "-c", &script])))
    };
    assert!(said.contains("settings of the git repository of DIR changed"), "{said}");
}

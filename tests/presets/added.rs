//! Linked working trees of git that CMD adds: `run` warns at its end where git runs in them what it
//! does not run elsewhere.

use crate::harness::{Tree, all, has};
use crate::mounting::can_mount;

const WARNING: &str = "`wt` is a git repository";
const HOOK: &str =
    "printf '#!/bin/sh\\necho hook\\n' >.git/hooks/post-commit; chmod +x .git/hooks/*";

/// A repository with a hook and what else `before` gives it, some time ago.
fn repository(before: &str) -> Tree {
    let tree = Tree::new();
    tree.bare(&format!(
        "git init -q -b main; mkdir hk tools sub; echo a | tee a tools/run hk/post-commit >sub/a
         chmod +x tools/run; git add -A; git commit -qm a; {HOOK}
         cd sub; git init -q; git commit -q --allow-empty -m a; {HOOK}; cd ..
         mkdir node_modules; git init -q node_modules/x; cd node_modules/x
         git commit -q --allow-empty -m a; git worktree add -q --detach ../w; {HOOK}
         mv .git ../evil; cd ../..; {before}"
    ));
    // What was written just before the start would count.
    std::thread::sleep(std::time::Duration::from_millis(100));
    tree
}

#[test]
fn nothing_is_said_of_hooks_and_settings_that_were_there_before() {
    if !can_mount() || !has("git") {
        return;
    }
    for (before, run) in [
        ("true", "git worktree add -q wt; git -C wt commit -q --allow-empty -m b"),
        ("true", "git worktree add -q wt; git worktree move wt in/wt; git -C in/wt status"),
        ("true", "git -C sub worktree add -q ../wt; git -C sub commit -q --allow-empty -m b"),
        ("git worktree add -q old", "git -C old worktree add -q --detach ../wt"),
        ("git clone -q --bare . b.git; rm -rf .git; mv b.git .bare; echo gitdir: .bare >.git", {
            "git worktree add -q wt"
        }),
        ("mv .git/hooks .hooks; ln -s ../.hooks .git/hooks", "git worktree add -q wt"),
        ("ln -sf ../../tools/run .git/hooks/post-commit", "git worktree add -q wt"),
        ("git config alias.x '!git log'; git config core.pager cat", "git worktree add -q wt"),
        ("git config core.hooksPath ~/hooks; git config core.editor ~/run", {
            "git worktree add -q wt"
        }),
        // Other branches have no such directory.
        ("git config core.hooksPath hk; git rm -rqf hk; git commit -qm b", {
            "git worktree add -q wt"
        }),
    ] {
        for policy in ["agent", "none"] {
            let tree = repository(before);
            let output = tree.fenced(policy, &format!("mkdir -p in; {run}"));
            let said = all(&output);
            assert!(
                output.status.success() && !said.contains("warning"),
                "{before}: {run}: {said}"
            );
        }
    }
}

/// What git runs there is new, has changed, or is of another repository.
#[test]
fn what_git_runs_in_an_added_working_tree_alone_is_named() {
    if !can_mount() || !has("git") {
        return;
    }
    let add = "git worktree add -q wt";
    for (before, policy, run) in [
        ("true", "none", "git worktree add -q wt; touch .git/hooks/post-commit"),
        ("true", "none", "git worktree add -q wt; cp .git/hooks/post-commit .git/hooks/update"),
        ("true", "none", "git worktree add -q wt; git config alias.x '!x'"),
        (
            "true",
            "none",
            "git worktree add -q wt; mv .git/hooks h; mv node_modules/evil/hooks .git",
        ),
        ("git config extensions.worktreeConfig true", "none", {
            "git worktree add -q wt; git -C wt config --worktree core.hooksPath own"
        }),
        ("true", "agent", "git worktree add -q wt; echo gitdir: ../node_modules/evil >wt/.git"),
        ("true", "agent", {
            "git worktree add -q wt; echo gitdir: ../node_modules/evil/worktrees/w >wt/.git"
        }),
        ("true", "agent", "mkdir wt; ln -s ../node_modules/evil wt/.git"),
        ("true", "agent", {
            "git worktree add -q wt; echo ../../../node_modules/evil >.git/worktrees/wt/commondir"
        }),
        ("true", "agent", {
            "git worktree add -q wt; cp -r node_modules/evil '.git/worktrees/.. '
             echo '../.. ' >.git/worktrees/wt/commondir"
        }),
        ("true", "none", {
            "git worktree add -q wt; mv .git/worktrees/wt node_modules/evil/worktrees/wt
             ln -s ../../node_modules/evil/worktrees/wt .git/worktrees/wt"
        }),
        ("mv .git/hooks .hooks; ln -s ../.hooks .git/hooks", "none", {
            "git worktree add -q wt; cp .hooks/post-commit .hooks/update"
        }),
        ("mv .git/hooks .hooks; ln -s ../.hooks .git/hooks", "none", {
            "git worktree add -q wt; mv .hooks h; mv node_modules/evil/hooks .hooks"
        }),
        // As git takes them from the working tree.
        ("git config core.hooksPath hk", "agent", add),
        ("git config core.hooksPath ../other", "agent", "git worktree add -q wt; mkdir other"),
        ("git config include.path ../inc; git config -f inc core.hooksPath hk", "agent", add),
        ("git config --global core.hooksPath hk", "agent", add),
        ("git config core.fsmonitor tools/run", "agent", add),
        ("git config core.fsmonitor ../run", "agent", "git worktree add -q wt; echo x >run"),
        ("git config filter.x.clean 'sh tools/run %f'", "agent", add),
        ("echo tools/run >>.git/hooks/post-commit", "agent", add),
        ("echo . ../run >>.git/hooks/post-commit", "agent", "git worktree add -q wt; echo x >run"),
        ("git config core.hooksPath hk; git rm -rqf hk; git commit -qm b", "agent", {
            "git worktree add -q wt; ln -s ../node_modules/evil/hooks wt/hk"
        }),
        // Of a repository that CMD made.
        ("true", "agent", {
            "git init -q new; git -C new commit -q --allow-empty -m a; cp sub/.git/hooks/* \
             new/.git/hooks; git -C new worktree add -q ../wt"
        }),
        // `git status` enters it.
        ("true", "agent", "git worktree add -q wt; git add wt 2>/dev/null"),
    ] {
        let tree = repository(before);
        let output = tree.fenced(policy, run);
        let said = all(&output);
        assert!(output.status.success(), "{before}: {run}: {said}");
        assert!(said.contains(WARNING), "{before}: {run}: {said}");
    }
}

//! Linked working trees of git: those that were there before keep their place in the repository, and
//! new ones are used as elsewhere.

use std::process::Command;

use crate::harness::{Tree, all, has};
use crate::mounting::can_mount;

const WRITING: [&str; 4] = ["agent", "node", "python", "rust"];

/// A commit that no branch has is in the `HEAD` of its working tree alone.
fn with_one_that_was_there_before() -> Tree {
    let tree = Tree::new();
    tree.bare(
        "git init -q -b main; for f in a b c; do echo 1 >$f; done; git add -A; git commit -qm a
         git worktree add -q --detach wt; git worktree add -q --detach ../beside
         for wt in wt ../beside; do git -C $wt commit -q --allow-empty -m only-in-$wt; done",
    );
    tree
}

/// git deletes what it may, in the order of the directory, and goes on after the first failure.
#[test]
fn one_that_was_there_before_keeps_its_commits_when_git_removes_it() {
    if !can_mount() || !has("git") {
        return;
    }
    let kept = "cat .git/worktrees/*/HEAD; cut -f 1 .git/worktrees/*/logs/HEAD; 
                git fsck 2>&1; git worktree list; git -C wt diff --cached; git -C wt rev-parse HEAD";
    let attempts = [
        "git worktree remove wt",
        "echo 2 >wt/a; git worktree remove --force wt",
        "git -C wt worktree remove \"$PWD/wt\"",
        // As where the view or the fence hides it.
        "mv ../beside ../away; git worktree prune; mv ../away ../beside; false",
        "mv ../beside ../away; git gc -q --prune=now; mv ../away ../beside; false",
    ];
    for preset in WRITING {
        for attempt in attempts {
            let tree = with_one_that_was_there_before();
            // `gc` expires what was not used for three months.
            tree.bare("touch -d '4 months ago' .git/worktrees/*/index");
            let outside = || all(&tree.at_home(Command::new("sh").args(["-c", kept])));
            let before = outside();
            let output = tree.fenced(preset, &format!("! ({attempt})"));
            assert!(output.status.success(), "{preset}: {attempt}: {}", all(&output));
            assert_eq!(outside(), before, "{preset}: {attempt}");
            tree.bare(
                "git -C wt checkout -q .; test \"$(cat wt/a wt/b wt/c | tr -d '\\n')\" = 111",
            );
        }
    }
}

/// The places by which git finds them stay, whoever removes the rest.
#[test]
fn one_that_was_there_before_stays_known_to_git() {
    if !can_mount() || !has("git") {
        return;
    }
    let known = "git worktree list --porcelain | grep ^worktree; cat .git/worktrees/*/gitdir
                 git worktree prune -v -n";
    let attempts = [
        "git worktree remove wt",
        "git worktree remove --force wt",
        "git worktree move wt moved",
        "rm -rf .git/worktrees",
        "mv .git/worktrees/wt .git/worktrees/other",
        "rm .git/worktrees/wt/gitdir; echo /nowhere >.git/worktrees/wt/gitdir",
        // As where the view or the fence hides it.
        "mv ../beside ../away; git worktree prune; mv ../away ../beside; false",
    ];
    for preset in WRITING {
        for attempt in attempts {
            let tree = with_one_that_was_there_before();
            let outside = || all(&tree.at_home(Command::new("sh").args(["-c", known])));
            let before = outside();
            assert_eq!(before.matches("/p/wt").count(), 2, "{before}");
            let output = tree.fenced(preset, &format!("! ({attempt})"));
            assert!(output.status.success(), "{preset}: {attempt}: {}", all(&output));
            assert_eq!(outside(), before, "{preset}: {attempt}");
        }
    }
}

#[test]
fn new_ones_are_added_used_moved_and_removed() {
    if !can_mount() || !has("git") {
        return;
    }
    for preset in WRITING {
        let tree = with_one_that_was_there_before();
        tree.works(
            preset,
            "git worktree add -q -b topic new; echo 2 >>new/a; git -C new commit -qam new
             git worktree lock new; git worktree list | grep -q locked; git worktree unlock new
             git worktree move new newer; git -C newer commit -q --allow-empty -m newer
             mv newer .trees; git worktree repair .trees 2>/dev/null
             git -C .trees status --short; git worktree remove --force .trees
             git worktree add -q --detach gone; rm -rf gone; git worktree prune
             test \"$(git worktree list | wc -l)\" = 3; git gc -q
             echo 2 >>wt/b; git -C wt commit -qam more; git -C wt checkout -q -b branch
             git -C wt rebase -q main; git worktree lock wt; git worktree unlock wt
             git -C wt reset -q --hard; git fsck 2>/dev/null
             git -C wt bisect start HEAD main >/dev/null; git -C wt bisect reset 2>/dev/null
             git -C wt stash list
             find . -name HEAD >/dev/null; grep -rq . .git; cp -r .git copy; rm -rf copy",
        );
    }
}

/// git takes some names that are easily read in another way.
#[test]
fn a_repository_is_named_however_a_file_leads_to_it() {
    if !can_mount() || !has("git") {
        return;
    }
    // Nobody looks for repositories in `node_modules`.
    let evil = "git init -q node_modules/x; mv node_modules/x/.git node_modules/evil; mkdir w
                git --git-dir=node_modules/evil config core.fsmonitor 'touch ~/ran; false'";
    let entry = "mkdir node_modules/e; cp node_modules/evil/HEAD node_modules/e
                 echo gitdir: ../node_modules/e >w/.git";
    let forms = [
        "echo gitdir: ../node_modules/evil >w/.git".to_owned(),
        "printf 'gitdir: ../node_modules/evil\\0.\\n' >w/.git".to_owned(),
        "(printf 'gitdir: ../node_modules/evil'; yes '' | head -c 99999) >w/.git".to_owned(),
        "mv node_modules/evil 'node_modules/evil '; echo 'gitdir: ../node_modules/evil ' >w/.git"
            .to_owned(),
        "e=node_modules/$(printf 'ev\\377il'); mv node_modules/evil $e; echo gitdir: ../$e >w/.git"
            .to_owned(),
        format!("{entry}; echo ../evil >node_modules/e/commondir"),
        format!("{entry}; printf '../evil\\0.\\n' >node_modules/e/commondir"),
        format!("{entry}; (printf ../evil; yes '' | head -c 9999999) >node_modules/e/commondir"),
        format!("{entry}; cd node_modules; mv evil 'evil '; echo '../evil ' >e/commondir"),
    ];
    for form in forms {
        let tree = Tree::new();
        tree.bare("git init -q");
        let said = all(&tree.fenced("agent", &format!("{evil}; {form}")));
        assert!(said.contains("`w` is a git repository whose hooks or settings"), "{form}: {said}");
        // What is warned of is real.
        tree.bare("git -C w status >/dev/null 2>&1; test -e ~/ran");
    }
}

/// What a link leads to may have been there before, and what it is made of may have changed.
#[test]
fn hooks_and_settings_behind_links_are_named_when_they_change() {
    if !can_mount() || !has("git") {
        return;
    }
    let of_top = "the hooks or settings of the git repository of DIR changed";
    let below = "`w` is a git repository whose hooks or settings changed";
    let change = "echo echo changed >>";
    for (before, run, said) in [
        ("ln -s ../../hook .git/hooks/post-commit", format!("{change}hook"), of_top),
        ("rm -r .git/hooks; ln -s ../hooks .git", format!("{change}hooks/post-commit"), of_top),
        ("rm -r .git/hooks; ln -s ../hooks .git", "mv hooks h; mv others hooks".to_owned(), of_top),
        ("mv .git/config .; ln -s ../config .git", "echo '#' >>config".to_owned(), of_top),
        (
            "git init -q node_modules; cp hook node_modules/.git/hooks/post-commit",
            "mkdir w; ln -s ../node_modules/.git w/.git".to_owned(),
            below,
        ),
    ] {
        let tree = Tree::new();
        tree.bare(&format!(
            "git init -q; mkdir hooks others; for f in hook hooks/post-commit others/post-commit; do
             echo '#!/bin/sh' >$f; chmod +x $f; done; git config core.pager x; {before}"
        ));
        std::thread::sleep(std::time::Duration::from_millis(100));
        let output = tree.fenced("none", "git commit -q --allow-empty -m a");
        assert!(output.status.success() && all(&output).is_empty(), "{before}: {}", all(&output));
        let output = all(&tree.fenced("none", &run));
        assert!(output.contains(said), "{before}: {run}: {output}");
    }
}

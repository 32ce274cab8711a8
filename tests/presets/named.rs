//! Programs that git's settings and hooks name: git outside runs them later, so the command must
//! not be able to change them, nor to put them there.

use std::process::Command;

use crate::harness::{PRESETS, Tree, all, has};
use crate::mounting::can_mount;

/// A setting, its value with `@` for the absolute path of the project, and a file that git runs by
/// it. Those with `new` in their names are not there yet.
const SETTINGS: &[(&str, &str, &str)] = &[
    ("core.fsmonitor", "tools/fsmonitor", "tools/fsmonitor"),
    ("core.sshCommand", "ssh -F x -o ProxyCommand=tools/proxy", "tools/proxy"),
    ("core.pager", "LESS=R tools/pager -R", "tools/pager"),
    ("core.editor", "sh -c './tools/editor \"$@\"'", "tools/editor"),
    ("core.askPass", "tools/ask pass", "tools/ask pass"),
    ("filter.a.clean", "python3 tools/clean.py %f", "tools/clean.py"),
    ("filter.a.smudge", "@/tools/smudge", "tools/smudge"),
    ("filter.b.process", "sh tools/process", "tools/process"),
    ("filter.c.clean", "jq -f clean.jq", "clean.jq"),
    ("filter.d.clean", "tools/new-clean", "tools/new-clean"),
    ("filter.e.clean", "sh new-clean.sh %f", "new-clean.sh"),
    ("filter.f.clean", "python3 new-clean.py %f", "new-clean.py"),
    ("diff.a.command", "tools/differ", "tools/differ"),
    ("diff.a.textconv", "\"$(git rev-parse --show-toplevel)\"/tools/textconv", "tools/textconv"),
    ("diff.external", "'tools/ext diff' -x", "tools/ext diff"),
    ("merge.a.driver", "tools/merge %O %A %B", "tools/merge"),
    ("credential.helper", "!tools/credential", "tools/credential"),
    ("credential.https://x.test.helper", "@/tools/helper", "tools/helper"),
    ("gpg.program", "tools/gpg", "tools/gpg"),
    ("gpg.ssh.defaultKeyCommand", "tools/keys", "tools/keys"),
    ("sequence.editor", "tools/sequence", "tools/sequence"),
    ("alias.first", "!tools/first", "tools/first"),
    ("alias.second", "!f() { cd x && ../tools/second; }; tools/third; f", "tools/third"),
    ("alias.make", "!make -f tools/rules.mk", "tools/rules.mk"),
    ("alias.cd", "!cd tools && ./entered", "tools/entered"),
    ("alias.new", "!bash tools/new-alias", "tools/new-alias"),
    ("pager.log", "tools/log-pager", "tools/log-pager"),
    ("mergetool.a.cmd", "tools/mergetool \"$BASE\"", "tools/mergetool"),
    ("tar.x.command", "tools/tar", "tools/tar"),
    ("trailer.a.cmd", "tools/trailer", "tools/trailer"),
    ("remote.a.url", "ext::sh tools/remote %S", "tools/remote"),
    ("submodule.a.update", "!tools/update", "tools/update"),
    ("init.templateDir", "tools/template", "tools/template/hooks/pre-commit"),
];

#[test]
fn programs_that_settings_name_stay_as_they_are() {
    if !can_mount() || !has("git") {
        return;
    }
    for preset in PRESETS {
        let tree = Tree::new();
        tree.bare("git init -q -b main; echo a >a; git add a; git commit -qm a");
        for (number, (_, _, file)) in SETTINGS.iter().enumerate() {
            if !file.contains("new") {
                tree.write(file, &format!("#!/bin/sh\nexit {}\n", number % 2));
                tree.bare(&format!("chmod +x '{file}'"));
            }
        }
        let project = tree.path("p").to_string_lossy().into_owned();
        for (name, value, _) in SETTINGS {
            let value = value.replace('@', &project);
            let mut git = Command::new("git");
            let output = tree.at_home(git.args(["config", name, &value]));
            assert!(output.status.success(), "{name}: {}", all(&output));
        }
        let state = "find tools clean.jq -printf '%p %m %s %l\\n' | sort; cat clean.jq \
                     $(find tools -type f -not -name '* *')";
        let outside = |script: &str| all(&tree.at_home(Command::new("sh").args(["-c", script])));
        let before = outside(state);
        let mark = tree.path("ran").to_string_lossy().into_owned();
        let mut attack = format!("printf '#!/bin/sh\\ntouch {mark}\\n' >evil; chmod +x evil\n");
        for (_, _, file) in SETTINGS {
            attack += &format!(
                "(cp evil '{file}'; cat evil >'{file}'; mv evil2 '{file}'; ln -f evil '{file}';
                  rm -f '{file}'; ln -s ../evil '{file}'; chmod 777 '{file}') 2>/dev/null || true\n"
            );
        }
        attack +=
            "(mv tools t; cp -r t tools) 2>/dev/null || true; cp evil evil2; rm -f evil evil2";
        tree.fenced(preset, &attack);
        assert_eq!(outside(state), before, "{preset}");
        outside(
            "echo 'a filter=a diff=a' >.gitattributes; git status; git add a; git diff; git log -1",
        );
        assert!(!tree.path("ran").exists(), "{preset}");
    }
}

/// Settings that hold for every repository may lie in the directory, there or not yet.
#[test]
fn settings_of_the_user_in_the_directory_stay_as_they_are() {
    if !can_mount() || !has("git") {
        return;
    }
    for (variable, value, file) in [
        ("GIT_CONFIG_GLOBAL", "settings/global", "settings/global"),
        ("GIT_CONFIG_GLOBAL", "@/settings/global", "settings/global"),
        ("GIT_CONFIG_SYSTEM", "@/system", "system"),
        ("XDG_CONFIG_HOME", "@/x", "x/git/config"),
        ("HOME", "@", ".gitconfig"),
    ] {
        for is_there in [true, false] {
            let tree = Tree::new();
            let value = value.replace('@', &tree.path("p").to_string_lossy());
            tree.bare("git init -q -b main; mkdir -p settings x/git");
            if is_there {
                tree.write(file, "[user]\n\tname = me\n");
            }
            let state = format!("cat {file} 2>&1; ls -d {file} x 2>&1; true");
            let outside = || all(&tree.at_home(Command::new("sh").args(["-c", &state])));
            let before = outside();
            let attack = format!(
                "(echo '[core]' >>{file}; rm -f {file}; echo x >e; mv e {file}; ln -s /tmp/x {file}
                  mv x y && mv y x; git config --file {file} core.fsmonitor ./x) 2>/dev/null; rm -f e; true"
            );
            let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
            command.args(["run", "--quiet", "--fence", "off", "--policy", "agent", "."]);
            command.args(["--", "sh", "-c", &attack]);
            let mut command_env = Command::new("env");
            command_env.arg(format!("{variable}={value}")).arg(command.get_program());
            let output = tree.at_home(command_env.args(command.get_args()));
            assert!(output.status.success(), "{variable}: {}", all(&output));
            assert_eq!(outside(), before, "{variable}={value} {is_there}: {}", all(&output));
        }
    }
}

/// What settings and hooks mention besides belongs to the command.
#[test]
fn files_that_settings_only_mention_can_be_changed() {
    if !can_mount() || !has("git") {
        return;
    }
    let tree = Tree::new();
    tree.bare(
        "git init -q -b main; mkdir -p node_modules/.bin target/debug
         echo a >README.md; echo a >list; echo a >git-lfs; echo a >node_modules/.bin/lint
         echo a >target/debug/tool; echo a >check
         git config alias.show '!cat README.md >list'; git config alias.clean '!rm -rf target'
         git config filter.lfs.clean 'git-lfs clean -- %f'; git config core.pager check
         git config merge.x.driver 'node dist/merge.js %O'
         printf '#!/bin/sh\\nnode_modules/.bin/lint README.md && target/debug/tool list\\n' >h
         printf '#!/usr/bin/python3\\nopen(\"README.md\")\\n' >.git/hooks/post-commit
         chmod +x h .git/hooks/post-commit; mv h .git/hooks/pre-commit",
    );
    tree.works(
        "agent",
        "for f in README.md list git-lfs node_modules/.bin/lint target/debug/tool check; do
           echo b >$f; rm $f; echo c >$f; done
         mkdir dist; echo x >dist/merge.js; rm -rf dist node_modules target",
    );
}

/// As git spells them: quotes, escapes, comments, lines that go on.
#[test]
fn directories_of_hooks_are_found_however_they_are_written() {
    if !can_mount() || !has("git") {
        return;
    }
    for value in [
        "\"my hooks\"",
        "\"a \\\"quoted\\\" name\"",
        "with\\\\backslash",
        "in\" two parts\"/x ; a comment",
        "goes/\\\non",
        "tab\\there",
        "\"# no comment\" # one",
        "trailing   ",
        ".",
        "x/..",
        ".git",
        ".git/my",
        "./.git/../tools",
    ] {
        let tree = Tree::new();
        tree.bare("git init -q -b main");
        let settings = std::fs::read_to_string(tree.path("p/.git/config")).unwrap();
        tree.write(".git/config", &format!("{settings}[Core] HooksPath = {value}\n"));
        let mut git = Command::new("git");
        let named = all(&tree.at_home(git.args(["rev-parse", "--git-path", "hooks"])));
        let named = named.strip_suffix('\n').unwrap();
        let write = format!("mkdir -p '{named}'; echo x >'{named}/pre-commit'");
        tree.fenced("agent", &format!("({write}) 2>/dev/null || true"));
        assert!(!tree.path("p").join(named).join("pre-commit").exists(), "{value}: {named}");
        tree.bare(&write);
        assert!(tree.path("p").join(named).join("pre-commit").exists(), "{value}: {named}");
    }
}

/// Husky's hooks are in `_` and run those beside it; other hooks run scripts of the project.
#[test]
fn scripts_that_hooks_run_stay_as_they_are() {
    if !can_mount() || !has("git") {
        return;
    }
    for preset in PRESETS {
        let tree = Tree::new();
        tree.bare(
            "git init -q -b main; git init -q -b main below; mkdir -p fe/.husky/_ tools
             git config core.hooksPath fe/.husky/_
             echo 'sh -e \"$(dirname \"$(dirname \"$0\")\")/$(basename \"$0\")\"' >fe/.husky/_/h
             printf '#!/usr/bin/env sh\\n. \"$(dirname \"$0\")/h\"\\n' >fe/.husky/_/pre-commit
             echo 'sh tools/check.sh' >fe/.husky/pre-commit; chmod +x fe/.husky/_/*
             printf '#!/bin/bash\\nset -e\\n. \"${0%%/*}/../../tools/common\"\\nA=b tools/run \"$@\"\\ncd \"$(git rev-parse --show-toplevel)/tools\" && ./entered\\n' \\
               >below/.git/hooks/pre-push; chmod +x below/.git/hooks/pre-push
             mkdir below/tools
             for f in tools/check.sh below/tools/common below/tools/run below/tools/entered; do
             echo : >$f; chmod +x $f; done",
        );
        let files = "fe/.husky/pre-commit fe/.husky/_/pre-commit fe/.husky/_/h tools/check.sh \
                     below/tools/common below/tools/run below/tools/entered";
        let state = format!("cat {files}; ls -A fe/.husky fe/.husky/_");
        let outside = |script: &str| all(&tree.at_home(Command::new("sh").args(["-c", script])));
        let before = outside(&state);
        let attack = format!(
            "for f in {files} fe/.husky/commit-msg fe/.husky/_/commit-msg; do
               (echo evil >$f; rm -f $f; echo evil >$f) 2>/dev/null || true; done
             (mv fe f; cp -r f fe; mv tools t) 2>/dev/null || true"
        );
        tree.fenced(preset, &attack);
        assert_eq!(outside(&state), before, "{preset}");
    }
}

/// What a hook asks for first, or what is to be made by an installation.
#[test]
fn scripts_that_hooks_would_run_are_not_put_there() {
    if !can_mount() || !has("git") {
        return;
    }
    let hook = "[ ! -f tools/local.sh ] || . tools/local.sh
        if [ -x ./check ]; then ./check; fi
        cd below && bash -eu -o pipefail ./inner.sh
        trap './at-end x' EXIT; trap -- 'sh ./later' 0
        [ -f local.sh ] && . local.sh; sh <tools/input; exec -a n ./named; python3 made.py
        cd $(git rev-parse --show-toplevel)/more && ./deeper
        [ -x vendor/bin/lint ] && vendor/bin/lint; node_modules/.bin/lint";
    let files = [
        "tools/local.sh",
        "check",
        "below/inner.sh",
        "at-end",
        "later",
        "local.sh",
        "tools/input",
        "named",
        "made.py",
        "more/deeper",
    ];
    for preset in PRESETS {
        let tree = Tree::new();
        tree.bare("git init -q -b main");
        tree.write(".git/hooks/pre-commit", &format!("#!/bin/sh\n{hook}\n"));
        tree.bare("chmod +x .git/hooks/pre-commit");
        for file in files {
            tree.fenced(
                preset,
                &format!("(mkdir -p $(dirname {file}); echo evil >{file}) 2>/dev/null || true"),
            );
            let moved = format!(
                "(mkdir -p z; echo evil >z/{0}; rmdir {1}; mv z {1} || mv z/{0} {file}) 2>/dev/null || true",
                file.rsplit('/').next().unwrap(),
                file.split('/').next().unwrap()
            );
            tree.fenced(preset, &moved);
            assert!(!tree.path("p").join(file).is_file(), "{preset}: {file}");
        }
        if preset != "read-only" {
            let install = "mkdir -p vendor/bin node_modules/.bin; echo >vendor/bin/lint
                 echo >node_modules/.bin/lint; rm -r vendor node_modules";
            tree.works(preset, install);
        }
    }
}

/// The repository may begin above the directory that the view shows.
#[test]
fn a_repository_around_the_directory_names_programs_in_it() {
    if !can_mount() || !has("git") {
        return;
    }
    let tree = Tree::new();
    tree.bare(
        "git init -q -b main ..; mkdir hooks; echo a >tool; echo a >other; cd ..
         git config core.hooksPath p/hooks; git config core.fsmonitor p/tool",
    );
    let attack =
        "(echo x >hooks/pre-commit) 2>/dev/null; (echo x >tool) 2>/dev/null; echo b >other";
    let output = tree.fenced("agent", &format!("set +e; {attack}"));
    assert!(output.status.success(), "{}", all(&output));
    tree.bare("test \"$(cat tool)\" = a; test \"$(cat other)\" = b; test -z \"$(ls hooks)\"");
}

/// What is not there yet cannot be put in its place by moving or linking a directory above it.
#[test]
fn nothing_is_moved_or_linked_to_where_it_could_not_be_made() {
    if !can_mount() || !has("git") {
        return;
    }
    let attempts = [
        "mkdir -p g/x; echo x >g/x/pre-commit; mv g hk",
        "mkdir -p g/x; echo x >g/x/pre-commit; ln -s g hk",
        "mkdir -p g/x; echo x >g/x/pre-commit; ln -s g l; mv l hk",
        "mkdir -p g/x; echo x >g/x/pre-commit; ln -s g l; ln -P l hk",
        "mkdir -p hk z; echo x >z/pre-commit; ln -s ../z hk/x",
        "mkdir -p hk z; echo x >z/pre-commit; mv z hk/x",
        "mkdir z; ln -s ../z z/x; mv z hk",
        "mkdir -p z/b; echo x >z/b/prog; mv z/b a/b",
        "mkdir -p z; echo x >z/prog; ln -s ../z a/b",
        "mkdir z; echo x >z/settings.json; ln -s z .claude",
        "mkdir z; echo x >z/settings.json; mv z .claude",
        "mkdir i; echo x >i/workspace.xml; mv i .idea",
        "mkdir -p i/.idea; echo x >i/.idea/x; mv i/.idea j; echo x >j/workspace.xml; mv j .idea",
        "mkdir z; echo x >z/attributes; mv .git/info .git/info2; mv z .git/info",
        "mkdir -p z/sm/hooks; echo x >z/sm/hooks/x; mv z .git/modules",
        "mkdir -p z/sm; mkdir .git/modules; ln -s ../../z/sm .git/modules/sm",
        "mkdir -p z/w; echo x >z/w/config.worktree; mv z .git/worktrees",
    ];
    let places = "hk/x/pre-commit hk/x a/b/prog .claude/settings.json .idea/workspace.xml \
                  .git/info/attributes .git/modules/sm/hooks/x .git/modules/sm \
                  .git/worktrees/w/config.worktree";
    for preset in ["agent", "node"] {
        for attempt in attempts {
            let tree = Tree::new();
            tree.bare(
                "git init -q -b main; git config core.hooksPath hk/x
                 git config core.fsmonitor a/b/prog; mkdir a",
            );
            tree.fenced(preset, &format!("({attempt}) 2>/dev/null || true"));
            let left = format!("for f in {places}; do test ! -s $f/. -a ! -s $f || echo $f; done");
            let left = all(&tree.at_home(Command::new("sh").args(["-c", &left])));
            assert_eq!(left, "", "{preset}: {attempt}");
        }
        // As before: links and directories of other names.
        Tree::new().works(
            preset,
            "mkdir -p d/config lib; echo x >d/config/app.yml; ln -s lib l; mv l m; ln -s d/config config
             mv d e; mv e/config lib/config; ln -s ../lib e/lib; mkdir .idea; mv .idea idea; rm -r e m",
        );
    }
}

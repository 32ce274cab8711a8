//! What a run did, names that were moved among it, is allowed by the policy that is learned from it.

use crate::project::{Project, SECRET, all, can_mount, text, tollgate};

/// Records `work` under a policy that allows everything, and repeats it in a fresh project under the
/// policy that was learned. Returns that policy and the second project.
fn learned_and_repeated(before: &str, work: &str) -> (String, Project) {
    let project = Project::new();
    std::fs::write(project.path("policy.toml"), format!("# before\n{before}")).unwrap();
    let log = project.path("audit.jsonl");
    let audit = ["--audit", log.to_str().unwrap()];
    let out = project.run_with(&audit).args(["sh", "-ec", work]).output().unwrap();
    assert!(out.status.success(), "{}", all(&out));
    let learned = tollgate().arg("learn").arg(&log).output().unwrap();
    assert!(learned.status.success(), "{}", all(&learned));
    let learned = text(&learned.stdout);
    let project = Project::new();
    std::fs::write(project.path("policy.toml"), &learned).unwrap();
    let again = project.run().args(["sh", "-ec", work]).output().unwrap();
    assert!(again.status.success(), "{}\n{learned}", all(&again));
    (learned, project)
}

/// As package managers unpack: in a directory of another name, which is then moved to its place, as
/// a whole and not by a copy.
#[test]
fn a_directory_that_is_moved_is_learned_under_both_names() {
    if !can_mount() {
        return;
    }
    let work = "mkdir -p tmp/pkg/sub out; echo a >tmp/pkg/a; echo b >tmp/pkg/sub/b
        before=$(stat -c %i tmp/pkg tmp/pkg/a)
        mv tmp/pkg out/pkg
        [ \"$before\" = \"$(stat -c %i out/pkg out/pkg/a)\" ]
        cat out/pkg/a out/pkg/sub/b; echo c >>out/pkg/a; mkdir out/pkg/more; echo x >out/pkg/more/x
        mv out/pkg out/again; cat out/again/more/x; rm -r out/again/more; chmod 700 out/again";
    let (learned, project) = learned_and_repeated("", work);
    let other = project
        .sh("cat keys/id_rsa; echo >out/other; echo >out/again/b; mkdir out/b; echo >keys/x");
    assert!(!all(&other).contains(SECRET), "{}\n{learned}", all(&other));
    for name in ["out/other", "out/again/b", "keys/x"] {
        assert!(!project.path("dir").join(name).exists(), "{name} could be made by\n{learned}");
    }
}

/// With many files a directory stands for them, and one that was there before has files that no
/// record names.
#[test]
fn crowded_directories_are_learned_under_both_names() {
    if !can_mount() {
        return;
    }
    let work = "mkdir stage; for n in $(seq 20); do echo $n >stage/$n; done
        before=$(stat -c %i stage/7); mv stage built; [ $before = $(stat -c %i built/7) ]
        cat built/* >/dev/null; for n in $(seq 20); do echo $n >>built/$n; done
        for n in $(seq 20); do echo $n >logs/$n; done
        before=$(stat -c %i logs/app.log); mv logs built/logs
        [ $before = $(stat -c %i built/logs/app.log) ]; cat built/logs/3
        mv docs papers; cat papers/guide.md";
    for exact in [false, true] {
        let before = if exact { "# counted one by one" } else { "" };
        let (learned, project) = learned_and_repeated(before, work);
        let other = project.sh("cat keys/id_rsa; cat a.txt");
        assert_eq!(text(&other.stdout), "", "{learned}");
    }
}

#[test]
fn files_that_are_moved_and_linked_are_learned_under_all_names() {
    if !can_mount() {
        return;
    }
    let work = "echo x >made; mv made moved; cat moved; before=$(stat -c %i a.txt)
        mv a.txt b.txt; [ $before = $(stat -c %i b.txt) ]; cat b.txt
        echo new >b.tmp; mv b.tmp b.txt; cat b.txt
        ln b.txt c.txt; cat c.txt; echo y >>b.txt; rm c.txt; cat b.txt";
    let (learned, project) = learned_and_repeated("", work);
    let other = project.sh("cat keys/id_rsa docs/guide.md; echo >other; mv docs x");
    assert!(!text(&other.stdout).contains("guide"), "{}\n{learned}", all(&other));
    assert!(!project.path("dir/other").exists() && !project.path("dir/x").exists());
}

/// A glob covers what is below its path, so what was done to a directory says nothing about what is
/// in it, and what was refused there stays so.
#[test]
fn a_directory_does_not_open_what_is_in_it() {
    if !can_mount() {
        return;
    }
    let before = "[[rule]]\npath = 'made/kept'\naction = 'deny'\n\
                  [[rule]]\npath = 'moved/kept'\naction = 'deny'\n\
                  [[rule]]\npath = 'keys/id_rsa'\noperation = 'write'\naction = 'read-only'";
    let work = "mkdir made; ! touch made/kept; mkdir made/sub; chmod 755 docs keys logs; cat keys/id_rsa docs/guide.md
        for n in $(seq 20); do echo $n >made/sub/$n; done; ! (echo x >keys/id_rsa); ! touch made/kept";
    let (learned, project) = learned_and_repeated(before, work);
    project.sh("echo x >logs/app.log; touch made/kept made/other; mkdir made/kept; echo x >docs/guide.md; echo >docs/x");
    for name in ["made/kept", "made/other", "docs/x"] {
        assert!(!project.path("dir").join(name).exists(), "{name} could be made by\n{learned}");
    }
    let guide = std::fs::read_to_string(project.path("dir/docs/guide.md")).unwrap();
    assert_eq!(guide, "guide\n", "{learned}");
    let log = std::fs::read_to_string(project.path("dir/logs/app.log")).unwrap();
    assert_eq!(log, "log\n", "{learned}");
}

//! What is recorded while CMD runs, and what `run` says when it ends.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::project::{Project, all, can_mount, text, tollgate};

/// `tollgate run` with an audit log, to be continued with CMD.
fn audited(project: &Project, options: &[&str]) -> Command {
    let mut command = tollgate();
    command.arg("run").args(options).arg("--audit").arg(project.path("audit.jsonl"));
    command.arg("--policy").arg(project.path("policy.toml"));
    command.arg(project.path("dir")).arg("--").current_dir(project.path("dir"));
    command
}

pub(crate) fn lines(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn run_ends_with_what_was_refused() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "cat .env; cat .env; cat keys/id_rsa; echo x >docs/guide.md; exit 3";
    let out = project.sh(script);
    assert_eq!(out.status.code(), Some(3));
    let said = text(&out.stderr);
    assert!(said.contains("tollgate: was refused "), "{said}");
    assert!(said.contains("lookup .env: ENOENT, hidden by rule `env`"), "{said}");
    assert!(said.contains("open keys/id_rsa: EACCES by rule `keys`, once"), "{said}");
    assert!(said.contains("open docs/guide.md: EROFS by rule `docs`, once"), "{said}");
}

/// A full disk costs records, which are counted; what is in the log is whole.
#[test]
fn a_disk_that_was_full_leaves_whole_lines_and_counts_that_add_up() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    // One that was killed left a line without its end. The file beside the log fills the disk.
    let script = "mkdir logs; mount -t tmpfs -o size=64k t logs; printf '{\"time\":\"to' >logs/a
        head -c 40000 /dev/zero >logs/fill
        $T run --quiet --sandbox strict --audit $PWD/logs/a --allow $PWD/logs/fill:rw \
            --policy policy.toml dir -- sh -c '
                tries=0; opens() { for i in 1 2 3 4 5 6 7 8 9; do cat a.txt keys/id_rsa; done; }
                until $T status --json | grep -q failed.:.*[1-9]; do
                    opens; tries=$((tries + 1)); test $tries -lt 500 || exit 9
                done
                opens; : >../logs/fill; for i in 1 2 3; do opens; sleep 0.05; done' >/dev/null 2>&1
        cat logs/a";
    let output = project.in_mount_namespace(script);
    assert!(output.status.success(), "{}", all(&output));
    let out = text(&output.stdout);
    let (torn, rest) = out.split_once('\n').unwrap();
    assert_eq!(torn, "{\"time\":\"to");
    let read =
        |line: &str| serde_json::from_str::<Value>(line).unwrap_or_else(|_| panic!("{line}"));
    let records: Vec<Value> = rest.lines().map(read).collect();
    let stop = records.last().unwrap();
    assert_eq!(stop["event"], "stop", "{out}");
    assert!(stop["failed"].as_u64().unwrap() > 0, "{stop}");
    let of = |event: &str| records.iter().filter(|one| one["event"] == event).collect::<Vec<_>>();
    assert_eq!(of("request").len() as u64, stop["written"].as_u64().unwrap(), "{stop}");
    let counted: u64 = of("repeated").iter().map(|one| one["count"].as_u64().unwrap()).sum();
    assert_eq!(counted, stop["repeated"].as_u64().unwrap(), "{stop}");
}

/// What is hidden because another of its names is: the rule that says so is named, not the default.
#[test]
fn a_further_name_is_recorded_with_the_rule_that_hides_it() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    fs::hard_link(project.path("dir/.env"), project.path("dir/further")).unwrap();
    let script = "cat further; ln a.txt further; true";
    let out = audited(&project, &[]).args(["sh", "-c", script]).output().unwrap();
    let said = text(&out.stderr);
    assert!(said.contains("lookup further: ENOENT, hidden by rule `env`"), "{said}");
    let lines = lines(&project.path("audit.jsonl"));
    let refused: Vec<_> = lines.iter().filter(|line| line["path"] == "further").collect();
    assert!(refused.iter().any(|line| line["errno"] == "EACCES"), "{refused:#?}");
    assert!(refused.iter().all(|line| line["rule"] == "env"), "{refused:#?}");
}

#[test]
fn run_says_nothing_when_nothing_was_refused_or_quiet_is_asked_for() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let out = project.sh("cat a.txt");
    assert!(!text(&out.stderr).contains("refused"), "{}", all(&out));
    let mut quiet = tollgate();
    quiet.args(["run", "--quiet", "--policy"]).arg(project.path("policy.toml"));
    quiet.arg(project.path("dir")).args(["--", "cat", "keys/id_rsa"]);
    let out = quiet.current_dir(project.path("dir")).output().unwrap();
    assert!(!text(&out.stderr).contains("refused"), "{}", all(&out));
}

#[test]
fn what_is_gone_with_the_private_home_is_noted_unless_quiet_is_asked_for() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    // Not in a private place, which is empty anyway.
    let home = tempfile::tempdir_in("/var/lib").unwrap();
    for (options, is_noted) in [(&[][..], true), (&["--quiet"][..], false)] {
        let mut command = project.run_with(options);
        command.args(["sh", "-c", "echo x >~/new"]).env("HOME", home.path());
        let out = command.stdin(std::process::Stdio::null()).output().unwrap();
        assert!(out.status.success(), "{}", all(&out));
        let noted = text(&out.stderr).contains("private copy of the home directory is gone");
        assert_eq!(noted, is_noted, "{}", all(&out));
    }
}

#[test]
fn names_of_files_cannot_steer_the_terminal() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let out = project.sh("mkdir -p keys; touch \"keys/id_$(printf '\\033[2J\\033]0;x\\007')\"");
    let said = text(&out.stderr);
    let summary = said.split("tollgate: was refused").nth(1).unwrap_or_else(|| panic!("{said}"));
    assert!(summary.contains("id_\\x1b[2J") && !summary.contains('\x1b'), "{said:?}");
}

/// The path of the program that asks is the caller's to choose, too.
#[test]
fn names_of_programs_cannot_steer_the_terminal() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "name=\"$(printf 'a\\033[2J\\nb')\"; cp /bin/cat \"$name\"; \"./$name\" keys/id_rsa 2>/dev/null; true";
    let out = audited(&project, &[]).args(["sh", "-c", script]).output().unwrap();
    let log = std::fs::read(project.path("audit.jsonl")).unwrap();
    assert!(!log.contains(&0x1b), "{}", text(&log));
    let said = lines(&project.path("audit.jsonl"));
    let by = said.iter().find(|line| line["errno"] == "EACCES").expect("it was refused");
    assert!(by["exe"].as_str().unwrap().contains("a\u{1b}[2J\nb"), "{by}");
    let mut viewer = tollgate();
    let shown = viewer.arg("audit").arg(project.path("audit.jsonl")).output().unwrap();
    for output in [&out.stdout, &out.stderr, &shown.stdout, &shown.stderr] {
        assert!(!output.contains(&0x1b), "{}", text(output));
    }
    assert!(text(&shown.stdout).contains("a\\x1b[2J\\nb"), "{}", all(&shown));
}

#[test]
fn a_log_says_which_run_it_is_and_where_it_begins_and_ends() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    // Where a confined server reads nothing, which it does beside the log.
    let policy = project.path("rules/policy.toml");
    fs::create_dir(project.path("rules")).unwrap();
    fs::rename(project.path("policy.toml"), &policy).unwrap();
    let mut command = tollgate();
    command.args(["run", "--audit"]).arg(project.path("audit.jsonl")).arg("--policy").arg(&policy);
    let out = command.arg(project.path("dir")).args(["--", "cat", "a.txt"]).output().unwrap();
    assert!(out.status.success(), "{}", all(&out));
    let lines = lines(&project.path("audit.jsonl"));
    let (start, stop) = (&lines[0], lines.last().unwrap());
    assert_eq!((&start["event"], &stop["event"]), (&"start".into(), &"stop".into()));
    let sum = Command::new("sha256sum").arg(&policy).output().unwrap();
    let sum = text(&sum.stdout).split(' ').next().unwrap().to_owned();
    assert_eq!(start["policy_sha256"], sum.as_str());
    assert!(start["dir"].as_str().unwrap().ends_with("/dir"));
    assert_eq!(start["run"].as_str().unwrap().len(), 16);
    assert!(lines.iter().all(|line| line["run"] == start["run"]));
    let events = lines.iter().filter(|line| line["event"] == "request").count() as u64;
    assert_eq!((&stop["written"], &stop["dropped"]), (&events.into(), &0.into()));
    let open = lines.iter().find(|line| line["path"] == "a.txt").unwrap();
    assert_eq!(open["access"], "read");
}

/// A flood of refusals of one name, and one of ever new names, while another is refused once.
#[test]
fn a_flood_of_refusals_is_counted_and_loses_nothing() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let flood = "import os\n\
                 for i in range(20000):\n\
                 \x20   try: os.open('keys/id_rsa', os.O_RDONLY)\n\
                 \x20   except PermissionError: pass\n\
                 for i in range(3000):\n\
                 \x20   try: os.mkdir(f'keys/id_{i}')\n\
                 \x20   except PermissionError: pass\n";
    let mut run = audited(&project, &["--audit-level", "refused"]);
    let out =
        run.args(["sh", "-c", "cat docs/../.env; python3 -c \"$0\"", flood]).output().unwrap();
    assert!(out.status.success(), "{}", all(&out));
    let lines = lines(&project.path("audit.jsonl"));
    assert!(lines.len() < 600, "{} lines", lines.len());
    let told = |operation: &str| -> u64 {
        let of = lines.iter().filter(|line| line["operation"] == operation);
        of.map(|line| line["count"].as_u64().unwrap_or(1)).sum()
    };
    let stop = lines.last().unwrap();
    let dropped = stop["dropped"].as_u64().unwrap();
    assert_eq!(told("open") + told("mkdir") + dropped, 23_000, "{stop}");
    assert!(told("lookup") >= 1);
}

#[test]
fn what_is_only_recorded_is_allowed() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let policy = project.path("policy.toml");
    let text_before = std::fs::read_to_string(&policy).unwrap();
    std::fs::write(&policy, format!("mode = \"audit\"\n{text_before}")).unwrap();
    let out = audited(&project, &[]).args(["sh", "-c", "cat keys/id_rsa; ls -A"]).output().unwrap();
    assert!(text(&out.stdout).contains(crate::project::SECRET), "{}", all(&out));
    assert!(text(&out.stdout).contains(".env"), "{}", all(&out));
    let said = text(&out.stderr);
    assert!(said.contains("would have been refused"), "{said}");
    assert!(said.contains("open keys/id_rsa: EACCES by rule `keys`, recorded only"), "{said}");
    let lines = lines(&project.path("audit.jsonl"));
    let would = lines.iter().find(|line| line["outcome"] == "would-refuse").unwrap();
    assert_eq!(would["event"], "request");
}

/// What a run did is allowed by the policy that is learned from it, and nothing else is.
#[test]
fn a_learned_policy_allows_what_was_seen() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    std::fs::write(project.path("policy.toml"), "# all\n").unwrap();
    let work = "set -e; cat a.txt; echo x >made; mv made moved; mkdir d; echo y >d/z; rm d/z; rmdir d; \
                echo z >>docs/guide.md; chmod 600 moved; ln moved further; rm moved further";
    let out = audited(&project, &[]).args(["sh", "-c", work]).output().unwrap();
    assert!(out.status.success(), "{}", all(&out));
    let learned = tollgate().arg("learn").arg(project.path("audit.jsonl")).output().unwrap();
    assert!(learned.status.success(), "{}", all(&learned));
    std::fs::write(project.path("policy.toml"), &learned.stdout).unwrap();
    let again = project.sh(work);
    assert!(again.status.success(), "{}\n{}", all(&again), text(&learned.stdout));
    let other = project.sh("cat keys/id_rsa; echo >other");
    assert!(!all(&other).contains(crate::project::SECRET), "{}", all(&other));
    assert!(!project.path("dir/other").exists());
}

/// Also where the policy was tried out, and nothing was refused yet; links can be followed.
#[test]
fn a_policy_learned_in_audit_mode_leaves_out_secrets() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let policy = project.path("policy.toml");
    let text_before = std::fs::read_to_string(&policy).unwrap();
    std::fs::write(&policy, format!("mode = \"audit\"\n{text_before}")).unwrap();
    std::os::unix::fs::symlink("a.txt", project.path("dir/link")).unwrap();
    let work = "cat link keys/id_rsa .env";
    let out = audited(&project, &[]).args(["sh", "-c", work]).output().unwrap();
    assert_eq!(text(&out.stdout).matches(crate::project::SECRET).count(), 2, "{}", all(&out));
    let learned = tollgate().arg("learn").arg(project.path("audit.jsonl")).output().unwrap();
    assert!(learned.status.success(), "{}", all(&learned));
    std::fs::write(&policy, &learned.stdout).unwrap();
    let again = project.sh(work);
    assert_eq!(text(&again.stdout), "plain\n", "{}\n{}", all(&again), text(&learned.stdout));
}

/// A further name of the log inside DIR would let CMD read and empty it.
#[test]
fn a_log_with_a_further_name_is_refused() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    for log in ["audit.jsonl", "audit.jsonl.1"] {
        for name in ["audit.jsonl", "audit.jsonl.1"] {
            fs::write(project.path(name), "before\n").unwrap();
        }
        fs::hard_link(project.path(log), project.path("dir/log")).unwrap();
        let out = audited(&project, &[]).args(["sh", "-c", "echo >log"]).output().unwrap();
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(125), "{said}");
        assert!(
            said.contains("audit.jsonl") && said.contains("has 2 names (hard links)"),
            "{said}"
        );
        assert!(said.contains("remove the others, or name a file of its own"), "{said}");
        assert_eq!(fs::read_to_string(project.path(log)).unwrap(), "before\n");
        fs::remove_file(project.path("dir/log")).unwrap();
    }
    let out = audited(&project, &[]).arg("true").output().unwrap();
    assert!(out.status.success(), "{}", all(&out));
}

/// The log, the policy and the sockets lie outside of DIR, where CMD changes nothing.
#[test]
fn the_command_cannot_touch_the_record() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let policy = std::fs::read(project.path("policy.toml")).unwrap();
    let attempts = "cat keys/id_rsa; true >$H/audit.jsonl; echo x >>$H/audit.jsonl; rm -f $H/audit.jsonl; \
                    mv $H/audit.jsonl $H/x; mv $H $H.moved; chmod 0 $H/audit.jsonl; \
                    ln $H/audit.jsonl $H/y; truncate -s 0 $H/audit.jsonl; \
                    echo >$H/policy.toml; rm -f $H/policy.toml; true";
    let home = std::fs::canonicalize(project.path(".")).unwrap();
    let mut run = audited(&project, &[]);
    let out = run.args(["sh", "-c", attempts]).env("H", &home).output().unwrap();
    assert!(out.status.success(), "{}", all(&out));
    let lines = lines(&project.path("audit.jsonl"));
    assert_eq!(lines[0]["event"], "start");
    assert!(lines.iter().any(|line| line["path"] == "keys/id_rsa"), "{}", all(&out));
    assert_eq!(lines.last().unwrap()["event"], "stop");
    assert_eq!(std::fs::read(project.path("policy.toml")).unwrap(), policy);
}

/// Of other servers of the same user: found, and not removed, replaced or hidden. What CMD's own
/// processes serve is found outside, and is gone afterwards.
#[test]
fn the_command_cannot_touch_the_sockets_of_other_servers() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let attempts = r#"
        rm -f $S; mv $S $S.x; (: >$S); ln -s x $S.y; touch /run/tollgate/new; chmod 0 $S
        mv /run/tollgate /run/moved; rm -rf /run/tollgate; mkdir /run/tollgate/in-00000000
        mount -o remount,rw,bind /run/tollgate; rm -f $S; umount -l /run/tollgate; rm -f $S
        rm -f /run/tollgate/*.lock; mkdir -p /run/tollgate/in-*/in-00000001
        $T status >dir/seen"#;
    std::fs::write(project.path("attempts"), attempts).unwrap();
    // A /run of its own, so that the sockets of other tests are out of danger if this fails.
    let script = r#"
        mount -t tmpfs run /run
        $T mount --daemon --policy none dir mnt
        export S=$(echo /run/tollgate/view-*)
        for fence in on off; do
            $T run --chdir . --fence $fence --policy none dir -- sh attempts 2>/dev/null || true
            [ -S $S ] || echo removed with --fence $fence
            [ "$(ls /run/tollgate)" = "${S##*/}" ] || ls -R /run/tollgate
            grep -q $PWD/mnt dir/seen || cat dir/seen
            rm -f dir/seen
            $T status mnt >/dev/null || echo not reached
        done
        $T umount mnt"#;
    let output = project.in_mount_namespace(script);
    assert!(output.status.success() && output.stdout.is_empty(), "{}", all(&output));
}

/// Also where another CMD locks the directory that it reads: every server has its socket all the same.
#[test]
fn who_locks_the_directory_of_sockets_does_not_open_it_and_holds_up_nobody() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = r#"
        mount -t tmpfs run /run; mkdir other third
        $T mount --daemon --policy none dir mnt
        export S=$(echo /run/tollgate/view-*)
        (exec $T run --quiet --policy none other -- \
            flock /run/tollgate sh -c ': >$TOLLGATE_RUN/locked; sleep 1000') & locks=$!
        until [ -e other/locked ]; do sleep 0.05; done
        $T run --quiet --policy none --fence off third -- sh -c '
            ls /run/tollgate/view-* | wc -l; rm -f $S; touch /run/tollgate/new' 2>errors || true
        [ -S $S ] || echo removed
        [ $(grep -c Read-only errors) = 2 ] || cat errors
        kill $locks; wait $locks || true
        $T umount mnt"#;
    let output = project.in_mount_namespace(script);
    assert!(output.status.success(), "{}", all(&output));
    assert_eq!(text(&output.stdout), "3\n", "{}", all(&output));
}

/// Nor those of guests, whose directory is made with the first of them.
#[test]
fn sockets_for_the_users_of_other_commands_are_not_touched_without_a_fence() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = r#"
        mount -t tmpfs run /run; mkdir other
        chmod 755 .; cp $T ./tollgate; chmod 755 ./tollgate
        (exec ./tollgate run --quiet --policy none --fence off other -- sh -c '
            cd $TOLLGATE_RUN; mkdir inner
            ../tollgate run --quiet --policy none --user 4321:4321 inner -- \
                sh -c "echo inner \$TOLLGATE_CONTROL"
            : >up; until [ -e go ]; do sleep 0.05; done
            touch /run/tollgate-users/new; rm -f /run/tollgate-users/view-*
            mv /run/tollgate-users /run/moved' 2>errors) & attempts=$!
        until [ -e other/up ]; do sleep 0.05; done
        (exec ./tollgate run --quiet --policy none --user 4321:4321 dir -- \
            sh -c 'echo $TOLLGATE_CONTROL; sleep 1000' >socket) & guest=$!
        trap 'kill $guest; wait $guest; cat errors >&2' EXIT
        until [ -s socket ]; do sleep 0.05; done
        : >other/go; wait $attempts || true
        [ -S $(cat socket) ] || echo removed
        ls -d /run/tollgate-users/*
        [ "$(ls /run/tollgate-users)" = "$(basename $(cat socket))" ] || echo changed"#;
    let output = project.in_mount_namespace(script);
    let said = text(&output.stdout);
    let lines: Vec<_> = said.lines().collect();
    let [inner, kept] = lines[..] else { panic!("{}", all(&output)) };
    // That one is found in it alone, and goes with it.
    assert!(inner.starts_with("inner /run/tollgate-users/view-"), "{}", all(&output));
    assert!(kept.starts_with("/run/tollgate-users/view-"), "{}", all(&output));
}

/// Nor those of servers that have another `XDG_RUNTIME_DIR`, or none, also where the fence is open there.
#[test]
fn sockets_in_the_other_places_of_a_user_are_not_touched() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = r#"
        for place in /mnt /run /tmp; do mount -t tmpfs x $place; done
        cd /mnt; cp $T ./tollgate; chmod 755 . tollgate; mkdir rt first second third
        chown -R 4329:4329 rt first second third; chmod 700 rt
        mkdir -p /run/user/4329; chown 4329 /run/user/4329; chmod 700 /run/user/4329
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
        unset XDG_RUNTIME_DIR
        as() { exec setpriv --reuid 4329 --regid 4329 --clear-groups "$@"; }
        run() { as ./tollgate run --quiet --policy none "$@"; }
        (run first -- sh -c ': >$TOLLGATE_RUN/up; sleep 1000') & one=$!
        (export XDG_RUNTIME_DIR=/run/user/4329; run second -- sh -c ': >$TOLLGATE_RUN/up; sleep 1000') & two=$!
        for i in $(seq 400); do [ -e first/up ] && [ -e second/up ] && break; sleep 0.05; done
        export attempts='
            for place in /tmp/tollgate-4329 /run/user/4329/tollgate /mnt/again/tollgate-4329; do
                rm -f $place/view-*; touch $place/new; mv $place $place-moved
            done'
        found() {
            for place in /tmp/tollgate-4329 /run/user/4329/tollgate; do
                ls $place/view-* | wc -l; [ ! -e $place/new ] || echo made
            done
        }
        try() { ("$@" -- sh -c "$attempts" 2>>errors) || true; found; }
        export XDG_RUNTIME_DIR=$PWD/rt
        try run --fence off third
        try run --allow /tmp:rw --allow /run/user/4329:rw third
        XDG_RUNTIME_DIR=/run/user/4329 try run --allow /tmp:rw third
        unset XDG_RUNTIME_DIR
        try run --allow /run/user/4329:rw third
        mkdir again; mount --bind /tmp again
        try run --allow /mnt/again:rw third
        XDG_RUNTIME_DIR=$PWD/rt try run --allow /mnt/again:rw third
        umount again; rmdir again
        try ./tollgate run --quiet --policy none --user 4329:4329 --fence off third
        try ./tollgate run --quiet --policy none --user 4329:4329 --allow /tmp:rw --allow /run/user:rw third
        kill $one $two; wait $one $two || true; cat errors >&2"#;
    let output = project.in_mount_namespace(script);
    let all = all(&output);
    if all.contains("user namespaces are not allowed") {
        eprintln!("skipped: {all}");
        return;
    }
    assert_eq!(text(&output.stdout), "1\n1\n".repeat(8), "{all}");
}

/// Nor where DIR or a `[[view]]` contains them.
#[test]
fn sockets_in_the_other_places_of_a_user_are_not_touched_through_a_view() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = r#"
        for place in /mnt /tmp; do mount -t tmpfs x $place; done
        cd /mnt; cp $T ./tollgate; chmod 755 . tollgate; mkdir rt first third
        chown -R 4329:4329 rt first third; chmod 700 rt
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse; unset XDG_RUNTIME_DIR
        run() { exec setpriv --reuid 4329 --regid 4329 --clear-groups ./tollgate run --quiet "$@"; }
        (run --policy none first -- sh -c ': >$TOLLGATE_RUN/up; sleep 1000') & one=$!
        for i in $(seq 400); do [ -e first/up ] && break; sleep 0.05; done
        export XDG_RUNTIME_DIR=$PWD/rt
        printf '[[view]]\ndir = "/tmp"\n' >view.toml
        printf '[[rule]]\npath = "tollgate-*"\naction = "hide"\n' >hide.toml
        printf '[[rule]]\npath = "tollgate-*"\naction = "deny"\n' >deny.toml
        printf '[[rule]]\npath = "tollgate-*/**"\naction = "hide"\n' >inside.toml
        printf '[[rule]]\npath = "**"\naction = "deny"\n' >all.toml
        for how in 'none /tmp' 'view.toml third' 'hide.toml /tmp' 'deny.toml /tmp' 'inside.toml /tmp' 'all.toml /tmp'; do
            (run --policy $how -- sh -c '
                ls /tmp/tollgate-4329 | grep -c ^view-
                env -u XDG_RUNTIME_DIR /mnt/tollgate status | grep -c first
                cd /tmp/tollgate-4329; rm -f view-*; touch new; mv /tmp/tollgate-4329 /tmp/moved
                echo end' 2>>errors) || true
            ls /tmp/tollgate-4329/view-* | wc -l; [ ! -e /tmp/tollgate-4329/new ] || echo made
        done
        kill $one; wait $one || true; cat errors >&2"#;
    let output = project.in_mount_namespace(script);
    let all = all(&output);
    if all.contains("user namespaces are not allowed") {
        eprintln!("skipped: {all}");
        return;
    }
    // What is listed, and which servers answer.
    let (shown, kept_away) = ("1\n0\nend\n1\n", "0\n0\nend\n1\n");
    assert_eq!(text(&output.stdout), shown.repeat(2) + &kept_away.repeat(4), "{all}");
}

/// Also where a link leads to them.
#[test]
fn a_link_does_not_open_the_sockets_of_other_servers() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = r#"
        cp $T ./tollgate; mkdir rt other; ln -s rt link; chmod 755 . tollgate
        chown -R 4321:4321 dir rt other; chmod 700 rt
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
        export XDG_RUNTIME_DIR=$PWD/link
        run() { exec setpriv --reuid 4321 --regid 4321 --clear-groups ./tollgate run --quiet --policy none "$@"; }
        (run dir -- sh -c ': >$TOLLGATE_RUN/up; sleep 1000') & server=$!
        for i in $(seq 400); do [ -e dir/up ] && break; sleep 0.05; done
        (run --fence off other -- sh -c 'cd $XDG_RUNTIME_DIR/tollgate; rm -f view-*; touch new in-*/own' 2>errors) || true
        ls rt/tollgate/view-* | wc -l; [ -e rt/tollgate/new ] && echo made; cat errors >&2
        kill $server; wait $server || true"#;
    let output = project.in_mount_namespace(script);
    let all = all(&output);
    if all.contains("user namespaces are not allowed") {
        eprintln!("skipped: {all}");
        return;
    }
    assert!(output.status.success(), "{all}");
    assert_eq!(text(&output.stdout), "1\n", "{all}");
}

/// CMD may make sockets in a directory that lies outside. Whatever else it leaves there goes with it.
#[test]
fn what_the_command_leaves_beside_its_sockets_goes_with_it() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let leave = "cd $XDG_RUNTIME_DIR/tollgate/in-*; echo x >big; cp /bin/true program; mkdir -p a/b; ln -s /etc link
        ./program && echo a program runs there; chmod 0 a/b a .";
    std::fs::write(project.path("leave"), leave).unwrap();
    let script = r#"
        cp $T ./tollgate; mkdir rt; chmod 755 . tollgate; chown -R 4321:4321 dir rt; chmod 700 rt
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
        export XDG_RUNTIME_DIR=$PWD/rt
        run() { exec setpriv --reuid 4321 --regid 4321 --clear-groups ./tollgate run --quiet --policy none dir -- "$@"; }
        (run sh -c '. ../leave')
        ls -d rt/tollgate/in-* && echo left
        run sh -c '. ../leave; : >$TOLLGATE_RUN/up; sleep 1000' & server=$!
        until [ -e dir/up ]; do sleep 0.05; done
        kill -9 $server; wait $server || true
        [ -e rt/tollgate/in-*/big ] || echo nothing was left
        (run true)
        ls -d rt/tollgate/in-* && echo left after a kill; true"#;
    let output = project.in_mount_namespace(script);
    let all = all(&output);
    if all.contains("user namespaces are not allowed") {
        eprintln!("skipped: {all}");
        return;
    }
    assert!(output.status.success() && output.stdout.is_empty(), "{all}");
}

/// Sockets are for questions; the view is there without.
#[test]
fn a_place_for_sockets_that_is_not_there_is_no_reason_not_to_run() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = r#"
        cp $T ./tollgate; chmod 755 . tollgate; chown -R 4321:4321 dir; cd dir
        mknod -m 666 ../fuse c 10 229; mount --bind ../fuse /dev/fuse
        for place in $PWD/.run ${PWD%/dir}/none; do
            XDG_RUNTIME_DIR=$place setpriv --reuid 4321 --regid 4321 --clear-groups \
                ../tollgate run --quiet --policy none . -- sh -c 'cat a.txt; [ -e .run ] || exit 3' || echo $?
        done"#;
    let output = project.in_mount_namespace(script);
    let all = all(&output);
    if all.contains("user namespaces are not allowed") {
        eprintln!("skipped: {all}");
        return;
    }
    assert_eq!(text(&output.stdout), "plain\n3\nplain\n3\n", "{all}");
    assert_eq!(
        all.matches("warning: `tollgate status` will not show this server").count(),
        2,
        "{all}"
    );
    assert_eq!(all.matches("warning: CMD would find a session").count(), 1, "{all}");
}

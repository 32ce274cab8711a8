//! What of the machine CMD does not see: home directories but for what is listed, variables that
//! look like secrets, sockets of services.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::project::{Project, SECRET, all, can_mount, text};

const HIDDEN: &[&str] = &[
    ".ssh/id_ed25519",
    ".aws/credentials",
    ".gnupg/private-keys-v1.d/key",
    ".netrc",
    ".git-credentials",
    ".config/git/credentials",
    ".config/gh/hosts.yml",
    ".config/chromium/Default/Cookies",
    ".mozilla/firefox/x.default/logins.json",
    ".local/share/keyrings/login.keyring",
    ".docker/config.json",
    ".kube/config",
    ".cargo/credentials.toml",
    ".m2/settings.xml",
    ".gradle/gradle.properties",
    ".bash_history",
    ".claude.json",
    "other-project/.env",
    "other-project/secret",
];

/// A home directory full of secrets, and some things that programs need.
fn fill(home: &Path) {
    for name in HIDDEN {
        write(home, name, SECRET);
    }
    let header = format!("\textraheader = AUTHORIZATION: basic {SECRET}\n");
    let sends = format!("[sendemail]\n\tsmtpPass = {SECRET}\n");
    write(home, ".gitconfig", &format!("[user]\n\tname = me\n[http]\n{header}{sends}"));
    let body = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW\n".repeat(4);
    let key = format!("-----BEGIN RSA PRIVATE KEY-----\n{body}-----END RSA PRIVATE KEY-----\n");
    let curl = format!("alias c='curl -H \"Authorization: token {SECRET}\"'\n");
    let lines = format!("export DB_PASSWORD=\"a\n{SECRET}\"\nset -gx API_TOKEN {SECRET}\n");
    let more = format!("export PASSWORDS={SECRET}\n");
    write(home, ".bashrc", &format!("{curl}KEY='\n{key}'\n{lines}{more}EDITOR=vim\n"));
    let nested = format!("if true; then\n  FOO_TOKEN=\"`echo \"a\n{SECRET}\"`\"\nfi\n");
    write(home, ".profile", &format!("echo read\n{nested}echo {SECRET}\n"));
    let token = format!("token = \"\"\"\n{SECRET}\"\"\"\n[env]\nA_TOKEN = [\n \"{SECRET}\" ]\n");
    write(home, ".cargo/config.toml", &format!("[registry]\n{token}[net]\noffline = true\n"));
    write(
        home,
        ".npmrc",
        &format!("fund=false\npassword =\n   {SECRET}\n//r/:_authToken={SECRET}\n"),
    );
    write(home, ".cargo/registry/cached", "crate\n");
    write_program(&home.join(".local/bin/tool"), "#!/bin/sh\necho tool\n");
}

/// By another process: a child that another test forks at this moment would hold open what is written
/// here.
fn write_program(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "printf %s \"$2\" >\"$1\" && chmod 755 \"$1\"", "sh"]);
    assert!(command.arg(path).arg(text).status().unwrap().success());
}

fn write(home: &Path, name: &str, text: &str) {
    let path = home.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn finish(mut command: Command, script: &str) -> Output {
    command.args(["sh", "-c", script]).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_home_shows_what_is_listed_and_nothing_else() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    // Not in a private place, which is empty anyway.
    let place = tempfile::tempdir_in("/var/lib").unwrap();
    let home = place.path().join("home");
    fill(&home);
    let script = "grep -rs -e the-secret -e b3BlbnNzaC ~; cd; cat .npmrc; grep EDITOR .bashrc; . ./.profile; cat .cargo/config.toml
        git config --global user.name
        cat .cargo/registry/cached; .local/bin/tool; echo new >.cargo/registry/cached
        for name in $NAMES; do test -e $name && echo $name is there; done; ls -A";
    let mut command = project.run();
    command.env("HOME", &home).env("NAMES", HIDDEN.join(" ")).env_remove("CARGO_HOME");
    let output = finish(command, script);
    let listed = ".bashrc\n.cargo\n.config\n.gitconfig\n.local\n.npmrc\n.profile\n";
    let without = listed.replace(".config\n", "");
    let head =
        "fund=false\nEDITOR=vim\nread\n[registry]\n[env]\n[net]\noffline = true\nme\ncrate\ntool\n";
    assert_eq!(text(&output.stdout), format!("{head}{without}"), "{}", all(&output));
    assert!(!all(&output).contains(SECRET), "{}", all(&output));
    let cached = fs::read_to_string(home.join(".cargo/registry/cached")).unwrap();
    assert_eq!(cached, "crate\n");
}

#[test]
fn what_is_allowed_of_a_home_is_there() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let place = tempfile::tempdir_in("/var/lib").unwrap();
    let home = place.path().join("home");
    fill(&home);
    let (ssh, home_path) = (home.join(".ssh"), home.to_str().unwrap());
    for allow in [ssh.to_str().unwrap(), home_path] {
        let mut command = project.run_with(&["--allow", allow]);
        command.env("HOME", &home);
        let output = finish(command, "cat ~/.ssh/id_ed25519; echo x >~/.ssh/new; echo x >~/new");
        assert_eq!(text(&output.stdout), SECRET, "{allow}: {}", all(&output));
        assert!(!home.join(".ssh/new").exists() && !home.join("new").exists(), "{allow}");
    }
    let (command, other) = (home.join("tools/agent"), home.join("tools/secret"));
    write_program(&command, "#!/bin/sh\ncat ${0%/*}/secret; echo started\n");
    fs::write(other, SECRET).unwrap();
    // A program that is named is there, and what lies beside it is not.
    let output = project.run().arg(&command).env("HOME", &home).output().unwrap();
    assert_eq!(text(&output.stdout), "started\n", "{}", all(&output));
}

#[test]
fn an_agent_has_its_own_settings() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let place = tempfile::tempdir_in("/var/lib").unwrap();
    let home = place.path().join("home");
    fill(&home);
    write(&home, ".claude/settings.json", "{}\n");
    let agent = project.path("claude");
    write_program(&agent, "#!/bin/sh\ncat ~/.claude/settings.json ~/.claude.json\n");
    let output = project.run().arg(&agent).env("HOME", &home).output().unwrap();
    assert_eq!(text(&output.stdout), format!("{{}}\n{SECRET}"), "{}", all(&output));
}

#[test]
fn the_homes_of_others_are_empty() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let home = project.path("home");
    fs::create_dir(&home).unwrap();
    // A directory of this test's own, in a private mount of /home.
    let script = format!(
        "mkdir -p /home; mount -t tmpfs t /home; mkdir -p /home/other/.ssh /home/other/tools
        echo {SECRET} >/home/other/.ssh/key; echo in >/home/other/tools/t
        export HOME=$PWD/home PATH=$PATH:/home/other/tools
        $T run --policy policy.toml dir -- sh -c 'cat /home/other/tools/t; ls -A /home/other; \
            cat /home/other/.ssh/key; ls -A /root | wc -l'"
    );
    let output = project.in_mount_namespace(&script);
    let out = text(&output.stdout);
    assert!(out.starts_with("in\ntools\n") && !all(&output).contains(SECRET), "{}", all(&output));
}

/// Mounts of homes, and of other places that are hidden, that begin above them, at them and in them.
const MOUNTS: &str = "
    mount -t tmpfs t /home; mkdir -p /home/other/.ssh; cp $H/.ssh/id_ed25519 /home/other/.ssh/key
    mkdir $M $M/above $M/exact $M/inside $M/whole $M/homes $M/other $M/tmp $M/run $M/part beside
    touch $M/file; mount --bind ${H%/*} $M/above; mount --bind $H $M/exact; mount --bind $H beside
    mount --bind $H/.ssh $M/inside; mount --bind $H/.ssh/id_ed25519 $M/file
    mount --bind / $M/whole; mount --bind /home $M/homes; mount --bind /home/other $M/other
    mkdir -p $RUN/in; cp $H/.ssh/id_ed25519 token; cp token $RUN/in/token
    mount --bind . $M/part; mount --bind /tmp $M/tmp; mount --bind /run $M/run
    mount --bind $H/.npmrc /etc/hosts";

/// What of the keys can be read by all these paths; and what is left at them.
const LOOK: &str = "
    cat above/home/.ssh/id_ed25519 exact/.ssh/id_ed25519 inside/id_ed25519 file \
        homes/other/.ssh/key other/.ssh/key part/token whole$H/.ssh/id_ed25519 whole$HERE/token \
        tmp${HERE#/tmp}/token run${RUN#/run}/in/token $HERE/beside/.ssh/id_ed25519 \
        $H/.ssh/id_ed25519 ~/.ssh/id_ed25519
    ls -A $HERE/beside inside homes other; touch inside/x; grep fund /etc/hosts";

#[test]
fn what_is_hidden_is_so_by_every_mount() {
    if !can_mount() {
        return;
    }
    for user in ["", "setpriv --reuid 4321 --regid 4321 --clear-groups"] {
        let project = Project::new();
        // Not in a private place, which is empty anyway.
        let place = tempfile::tempdir_in("/var/lib").unwrap();
        let run = tempfile::tempdir_in("/run").unwrap();
        let home = place.path().join("home");
        fill(&home);
        let script = format!(
            "export H={home} RUN={run} M={place}/m HERE=$PWD HOME={home}; cp $T tollgate; {MOUNTS}
            chmod 755 . {place} tollgate; chown -R 4321:4321 dir $H
            mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse; cd $M
            run() {{ {user} $HERE/tollgate run --quiet --chdir . --policy $HERE/policy.toml \"$@\"; }}
            run $HERE/dir -- sh -c \"$LOOK\"; echo; HOME=$M/exact run $HERE/dir -- sh -c \"$LOOK\"; echo
            PATH=$PATH:$M/exact/.local/bin run $M/exact/other-project -- sh -c '
                tool; cd exact/other-project; ls -A ..; pwd; cat secret | wc -c'; echo
            run --allow $M/inside $HERE/dir -- cat inside/id_ed25519",
            home = home.display(),
            run = run.path().display(),
            place = place.path().display(),
        );
        let script = script.replace("$LOOK", &LOOK.replace('$', "\\$"));
        let output = project.in_mount_namespace(&script);
        let (out, said) = (text(&output.stdout), all(&output));
        let empty = format!(
            "{}/beside:\n\nhomes:\n\ninside:\n\nother:\nfund=false\n\n",
            fs::canonicalize(project.path("")).unwrap().display()
        );
        let in_dir = format!(
            "tool\n.local\nother-project\n{}/m/exact/other-project\n{}\n\n",
            place.path().display(),
            SECRET.len()
        );
        assert_eq!(out, format!("{empty}{empty}{in_dir}{SECRET}"), "{said}");
    }
}

/// Where the kernel shows what all of the machine does.
#[test]
fn debugfs_and_tracefs_are_empty_wherever_they_are_mounted() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let place = tempfile::tempdir_in("/var/lib").unwrap();
    // Not by the usual places alone, where this machine may have none.
    let script = format!(
        "cd {0}; mkdir debug tracing part; mount -t debugfs d debug || exit 77
        mount -t tracefs t tracing || exit 77; mount --bind debug/sched part || exit 77
        mount -t debugfs d /sys/kernel/debug || true; ls debug/sched/debug tracing/trace >&2
        cd - >/dev/null; export HOME=$PWD
        for option in --quiet --allow={0}/debug; do
            $T run $option --policy policy.toml dir -- sh -c '
                ls -A {0}/part {0}/debug/sched /sys/kernel/debug /sys/kernel/tracing
                ls {0}/tracing; echo end' 2>/dev/null
        done",
        place.path().display()
    );
    let output = project.in_mount_namespace(&script);
    if output.status.code() == Some(77) || all(&output).contains("cannot access") {
        eprintln!("skipped: no debugfs or tracefs: {}", all(&output));
        return;
    }
    let out = text(&output.stdout);
    let (closed, open) = out.split_once("end\n").unwrap();
    assert!(!closed.contains("debug\n") && !closed.contains("trace"), "{}", all(&output));
    let is_entry = |line: &&str| !line.is_empty() && !line.ends_with(':');
    assert_eq!(closed.lines().find(is_entry), None, "{}", all(&output));
    assert!(open.contains("debug\n"), "{}", all(&output));
}

/// A second mount of the outer queues. These are of a namespace of their own, with which they go.
#[test]
fn message_queues_outside_are_hidden_wherever_they_are_mounted() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "
        mkdir queues; mount -t mqueue q queues || exit 77
        touch queues/one
        for option in --quiet --allow=$PWD/queues; do
            $T run --chdir . $option --policy policy.toml dir -- sh -c '
                ls -A queues; mkdir /tmp/own; mount -t mqueue q /tmp/own && ls -A /tmp/own; echo end'
        done";
    let mut command = Command::new("unshare");
    command.args(["-mi", "sh", "-ec", script]).env("T", env!("CARGO_BIN_EXE_tollgate"));
    let output = command.current_dir(project.path("")).stdin(Stdio::null()).output().unwrap();
    if output.status.code() == Some(77) {
        eprintln!("skipped: no message queues: {}", all(&output));
        return;
    }
    assert_eq!(text(&output.stdout), "end\none\nend\n", "{}", all(&output));
}

/// A view does not show those that are mounted in its directory.
#[test]
fn message_queues_outside_do_not_show_in_a_view() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = r#"
        mkdir dir/queues more more/queues
        printf '[[view]]\ndir = "%s/more"\n' $PWD >both.toml; cat policy.toml >>both.toml
        for place in dir more; do
            mount -t mqueue q $place/queues || exit 77
            touch $place/queues/one
            for policy in none both.toml; do
                for fence in on off; do
                    [ $policy$place = nonemore ] || $T run --fence $fence --policy $policy dir -- sh -c '
                        cd $TOLLGATE_RUN/../$0; ls -A queues; rm queues/one
                        echo x >queues/one; echo end' $place
                done
            done
            ls $place/queues; umount $place/queues
        done"#;
    let mut command = Command::new("unshare");
    command.args(["-mi", "sh", "-ec", script]).env("T", env!("CARGO_BIN_EXE_tollgate"));
    let output = command.current_dir(project.path("")).stdin(Stdio::null()).output().unwrap();
    if output.status.code() == Some(77) {
        eprintln!("skipped: no message queues: {}", all(&output));
        return;
    }
    let expected = format!("{}one\n{}one\n", "end\n".repeat(4), "end\n".repeat(2));
    assert_eq!(text(&output.stdout), expected, "{}", all(&output));
}

/// `HOME` may name something else than the user's home.
#[test]
fn the_home_that_the_users_entry_names_is_hidden_too() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    fs::create_dir(project.path("home")).unwrap();
    // Not in a private place, which is empty anyway.
    let place = tempfile::tempdir_in("/var/lib").unwrap();
    let home = place.path().join("me");
    fill(&home);
    fs::write(project.path("passwd"), format!("root:x:0:0::{}:/bin/sh\n", home.display())).unwrap();
    for named in ["/", "home", "$PWD/home", "/no/such/directory"] {
        let script = format!(
            "mount --bind passwd /etc/passwd; HOME={named} PATH=$PATH:{home}/.local/bin
            export HOME PATH; $T run --policy policy.toml dir -- sh -c '
                cat {home}/.ssh/id_ed25519; grep -rs the-secret {home}; tool; ls -A {home}/.local'",
            home = home.display(),
        );
        let output = project.in_mount_namespace(&script);
        let (out, said) = (text(&output.stdout), all(&output));
        assert!(out.starts_with("tool\nbin\n") && !said.contains(SECRET), "{named}: {said}");
    }
}

#[test]
fn secrets_of_the_environment_are_dropped_and_named() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let run = |options: &[&str]| {
        let mut command = project.run_with(options);
        command.env("DEPLOY_TOKEN", "value-1").env("HARMLESS", "ghp_0123456789value-2");
        command.env("PASSWORDS", "value-5").env("SSHPASS", "value-6");
        command.env("OPTIONS", "--password value-7").env("COMPASS", "north");
        command.env("DATABASE_URL", "postgres://me:value-3@db/x").env("PLAIN", "plain");
        command.env("SSH_AUTH_SOCK", "/run/value-4").env("EMPTY_TOKEN", "");
        let output = finish(command, "env | sort; cat /proc/1/environ | tr '\\0' '\\n'");
        (text(&output.stdout), text(&output.stderr))
    };
    let (out, said) = run(&[]);
    assert!(!out.contains("value-") && out.contains("PLAIN=plain"), "{out}");
    for name in ["DEPLOY_TOKEN", "HARMLESS", "DATABASE_URL", "PASSWORDS", "SSHPASS", "OPTIONS"] {
        assert!(said.contains(name), "{name}: {said}");
    }
    assert!(!said.contains("value-"), "{said}");
    let (out, said) = run(&["--env", "DEPLOY_TOKEN", "--env", "HARMLESS=other", "--env", "NEW=1"]);
    for line in ["DEPLOY_TOKEN=value-1\n", "HARMLESS=other\n", "NEW=1\n"] {
        assert!(out.contains(line), "{line}: {out}");
    }
    assert!(!said.contains("DEPLOY_TOKEN") && said.contains("DATABASE_URL"), "{said}");
    let (out, said) = run(&["--fence", "off"]);
    assert!(out.contains("value-1") && !said.contains("DEPLOY_TOKEN"), "{said}");
}

#[test]
fn sockets_of_services_are_out_of_reach() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let place = tempfile::tempdir_in("/run").unwrap();
    let home = tempfile::tempdir_in("/var/lib").unwrap();
    let sockets = [place.path().join("docker.sock"), home.path().join(".gnupg/S.gpg-agent")];
    fs::create_dir(home.path().join(".gnupg")).unwrap();
    let listeners: Vec<_> =
        sockets.iter().map(|socket| UnixListener::bind(socket).unwrap()).collect();
    let script = "import socket, sys
for path in sys.argv[1:]:
    try:
        socket.socket(socket.AF_UNIX).connect(path); print('connected to', path)
    except OSError as error: print(error.strerror)";
    let mut command = project.run();
    command.args(["python3", "-c", script]).args(&sockets).env("HOME", home.path());
    let output = command.output().unwrap();
    if output.status.code() == Some(127) {
        eprintln!("skipped: no python3");
        return;
    }
    let none = "No such file or directory\n";
    assert_eq!(text(&output.stdout), none.repeat(2), "{}", all(&output));
    drop(listeners);
}

/// A second mount of a home directory, or of one that holds it, is no less that directory.
#[test]
fn a_home_is_named_by_whoever_means_it_by_each_of_its_paths() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = "
        mkdir -p up/home/me/project bm whole; mount --bind up/home/me bm; mount --bind up whole
        evil='echo evil >>.bashrc; echo started'; top=$PWD
        run() { cd $top/$2; HOME=$top/$1 $T run --policy none -- sh -c \"$evil\" || true; }
        run up/home/me bm; run bm up/home/me; run up/home/me whole; run bm whole/home
        run whole/home/me up; cat $top/up/home/me/.bashrc 2>/dev/null || true
        run up/home/me bm/project";
    let output = project.in_mount_namespace(script);
    assert_eq!(text(&output.stdout), "started\n", "{}", all(&output));
    let refused = text(&output.stderr).matches("with your home directory").count();
    assert_eq!(refused, 5, "{}", all(&output));
}

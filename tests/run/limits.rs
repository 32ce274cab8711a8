//! `--memory`, `--processes`, `--cpu`, and `--require`.

use std::process::Stdio;

use crate::project::{Project, all, can_mount, text};

/// Whether limits are kept by cgroups here; else they hold for each process, or not at all.
fn has_cgroups(project: &Project, option: &str, value: &str) -> bool {
    let mut command = project.run_with(&[option, value, "--require", "limits"]);
    let output = command.arg("true").stdin(Stdio::null()).output().unwrap();
    if !output.status.success() {
        let said = all(&output);
        assert!(said.contains("--require limits: no cgroup can be made here"), "{said}");
        eprintln!("without a cgroup: {said}");
    }
    output.status.success()
}

#[test]
fn memory_is_limited() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let by_cgroup = has_cgroups(&project, "--memory", "64M");
    // A shell that holds 200 MB in a variable.
    let script = "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}";
    let mut command = project.run_with(&["--memory", "64M"]);
    let output = command.args(["bash", "-c", script]).stdin(Stdio::null()).output().unwrap();
    assert!(!text(&output.stdout).contains("200000000"), "{}", all(&output));
    let said = text(&output.stderr);
    if by_cgroup {
        assert!(said.contains("--memory ended processes of CMD"), "{said}");
    } else {
        assert!(said.contains("--memory holds for each process by itself"), "{said}");
    }
    let output = project.run_with(&["--memory", "1G"]).args(["bash", "-c", script]).output();
    assert_eq!(text(&output.unwrap().stdout), "200000000\n");
}

#[test]
fn processes_are_limited_and_the_cgroup_goes() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    if !has_cgroups(&project, "--processes", "20") {
        return;
    }
    let script = "for i in $(seq 60); do sleep 30 & done 2>/dev/null; jobs -p | wc -l; \
                  cat /proc/self/cgroup | grep -o 'tollgate-[0-9]*-[0-9a-f]*' | head -1";
    let mut command = project.run_with(&["--processes", "20"]);
    let output = command.args(["bash", "-c", script]).stdin(Stdio::null()).output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("--processes kept CMD from starting"), "{}", all(&output));
    let started: Option<u32> =
        text(&output.stdout).lines().next().and_then(|line| line.parse().ok());
    assert!(started.is_none_or(|started| started <= 20), "{}", all(&output));
    if let Some(name) = text(&output.stdout).lines().nth(1) {
        let found = std::process::Command::new("find")
            .args(["/sys/fs/cgroup", "-name", name])
            .output()
            .unwrap();
        assert_eq!(text(&found.stdout), "");
    }
}

/// A cgroup that root gave to a user, of version 2 where that has the controller, else of version 1:
/// there a `run` of the user keeps limits for all processes together.
#[test]
fn a_user_has_limits_in_a_cgroup_of_his_own() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = r#"
        group=tollgate-test-$$
        end() { echo $$ >"$top/cgroup.procs"; rmdir "$top/$group/leaf" "$top/$group"; }
        if grep -qsw pids /sys/fs/cgroup/cgroup.controllers; then
            top=/sys/fs/cgroup; own=$top/$group/leaf
            echo +pids >$top/cgroup.subtree_control || { echo skipped; exit; }
        elif [ -e /sys/fs/cgroup/pids/cgroup.procs ]; then
            top=/sys/fs/cgroup/pids; own=$top/$group/leaf
        else
            echo skipped; exit
        fi
        mkdir -p $own && chown -R 4321 $top/$group && trap end EXIT || { echo skipped; exit; }
        echo $$ >$own/cgroup.procs
        chmod 755 .; cp $T ./tollgate; chmod 755 ./tollgate; chown -R 4321:4321 dir
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse; export HOME=/
        setpriv --reuid 4321 --regid 4321 --clear-groups ./tollgate run --broker off \
            --processes 20 --require limits --policy none dir -- sh -c '
            grep -c "tollgate-test-.*/tollgate-" /proc/self/cgroup
            for i in $(seq 60); do sleep 30 & done 2>/dev/null' || true
        { ls $own; ls $top/$group; } | grep ^tollgate- || echo gone
    "#;
    let output = project.in_mount_namespace(script);
    let (told, said) = (text(&output.stdout), all(&output));
    if told.starts_with("skipped") || said.contains("user namespaces are not allowed") {
        return eprintln!("skipped: no cgroup can be given to a user here: {said}");
    }
    assert_eq!(told, "1\ngone\n", "{said}");
    assert!(said.contains("--processes kept CMD from starting"), "{said}");
}

/// Where the server's threads cannot be started, the mount of a native directory fails as well: that is
/// not the reason.
#[test]
fn too_few_processes_for_the_server_are_the_reason_with_a_native_directory_too() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let script = r#"
        top=/sys/fs/cgroup/pids; group=tollgate-test-$$
        if grep -qsw pids /sys/fs/cgroup/cgroup.controllers; then
            top=/sys/fs/cgroup
            echo +pids >$top/cgroup.subtree_control || { echo skipped; exit; }
        fi
        mkdir $top/$group || { echo skipped; exit; }
        mkdir dir/nat; printf '[[rule]]\npath = "nat"\naction = "native"\n' >nat.toml
        for most in 7 9 11 13; do
            echo $most >$top/$group/pids.max
            sh -c "echo \$\$ >$top/$group/cgroup.procs
                   exec $T run --quiet --transport devfuse --threads 8 --policy nat.toml dir -- true" || echo $?
        done
        rmdir $top/$group 2>/dev/null || { sleep 1; rmdir $top/$group; }
    "#;
    let output = project.in_mount_namespace(script);
    let (told, said) = (text(&output.stdout), text(&output.stderr));
    if told.starts_with("skipped") {
        return eprintln!("skipped: no cgroup can be made here: {said}");
    }
    assert_eq!(told, "125\n".repeat(4), "{said}");
    assert_eq!(
        said.matches(" could not be started: is a limit of processes too low").count(),
        4,
        "{said}"
    );
    assert!(!said.contains("through the view"), "{said}");
}

#[test]
fn the_share_of_cpus_is_set() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    if !has_cgroups(&project, "--cpu", "0.5") {
        return;
    }
    let script = "g=$(grep -E ':cpu(,|:)|^0::' /proc/self/cgroup | grep tollgate | head -1)
        cat /sys/fs/cgroup/cpu*${g##*:}/cpu.cfs_quota_us /sys/fs/cgroup${g##*:}/cpu.max 2>/dev/null";
    let mut command = project.run_with(&["--cpu", "0.5"]);
    let output = command.args(["sh", "-c", script]).stdin(Stdio::null()).output().unwrap();
    assert!(text(&output.stdout).starts_with("50000"), "{}", all(&output));
}

#[test]
fn what_is_required_and_cannot_be_had_keeps_the_command_from_starting() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    // A user without a broker has no passthrough.
    let script = "
        cp $T ./tollgate; chmod 755 . ./tollgate; chown -R 4321:4321 dir
        mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse; export HOME=/
        setpriv --reuid 4321 --regid 4321 --clear-groups ./tollgate run --broker off \
            --require fence,passthrough --policy policy.toml dir -- echo started || echo $?";
    let output = project.in_mount_namespace(script);
    let said = all(&output);
    if said.contains("user namespaces are not allowed") {
        eprintln!("skipped: {said}");
        return;
    }
    assert_eq!(text(&output.stdout), "125\n", "{said}");
    assert!(said.contains("--require passthrough: files would be served by tollgate"), "{said}");
    let mut command = project.run_with(&["--require", "fence,passthrough"]);
    let output = command.args(["echo", "started"]).output().unwrap();
    assert_eq!(text(&output.stdout), "started\n", "{}", all(&output));
}

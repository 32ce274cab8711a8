//! What docs/containers.md says about containers, tried with the capabilities, devices and mounts
//! that a container has. Its filter of system calls is not part of it.

use std::process::Output;

use crate::helper::{Place, can_mount};

/// The capabilities that engines leave to root in a container.
const USUAL: &str = "-all,+chown,+dac_override,+fsetid,+fowner,+mknod,+net_raw,+setgid,+setuid,\
                     +setfcap,+setpcap,+net_bind_service,+sys_chroot,+kill,+audit_write";
/// /proc with covered files, and read-only where it has settings.
const PROC: &str = "mount --bind /dev/null /proc/keys; mount -o bind /proc/sys /proc/sys; \
                    mount -o remount,bind,ro /proc/sys; ";
/// /dev/fuse for everybody.
const FUSE: &str = "mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse; ";

/// Runs `tollgate run` as a container would, with `before` to set it up; `as_who` is setpriv's.
fn run(before: &str, as_who: &str, cmd: &str) -> Output {
    let place = Place::new();
    std::fs::write(place.path("dir/large"), vec![0; 100_000]).unwrap();
    let tollgate = env!("CARGO_BIN_EXE_tollgate");
    let open = "chmod 777 . && chmod -R a+rX dir && chmod 666 policy.toml; ";
    place.script(&format!(
        "{open}{before} export T={tollgate}; setpriv {as_who} env HOME=/ $T run --quiet --policy \
         policy.toml dir -- sh -c '{cmd}'"
    ))
}

fn root_with(capabilities: &str) -> String {
    format!("--bounding-set {USUAL}{capabilities} --inh-caps {USUAL}{capabilities}")
}

const NOBODY: &str = "--reuid 65534 --regid 65534 --clear-groups";
const LOOK: &str = "cat a; cat .env; ls -d /proc/[0-9]* | wc -l";

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// Saw the tree through the policy, and no secret.
fn is_fenced(output: &Output) {
    let said = said(output);
    assert!(said.starts_with("plain\n") && said.contains(".env: No such file"), "{said}");
    assert!(!said.contains("the planted one"), "{said}");
}

/// The kernel makes no user namespaces in a chroot, whether its directory is a mount or not.
#[test]
fn in_a_chroot_there_is_no_run_and_the_reason_is_said() {
    if !can_mount() {
        return;
    }
    let tollgate = env!("CARGO_BIN_EXE_tollgate");
    for made_a_mount in ["", "mount --bind root root"] {
        let place = Place::new();
        let output = place.script(&format!(
            "set -e; here=$PWD; mkdir root; {made_a_mount}
             for each in /*; do
                 if [ -h $each ]; then cp -P $each root$each
                 elif [ -d $each ]; then mkdir root$each; mount --rbind $each root$each; fi
             done
             try() {{ chroot root env --chdir=$here {tollgate} \"$@\" 2>&1 || echo status $?; }}
             try run --policy policy.toml dir -- cat a
             try doctor dir | grep -A 1 'BROKEN  namespaces'
             try mount --daemon --policy policy.toml dir mnt
             chroot root ls $here/mnt
             try umount mnt"
        ));
        let said = said(&output);
        assert!(said.starts_with("tollgate: run: this process runs in a chroot"), "{said}");
        assert_eq!(said.matches("runs in a chroot").count(), 2, "{said}");
        assert_eq!(said.matches("remedy: enter the directory with").count(), 1, "{said}");
        assert_eq!(said.matches("status 125\n").count(), 1, "{said}");
        assert!(said.contains("\na\nmade\nprogram\n"), "{said}");
    }
}

#[test]
fn without_the_device_there_is_no_view_and_the_reason_is_said() {
    if !can_mount() {
        return;
    }
    let output = run("mount -t tmpfs none /dev; ", "--nnp", LOOK);
    assert_eq!(output.status.code(), Some(125));
    assert!(said(&output).contains("give this container the device"), "{}", said(&output));
}

#[test]
fn root_with_sys_admin_has_passthrough_also_under_a_covered_proc() {
    if !can_mount() {
        return;
    }
    let cmd = format!("{LOOK}; cat large >/dev/null; $T status --json $PWD");
    let output = run(PROC, &root_with(",+sys_admin"), &cmd);
    is_fenced(&output);
    let said = said(&output);
    assert!(!said.contains("not available"), "{said}");
    assert!(!said.contains("\"open_passthrough\": 0,"), "{said}");
    assert!(said.contains("\"passthrough\": true"), "{said}");
}

#[test]
fn root_without_sys_admin_is_served_in_user_space() {
    if !can_mount() {
        return;
    }
    let output = run("", &root_with(""), &format!("{LOOK}; $T status --json $PWD"));
    is_fenced(&output);
    assert!(said(&output).contains("\"passthrough\": false"), "{}", said(&output));
}

#[test]
fn doctor_says_why_there_is_no_passthrough() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let (tollgate, who) = (env!("CARGO_BIN_EXE_tollgate"), root_with(""));
    let output = place.script(&format!("setpriv {who} {tollgate} doctor dir"));
    let said = said(&output);
    assert!(said.contains("not for root: registering a file"), "{said}");
}

#[test]
fn without_sys_admin_a_covered_proc_stays_and_leads_nowhere() {
    if !can_mount() {
        return;
    }
    let cmd = format!("{LOOK}; cat /proc/[0-9]*/root$PWD/.env /proc/[0-9]*/cwd/dir/.env");
    for who in [&root_with("")[..], NOBODY] {
        let output = run(&format!("{PROC}{FUSE}"), who, &cmd);
        is_fenced(&output);
        assert!(said(&output).contains("CMD sees the outer process list"), "{}", said(&output));
    }
}

#[test]
fn other_users_need_the_device_and_no_new_privileges_hinder_nothing() {
    if !can_mount() {
        return;
    }
    let closed = "mknod -m 600 fuse c 10 229; mount --bind fuse /dev/fuse; ";
    let output = run(closed, NOBODY, LOOK);
    assert_eq!(output.status.code(), Some(125));
    assert!(said(&output).contains("/dev/fuse may not be opened by this user"), "{output:?}");
    let output = run(FUSE, &format!("{NOBODY} --nnp"), LOOK);
    is_fenced(&output);
}

//! Supplementary groups of the server, in user namespaces that forbid to leave them.

use crate::project::{Project, all, can_mount, text};

fn in_namespaces(script: &str) -> Option<(String, String)> {
    let project = Project::new();
    std::fs::write(project.path("script"), script).unwrap();
    let output = project.in_mount_namespace("exec setpriv --groups 5,6 sh script 2>&1");
    let said = all(&output);
    if said.contains("unshare failed") {
        eprintln!("skipped: {said}");
        return None;
    }
    Some((text(&output.stdout), said))
}

/// There is nobody else to act for: nothing is said, and modes go by the umask of who creates.
#[test]
fn a_namespace_of_one_user_needs_no_other_groups() {
    if !can_mount() {
        return;
    }
    let script = "exec unshare -Ur $T run --quiet --policy none --fence off dir -- sh -c '
        cat /proc/self/setgroups
        for umask in 000 022 077 027; do umask $umask; >new; stat -c %a new; rm new; done'";
    let Some((told, said)) = in_namespaces(script) else { return };
    assert_eq!(told, "deny\n666\n644\n600\n640\n", "{said}");
}

/// Other users are refused what the server would do in its groups; it goes on, and says so once.
#[test]
fn a_namespace_of_many_users_is_served_and_others_are_refused() {
    if !can_mount() {
        return;
    }
    let script = "chmod 755 .; chmod 777 dir; mkfifo go
        unshare -U sh -c 'read go; exec setpriv --reuid 0 --regid 0 --keep-groups \
            $T run --quiet --policy none --fence off dir -- sh -c \"
                touch own; stat -c %u own
                setpriv --reuid 1234 --regid 2345 --keep-groups touch other
                ls; rm own\"' <go &
        exec 3>go; here=$(readlink /proc/self/ns/user)
        while [ \"$(readlink /proc/$!/ns/user)\" = $here ]; do sleep 0.01; done
        echo deny >/proc/$!/setgroups
        for map in uid_map gid_map; do echo 0 0 65536 >/proc/$!/$map; done
        echo go >&3; wait $!; echo $?";
    let Some((told, said)) = in_namespaces(script) else { return };
    assert_eq!(
        told.matches("cannot leave its supplementary groups (this user").count(),
        1,
        "{said}"
    );
    assert!(told.contains("'other': Operation not permitted"), "{said}");
    assert!(told.contains("\n0\n") && told.ends_with("\nown\n0\n"), "{said}");
}

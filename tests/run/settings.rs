//! Settings of the kernel, which a root CMD is not to change.

use std::process::Stdio;

use crate::project::{Project, all, can_mount, text};

/// Drivers add to it, so that no list has all of it.
#[test]
fn nothing_in_proc_is_writable_but_what_is_of_processes() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    // Directories, too: a module may put a file there later.
    let script = "for entry in /proc/*; do
             case ${entry#/proc/} in
                 [0-9]*|self|thread-self|net|mounts|pressure|sysvipc) ;;
                 *) find $entry \\( -type d -o -perm /222 \\) -writable;;
             esac
         done; [ -w /proc/self/oom_score_adj ] && echo done";
    for fence in ["on", "off"] {
        let mut command = project.run_with(&["--fence", fence]);
        let output = command.args(["sh", "-c", script]).stdin(Stdio::null()).output().unwrap();
        assert_eq!(text(&output.stdout), "done\n", "{fence}: {}", all(&output));
    }
}

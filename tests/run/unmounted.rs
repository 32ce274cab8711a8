//! What `tollgate umount` takes along, and what it leaves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use tollgate_control::Directory;

use crate::project::{Daemon, POLICY, Project, all, can_mount, until};

/// Something mounted that is none of Tollgate's, until the test ends.
struct Other(PathBuf);

impl Other {
    fn mount(at: PathBuf) -> Self {
        fs::create_dir_all(&at).unwrap();
        let status = Command::new("mount").args(["-t", "tmpfs", "other"]).arg(&at).status();
        assert!(status.unwrap().success());
        Self(at)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Where something is mounted below the project, and what: device and mount point.
fn mounts_below(project: &Project) -> Vec<String> {
    let home = fs::canonicalize(project.path("")).unwrap();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let below = fields.filter(|fields| Path::new(fields[4]).starts_with(&home));
    let mut below: Vec<_> = below.map(|fields| format!("{} {}", fields[2], fields[4])).collect();
    below.sort();
    below
}

/// CMD of a `run` has a place for sockets, and what listens there may answer anything.
#[test]
fn nothing_outside_of_the_view_is_unmounted_whoever_says_that_it_is_native() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let daemon = Daemon::start(&project);
    let other = Other::mount(project.path("other"));
    let at = fs::canonicalize(&other.0).unwrap();
    let mnt = fs::canonicalize(project.path("mnt")).unwrap();
    let status = daemon.status();
    let directory = Directory::of_user("tollgate");
    let servers = directory.servers("view").unwrap().found;
    let own = |path: &&PathBuf| {
        let reply = tollgate_control::ask(path, r#"{"command":"status"}"#).unwrap_or_default();
        let reply = serde_json::from_str::<serde_json::Value>(&reply).unwrap_or_default();
        reply["connection"] == status["connection"]
    };
    let sockets: Vec<_> = servers.into_iter().map(|found| found.path).collect();
    fs::remove_file(sockets.iter().find(own).unwrap()).unwrap();
    let report = json!({
        "kind": "run",
        "started": "",
        "connection": status["connection"],
        "mount_point": mnt,
        "native": [at],
    });
    let _fake = directory.serve("view", move |_, _| report.to_string()).unwrap();
    until("the view is unmounted", || daemon.umount().status.success());
    let left = mounts_below(&project);
    assert!(matches!(&left[..], [one] if one.ends_with(at.to_str().unwrap())), "{left:?}");
}

/// Programs that had the directory open would go on in it, and others beneath the mounts.
#[test]
fn mounts_in_a_native_directory_are_as_they_were_after_an_umount_that_failed() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let rule = "[[rule]]\nname = 'out'\npath = 'target'\naction = 'native'\n";
    fs::write(project.path("policy.toml"), format!("{rule}{POLICY}")).unwrap();
    let _below = Other::mount(project.path("dir/target/cache"));
    let _deeper = Other::mount(project.path("dir/target/cache/deeper"));
    fs::write(project.path("dir/target/cache/deeper/file"), "deep\n").unwrap();
    let daemon = Daemon::start(&project);
    let mounted = mounts_below(&project);
    assert_eq!(mounted.len(), 2 + 4, "{mounted:?}");
    let at = |name: &str| project.path("mnt").join(name);
    for name in ["target/open", "target/cache/open", "a.txt"] {
        let open = fs::File::options().append(true).create(true).open(at(name)).unwrap();
        assert!(all(&daemon.umount()).contains("is in use"), "{name}");
        assert_eq!(mounts_below(&project), mounted, "{name}");
        assert_eq!(fs::read_to_string(at("target/cache/deeper/file")).unwrap(), "deep\n");
        drop(open);
    }
    until("the view is unmounted", || daemon.umount().status.success());
    assert_eq!(mounts_below(&project).len(), 2);
}

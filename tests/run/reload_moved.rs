//! What is read again when others have moved or changed DIR: the view went with it, and so did what its
//! rules are made of, and what CMD left there.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use crate::project::{Daemon, Project, all, can_mount, first_line, text, tollgate};

/// A view of `dir` at `mnt`, with the command line's other arguments.
fn mounted<'p>(project: &'p Project, more: &[&str]) -> Daemon<'p> {
    let mut command = tollgate();
    command.args(["mount", "--daemon", "--sandbox", "strict"]).args(more);
    command.arg("--log").arg(project.path("log"));
    let output = command.args([project.path("dir"), project.path("mnt")]).output().unwrap();
    assert!(output.status.success(), "{}", all(&output));
    Daemon(project)
}

fn reload(project: &Project) -> Output {
    tollgate().arg("reload").arg(project.path("mnt")).output().unwrap()
}

/// In another place, with another directory where it was.
fn replace_dir(project: &Project) {
    fs::rename(project.path("dir"), project.path("moved")).unwrap();
    fs::create_dir(project.path("dir")).unwrap();
}

fn repository(at: &Path) {
    for name in ["objects", "refs", "hooks"] {
        fs::create_dir_all(at.join(name)).unwrap();
    }
    fs::write(at.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    fs::write(at.join("config"), "[core]\n\tbare = false\n").unwrap();
}

/// A repository below DIR, and a working tree that names its repository by an absolute path: that leads
/// nowhere when DIR is moved, and does again when it is moved back.
fn repositories(project: &Project) {
    let dir = project.path("dir");
    repository(&dir.join("sub/.git"));
    let of_tree = dir.join("sub/.git/worktrees/w");
    fs::create_dir_all(&of_tree).unwrap();
    fs::write(of_tree.join("HEAD"), "ref: refs/heads/w\n").unwrap();
    fs::write(of_tree.join("commondir"), "../..\n").unwrap();
    fs::create_dir(dir.join("w")).unwrap();
    fs::write(dir.join("w/.git"), format!("gitdir: {}\n", of_tree.display())).unwrap();
}

const KEPT: [&str; 3] = ["sub/.git/hooks/pre-commit", "sub/.git/config", "w/.git"];

fn assert_kept(project: &Project, when: &str) {
    for name in KEPT {
        let path = project.path("mnt").join(name);
        let written = fs::OpenOptions::new().append(true).create(true).open(path);
        assert!(written.is_err(), "{when}: {name} can be written");
    }
}

#[test]
fn repositories_in_a_directory_that_was_moved_stay_as_they_are() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    repositories(&project);
    let _daemon = mounted(&project, &["--policy", "agent"]);
    assert_kept(&project, "before");
    fs::rename(project.path("dir"), project.path("moved")).unwrap();
    let output = reload(&project);
    assert!(output.status.success(), "{}", all(&output));
    assert_kept(&project, "moved");
    fs::create_dir(project.path("dir")).unwrap();
    for time in ["once", "twice"] {
        let output = reload(&project);
        assert!(output.status.success(), "{}", all(&output));
        assert_kept(&project, time);
    }
    // What has come since then counts, where the directory is now.
    repository(&project.path("moved/new/.git"));
    assert!(reload(&project).status.success());
    fs::write(project.path("mnt/new/.git/config"), "").unwrap_err();
    fs::remove_dir(project.path("dir")).unwrap();
    fs::rename(project.path("moved"), project.path("dir")).unwrap();
    assert!(reload(&project).status.success());
    assert_kept(&project, "back");
    let log = fs::read_to_string(project.path("log")).unwrap();
    assert!(!log.contains("too many directories"), "{log}");
}

/// CMD may have a preset find less than there is. What it found before stays, and who reloads hears of it.
#[test]
fn what_a_preset_found_stays_and_what_it_does_not_find_is_said() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    repository(&project.path("dir/bare"));
    let _daemon = mounted(&project, &["--policy", "agent"]);
    let write = || fs::write(project.path("mnt/bare/hooks/post-receive"), "");
    write().unwrap_err();
    fs::remove_file(project.path("mnt/bare/HEAD")).unwrap();
    fs::write(project.path("mnt/.gitmodules"), "# more\n".repeat(200_000)).unwrap();
    let output = reload(&project);
    assert!(output.status.success(), "{}", all(&output));
    assert!(text(&output.stdout).contains("too many directories"), "{}", all(&output));
    write().unwrap_err();
    let output = tollgate().args(["reload", "--json"]).arg(project.path("mnt")).output().unwrap();
    let replies: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let said = replies[0]["reloaded"]["warnings"][0].as_str();
    assert!(said.is_some_and(|said| said.contains("too many directories")), "{replies}");
}

#[test]
fn a_directory_that_was_moved_is_reloaded_by_its_new_path_and_named_whatever_the_mount_is_like() {
    if !can_mount() {
        return;
    }
    for flag in ["--small-files=auto", "--read-only", "--noexec", "--noatime"] {
        let project = Project::new();
        fs::write(project.path("dir/.tollgate.toml"), "default = 'passthrough'\n").unwrap();
        let _daemon = mounted(&project, &[flag]);
        let status = || {
            let output = tollgate().arg("status").arg(project.path("mnt")).output().unwrap();
            text(&output.stdout).to_owned()
        };
        assert!(!status().contains("  moved"), "{flag}: {}", status());
        replace_dir(&project);
        let now = format!("  moved      the directory is {} now", project.path("moved").display());
        assert!(status().contains(&now), "{flag}: {}", status());
        let rule = "[[rule]]\npath = 'f'\naction = 'deny'\n";
        fs::write(project.path("moved/.tollgate.toml"), rule).unwrap();
        fs::write(project.path("moved/f"), "f").unwrap();
        let output = tollgate().arg("reload").arg(project.path("moved")).output().unwrap();
        assert!(output.status.success(), "{flag}: {}", all(&output));
        let read = fs::read(project.path("mnt/f")).unwrap_err();
        assert_eq!(read.kind(), std::io::ErrorKind::PermissionDenied, "{flag}");
    }
}

#[test]
fn repositories_stay_as_they_are_in_a_run_whose_directory_was_moved() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    repositories(&project);
    let mut command = tollgate();
    command.args(["run", "--quiet", "--sandbox", "strict", "--policy", "agent"]);
    let script = format!(
        "echo ready; read go; for name in {}; do (echo x >>$name) 2>/dev/null && echo written $name; \
         done; echo end",
        KEPT.join(" ")
    );
    command.arg(project.path("dir")).args(["--", "sh", "-c", &script]);
    command.current_dir(project.path("dir"));
    let mut running = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(first_line(&mut running), "ready");
    replace_dir(&project);
    let output = tollgate().arg("reload").arg(project.path("dir")).output().unwrap();
    running.stdin.take().unwrap().write_all(b"\n").unwrap();
    let said = text(&running.wait_with_output().unwrap().stdout);
    assert!(output.status.success(), "{}", all(&output));
    assert_eq!(said, "end\n");
}

const STRICT: &str = "[[rule]]\nname = 'own'\npath = 'a.txt'\naction = 'deny'\n";

/// Found in DIR or named, it is the one in the directory, and not what somebody put at its path.
#[test]
fn a_policy_in_a_directory_that_was_moved_is_read_there() {
    if !can_mount() {
        return;
    }
    for name in [".tollgate.toml", "rules.toml"] {
        let project = Project::new();
        let file = project.path("dir").join(name);
        fs::write(&file, STRICT).unwrap();
        let named = ["--policy", file.to_str().unwrap()];
        let _daemon = mounted(&project, if name == "rules.toml" { &named } else { &[] });
        let a_is_denied = || fs::read(project.path("mnt/a.txt")).is_err();
        assert!(a_is_denied());
        replace_dir(&project);
        fs::write(&file, "[[rule]]\npath = 'x'\naction = 'deny'\n").unwrap();
        let output = reload(&project);
        assert!(output.status.success(), "{}", all(&output));
        assert!(a_is_denied(), "{name}: {}", all(&output));
        assert!(text(&output.stdout).contains("moved"), "{}", all(&output));
        assert!(fs::write(project.path("mnt").join(name), "").is_err(), "{name} can be written");
        fs::write(project.path("moved").join(name), STRICT.replace("a.txt", "docs")).unwrap();
        assert!(reload(&project).status.success());
        assert!(!a_is_denied() && fs::read_dir(project.path("mnt/docs")).is_err());
    }
}

/// Nobody can say what the link leads to from now on.
#[test]
fn a_policy_that_was_in_the_directory_by_a_link_is_not_read_again_when_that_was_moved() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    fs::write(project.path("dir/rules.toml"), STRICT).unwrap();
    std::os::unix::fs::symlink("dir", project.path("link")).unwrap();
    let file = project.path("link/rules.toml");
    let _daemon = mounted(&project, &["--policy", file.to_str().unwrap()]);
    assert!(reload(&project).status.success());
    replace_dir(&project);
    fs::write(project.path("dir/rules.toml"), "[[rule]]\npath = 'x'\naction = 'deny'\n").unwrap();
    let output = reload(&project);
    assert!(!output.status.success(), "{}", all(&output));
    assert!(all(&output).contains("move the directory back"), "{}", all(&output));
    assert!(fs::read(project.path("mnt/a.txt")).is_err());
    assert!(fs::write(project.path("mnt/rules.toml"), "").is_err());
}

/// Also where the view is another directory's, by a `[[view]]` of that policy.
#[test]
fn all_views_of_a_policy_in_a_directory_that_was_moved_have_it_from_there() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    fs::create_dir(project.path("more")).unwrap();
    fs::write(project.path("more/secret"), "x").unwrap();
    let more = project.path("more");
    let view = |rule: &str| format!("[[view]]\ndir = '{}'\n{rule}", more.display());
    let rule = "[[view.rule]]\npath = 'secret'\naction = 'deny'\n";
    let file = project.path("dir/rules.toml");
    fs::write(&file, STRICT.to_owned() + &view(rule)).unwrap();
    let mut command = tollgate();
    command.args(["run", "--quiet", "--sandbox", "strict", "--policy"]).arg(&file);
    command.arg(project.path("dir")).args([
        "--",
        "sh",
        "-c",
        "echo ready; read go; cat a.txt $MORE/*",
    ]);
    command.current_dir(project.path("dir")).env("MORE", &more);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut running = command.spawn().unwrap();
    assert_eq!(first_line(&mut running), "ready");
    replace_dir(&project);
    fs::write(&file, view("default = 'read-only'\n")).unwrap();
    let output = tollgate().arg("reload").arg(project.path("dir")).output().unwrap();
    running.stdin.take().unwrap().write_all(b"\n").unwrap();
    let said = text(&running.wait_with_output().unwrap().stdout);
    assert!(output.status.success(), "{}", all(&output));
    assert_eq!(said, "");
}

/// Whatever is at its path then is another directory.
#[test]
fn a_directory_that_cannot_be_reached_keeps_its_policy() {
    if !can_mount() {
        return;
    }
    let script = r#"
        mount --make-rprivate /; mkdir -p q/sub/.git/hooks q/sub/.git/objects q/sub/.git/refs m
        echo x >q/sub/.git/HEAD
        "$T" mount --daemon --sandbox strict --policy agent q m
        mount -t tmpfs none q
        "$T" reload m && echo reloaded
        (echo x >m/sub/.git/hooks/pre-commit) 2>/dev/null && echo written
        umount q; "$T" reload m; "$T" umount m"#;
    let project = Project::new();
    let output: Output = project.in_mount_namespace(script);
    let said = all(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("no path leads to the directory any more that was `"), "{said}");
    assert!(!said.contains("reloaded") && !said.contains("written"), "{said}");
}

#[test]
fn a_hook_that_the_command_left_is_named_where_the_directory_is_by_then() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let mut command = project.run();
    let script = "echo ready; read go; mkdir -p new/.git/hooks; echo x >new/.git/HEAD
        echo x >new/.git/hooks/pre-commit; chmod +x new/.git/hooks/pre-commit";
    command.args(["sh", "-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = command.spawn().unwrap();
    assert_eq!(first_line(&mut running), "ready");
    replace_dir(&project);
    running.stdin.take().unwrap().write_all(b"\n").unwrap();
    let output = running.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("`new` is a git repository whose hooks or settings changed"), "{said}");
}

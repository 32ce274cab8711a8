//! Policies and tests that are found in a directory, where nobody named them. Whoever writes there could
//! link them to any file that the user can read.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SECRET: &str = "AKIAIOSFODNN7EXAMPLE";

/// A project, and beside it files of its user.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir_all(place.path("project/sub")).unwrap();
        std::fs::write(place.path("credentials"), format!("[default]\n{SECRET}\n")).unwrap();
        std::fs::write(place.path("netrc"), format!("machine a password {SECRET}\n")).unwrap();
        std::fs::write(place.path("token"), SECRET).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        std::fs::canonicalize(self.0.path()).unwrap().join(name)
    }

    /// In the project, without a configuration unless `variables` have one.
    fn call(&self, arguments: &[&str], variables: &[(&str, &Path)]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(arguments).current_dir(self.path("project")).env("LC_ALL", "C");
        command.env_remove("TOLLGATE_POLICY").env("XDG_CONFIG_HOME", self.path("none"));
        command.envs(variables.iter().copied()).output().unwrap()
    }
}

fn all(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// It ended with `status` and `parts`, and without a line of the file.
#[track_caller]
fn assert_refused(output: &Output, status: i32, parts: &[&str]) {
    let said = all(output);
    assert!(!said.contains(SECRET), "{said}");
    assert_eq!(output.status.code(), Some(status), "{said}");
    for part in parts {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
}

#[test]
fn a_policy_that_leads_out_of_its_directory_is_refused_without_its_content() {
    let place = Place::new();
    let own = place.path("project/.tollgate.toml");
    let around = place.path("project").display().to_string();
    let configured: (&str, &Path) = ("TOLLGATE_POLICY", Path::new("agent"));
    for target in ["../credentials", "../netrc", "../token", "sub/../../token"] {
        symlink(target, &own).unwrap();
        for (arguments, status) in [
            (&["run", ".", "--", "true"][..], 125),
            (&["check"], 1),
            (&["check", "--dir", "."], 1),
            (&["check", "--json"], 1),
            (&["explain", "a"], 1),
            (&["brief"], 1),
        ] {
            let parts = ["cannot be read: it leads out of `", &around, "name it with `--policy`"];
            for variables in [&[][..], &[configured]] {
                assert_refused(&place.call(arguments, variables), status, &parts);
            }
        }
        // Who names it, means it.
        let output = place.call(&["check", ".tollgate.toml"], &[]);
        assert!(all(&output).contains(SECRET), "{}", all(&output));
        std::fs::remove_file(&own).unwrap();
    }
}

#[test]
fn a_policy_may_be_a_link_within_its_directory() {
    let place = Place::new();
    let policy = "[[rule]]\nname = 'linked'\npath = 'a'\naction = 'deny'\n";
    std::fs::write(place.path("project/sub/p.toml"), policy).unwrap();
    for target in [PathBuf::from("sub/p.toml"), place.path("project/sub/p.toml")] {
        symlink(target, place.path("project/.tollgate.toml")).unwrap();
        let output = place.call(&["explain", "a"], &[]);
        assert!(all(&output).contains("by rule `linked`"), "{}", all(&output));
        std::fs::remove_file(place.path("project/.tollgate.toml")).unwrap();
    }
}

#[test]
fn tests_that_lead_out_of_their_directory_are_refused_without_their_content() {
    let place = Place::new();
    let own = place.path("project/.tollgate.tests.toml");
    let parts = ["it leads out of `", "name the tests, `tollgate test .tollgate.tests.toml`"];
    symlink("../credentials", &own).unwrap();
    assert_refused(&place.call(&["test"], &[]), 1, &parts);
    assert!(all(&place.call(&["test", ".tollgate.tests.toml"], &[])).contains(SECRET));
    std::fs::remove_file(&own).unwrap();
    // Nor does the policy that they name.
    let absolute = place.path("token").display().to_string();
    for policy in ["../token", &absolute] {
        let tests = format!("policy = '{policy}'\n[[test]]\npath = 'a'\nexpect = 'deny'\n");
        std::fs::write(&own, tests).unwrap();
        assert_refused(&place.call(&["test"], &[]), 1, &parts);
        assert!(all(&place.call(&["test", ".tollgate.tests.toml"], &[])).contains(SECRET));
    }
}

/// An expectation of what a file holds tells it.
#[test]
fn tests_that_nobody_named_look_into_no_other_directory() {
    let place = Place::new();
    let own = place.path("project/.tollgate.tests.toml");
    std::fs::write(place.path("project/p.toml"), "# all\n").unwrap();
    symlink("..", place.path("project/up")).unwrap();
    let absolute = place.path(".").display().to_string();
    for dir in ["..", "up", "sub/../..", &absolute] {
        let test = "[[test]]\npath = 'token'\nexpect = 'allow'\n";
        std::fs::write(&own, format!("policy = 'p.toml'\ndir = '{dir}'\n{test}")).unwrap();
        assert_refused(&place.call(&["test"], &[]), 1, &["`dir`: it leads out of `"]);
        let output = place.call(&["test", ".tollgate.tests.toml"], &[]);
        assert_eq!(output.status.code(), Some(0), "{}", all(&output));
    }
    // Nor are they printed as a whole.
    let file = std::fs::File::create(&own).unwrap();
    file.set_len(5 << 20).unwrap();
    let output = place.call(&["test"], &[]);
    assert!(all(&output).contains("have more than 4194304 bytes"), "{}", all(&output).len());
}

#[test]
fn tests_may_be_a_link_within_their_directory() {
    let place = Place::new();
    std::fs::write(place.path("project/sub/p.toml"), "default = 'deny'\n").unwrap();
    let tests = "policy = 'sub/p.toml'\n[[test]]\npath = 'a'\nexpect = 'deny'\n";
    std::fs::write(place.path("project/sub/t.toml"), tests).unwrap();
    symlink("sub/t.toml", place.path("project/.tollgate.tests.toml")).unwrap();
    let output = place.call(&["test"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", all(&output));
}

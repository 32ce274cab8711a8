//! Directories that are moved, with rules about some of what is in them.

use crate::harness::{SECRET, Tree, all, certificate, has, private_key};
use crate::mounting::can_mount;

const WRITING: [&str; 5] = ["agent", "node", "python", "rust", "ci"];

/// Whether the presets' rules are about a name in a directory depends on the directory's name, too.
#[test]
fn a_directory_of_settings_without_passwords_can_be_moved() {
    if !can_mount() || !has("git") {
        return;
    }
    for preset in WRITING {
        let tree = Tree::new();
        tree.write(
            "config/default.json",
            "{\"db\": {\"host\": \"db1\", \"password\": \"postgres\"}}\n",
        );
        tree.write("config/database.yml", "test:\n  password: <%= ENV['P1'] %>\n");
        tree.write("config/sub/app.yml", "a: 1\n");
        tree.write("config/ca.pem", &certificate(2));
        tree.bare("git init -q -b main; git add -A; git commit -qm a");
        let mv = if preset == "ci" { "mv" } else { "git mv" };
        tree.works(preset, &format!("{mv} config config2; cat config2/*.*; mv config2 config"));
        // With a password it stays where the password is kept.
        let password = format!("{{\"password\": \"xK9v-{SECRET}\"}}\n");
        tree.write("config/default.json", &password);
        let output =
            tree.fenced(preset, "mv -T config config2 || true; cat config*/default.json; true");
        assert!(!all(&output).contains(SECRET), "{preset}: {}", all(&output));
        tree.bare(&format!("grep -q {SECRET} config/default.json"));
    }
}

#[test]
fn installed_packages_can_be_moved_aside_and_back() {
    if !can_mount() {
        return;
    }
    for preset in WRITING {
        let tree = Tree::new();
        for name in ["a", "b", "@s/c"] {
            let package = format!("node_modules/{name}");
            tree.write(&format!("{package}/package.json"), "{\"name\": \"a\"}\n");
            tree.write(&format!("{package}/config/default.json"), "{\"password\": \"postgres\"}\n");
            tree.write(&format!("{package}/ca.pem"), &certificate(1));
            tree.write(&format!("{package}/.github/workflows/ci.yml"), "on: push\n");
        }
        tree.write("node_modules/.package-lock.json", "{\"lockfileVersion\": 3}\n");
        tree.bare("mkdir node_modules/.bin; ln -s ../a/cli.js node_modules/.bin/a");
        tree.works(
            preset,
            "mv node_modules x; cat x/a/ca.pem >/dev/null; mv x node_modules; rm -r node_modules",
        );
    }
}

/// What may not be made in another place stays as a whole.
#[test]
fn packages_with_names_of_secrets_are_not_moved_in_halves() {
    if !can_mount() {
        return;
    }
    for preset in WRITING {
        let tree = Tree::new();
        tree.write("node_modules/a/package.json", "{}\n");
        tree.write("node_modules/a/test/.env", "A=1\n");
        let output =
            tree.fenced(preset, "mv node_modules x || test ! -e x; cat node_modules/a/test/.env");
        assert!(output.status.success(), "{preset}: {}", all(&output));
        assert!(all(&output).contains("Permission denied"), "{preset}: {}", all(&output));
        // A key of a package is a key elsewhere.
        let tree = Tree::new();
        tree.write("node_modules/a/test/k.pem", &private_key(""));
        let output = tree
            .fenced(preset, "mv node_modules x; cat x/a/test/k.pem || mv x node_modules || true");
        assert!(!all(&output).contains(SECRET), "{preset}: {}", all(&output));
        tree.bare(&format!("grep -rq {SECRET} ."));
    }
}

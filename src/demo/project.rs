//! The small project that the demo works in.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;

/// What the demo enforces.
pub(super) const POLICY: &str = r#"default = "passthrough"

[[rule]]
name = "secrets are not there"
path = ["**/.env", "**/.env.*"]
action = "hide"

[[rule]]
name = "keys are not readable"
path = ["**/id_*", "**/*.pem"]
action = "deny"

[[rule]]
name = "docs stay as they are"
path = ["docs/**"]
operation = ["write", "create"]
action = "read-only"

[[rule]]
name = "every read of a log is audited"
path = ["logs/**"]
action = "userspace"
"#;

/// The secret that `grep` looks for.
pub(super) const SECRET: &str = "tollgate-demo-secret";

const FILES: &[(&str, &str)] = &[
    ("README.md", "# A small project\n\nIts token is in `.env`.\n"),
    (".env", "API_TOKEN=tollgate-demo-secret\n"),
    ("keys/id_ed25519", "-----BEGIN OPENSSH PRIVATE KEY-----\ntollgate-demo-secret\n"),
    ("docs/guide.md", "# Guide\n\nRead me, do not change me.\n"),
    ("logs/app.log", "10:00 started\n10:01 served 3 requests\n"),
    ("src/main.c", MAIN_C),
    ("src/greet.h", "const char *greet(void);\n"),
    (
        "src/greet.c",
        "#include \"greet.h\"\nconst char *greet(void) { return \"it compiles and runs\"; }\n",
    ),
    ("src/main.rs", "fn main() { println!(\"it compiles and runs\"); }\n"),
];

const MAIN_C: &str = r#"#include <stdio.h>
#include "greet.h"
int main(void) { puts(greet()); return 0; }
"#;

/// Size of the files that are measured.
pub(super) const MEASURED_BYTES: usize = 16 << 20;

/// Writes the project.
pub(super) fn build(root: &Path) -> anyhow::Result<()> {
    for (name, text) in FILES {
        write(&root.join(name), text.as_bytes())?;
    }
    // For more than a handful of names to walk through.
    for number in 0..200 {
        let name = format!("src/generated/part{:02}/file{number:03}.txt", number % 20);
        write(&root.join(name), format!("generated {number}\n").repeat(50).as_bytes())?;
    }
    let block = vec![b'x'; MEASURED_BYTES];
    write(&root.join("data/measured.bin"), &block)?;
    write(&root.join("logs/measured.bin"), &block)?;
    let key = root.join("keys/id_ed25519");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).context("chmod")
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let parent = path.parent().context("a file without a directory")?;
    fs::create_dir_all(parent)
        .and_then(|()| fs::write(path, bytes))
        .with_context(|| format!("cannot write `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use tollgate_policy::Policy;

    use super::*;

    #[test]
    fn the_policy_can_be_read_without_a_warning() {
        let policy = Policy::parse(POLICY, "demo").unwrap();
        assert_eq!((policy.rules().len(), policy.warnings().len()), (4, 0));
    }

    #[test]
    fn the_project_holds_the_secret_twice() {
        let holders = FILES.iter().filter(|(_, text)| text.contains(SECRET));
        assert_eq!(holders.count(), 2);
    }
}

//! A session such as an agent has, by `agent-session.sh`, under the default fence and policy: its
//! tools work, and it finds no secret.

use std::fs;
use std::process::{Command, Stdio};

use crate::project::{Project, all, can_mount, text, tollgate};

const PLANTED: &str = "PLANTED-SECRET";

#[test]
fn tools_work_and_no_planted_secret_is_read() {
    if !can_mount() {
        return;
    }
    let project = Project::new();
    let dir = project.path("dir");
    // A home that has what a developer's has, and the real tool chains by variables.
    let place = tempfile::tempdir_in("/var/lib").unwrap();
    let home = place.path();
    let secrets = [
        ".ssh/id_ed25519",
        ".ssh/config",
        ".aws/credentials",
        ".gnupg/key",
        ".netrc",
        ".git-credentials",
        ".config/gh/hosts.yml",
        ".local/share/keyrings/login.keyring",
        ".config/google-chrome/Default/Login Data",
        ".bash_history",
        ".cargo/credentials.toml",
        "work/other/.env",
    ];
    for name in secrets {
        fs::create_dir_all(home.join(name).parent().unwrap()).unwrap();
        fs::write(home.join(name), PLANTED).unwrap();
    }
    fs::write(home.join(".npmrc"), format!("fund=false\n//r/:_authToken={PLANTED}\n")).unwrap();
    let key = format!("-----BEGIN PRIVATE KEY-----\n{PLANTED}\n");
    for (name, text) in [(".env", PLANTED), ("id_rsa", PLANTED), ("server.pem", &key)] {
        fs::write(dir.join(name), text).unwrap();
    }
    fs::remove_dir_all(dir.join("keys")).unwrap();
    fs::create_dir_all(dir.join("crate/src")).unwrap();
    let manifest = "[package]\nname = 'c'\nversion = '0.1.0'\nedition = '2021'\n[workspace]\n";
    fs::write(dir.join("crate/Cargo.toml"), manifest).unwrap();
    let program = "fn main() {}\n#[test]\nfn t() {}\n";
    fs::write(dir.join("crate/src/main.rs"), program).unwrap();
    let script = "git init -q . && printf '.env\\n*.pem\\nid_rsa\\n' >.gitignore && \
                  git add a.txt .gitignore && \
                  git -c user.name=a -c user.email=a@example.com commit -qm first";
    let made = Command::new("sh").args(["-c", script]).current_dir(&dir).output();
    if !made.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no git");
        return;
    }
    let real = std::env::var("HOME").unwrap_or_default();
    let mut command = tollgate();
    for (variable, name) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
        if std::env::var_os(variable).is_none() {
            command.env(variable, format!("{real}/{name}"));
        }
    }
    command.args(["run", "--sandbox", "strict"]).arg(&dir).args([
        "--",
        "sh",
        "-c",
        include_str!("agent-session.sh"),
    ]);
    command.env("HOME", home).env("AWS_SECRET_ACCESS_KEY", PLANTED).env("A_TOKEN", PLANTED);
    command.env("DBUS_SESSION_BUS_ADDRESS", "unix:path=/run/bus");
    command.env_remove("TOLLGATE_POLICY").env_remove("XDG_CONFIG_HOME");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let out = text(&output.stdout);
    assert!(out.ends_with("end\n"), "{}", all(&output));
    assert!(!out.contains("FAILED"), "{}", all(&output));
    assert!(!out.contains(PLANTED), "{}", all(&output));
    assert!(out.matches("ok ").count() >= 6, "{}", all(&output));
}

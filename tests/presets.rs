//! The built-in policies over real trees: what tools do there works, and secrets are kept.
//!
//! A tool that the machine lacks is skipped with a message. `tests/presets-all` runs everything
//! and fails where something is missing.

#[path = "support/mounting.rs"]
mod mounting;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use mounting::can_mount;

const SECRET: &str = "the-planted-secret";
const PRESETS: [&str; 6] = ["agent", "node", "python", "rust", "ci", "read-only"];

fn has(tool: &str) -> bool {
    let there = Command::new(tool).arg("--version").stdout(Stdio::null()).status();
    let there = there.is_ok_and(|status| status.success());
    let required = std::env::var_os("TOLLGATE_REQUIRE_TOOLS").is_some_and(|value| value == "1");
    assert!(there || !required, "no {tool}");
    if !there {
        eprintln!("skipped: no {tool}");
    }
    there
}

struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir_all(tree.path("home")).unwrap();
        std::fs::create_dir_all(tree.path("p")).unwrap();
        tree
    }

    fn path(&self, name: &str) -> PathBuf {
        std::fs::canonicalize(self.0.path()).unwrap().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path("p").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// A script, outside of the view.
    fn bare(&self, script: &str) {
        let output = self.at_home(Command::new("sh").args(["-ec", script]));
        assert!(output.status.success(), "{script}: {}", all(&output));
    }

    /// A script in the view.
    fn fenced(&self, preset: &str, script: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["run", "--quiet", "--fence", "off", "--policy", preset]).arg(self.path("p"));
        self.at_home(command.args(["--", "timeout", "100", "sh", "-ec", script]))
    }

    #[track_caller]
    fn works(&self, preset: &str, script: &str) {
        let output = self.fenced(preset, script);
        assert!(output.status.success(), "{preset}: {script}: {}", all(&output));
        let refused = ["Permission denied", "Read-only file system", "EACCES", "EROFS"];
        for word in refused {
            assert!(!all(&output).contains(word), "{preset}: {script}: {}", all(&output));
        }
    }

    fn at_home(&self, command: &mut Command) -> Output {
        command
            .current_dir(self.path("p"))
            .env("HOME", self.path("home"))
            .env("XDG_CONFIG_HOME", self.path("home"))
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .envs([("GIT_AUTHOR_NAME", "a"), ("GIT_AUTHOR_EMAIL", "a@b")])
            .envs([("GIT_COMMITTER_NAME", "a"), ("GIT_COMMITTER_EMAIL", "a@b")])
            .env_remove("TOLLGATE_POLICY")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }
}

fn all(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// As PEM; the text is no key, but has the form of one.
fn private_key(kind: &str) -> String {
    format!("-----BEGIN {kind}PRIVATE KEY-----\n{SECRET}\n-----END {kind}PRIVATE KEY-----\n")
}

fn certificate(kilobytes: usize) -> String {
    let line = "MIIDXTCCAkWgAwIBAgIJAJC1HiIAZAiIMA0GCSqGSIb3DQEBBQUAMEUxCzAJBgNV\n";
    format!(
        "-----BEGIN CERTIFICATE-----\n{}-----END CERTIFICATE-----\n",
        line.repeat(16 * kilobytes)
    )
}

/// Files that no preset lets be read.
fn planted() -> Vec<(&'static str, String)> {
    let text = || SECRET.to_owned();
    let chain = certificate(3) + &certificate(3) + &private_key("");
    let by_name = [
        ".env",
        ".env.local",
        ".env~",
        ".env.production",
        ".env.swp",
        ".env.bak",
        "sub/deep/.env",
        ".env-old",
        ".env_backup",
        ".env2",
        "prod.env",
        "sub/.env.development.local",
        "sub/.#.env",
        "#.env#",
        ".envs/.production/.django",
        ".netrc",
        ".git-credentials",
        ".pypirc",
        ".pgpass",
        ".my.cnf",
        ".docker/config.json",
        ".kube/config",
        "kubeconfig",
        "x.kubeconfig",
        ".aws/credentials",
        ".config/gh/hosts.yml",
        ".cargo/credentials.toml",
        ".ssh/id_work",
        ".ssh/config",
        ".gnupg/private-keys-v1.d/x.key",
        "config/master.key",
        "config/credentials/production.key",
        ".dev.vars",
        "web/.streamlit/secrets.toml",
        ".terraformrc",
        "id_rsa",
        "id_ed25519",
        "sub/id_ecdsa",
        "id_rsa.old",
        "id_dsa~",
        "etc/ssh_host_rsa_key",
        "a.p12",
        "a.pfx",
        "a.jks",
        "a.kdbx",
        "terraform.tfstate",
        "terraform.tfstate.backup",
        "terraform.tfstate.1700000000.backup",
        ".htpasswd",
        ".vault-token",
        "node_modules/.env",
        ".ENV",
        ".Env.local",
        "PROD.ENV",
        "ID_RSA",
        "SERVER.P12",
        "vendor/acme/.env",
        "vendor/acme/deep/.env.local",
        "vendor/acme/.netrc",
        ".kube/config-prod",
        ".kube/prod.config",
        ".aws/sso/cache/0123.json",
        ".gem/credentials",
        ".vault_pass",
        ".databrickscfg",
        "env.production",
        "deploy/env.local",
        "vault_pass.txt",
        "ansible/vault-password",
        "rclone.conf",
        "backup/secring.gpg",
        "wallet.dat",
        ".bash_history",
        "sub/.psql_history",
    ];
    let mut planted: Vec<_> = by_name.into_iter().map(|name| (name, text())).collect();
    planted.extend([
        ("server.pem", private_key("RSA ")),
        ("tls/server.key", private_key("")),
        ("tls/chain-and-key.pem", chain),
        ("tls/ec.p8", private_key("EC ")),
        ("encrypted.pem", private_key("ENCRYPTED ")),
        ("deploy_key", private_key("OPENSSH ")),
        ("keys/id_work", private_key("OPENSSH ")),
        ("github_rsa", private_key("RSA ")),
        ("old.pem.bak", private_key("")),
        ("signing.asc", format!("-----BEGIN PGP PRIVATE KEY BLOCK-----\n{SECRET}\n")),
        ("work.ppk", format!("PuTTY-User-Key-File-3: ssh-rsa\n{SECRET}\n")),
        ("age.txt", format!("# created\nAGE-SECRET-KEY-1{SECRET}\n")),
        ("sa.json", format!("{{\"private_key\": \"-----BEGIN PRIVATE KEY-----{SECRET}\"}}")),
        ("client.json", format!("{{\"installed\": {{\"client_secret\": \"{SECRET}\"}}}}")),
        ("k8s/tls.yaml", format!("data: |\n  {}", private_key(""))),
        (".npmrc", format!("//registry.npmjs.org/:_authToken={SECRET}\n")),
        ("sub/.npmrc", format!("_password={SECRET}\n")),
        ("pip.conf", format!("[global]\nindex-url = https://me:{SECRET}@pypi.example/simple\n")),
        (".envrc", format!("export API_TOKEN={SECRET}\n")),
        ("prod.tfvars", format!("db_password = \"{SECRET}\"\n")),
        (".yarnrc.yml", format!("npmAuthToken: {SECRET}\n")),
    ]);
    planted.extend(planted_tokens());
    planted.push(("tls/long-chain.pem", certificate(40) + &private_key("")));
    planted
}

/// Settings with a token in them.
fn planted_tokens() -> Vec<(&'static str, String)> {
    let form = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
    vec![
        (
            ".mcp.json",
            format!("{{\"mcpServers\": {{\"env\": {{\"GITHUB_TOKEN\": \"{SECRET}\"}}}}}}"),
        ),
        ("a/.mcp.json", format!("{{\"headers\": {{\"Authorization\": \"Bearer {SECRET}\"}}}}")),
        (".claude/settings.local.json", format!("{{\"env\": {{\"X_API_KEY\": \"{SECRET}\"}}}}")),
        ("auth.json", format!("{{\"github-oauth\": {{\"github.com\": \"{SECRET}\"}}}}")),
        (".codex/auth.json", format!("{{\"OPENAI_API_KEY\": \"{SECRET}\"}}")),
        ("containers/auth.json", format!("{{\"auths\": {{\"x\": {{\"auth\": \"{SECRET}\"}}}}}}")),
        ("token.json", format!("{{\"refresh_token\": \"{SECRET}\"}}")),
        (
            "config/secrets.yml",
            format!("production:\n  secret_key_base: {SECRET}\n  password: {SECRET}\n"),
        ),
        ("cluster.yaml", format!("users:\n- user:\n    client-key-data: {SECRET}\n")),
        ("k.yml", format!("kind: Config\nusers:\n- user:\n    token: {SECRET}\n")),
        (".m2/settings.xml", format!("<server><password>{SECRET}</password></server>")),
        (".bundle/config", format!("BUNDLE_ACCESS_TOKEN: \"{SECRET}\"\n")),
        ("sub/.env.mjs", format!("export default {{ API_KEY: \"{SECRET}\" }}\n")),
        ("wg0.conf", format!("[Interface]\nPrivateKey = {SECRET}\n")),
        ("app.yaml", format!("a: {form} # {SECRET}\n")),
        ("aws.tfvars", format!("secret_access_key = \"{SECRET}\"\n")),
        ("short.tfvars", format!("db_password = \"abc\" # {SECRET}\n")),
        ("sub/.envrc", format!("export A=${{B:-}} DB_PASSWORD_PROD={SECRET}\n")),
        ("sub/.cargo/config", format!("[registries.x]\ntoken = \"{SECRET}\"\n")),
    ]
}

/// Files that every preset lets be read, although they look a little like secrets.
fn harmless() -> Vec<(&'static str, String)> {
    let text = || "harmless\n".to_owned();
    let mut files: Vec<_> = [
        ".env.example",
        ".env.sample",
        "sub/.env.template",
        ".env.dist",
        ".env.local.example",
        "example.env",
        ".env.d.ts",
        "src/id_map.rs",
        "id_list.txt",
        "src/environment.ts",
        "env.js",
        "env.production.js",
        "env.py",
        "vault_pass.py",
        "history.txt",
        ".environment",
        "id_rsa.pub",
        "id_ed25519.pub",
        "docs/keys.md",
        "src/key.rs",
        "public.key",
        "x.secret.rs",
        "pkg/kubeconfig/config.go",
        "src/credentials.rs",
        ".envrc",
        ".npmrc",
        ".cargo/config.toml",
        ".env/lib/python3/x.py",
        ".env/bin/activate",
        ".env/pyvenv.cfg",
        "test_rsa",
        "secrets/readme.md",
    ]
    .into_iter()
    .map(|name| (name, text()))
    .collect();
    files.extend([
        ("certs/cacert.pem", certificate(200)),
        ("certs/server.crt", certificate(2)),
        ("public.pem", "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----\n".to_owned()),
        ("release.asc", "-----BEGIN PGP PUBLIC KEY BLOCK-----\n".to_owned()),
        ("sub/.npmrc", "registry=https://registry.example/\nalways-auth=true\n".to_owned()),
        ("web/.npmrc", "//registry.npmjs.org/:_authToken=${NPM_TOKEN}\n".to_owned()),
        ("package.json", "{\"name\": \"x\", \"keywords\": [\"token\"]}\n".to_owned()),
        ("node_modules/pkg/.env", text()),
        ("node_modules/pkg/test/key.pem", private_key("")),
        ("venv/lib/python3.12/site-packages/certifi/cacert.pem", certificate(200)),
        ("vendor/rustls/test-ca/ca.key", private_key("")),
        ("vendor/ssh-key/tests/examples/id_ed25519", private_key("OPENSSH ")),
        (
            ".yarnrc.yml",
            "npmAuthToken: \"${NPM_TOKEN}\"\nnpmRegistryServer: \"https://${USER}:${PASS}@x\"\n\
             npmAuthIdent: ${NPM_TOKEN:-}\nother: ${YARN_TOKEN:?not set here}\n"
                .to_owned(),
        ),
        (
            "a/.envrc",
            "export API_TOKEN=\nexport DB_PASSWORD=$(pass show db)\nexport X_TOKEN=\"$(op read x)\"\n\
             env_vars_required GITHUB_TOKEN DB_PASSWORD\n: ${API_KEY:?set it first}\n\
             export TOKEN_FILE=/run/secrets/token\nexport SSH_AUTH_SOCK=/tmp/agent-socket\n"
                .to_owned(),
        ),
        (
            "main.tfvars",
            "token_ttl = 3600\npassword_length = 16\nsecret_name = \"of-the-cluster\"\n\
             ssh_private_key = \"~/.ssh/id_rsa\"\nenable_password = true\n"
                .to_owned(),
        ),
        (
            "a/.cargo/config.toml",
            "[env]\nMY_TOKEN_PATH = \"some/where/else\"\n[registry]\n\
             global-credential-providers = [\"cargo:token\"]\n"
                .to_owned(),
        ),
        (
            "locales/en.json",
            "{\"client_secret\": \"Client secret\", \"token\": \"Your token\", \
             \"password\": \"Password\"}\n"
                .to_owned(),
        ),
        ("lang/en/auth.json", "{\"password\": \"The password is wrong.\"}\n".to_owned()),
        ("b/auth.json", "{\"http-basic\": {}, \"github-oauth\": {}}\n".to_owned()),
        ("b/.mcp.json", "{\"env\": {\"GITHUB_TOKEN\": \"${GITHUB_TOKEN}\"}}\n".to_owned()),
        (
            "b/.env.mjs",
            "export const env = { NEXTAUTH_SECRET: process.env.NEXTAUTH_SECRET, \
             TOKEN: z.string() }\n"
                .to_owned(),
        ),
        (".kube/deployment.yaml", "kind: Deployment\nspec: {}\n".to_owned()),
        ("secrets.yml", "a: <%= ENV[\"A\"] %>\npassword: ENC[AES256_GCM,data:xyz]\n".to_owned()),
        ("settings.xml", "<server><password>${env.PASSWORD}</password></server>".to_owned()),
    ]);
    files.extend(
        [
            ".env.ts",
            "src/.env.mjs",
            "app/debug.keystore",
            "test.p12",
            "tests/tls/server.p12",
            "ca-test.jks",
        ]
        .map(|name| (name, text())),
    );
    files
}

#[test]
fn every_planted_secret_is_kept_and_what_only_looks_like_one_is_not() {
    if !can_mount() {
        return;
    }
    for preset in PRESETS {
        let tree = Tree::new();
        for (name, text) in planted() {
            tree.write(name, &text);
        }
        let output = tree.fenced(preset, "find . -type f -exec cat {} + ; tar c . ; true");
        assert!(!all(&output).contains(SECRET), "{preset}: {}", leaks(&tree, preset));
        let tree = Tree::new();
        for (name, text) in harmless() {
            tree.write(name, &text);
        }
        tree.works(preset, "find . -type f -exec cat {} + >/dev/null");
        let count = tree.fenced(preset, "find . -type f | wc -l");
        assert_eq!(all(&count).trim(), harmless().len().to_string(), "{preset}");
    }
}

/// Which of the planted files can be read, for a message.
fn leaks(tree: &Tree, preset: &str) -> String {
    let script = format!("grep -rla {SECRET} .; true");
    all(&tree.fenced(preset, &script))
}

/// A name with an escape sequence and a line of its own steers no terminal and forges no line.
#[test]
fn names_that_steer_a_terminal_are_printed_as_text() {
    const EVIL: &str = "evil\x1b[2J\ntollgate: all is well";
    const SHOWN: &str = "evil\\x1b[2J\\ntollgate: all is well";
    let tree = Tree::new();
    tree.write(&format!("{EVIL}/token.rs"), "t = \"ghp_0123456789abcdefghijABCDEFGHIJ012345\"\n");
    tree.write(&format!("{EVIL}/.env"), "SECRET=1\n");
    tree.bare(
        "d=$(printf 'evil\\033[2J\\ntollgate: all is well'); git init -q --bare \"$d.git\"
        git -C \"$d.git\" config core.fsmonitor x; git init -q .; git add -A",
    );
    let explained = format!("{EVIL}/.env");
    let asked: [&[&str]; 4] = [
        &["check", "--dir", ".", "none"],
        &["check", "--dir", ".", "agent"],
        &["init", "--output", "../home/made.toml"],
        &["explain", "--policy", "agent", &explained],
    ];
    for arguments in asked {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let said = all(&tree.at_home(command.args(arguments)));
        assert!(!said.contains('\x1b'), "{arguments:?}: {said:?}");
        assert!(!said.contains("\ntollgate: all is well"), "{arguments:?}: {said}");
        // `explain` has its own spelling of the escape, the same as in its JSON.
        let shown =
            if arguments[0] == "explain" { SHOWN.replace("x1b", "u{1b}") } else { SHOWN.into() };
        assert!(said.contains(&shown), "{arguments:?}: {said}");
    }
    let repository = format!("{SHOWN}.git: ");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let said = all(&tree.at_home(command.args(["check", "--dir", ".", "none"])));
    assert!(said.contains(&repository), "{said}");
}

/// `check --dir` finds every planted secret that a policy leaves open, and none of the others.
#[test]
fn check_lists_the_secrets_that_no_rule_covers() {
    let tree = Tree::new();
    for (name, text) in planted() {
        tree.write(name, &text);
    }
    tree.write("notes.rs", "token = \"ghp_0123456789abcdefghijABCDEFGHIJ012345\"\n");
    tree.write("all-ca.pem", &(certificate(200) + &private_key("")));
    let uncovered = |policy: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let output = tree.at_home(command.args(["check", "--json", "--dir", ".", policy]));
        let report: serde_json::Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", all(&output)));
        let list = report["uncovered"].as_array().unwrap().clone();
        list.into_iter().map(|one| one["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(uncovered("agent"), ["all-ca.pem", "notes.rs"]);
    let open = uncovered("none");
    for (name, _) in planted() {
        assert!(open.iter().any(|path| path == name), "{name} is not found");
    }
    let tree = Tree::new();
    for (name, text) in harmless() {
        tree.write(name, &text);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let output = tree.at_home(command.args(["check", "--dir", ".", "none"]));
    assert!(all(&output).contains("no file that looks like a secret"), "{}", all(&output));
}

#[test]
fn git_works_with_submodules_and_working_trees() {
    if !can_mount() || !has("git") {
        return;
    }
    let tree = Tree::new();
    tree.bare(
        "git init -q -b main ../lib; cd ../lib; echo l >l; git add l; git commit -qm l
         git init -q -b main ../p; cd ../p; echo a >a; git add a; git commit -qm a
         git -c protocol.file.allow=always submodule --quiet add ../lib sub; git commit -qm sub
         git clone -q --bare . ../origin.git; git remote add origin ../origin.git; git fetch -q",
    );
    for preset in ["agent", "node", "python", "rust"] {
        tree.works(
            preset,
            "git status --short; git fetch -q origin; git log --oneline >/dev/null
             echo b >>a; git add -A; git commit -qm b; git stash list
             git checkout -q --no-track -b topic; echo c >>a; git commit -qam c
             git checkout -q main; git merge -q --no-edit topic
             git update-ref -d refs/heads/topic
             git tag t; git tag -d t >/dev/null; git gc -q
             git worktree add -q --detach .trees/w; echo w >>.trees/w/a
             git -C .trees/w commit -qam w; git worktree list >/dev/null
             git worktree remove .trees/w; git worktree prune
             git worktree add -q --detach ../w-$$ && git worktree remove ../w-$$
             echo s >>sub/l; git -C sub commit -qam s; git add sub; git commit -qm subs
             git submodule status >/dev/null; git reset -q --hard HEAD~1
             git -C sub checkout -q HEAD~1; git diff --quiet; git push -q origin main --force
             mkdir -p new && cd new && git init -q && echo n >n && git add n && git commit -qm n
             cd .. && rm -rf new",
        );
    }
    tree.works(
        "ci",
        "git --no-optional-locks status --short; git log >/dev/null; git show HEAD >/dev/null",
    );
    tree.works(
        "read-only",
        "git --no-optional-locks status --short; git diff HEAD; git log >/dev/null",
    );
}

/// A hidden tracked file looks deleted: what records that is said when `run` ends.
#[test]
fn a_policy_that_init_wrote_can_be_read_and_committed() {
    if !can_mount() || !has("git") {
        return;
    }
    for preset in PRESETS {
        let tree = Tree::new();
        tree.bare("git init -q; echo x > a.py");
        let mut init = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let output = tree.at_home(init.args(["init", preset]));
        assert!(output.status.success(), "{preset}: {}", all(&output));
        // Those two leave the repository as it is.
        let add = if matches!(preset, "ci" | "read-only") { "" } else { "; git add -A" };
        let policy = tree.path("p/.tollgate.toml").to_string_lossy().into_owned();
        tree.works(&policy, &format!("head -1 .tollgate.toml{add}"));
    }
}

/// What is in the place of the file may have been put there by somebody else.
#[test]
fn init_replaces_regular_files_alone() {
    let tree = Tree::new();
    let init = || {
        let mut init = Command::new("timeout");
        init.args(["60", env!("CARGO_BIN_EXE_tollgate"), "init", "--force"]);
        tree.at_home(&mut init)
    };
    tree.bare("echo mine >../victim; ln -s ../victim .tollgate.toml");
    let output = init();
    assert_eq!(output.status.code(), Some(1), "{}", all(&output));
    assert!(all(&output).contains("not a regular file"), "{}", all(&output));
    tree.bare("test \"$(cat ../victim)\" = mine; rm .tollgate.toml; mkfifo .tollgate.toml");
    let output = init();
    assert_eq!(output.status.code(), Some(1), "{}", all(&output));
    tree.bare("rm .tollgate.toml; echo old >.tollgate.toml; ln .tollgate.toml ../victim -f");
    tree.bare("chmod 640 .tollgate.toml");
    let output = init();
    assert!(output.status.success(), "{}", all(&output));
    tree.bare(
        "grep -q rule .tollgate.toml; test \"$(cat ../victim)\" = old
         test \"$(stat -c %a .tollgate.toml)\" = 640; test \"$(ls -A)\" = .tollgate.toml",
    );
}

#[test]
fn a_deletion_of_hidden_files_in_the_index_is_named() {
    if !can_mount() || !has("git") {
        return;
    }
    let tree = Tree::new();
    tree.bare("git init -q -b main; echo A=1 >.env; echo a >a; git add -A; git commit -qm a");
    let said = all(&tree.fenced("agent", "echo b >>a; git add a; git commit -qm b"));
    assert!(!said.contains("could not see"), "{said}");
    let said = all(&tree.fenced("agent", "echo c >>a; git commit -qam c"));
    assert!(said.contains("could not see: `.env`. A commit of it deletes"), "{said}");
    tree.bare("git checkout -q HEAD~1 -- .env; test -f .env; git commit -qm back");
    tree.bare("git update-index --skip-worktree .env");
    let said = all(&tree.fenced("agent", "echo d >>a; git commit -qam d"));
    assert!(!said.contains("could not see"), "{said}");
}

/// Everything by which a command could have git, an editor or a shell run something outside.
#[test]
fn what_runs_later_outside_cannot_be_written() {
    if !can_mount() || !has("git") {
        return;
    }
    for preset in PRESETS {
        try_to_write_what_runs_later(preset);
    }
}

fn try_to_write_what_runs_later(preset: &str) {
    let tree = Tree::new();
    tree.bare(
        "git init -q -b main ../lib; cd ../lib; echo l >l; git add l; git commit -qm l
         cd ../p; git init -q -b main; echo a >a; git add a; git commit -qm a
         git -c protocol.file.allow=always submodule --quiet add ../lib sub; git commit -qm sub
         git config core.hooksPath tools/hooks; git config include.path ../tools/git.inc
         mkdir -p tools/hooks .vscode; echo '#!/bin/sh' >tools/hooks/pre-commit; echo >tools/git.inc
         echo {} >.vscode/tasks.json; echo >.envrc; git add -A; git commit -qm more --no-verify",
    );
    let attempts = [
        "echo x >.git/hooks/post-commit",
        "echo x >>.git/config",
        "git config alias.st '!sh'",
        "git config core.fsmonitor ./x",
        "mv .git/hooks .git/h",
        "rm -rf .git/hooks",
        "echo x >.git/commondir",
        "ln -s /tmp .git/hooks/x",
        "cp a .git/hooks/pre-push",
        "chmod 777 .git/config",
        "echo x >tools/hooks/pre-commit",
        "echo x >tools/hooks/post-commit",
        "rm tools/hooks/pre-commit",
        "mv tools t; mkdir -p tools/hooks; echo x >tools/hooks/pre-commit",
        "echo x >tools/git.inc",
        "echo x >.git/modules/sub/hooks/post-checkout",
        "echo x >>.git/modules/sub/config",
        "echo 'gitdir: /tmp' >sub/.git",
        "rm -f sub/.git",
        "echo x >.vscode/tasks.json",
        "rm .vscode/tasks.json",
        "mv .vscode v",
        "echo x >.envrc",
        "rm .envrc",
        "mkdir -p d; echo x >d/.envrc",
        "mkdir -p d/.vscode; echo x >d/.vscode/tasks.json",
        "echo x >.mcp.json",
        "mkdir -p .claude; echo x >.claude/settings.json",
        "mkdir -p .husky; echo x >.husky/pre-commit",
        "echo x >x.code-workspace",
        "mkdir .devcontainer; echo x >.devcontainer/devcontainer.json",
        "mkdir .zed; echo x >.zed/tasks.json",
        "echo x >opencode.json",
        "echo x >y; ln y .git/hooks/z",
        "echo x >y; mv y .git/config",
        "git submodule add ./lib evil",
        // `mv` copies what it may read and removes what it may remove.
        "mv .git .g; cp -r .g .git; echo x >.git/hooks/post-commit",
        "rm -f .git/HEAD; echo x >tools/hooks/pre-commit",
        "echo x >tools/hooks/pre-commit",
    ];
    let state = "find .git/hooks .git/config .git/modules/sub/hooks .git/modules/sub/config tools \
                 sub/.git .vscode .envrc -printf '%p %m %s %l\\n' | sort; cat .git/config .envrc \
                 .vscode/tasks.json tools/hooks/* tools/git.inc sub/.git; \
                 ls d/.envrc d/.vscode/tasks.json .mcp.json .claude/settings.json .husky/pre-commit \
                 x.code-workspace .devcontainer/devcontainer.json .zed/tasks.json opencode.json \
                 .git/commondir 2>/dev/null; true";
    let outside = |script: &str| all(&tree.at_home(Command::new("sh").args(["-c", script])));
    let before = outside(state);
    for attempt in attempts {
        tree.fenced(preset, &format!("({attempt}) 2>/dev/null; true"));
        assert_eq!(outside(state), before, "{preset}: {attempt}");
        outside("rm -rf d y h v t .claude .husky");
    }
}

/// Settings of a repository that the command made would start programs when `git status` outside
/// enters it: `run` says so by name, `check` finds it, and the remedy that is documented holds.
#[test]
fn a_repository_that_starts_programs_is_named() {
    if !can_mount() || !has("git") {
        return;
    }
    let tree = Tree::new();
    tree.bare("git init -q -b main; echo a >a; git add a; git commit -qm a");
    let harmless =
        "mkdir fine && cd fine && git init -q && echo x >x && git add x && git commit -qm x";
    let output = tree.fenced("agent", &format!("{harmless}; cd ..; git add fine 2>/dev/null"));
    assert!(output.status.success() && !all(&output).contains("warning"), "{}", all(&output));
    let mark = tree.path("ran");
    let evil = format!(
        "mkdir new && cd new && git init -q && echo x >x && git add x && git commit -qm x
         git config core.fsmonitor 'touch {}; true'; cd ..; git add new 2>/dev/null
         printf '[submodule \"new\"]\\n path = new\\n url = x\\n ignore = none\\n' >.gitmodules
         mkdir -p b/any && cp -r new/.git/* b/any/",
        mark.display()
    );
    let output = tree.fenced("agent", &evil);
    let said = all(&output);
    for part in ["warning: `new` is a git repository", "core.fsmonitor", "--ignore-submodules=all"]
    {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    assert!(!said.contains("`fine`"), "{said}");
    let mut check = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let output = tree.at_home(check.args(["check", "--json", "--dir", ".", "agent"]));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let found: Vec<_> =
        report["repositories"].as_array().unwrap().iter().map(|one| &one["path"]).collect();
    assert_eq!(found.len(), 2, "{report:#}");
    assert!(
        found.iter().any(|path| *path == "b/any") && found.iter().any(|path| *path == "new/.git")
    );
    assert!(!mark.exists(), "nothing of this runs git");
    tree.bare("git status --ignore-submodules=all >/dev/null");
    assert!(!mark.exists(), "the remedy does not hold");
    // What is warned of is real.
    tree.bare("git status >/dev/null");
    assert!(
        mark.exists(),
        "git does not enter such a repository any more: the page is out of date"
    );
}

/// The settings of a repository in a subdirectory can be written; `run` says that this was done.
#[test]
fn a_hook_in_a_repository_below_the_top_is_named() {
    if !can_mount() || !has("git") {
        return;
    }
    let tree = Tree::new();
    // Not a repository itself.
    tree.bare("mkdir -p a/lib; git -C a/lib init -q; git -C a/lib config alias.old '!true'");
    // What was written just before the start would count.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let output = tree.fenced("agent", "echo x >a/lib/file; git -C a/lib add file");
    assert!(output.status.success() && !all(&output).contains("a/lib"), "{}", all(&output));
    let hook = "a/lib/.git/hooks/post-commit";
    let output = tree.fenced("agent", &format!("echo '#!/bin/sh' >{hook}; chmod +x {hook}"));
    let said = all(&output);
    for part in ["`a/lib` is a git repository whose hooks or settings changed", "hook post-commit"]
    {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
}

/// The repository of a linked working tree lies elsewhere; git's message has no reason.
#[test]
fn a_repository_outside_of_the_directory_is_named() {
    if !can_mount() || !has("git") {
        return;
    }
    let tree = Tree::new();
    tree.bare(
        "git init -q -b main ../main; echo a >../main/a; git -C ../main add a
         git -C ../main commit -qm a; git -C ../main worktree add -q ../p/linked",
    );
    let run = |options: &[&str], dir: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.arg("run").args(options).arg(tree.path(dir));
        let script = "cd \"$TOLLGATE_RUN\"; echo b >b; git add b && git commit -qm b";
        tree.at_home(command.args(["--", "sh", "-c", script]))
    };
    let output = run(&[], "p/linked");
    let said = all(&output);
    assert!(!output.status.success(), "{said}");
    let git_dir = tree.path("main/.git");
    let note = format!("the repository of DIR is `{}`, outside of DIR", git_dir.display());
    assert!(said.contains(&note), "{said}");
    let mut brief = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let brief = all(&tree.at_home(brief.arg("brief").arg(tree.path("p/linked"))));
    assert!(brief.contains("lies outside of this directory"), "{brief}");
    let output = run(&["--allow", &format!("{}:rw", git_dir.display())], "p/linked");
    assert!(output.status.success() && !all(&output).contains("outside"), "{}", all(&output));
    let output = run(&[], "main");
    assert!(!all(&output).contains("of DIR is"), "{}", all(&output));
}

/// The rule that docs/run.md offers to whoever wants no such repositories.
#[test]
fn repositories_below_the_top_can_be_refused() {
    if !can_mount() || !has("git") {
        return;
    }
    let tree = Tree::new();
    tree.bare("git init -q -b main; echo a >a; git add a; git commit -qm a");
    let page = include_str!("../docs/run.md");
    let rule = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    std::fs::write(tree.path("rule.toml"), rule).unwrap();
    let policy = tree.path("rule.toml");
    let attempts = [
        "git init -q new",
        "mkdir x; echo gitdir: ../y >x/.git",
        "mkdir z z/.git",
        "git worktree add -q --detach w",
        "cp -r .git a.git; mkdir v; mv a.git v/.git",
    ];
    for attempt in attempts {
        let output = tree.fenced(policy.to_str().unwrap(), &format!("({attempt}) 2>&1 || true"));
        assert!(output.status.success(), "{}", all(&output));
        let found = tree.at_home(Command::new("sh").args(["-c", "find . -mindepth 2 -name .git"]));
        assert_eq!(all(&found), "", "{attempt}");
    }
    tree.works(policy.to_str().unwrap(), "echo b >>a; git commit -qam b; git gc -q");
}

#[test]
fn python_environments_can_be_made_used_and_removed() {
    if !can_mount() || !has("python3") {
        return;
    }
    let tree = Tree::new();
    let pip = "python -m pip --version >/dev/null
               python -c 'import pip._vendor.certifi as c, ssl; ssl.create_default_context(cafile=c.where())'";
    for (preset, name) in [("agent", ".venv"), ("python", ".env"), ("ci", "venv")] {
        tree.works(
            preset,
            &format!(
                "python3 -m venv {name}; . {name}/bin/activate; {pip}; deactivate; rm -rf {name}"
            ),
        );
    }
}

#[test]
fn npm_packages_that_ship_keys_can_be_installed_and_removed() {
    if !can_mount() || !has("npm") {
        return;
    }
    let tree = Tree::new();
    // A package with what packages ship: certificates, test keys, an `.env`, settings of an editor.
    tree.write("../pkg/package.json", "{\"name\": \"pkg\", \"version\": \"1.0.0\"}");
    tree.write("../pkg/test/agent2-key.pem", &private_key("RSA "));
    tree.write("../pkg/test/id_rsa", &private_key(""));
    tree.write("../pkg/ca.pem", &certificate(5));
    tree.write("../pkg/.vscode/settings.json", "{}");
    tree.write("../pkg/test/.env", "A=1\n");
    tree.write("../pkg/.envrc", "use node\n");
    tree.write(
        "../pkg/index.js",
        "module.exports = require('fs').readFileSync(__dirname + '/ca.pem')\n",
    );
    tree.write(
        "package.json",
        "{\"name\": \"p\", \"version\": \"1.0.0\", \"scripts\": {\"test\": \"node t.js\"}}",
    );
    tree.write("t.js", "if (require('pkg').length < 1000) process.exit(1)\n");
    tree.bare("cd ../pkg; npm pack --silent --pack-destination .. >/dev/null");
    for preset in ["agent", "node", "ci"] {
        tree.works(
            preset,
            "npm install --offline --no-audit --no-fund --silent ../pkg-1.0.0.tgz
             test -f node_modules/pkg/test/agent2-key.pem && test -f node_modules/pkg/test/.env
             npm test --silent; npm ci --offline --no-audit --no-fund --silent; npm test --silent
             npm uninstall --no-audit --no-fund --silent pkg; rm -rf node_modules package-lock.json",
        );
        tree.write(
            "package.json",
            "{\"name\": \"p\", \"version\": \"1.0.0\", \"scripts\": {\"test\": \"node t.js\"}}",
        );
    }
}

#[test]
fn a_cargo_workspace_builds() {
    if !can_mount() || !has("cargo") {
        return;
    }
    let tree = Tree::new();
    tree.write("Cargo.toml", "[workspace]\nmembers = [\"a\", \"b\"]\nresolver = \"3\"\n");
    for (name, dependencies) in [("a", ""), ("b", "a = { path = \"../a\" }\n")] {
        tree.write(
            &format!("{name}/Cargo.toml"),
            &format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[dependencies]\n{dependencies}"),
        );
    }
    tree.write("a/src/lib.rs", "mod id_map;\npub use id_map::one;\n");
    tree.write("a/src/id_map.rs", "pub fn one() -> i32 { 1 }\n");
    tree.write("a/certs/ca.pem", &certificate(1));
    tree.write(
        "b/src/main.rs",
        "fn main() { assert_eq!(a::one(), 1); }\n#[test]\nfn t() { main() }\n",
    );
    // The toolchain may be found below the real home directory.
    let real = std::env::var("HOME").unwrap_or_default();
    let script = format!(
        "export CARGO_HOME=${{CARGO_HOME:-{real}/.cargo}} RUSTUP_HOME=${{RUSTUP_HOME:-{real}/.rustup}}
         export CARGO_TARGET_DIR=target CARGO_INCREMENTAL=1
         cargo run --offline -q; cargo test --offline -q >/dev/null; cargo clean -q; rm -rf target"
    );
    for preset in ["agent", "rust", "ci"] {
        tree.works(preset, &script);
    }
}

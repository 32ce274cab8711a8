//! Files that no preset lets be read, and files that look a little like them.

use std::process::Command;

use crate::further;
use crate::harness::{PRESETS, SECRET, Tree, all, certificate, private_key};
use crate::manifests;
use crate::mounting::can_mount;
use crate::services;

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
    planted.extend(planted_passwords());
    planted.extend(manifests::planted());
    planted.extend(further::planted());
    planted.extend(services::planted());
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

/// Settings of applications with a password in them.
fn planted_passwords() -> Vec<(&'static str, String)> {
    let password = format!("xK9v-{SECRET}");
    vec![
        (
            "src/main/resources/application.properties",
            format!("spring.datasource.password={password}\n"),
        ),
        ("application-prod.yml", format!("spring:\n  datasource:\n    password: \"{password}\"\n")),
        (
            "config/database.yml",
            format!("production:\n  adapter: postgresql\n  password: {password}\n"),
        ),
        (
            "docker-compose.yml",
            format!("services:\n  db:\n    environment:\n      POSTGRES_PASSWORD: {password}\n"),
        ),
        ("deploy/compose.prod.yaml", format!("environment:\n  - MYSQL_ROOT_PASSWORD={password}\n")),
        (
            "web/docker-compose.yml",
            format!("environment:\n  DATABASE_URL: postgres://app:{password}@db/app\n"),
        ),
        (
            "api/appsettings.Production.json",
            format!("{{\"Db\": \"Server=db;User Id=sa;Password={password};\"}}"),
        ),
        ("appsettings.json", format!("{{\"Jwt\": {{\"Secret\": \"{password}\"}}}}")),
        ("config/secrets.yaml", format!("production:\n  secret_key_base: {password}\n")),
        ("config/initializers/secret_token.rb", format!("config.secret_key_base = '{password}'\n")),
        (".secrets", format!("API_TOKEN={password}\n")),
        ("secrets.json", format!("{{\"password\": \"{password}\"}}")),
        ("conf/secrets.toml", format!("db_password = \"{password}\"\n")),
        ("wp-config.php", format!("<?php\ndefine( 'DB_PASSWORD', '{password}' );\n")),
        ("settings/production.py", format!("SECRET_KEY = 'django-insecure-1{SECRET}'\n")),
        ("shop/db.properties", format!("db.password=Abc12345\n# {SECRET}\n")),
        ("shop/settings.yml", format!("password: xk#2210b7\nother: {SECRET}\n")),
        ("local_settings.py", format!("DATABASES = {{'default': {{'PASSWORD': '{password}'}}}}\n")),
        ("prod.auto.tfvars", format!("db_password = \"{password}\"\n")),
        ("mise.toml", format!("[env]\nGITHUB_TOKEN = \"{password}\"\n")),
        ("app/.mise.local.toml", format!("[env]\nAPI_KEY = \"{password}\"\n")),
        ("ansible/group_vars/all.yml", format!("ansible_become_password: {password}\n")),
        ("hosts.ini", format!("db ansible_ssh_pass={password}\n")),
        (".condarc", format!("channels:\n  - https://me:{password}@conda.example/x\n")),
        ("config/production.json", format!("{{\"db\": {{\"password\": \"4x{password}\"}}}}")),
        (
            "k8s/secret.yaml",
            format!("apiVersion: v1\nkind: Secret\nstringData:\n  user: app\n  pass: {password}\n"),
        ),
        (
            "k8s/sorted.yaml",
            format!("apiVersion: v1\ndata:\n  pass: eEs5di0= # {SECRET}\nkind: Secret\n"),
        ),
        (".config/hub", format!("github.com:\n- oauth_token: {password}\n")),
        (".pulumi/credentials.json", format!("{{\"accessTokens\": {{\"x\": \"{password}\"}}}}")),
        (".fly/config.yml", format!("access_token: {password}\n")),
    ]
}

/// The same settings as a project has them: words, variables and references.
fn harmless_settings() -> Vec<(&'static str, String)> {
    let files = [
        (
            "application.properties",
            "spring.datasource.password=${DB_PASSWORD}\nspring.datasource.username=app\n\
             jwt.token-validity-in-seconds=86400000\nsecurity.password.encoder=bcrypt10\n\
             spring.datasource.password=postgres\napp.secret=ENC(G6N718UuyPE5bHyWKyuLQSm02auQPUtm)\n",
        ),
        (
            "config/database.yml",
            "test:\n  password: <%= ENV['DB_PASSWORD1'] %>\n  password: postgres\n",
        ),
        (
            "docker-compose.yml",
            "services:\n  db:\n    image: postgres:16\n    environment:\n      POSTGRES_PASSWORD: example\n      \
             MYSQL_PASSWORD: ${MYSQL_PASSWORD:?set1it2please}\n      PASSWORD_FILE: /run/secrets/db1password\n      \
             URL: postgres://postgres:postgres@db:5432/app\n    secrets:\n      - db_password_2\n",
        ),
        (
            "appsettings.json",
            "{\"ConnectionStrings\": {\"Db\": \"Server=.;Trusted_Connection=True\"}, \"PasswordLength\": 12345678}\n",
        ),
        (
            "wp-config-sample.php",
            "define( 'DB_PASSWORD', 'password_here' );\ndefine( 'AUTH_KEY', 'put your unique phrase here' );\n",
        ),
        (
            "settings/production.py",
            "SECRET_KEY = os.environ['SECRET_KEY_2']\nPASSWORD_HASHERS = ['x']\n",
        ),
        ("mise.toml", "[tools]\nnode = \"22\"\n[env]\nAPI_TOKEN = \"{{ env.API_TOKEN2 }}\"\n"),
        ("group_vars/all.yml", "db_password: \"{{ vault_db_password1 }}\"\n"),
        (
            "config/default.json",
            "{\"token\": {\"ttl\": 3600}, \"password\": \"\", \"secret\": null}\n",
        ),
        (
            "k8s/template.yaml",
            "kind: Secret\nstringData:\n  pass: {{ .Values.password1 }}\n---\nkind: ConfigMap\ndata:\n  a: abc12345\n",
        ),
        (
            "k8s/sealed.yaml",
            "kind: SealedSecret\nspec:\n  encryptedData:\n    a: AgBy3i4OJSWK+PiTySYZZA9rO43cGDEq\n",
        ),
        ("values.yaml", "existingSecret: my-secret-2024\nimage:\n  tag: v1.2.3\n"),
    ];
    files.into_iter().map(|(name, text)| (name, text.to_owned())).collect()
}

/// Files that every preset lets be read, although they look a little like secrets.
fn harmless() -> Vec<(&'static str, String)> {
    let text = || "harmless\n".to_owned();
    let mut files: Vec<_> = [
        ".env.example",
        ".env.sample",
        ".env.example~",
        ".env.example.h2BY1W",
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
    files.extend(harmless_settings());
    files.extend(manifests::harmless());
    files.extend(further::harmless());
    files.extend(services::harmless());
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

/// What a file holds is told by a few bytes of it: who may not read it for that cannot exchange them.
#[test]
fn no_planted_secret_can_be_overwritten_in_part_and_read_then() {
    if !can_mount() {
        return;
    }
    let overwrite = r"find . -type f | while read -r f; do
          for at in 0 1 2 5 9 14 20 30 45; do printf '\n' | dd of=$f bs=1 seek=$at conv=notrunc; done
          printf '\n' >>$f; head -c 70000 /dev/zero | tr '\0' x >>$f; truncate -s 100000 $f
        done 2>/dev/null; grep -rlas SECRET .; true";
    let overwrite = overwrite.replace("SECRET", SECRET).replace("$f", "\"$f\"");
    for preset in ["agent", "ci"] {
        let tree = Tree::new();
        for (name, text) in planted() {
            tree.write(name, &text);
        }
        assert_eq!(all(&tree.fenced(preset, &overwrite)), "", "{preset}");
    }
}

/// Which of the planted files can be read, for a message.
fn leaks(tree: &Tree, preset: &str) -> String {
    let script = format!("grep -rlas {SECRET} .; true");
    all(&tree.fenced(preset, &script))
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

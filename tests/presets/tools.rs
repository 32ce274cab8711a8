//! Package managers and builds.

use crate::harness::{Tree, certificate, has, private_key};
use crate::mounting::can_mount;

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

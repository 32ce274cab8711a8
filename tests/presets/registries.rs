//! Packages as registries have them: with certificates, test keys, hooks and settings of editors in
//! them. They need the network, so they run where `TOLLGATE_REGISTRIES=1`, as in tests/presets-all.

use crate::harness::{Tree, has};
use crate::mounting::can_mount;

fn wanted() -> bool {
    let wanted = std::env::var_os("TOLLGATE_REGISTRIES").is_some_and(|value| value == "1");
    if !wanted {
        eprintln!("skipped: TOLLGATE_REGISTRIES is not 1");
    }
    wanted && can_mount()
}

/// `certifi` is a list of certificates, `pyOpenSSL` and `paramiko` read keys.
#[test]
fn packages_of_pypi_can_be_installed_used_and_removed() {
    if !wanted() || !has("python3") {
        return;
    }
    for preset in ["agent", "python", "ci"] {
        Tree::new().works(
            preset,
            "python3 -m venv .venv; . .venv/bin/activate
             pip install --no-cache-dir -q certifi requests pyOpenSSL paramiko django pytest
             python -c 'import certifi, ssl, requests; ssl.create_default_context(cafile=certifi.where())'
             python -c 'import OpenSSL, paramiko, django'
             django-admin startproject shop; python shop/manage.py check >/dev/null
             printf 'def test_it(): assert 1\\n' >test_a.py; pytest -q >/dev/null
             find . -type f -exec cat {} + >/dev/null
             pip uninstall -q -y certifi requests; deactivate; rm -rf .venv shop",
        );
    }
}

/// Most of these ship keys and certificates for their tests, or settings of editors.
#[test]
fn packages_of_npm_can_be_installed_used_and_removed() {
    if !wanted() || !has("npm") {
        return;
    }
    for preset in ["agent", "node", "ci"] {
        Tree::new().works(
            preset,
            "npm init -y >/dev/null
             npm install --no-audit --no-fund --silent express public-encrypt parse-asn1 node-forge \\
               selfsigned http-proxy-agent@4 resolve jsonwebtoken dotenv typescript eslint
             node -e 'require(\"express\"); require(\"node-forge\"); require(\"jsonwebtoken\")'
             test -n \"$(find node_modules -name '*.pem' -o -name '*.key' -o -name '.env*' | head -1)\"
             find . -type f -exec cat {} + >/dev/null
             npm ci --no-audit --no-fund --silent
             npm uninstall --no-audit --no-fund --silent express; rm -rf node_modules",
        );
    }
}

/// Crates with keys among their sources, fetched, vendored and built.
#[test]
fn crates_can_be_vendored_built_and_removed() {
    if !wanted() || !has("cargo") {
        return;
    }
    let real = std::env::var("HOME").unwrap_or_default();
    for preset in ["agent", "rust", "ci"] {
        let tree = Tree::new();
        tree.write("src/lib.rs", "pub use pem::parse;\n");
        tree.write(
            "Cargo.toml",
            "[package]\nname = \"p\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\npem = \"3\"\n\
             [target.'cfg(windows)'.dependencies]\nssh-key = \"0.6\"\nrustls-webpki = \"0.102\"\nopenssl = \"0.10\"\n",
        );
        tree.works(
            preset,
            &format!(
                "export CARGO_HOME=$HOME/cargo RUSTUP_HOME=${{RUSTUP_HOME:-{real}/.rustup}}
                 export CARGO_TARGET_DIR=target
                 cargo vendor -q >vendored.toml
                 find . -type f -exec cat {{}} + >/dev/null
                 cargo --config vendored.toml build --offline -q; rm -rf vendor target"
            ),
        );
    }
}

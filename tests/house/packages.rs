//! The packages of the workspace, as cargo knows them.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// One package.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) directory: PathBuf,
    /// Whether it may be published.
    pub(crate) published: bool,
    /// Root files of its library and its binaries.
    pub(crate) roots: Vec<PathBuf>,
    /// Packages of this workspace that it is built with (those only its tests use are left out).
    pub(crate) uses: Vec<String>,
    /// Features that it has.
    pub(crate) features: Vec<String>,
    /// Packages of this workspace and features of them that it switches on, in its tests at least.
    pub(crate) switches_on: Vec<(String, Vec<String>)>,
}

/// All members of the workspace.
pub(crate) fn all() -> Vec<Package> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs the tests, so it can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    list(&metadata["packages"]).map(package).collect()
}

fn package(value: &Value) -> Package {
    let manifest = Path::new(text(&value["manifest_path"]));
    let is_code =
        |target: &Value| list(&target["kind"]).any(|kind| matches!(text(kind), "lib" | "bin"));
    let targets = list(&value["targets"]).filter(|target| is_code(target));
    let in_workspace = |dependency: &&Value| !dependency["path"].is_null();
    let for_code = |dependency: &&Value| text_or_empty(&dependency["kind"]) != "dev";
    let all_dependencies = || list(&value["dependencies"]).filter(in_workspace);
    let dependencies = all_dependencies().filter(for_code);
    let switched_on = all_dependencies().map(|dependency| {
        let features = list(&dependency["features"]).map(|feature| text(feature).to_owned());
        (text(&dependency["name"]).to_owned(), features.collect())
    });
    Package {
        name: text(&value["name"]).to_owned(),
        directory: manifest.parent().expect("a manifest lies in a directory").to_owned(),
        published: value["publish"].is_null(),
        roots: targets.map(|target| text(&target["src_path"]).into()).collect(),
        uses: dependencies.map(|dependency| text(&dependency["name"]).to_owned()).collect(),
        features: value["features"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(f, _)| f.clone())
            .collect(),
        switches_on: switched_on.collect(),
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a string, by the format of cargo metadata")
}

fn text_or_empty(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

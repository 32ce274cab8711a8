//! Licences of the libraries that the program is linked with: each text once, with the packages
//! that it comes from.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::Value;

/// How names of files with a licence begin, in capitals.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];

/// All texts, after a list of the packages.
///
/// # Errors
/// When cargo does not know the packages, as their sources are neither there nor can be downloaded.
pub(crate) fn texts(root: &Path) -> anyhow::Result<String> {
    let metadata = metadata(root)?;
    let linked = linked(&metadata);
    let mut list = String::new();
    let mut by_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in items(&metadata["packages"]).filter(|package| linked.contains(id(package))) {
        if package["source"].is_null() {
            // Of this project.
            continue;
        }
        let name = format!("{} {}", word(&package["name"]), word(&package["version"]));
        let licence = package["license"].as_str().context(name.clone())?;
        let texts = texts_of(package)?;
        let note = if texts.is_empty() { "; its package holds no text" } else { "" };
        writeln!(list, "  {name}: {licence}{note}")?;
        for text in texts {
            by_text.entry(text).or_default().push(name.clone());
        }
    }
    let mut all = format!(
        "The program is linked with these libraries, and with the standard library of Rust\n\
         (Apache-2.0 OR MIT; its texts are those of the project, in `copyright`).\n\n{list}"
    );
    for (text, names) in by_text {
        write!(all, "\n{}\n{}:\n\n{}\n", "-".repeat(72), names.join(", "), text.trim_end())?;
    }
    Ok(all)
}

fn texts_of(package: &Value) -> anyhow::Result<BTreeSet<String>> {
    let manifest = Path::new(word(&package["manifest_path"]));
    let directory = manifest.parent().context("a manifest lies in a directory")?;
    let mut texts = BTreeSet::new();
    for entry in std::fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_file() && NAMES.iter().any(|start| name.starts_with(start)) {
            let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
            texts.insert(String::from_utf8_lossy(&bytes).replace('\r', ""));
        }
    }
    Ok(texts)
}

/// The ids of the packages that the program is linked with: its dependencies, and theirs, without
/// those of tests and of builds.
fn linked(metadata: &Value) -> BTreeSet<&str> {
    let nodes: BTreeMap<_, _> =
        items(&metadata["resolve"]["nodes"]).map(|node| (id(node), node)).collect();
    let is_program = |package: &&Value| word(&package["name"]) == "tollgate";
    let mut to_do: Vec<_> = items(&metadata["packages"]).filter(is_program).map(id).collect();
    let mut linked = BTreeSet::new();
    while let Some(next) = to_do.pop() {
        if !linked.insert(next) {
            continue;
        }
        let dependencies = nodes.get(next).into_iter().flat_map(|node| items(&node["deps"]));
        let normal = dependencies.filter(|dependency| {
            // What is neither for tests nor for builds has no kind.
            items(&dependency["dep_kinds"]).any(|kind| kind["kind"].is_null())
        });
        to_do.extend(normal.map(|dependency| word(&dependency["pkg"])));
    }
    linked
}

/// Of this machine's packages. What nothing was built with so far (libraries of tests) is downloaded, as cargo
/// names the packages only with all of their manifests.
fn metadata(root: &Path) -> anyhow::Result<Value> {
    let run = |program: &str, arguments: &[&str]| -> anyhow::Result<Vec<u8>> {
        let output = Command::new(program).args(arguments).current_dir(root).output();
        let output = output.with_context(|| format!("{program} cannot be started"))?;
        if !output.status.success() {
            bail!("{program}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(output.stdout)
    };
    let version = String::from_utf8(run("rustc", &["-vV"])?)?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc -vV names no host")?;
    let arguments = ["metadata", "--locked", "--format-version", "1", "--filter-platform", host];
    Ok(serde_json::from_slice(&run("cargo", &arguments)?)?)
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn id(package: &Value) -> &str {
    word(&package["id"])
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

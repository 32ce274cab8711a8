//! The house in order: no file imports one that imports it back, crates use only what lies below
//! them, pages name files that are there. What is checked is the source itself, read with a parser
//! and with `cargo metadata`.

mod files;
mod imports;
mod layers;
mod legends;
mod licences;
mod mistakes;
mod names;
mod packages;
mod privileged;

use std::path::Path;

use packages::Package;

/// Crates whose files still import each other in circles. The list only shrinks: a crate on it that
/// has no circle any more fails the test, until it is taken off.
const STILL_CIRCULAR: &[&str] = &[];

#[test]
fn no_file_imports_one_that_imports_it_back() {
    let mut faults = Vec::new();
    for package in packages::all() {
        let circles = circles_of(&package);
        let listed = STILL_CIRCULAR.contains(&package.name.as_str());
        match (circles.is_empty(), listed) {
            (true, true) => faults.push(format!(
                "{}: has no circle any more: take it off STILL_CIRCULAR in tests/house/main.rs",
                package.name
            )),
            (false, false) => faults.push(format!("{}:\n{}", package.name, circles.join("\n"))),
            (true, false) => {}
            (false, true) => println!("{} (known):\n{}", package.name, circles.join("\n")),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Each circle of the package's files, in words.
fn circles_of(package: &Package) -> Vec<String> {
    let all = package.roots.iter().map(|root| imports::Imports::of(root));
    all.flat_map(|imports| imports.circles(&package.directory)).collect()
}

#[test]
fn every_name_on_the_list_is_a_crate() {
    let packages = packages::all();
    for name in STILL_CIRCULAR {
        assert!(packages.iter().any(|package| package.name == *name), "there is no crate {name}");
    }
}

#[test]
fn the_privileged_process_can_be_read_in_one_sitting() {
    let faults = privileged::faults(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn crates_use_only_what_the_map_allows() {
    let faults = layers::faults(&packages::all());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_tests_of_the_workspace_switch_on_every_feature() {
    let packages = packages::all();
    let is_on = |name: &str, feature: &String| {
        let switched = packages.iter().flat_map(|package| &package.switches_on);
        switched.filter(|(of, _)| of == name).any(|(_, features)| features.contains(feature))
    };
    let off: Vec<_> = packages
        .iter()
        .flat_map(|package| package.features.iter().map(move |feature| (&package.name, feature)))
        .filter(|(name, feature)| *feature != "default" && !is_on(name, feature))
        .collect();
    assert!(
        off.is_empty(),
        "`cargo test --workspace` does not test {off:?}: switch them on under [dev-dependencies] of \
         the workspace's Cargo.toml"
    );
}

#[test]
fn every_dependency_has_an_allowed_licence() {
    let faults = licences::faults();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_published_crate_has_its_page_and_its_licences() {
    let published = packages::all().into_iter().filter(|package| package.published);
    let missing: Vec<_> = published
        .flat_map(|package| {
            let files = ["README.md", "LICENSE-APACHE", "LICENSE-MIT"];
            files.map(|file| package.directory.join(file))
        })
        .filter(|path| !path.is_file())
        .collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
}

#[test]
fn pages_name_sources_that_are_there() {
    let faults = names::faults(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn deliberate_mistakes_fit_the_sources() {
    let faults = mistakes::faults(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_field_has_a_letter_of_its_lock_legend() {
    let faults = legends::faults(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

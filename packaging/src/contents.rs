//! Which file of a package lies where.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use crate::archive::{Entry, Form, gzip};
use crate::licences;

const DOC: &str = "usr/share/doc/tollgate";

/// Everything that the package installs.
///
/// # Errors
/// When the program does not write its pages and completions, or a source is missing.
pub(crate) fn all(
    root: &Path,
    binary: &Path,
    program: Vec<u8>,
    form: Form,
) -> anyhow::Result<Vec<Entry>> {
    let mut entries = vec![
        Entry::program("usr/bin/tollgate", program),
        Entry::link("usr/sbin/mount.fuse.tollgate", "../bin/tollgate"),
        Entry::link("usr/sbin/umount.fuse.tollgate", "../bin/tollgate"),
        Entry::directory("etc/tollgate"),
    ];
    entries.extend(man_pages(root, binary, form)?);
    entries.extend(completions(binary)?);
    entries.extend(units(root)?);
    entries.extend(group(root)?);
    entries.extend(documents(root, form)?);
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(entries)
}

fn man_pages(root: &Path, binary: &Path, form: Form) -> anyhow::Result<Vec<Entry>> {
    let made = tempfile::tempdir().context("cannot make a temporary directory")?;
    let directory = made.path().to_str().context("TMPDIR is not UTF-8")?;
    output(binary, &["man-pages", directory])?;
    let mut entries = Vec::new();
    for (section, directory) in [("man1", made.path()), ("man8", &root.join("packaging/man"))] {
        for (name, page) in files(directory)? {
            let path = format!("usr/share/man/{section}/{name}.gz");
            entries.push(Entry::file(path, gzip(&page, form)?));
        }
    }
    Ok(entries)
}

fn completions(binary: &Path) -> anyhow::Result<Vec<Entry>> {
    let places = [
        ("bash", "usr/share/bash-completion/completions/tollgate"),
        ("zsh", "usr/share/zsh/vendor-completions/_tollgate"),
        ("fish", "usr/share/fish/vendor_completions.d/tollgate.fish"),
    ];
    let one = |(shell, path)| Ok(Entry::file(path, output(binary, &["completions", shell])?));
    places.map(one).into_iter().collect()
}

fn units(root: &Path) -> anyhow::Result<Vec<Entry>> {
    let one = |manager| {
        let source = root.join(format!("packaging/systemd/{manager}/tollgate@.service"));
        let path = format!("usr/lib/systemd/{manager}/tollgate@.service");
        Ok(Entry::file(path, read(&source)?))
    };
    let broker = |kind| {
        let source = root.join(format!("packaging/systemd/system/tollgate-broker.{kind}"));
        let path = format!("usr/lib/systemd/system/tollgate-broker.{kind}");
        Ok(Entry::file(path, read(&source)?))
    };
    let brokers = ["socket", "service"].map(broker);
    ["system", "user"].map(one).into_iter().chain(brokers).collect()
}

/// The group whose members may keep CPUs awake, and the rule that gives it the device.
fn group(root: &Path) -> anyhow::Result<Vec<Entry>> {
    let files = [
        ("sysusers.d/tollgate.conf", "usr/lib/sysusers.d/tollgate.conf"),
        ("udev/70-tollgate.rules", "usr/lib/udev/rules.d/70-tollgate.rules"),
    ];
    let one = |(source, path)| Ok(Entry::file(path, read(&root.join("packaging").join(source))?));
    files.map(one).into_iter().collect()
}

fn documents(root: &Path, form: Form) -> anyhow::Result<Vec<Entry>> {
    let mut entries = vec![
        Entry::file(format!("{DOC}/copyright"), copyright(root)?),
        Entry::file(format!("{DOC}/README.md"), read(&root.join("README.md"))?),
        Entry::file(format!("{DOC}/changelog.gz"), gzip(&read(&root.join("CHANGELOG.md"))?, form)?),
        Entry::file(
            format!("{DOC}/third-party-licences.gz"),
            gzip(licences::texts(root)?.as_bytes(), form)?,
        ),
    ];
    for (name, page) in files(&root.join("docs"))? {
        entries.push(Entry::file(format!("{DOC}/docs/{name}"), page));
    }
    Ok(entries)
}

/// In the form of Debian's copyright files, with the whole text of both licences.
fn copyright(root: &Path) -> anyhow::Result<String> {
    let mit = text(&root.join("LICENSE-MIT"))?;
    let holder = mit.lines().next().unwrap_or_default();
    let holder = holder.strip_prefix("Copyright (c) ").context("LICENSE-MIT names no holder")?;
    let indented = |text: &str| {
        let lines = text.lines().map(|line| match line.trim_end() {
            "" => " .".to_owned(),
            line => format!(" {line}"),
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: tollgate\n\
         Comment: The licences of the libraries in the program are in third-party-licences.gz.\n\n\
         Files: *\nCopyright: {holder}\nLicense: Apache-2.0 or Expat\n\n\
         License: Apache-2.0\n{}\n\nLicense: Expat\n{}\n",
        indented(&text(&root.join("LICENSE-APACHE"))?),
        indented(&mit),
    ))
}

/// Names and contents of the files of a directory, in order; not those of subdirectories.
fn files(directory: &Path) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let list = std::fs::read_dir(directory)
        .with_context(|| format!("directory `{}`", directory.display()))?;
    let mut files = Vec::new();
    for entry in list {
        let path = entry?.path();
        let name = path.file_name().and_then(std::ffi::OsStr::to_str);
        if path.is_file() {
            let name = name.with_context(|| format!("`{}` is not UTF-8", path.display()))?;
            files.push((name.to_owned(), read(&path)?));
        }
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("file `{}`", path.display()))
}

fn text(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("file `{}`", path.display()))
}

fn output(binary: &Path, arguments: &[&str]) -> anyhow::Result<Vec<u8>> {
    let shown = binary.display();
    let output = Command::new(binary)
        .args(arguments)
        .output()
        .with_context(|| format!("program `{shown}` cannot be run"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{shown} {}` failed: {said}", arguments.join(" "));
    }
    Ok(output.stdout)
}

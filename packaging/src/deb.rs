//! The Debian package.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::archive::{self, Entry, Form};
use crate::{binary, contents};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What a package is made from.
#[derive(Clone, Copy, Debug)]
pub struct Deb<'a> {
    /// The source tree.
    pub root: &'a Path,
    /// The program.
    pub binary: &'a Path,
    /// Compression, from 1, fast, to 9, small.
    pub level: u32,
    /// Of every file in the package, in seconds since 1970.
    pub time: u64,
}

/// Builds the package in the directory `out`, and answers its path. The same input gives the same
/// bytes.
///
/// # Errors
/// When the program cannot be run or is none for Debian, or a file of the source tree is missing.
pub fn build(deb: &Deb<'_>, out: &Path) -> anyhow::Result<PathBuf> {
    let form = Form { time: deb.time, level: deb.level };
    let named = || format!("program `{}`", deb.binary.display());
    let program = std::fs::read(deb.binary).with_context(named)?;
    let architecture = binary::architecture(&program).with_context(named)?;
    let depends = binary::depends(&program).with_context(named)?;
    let entries = contents::all(deb.root, deb.binary, program, form)?;
    let control = control(architecture, &depends, &entries);
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", archive::tar_gz(&[Entry::file("control", control)], form)?),
        ("data.tar.gz", archive::tar_gz(&entries, form)?),
    ];
    std::fs::create_dir_all(out).with_context(|| format!("directory `{}`", out.display()))?;
    let path = out.join(format!("tollgate_{VERSION}_{architecture}.deb"));
    std::fs::write(&path, archive::ar(&members, form)?)
        .with_context(|| format!("package `{}`", path.display()))?;
    Ok(path)
}

fn control(architecture: &str, depends: &str, entries: &[Entry]) -> String {
    let kib = entries.iter().map(|entry| entry.size().div_ceil(1024)).sum::<usize>();
    format!(
        "Package: tollgate\n\
         Version: {VERSION}\n\
         Architecture: {architecture}\n\
         Maintainer: The Tollgate project <maintainers@tollgate.invalid>\n\
         Installed-Size: {kib}\n\
         Depends: {depends}\n\
         Recommends: fuse3\n\
         Section: admin\n\
         Priority: optional\n\
         Description: policy-enforced view of a directory at native speed\n \
         Lets code that is not fully trusted (an agent, a build, a CI job) work in a real\n \
         project tree, while keys stay unreadable, .env stays invisible and git's hooks stay\n \
         untouched. Reads and writes go by FUSE passthrough, where the kernel has it.\n \
         .\n \
         Mounting views as another user than root takes fusermount3 (package fuse3).\n"
    )
}

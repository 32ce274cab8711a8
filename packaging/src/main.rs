//! `cargo run -p packaging -- deb` and `cargo run -p packaging -- record`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::Parser;
use packaging::{Deb, build, record, svg};

/// Builds what Tollgate is delivered in.
#[derive(Debug, Parser)]
enum Cli {
    /// Build a Debian package, and print where it is
    Deb {
        /// The program; left out, a release build made now
        #[arg(long, value_name = "FILE")]
        binary: Option<PathBuf>,
        /// The directory for the package
        #[arg(long, value_name = "DIR", default_value = "target/packages")]
        out: PathBuf,
    },
    /// Record the demo as an animated SVG
    Record {
        /// The program; left out, a release build made now
        #[arg(long, value_name = "FILE")]
        binary: Option<PathBuf>,
        /// Where to write it
        #[arg(long, value_name = "FILE", default_value = "docs/demo.svg")]
        out: PathBuf,
    },
}

fn main() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let root = root.canonicalize().context("the source tree is gone")?;
    match Cli::parse() {
        Cli::Deb { binary, out } => {
            let binary = binary.map_or_else(|| release_build(&root), Ok)?;
            let deb = Deb { root: &root, binary: &binary, level: 9, time: time_of(&root) };
            println!("{}", build(&deb, &out)?.display());
        }
        Cli::Record { binary, out } => {
            let binary = binary.map_or_else(|| release_build(&root), Ok)?;
            // Without figures, which would be those of the machine and the moment.
            let arguments = ["demo", "--no-speed"];
            let lines = record(&binary, &arguments)?;
            let command = format!("tollgate {}", arguments.join(" "));
            std::fs::write(&out, svg(&command, &lines))
                .with_context(|| format!("`{}` cannot be written", out.display()))?;
        }
    }
    Ok(())
}

fn release_build(root: &Path) -> anyhow::Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["build", "--release", "--locked", "--package", "tollgate"];
    let status = Command::new(cargo).args(arguments).current_dir(root).status();
    if !status.context("cargo cannot be started")?.success() {
        bail!("the release build failed");
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    Ok(target.join("release/tollgate"))
}

/// The time of everything in the package, in seconds since 1970, so that the same sources give the
/// same package: `SOURCE_DATE_EPOCH`, else that of the commit, else 0.
fn time_of(root: &Path) -> u64 {
    let given = std::env::var("SOURCE_DATE_EPOCH").ok();
    let commit = || {
        let git =
            Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root).output();
        String::from_utf8(git.ok()?.stdout).ok()
    };
    given.or_else(commit).and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

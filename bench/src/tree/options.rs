//! The options of `bench tree` beyond those that all benchmarks share.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::harness::Options;

/// What is measured, and on what.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TreeOptions {
    /// Files in the tree of the walking programs [default: 12000, with --quick 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    files: Option<u32>,
    /// Parts to measure [default: walk,git,compile,operations,clients,idle; build with --build]
    #[arg(long = "part", value_name = "PART", value_enum, value_delimiter = ',')]
    parts: Vec<Part>,
    /// Columns to measure, by name, in this order; the base `bare` is always there
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(super) columns: Vec<String>,
    /// A further column: `tollgate mount ARGS`, or `BINARY mount ARGS` when the first word has a
    /// slash
    #[arg(long, value_name = "NAME=ARGS")]
    pub(super) add: Vec<String>,
    /// The same of an ordinary user, whose server has the broker
    #[arg(long, value_name = "NAME=ARGS")]
    pub(super) add_user: Vec<String>,
    /// A further column: another server, started as `COMMAND DIR MNT` and ended by unmounting
    #[arg(long, value_name = "NAME=COMMAND")]
    pub(super) server: Vec<String>,
    /// Where to make the files; its file system is the one that is measured [default: TMPDIR or
    /// /tmp]
    #[arg(long, value_name = "DIR")]
    pub(super) dir: Option<PathBuf>,
    /// Build the source tree DIR in each column (it is copied, and configured beforehand)
    #[arg(long, value_name = "DIR")]
    pub(super) build: Option<PathBuf>,
    /// The command that builds it, for `sh -c` [default: make -jCPUS]
    #[arg(long, value_name = "COMMAND", requires = "build")]
    pub(super) build_command: Option<String>,
    /// The command that undoes the build, for `sh -c`, outside of the measurement
    #[arg(long, value_name = "COMMAND", requires = "build", default_value = "make clean")]
    pub(super) build_clean: String,
    /// The package of this workspace that the part `cargo` builds
    #[arg(long, value_name = "PACKAGE", default_value = "tollgate")]
    pub(super) cargo_package: String,
}

/// A group of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// find by name, find, find again, grep -r, tar, cp -r, rm -rf
    Walk,
    /// git status
    Git,
    /// 200 processes of cc, also with the object directory native
    Compile,
    /// open+close with percentiles, create+close
    Operations,
    /// One, two and four clients at once
    Clients,
    /// Memory and CPU time of an idle mount, CPU time after a burst
    Idle,
    /// Walking beside as many computing processes as there are CPUs
    Busy,
    /// Walking trees of 1,000, 10,000 and 100,000 files
    Growth,
    /// cargo build of this workspace
    Cargo,
    /// The source tree given by --build
    Build,
}

const DEFAULT_PARTS: [Part; 6] =
    [Part::Walk, Part::Git, Part::Compile, Part::Operations, Part::Clients, Part::Idle];

impl Part {
    /// Whether its rows have columns of an ordinary user.
    pub(super) fn has_users(self) -> bool {
        matches!(self, Part::Walk | Part::Operations | Part::Busy)
    }
}

impl TreeOptions {
    /// Files of the walked tree.
    pub(super) fn files(&self, options: &Options) -> usize {
        self.files.map_or_else(|| options.pick(12_000, 1_000), |files| files as usize)
    }

    /// The parts to measure, in order.
    pub(super) fn parts(&self) -> Vec<Part> {
        match (self.parts.is_empty(), &self.build) {
            (false, _) => self.parts.clone(),
            (true, Some(_)) => vec![Part::Build],
            (true, None) => DEFAULT_PARTS.to_vec(),
        }
    }
}

//! The arguments of `tollgate redact`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use tollgate_redact::{Detector, OwnRegex};

pub(super) const REDACT_EXAMPLES: &str = "\
Examples:
  tollgate redact test config/app.yaml
  tollgate redact test --masked .env
  tollgate redact test --detector token --detector jwt --json server.log
  tollgate redact test --regex 'badge=\\bBDG-[0-9]{6}\\b' notes.md";

/// Secrets in files: what would be masked
#[derive(Debug, Subcommand)]
pub(crate) enum RedactCommand {
    /// Show what would be masked in FILE, and by which detector; secrets themselves are not printed
    #[command(after_long_help = REDACT_EXAMPLES)]
    Test(RedactTestArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RedactTestArgs {
    /// Only this detector (private-key, token, url-password, jwt, card, assigned, env), may be
    /// repeated; left out, all but `env`, which is added where the name of FILE begins with `.env`
    #[arg(long = "detector", value_name = "NAME")]
    pub(crate) detectors: Vec<Detector>,

    /// A regular expression of your own, with a name; may be repeated
    #[arg(long = "regex", value_name = "NAME=REGEX", value_parser = own_regex)]
    pub(crate) regexes: Vec<OwnRegex>,

    /// Print the masked text instead
    #[arg(long, conflicts_with = "json")]
    pub(crate) masked: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// The file to look at
    pub(crate) file: PathBuf,
}

fn own_regex(text: &str) -> Result<OwnRegex, String> {
    let (name, regex) =
        text.split_once('=').ok_or_else(|| format!("`{text}` has no `=`: write NAME=REGEX"))?;
    OwnRegex::new(name, regex).map_err(|error| error.to_string())
}

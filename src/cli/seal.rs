//! The arguments of `tollgate seal`.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args, Subcommand, ValueEnum};

pub(super) const SEAL_EXAMPLES: &str = "\
Examples:
  tollgate seal init ~/project
  tollgate seal convert --domain vault --dry-run vault/
  tollgate seal convert --domain vault vault/
  tollgate seal check --domain vault vault/
  tollgate seal add --name ci --new-key-file ci.key
  tollgate seal passwd
  tollgate seal rotate --domain vault
  tollgate seal export --domain vault --to /safe/place vault/plan.txt";

/// Files that are encrypted at rest: their keys, and the files themselves
#[derive(Debug, Subcommand)]
pub(crate) enum SealCommand {
    /// Make the keyring of DIR, with a first passphrase or key file that opens it
    #[command(after_long_help = "\
Examples:
  tollgate seal init ~/project
  tollgate seal init --new-key-file ~/project.key ~/project")]
    Init(SealInitArgs),
    /// Let another passphrase or key file open the keyring, or take one off
    #[command(after_long_help = "\
Examples:
  tollgate seal add --name ci --new-key-file ci.key
  tollgate seal add --remove ci")]
    Add(SealAddArgs),
    /// Change a passphrase; no file is touched
    #[command(after_long_help = "\
Examples:
  tollgate seal passwd
  tollgate seal passwd --name anna --new-passphrase-file new.txt")]
    Passwd(SealPasswdArgs),
    /// Make a new master key and seal all files anew; run it again if it was ended
    #[command(after_long_help = "\
Examples:
  tollgate seal rotate --domain vault ~/project")]
    Rotate(SealRotateArgs),
    /// Read all that is sealed and say what is damaged
    #[command(after_long_help = "\
Examples:
  tollgate seal check --domain vault vault/
  tollgate seal check --domain vault --json vault/plan.txt")]
    Check(SealCheckArgs),
    /// Encrypt plain files where they are, each as a whole or not at all
    #[command(after_long_help = "\
Examples:
  tollgate seal convert --domain vault --dry-run vault/
  tollgate seal convert --domain vault vault/ notes/private.md
  tollgate seal convert --policy policy.toml")]
    Convert(SealConvertArgs),
    /// Write plain copies of sealed files to another place
    #[command(after_long_help = "\
Examples:
  tollgate seal export --domain vault --to /safe/place vault/
  tollgate seal export --policy policy.toml --to /safe/place")]
    Export(SealExportArgs),
}

/// Which keyring, and what opens it.
#[derive(Debug, Args)]
pub(crate) struct SealKeyArgs {
    /// The directory with the keyring, .tollgate-seal
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) dir: PathBuf,

    #[command(flatten)]
    pub(crate) secret: SealSecretArgs,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What opens the keyring. Left out: $TOLLGATE_SEAL_KEY_FILE, $TOLLGATE_SEAL_PASSPHRASE_FILE, the
/// credential `tollgate-seal-key` or `tollgate-seal-passphrase` of systemd, then the terminal.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SealSecretArgs {
    /// Open the keyring with the bytes of FILE (at least 32)
    #[arg(
        long = "seal-key-file",
        visible_alias = "key-file",
        value_name = "FILE",
        conflicts_with = "passphrase_file"
    )]
    pub(crate) key_file: Option<PathBuf>,

    /// Open the keyring with the passphrase in FILE, without the end of line
    #[arg(long = "seal-passphrase-file", visible_alias = "passphrase-file", value_name = "FILE")]
    pub(crate) passphrase_file: Option<PathBuf>,
}

/// What shall open the keyring from now on.
#[derive(Debug, Args)]
pub(crate) struct SealNewArgs {
    /// The new key file; made with 64 random bytes if it does not exist
    #[arg(long, value_name = "FILE", conflicts_with = "new_passphrase_file")]
    pub(crate) new_key_file: Option<PathBuf>,

    /// Take the new passphrase from FILE, without the end of line
    #[arg(long, value_name = "FILE")]
    pub(crate) new_passphrase_file: Option<PathBuf>,

    /// Memory in MiB that each guess at the new passphrase shall take (Argon2id, 3 passes)
    #[arg(long, value_name = "MIB", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub(crate) memory_mib: u32,
}

#[derive(Debug, Args)]
pub(crate) struct SealInitArgs {
    /// The directory whose files are to be sealed
    #[arg(default_value = ".")]
    pub(crate) dir: PathBuf,

    /// The name of the first recipient
    #[arg(long, default_value = "owner")]
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) new: SealNewArgs,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SealAddArgs {
    #[command(flatten)]
    pub(crate) key: SealKeyArgs,

    /// The name of the new recipient
    #[arg(long, required_unless_present = "remove")]
    pub(crate) name: Option<String>,

    /// Take this recipient off instead; whoever could open the keyring may have kept its key
    #[arg(long, value_name = "NAME",
          conflicts_with_all = ["name", "new_key_file", "new_passphrase_file"])]
    pub(crate) remove: Option<String>,

    #[command(flatten)]
    pub(crate) new: SealNewArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SealPasswdArgs {
    #[command(flatten)]
    pub(crate) key: SealKeyArgs,

    /// Whose passphrase; left out, the recipient's that the passphrase given opens
    #[arg(long)]
    pub(crate) name: Option<String>,

    #[command(flatten)]
    pub(crate) new: SealNewArgs,
}

/// Which files.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("which").required(true).args(["domain", "policy"])))]
pub(crate) struct SealFilesArgs {
    /// The domain that the files are bound to, as in the `seal` rule of the policy
    #[arg(
        long,
        value_name = "NAME",
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub(crate) domain: Option<String>,

    /// Take the files that this policy seals, each for the domain of its rule: a file or a preset
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Option<PathBuf>,

    /// Files, and directories with all that is below them; left out, the directory of the keyring,
    /// but for `convert --domain`, which wants them named
    pub(crate) paths: Vec<PathBuf>,

    /// Whether to show how far it is
    #[arg(long, value_enum, default_value_t = ProgressArg::Auto, value_name = "WHEN")]
    pub(crate) progress: ProgressArg,
}

/// `--progress`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressArg {
    /// On a terminal
    Auto,
    /// Never
    Off,
}

#[derive(Debug, Args)]
pub(crate) struct SealRotateArgs {
    #[command(flatten)]
    pub(crate) key: SealKeyArgs,

    #[command(flatten)]
    pub(crate) files: SealFilesArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SealCheckArgs {
    #[command(flatten)]
    pub(crate) key: SealKeyArgs,

    #[command(flatten)]
    pub(crate) files: SealFilesArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SealConvertArgs {
    #[command(flatten)]
    pub(crate) key: SealKeyArgs,

    #[command(flatten)]
    pub(crate) files: SealFilesArgs,

    /// Say what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SealExportArgs {
    #[command(flatten)]
    pub(crate) key: SealKeyArgs,

    #[command(flatten)]
    pub(crate) files: SealFilesArgs,

    /// The directory for the plain copies; made if it does not exist
    #[arg(long, value_name = "DEST")]
    pub(crate) to: PathBuf,
}

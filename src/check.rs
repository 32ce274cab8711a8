//! `tollgate check`.

use crate::cli::CheckArgs;
use crate::policy_file;

/// Reads a policy; prints its warnings and what it amounts to.
///
/// # Errors
/// With file, line and column of what is wrong.
pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<()> {
    let policy = policy_file::load(&args.policy)?;
    let rules = policy.rules().len();
    let words = if rules == 1 { "1 rule".to_owned() } else { format!("{rules} rules") };
    println!(
        "{}: {words}, default {}, {} warnings",
        args.policy.display(),
        policy.default_action(),
        policy.warnings().len()
    );
    Ok(())
}

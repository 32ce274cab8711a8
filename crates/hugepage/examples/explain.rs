//! Measures this machine and prints the samples and the plan.

use tollgate_hugepage::tune::{TuneOptions, explain};

fn main() -> Result<(), tollgate_hugepage::Error> {
    print!("{}", explain(&TuneOptions::uncached())?);
    Ok(())
}

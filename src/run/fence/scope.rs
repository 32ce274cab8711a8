//! Signals and abstract Unix sockets: no namespace that CMD is in keeps them apart. A process group
//! spans pid namespaces, and abstract names belong to the network, which CMD shares.

use landlock::{
    ABI, Access, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
    Scope,
};

/// From now on, this process and what it starts reach each other only. `false` where the kernel
/// does not have that (Linux 6.12 and later do).
///
/// # Errors
/// The error of Landlock.
pub(crate) fn confine_signals_and_sockets() -> anyhow::Result<bool> {
    let scopes = Scope::from_all(ABI::V6);
    let ruleset =
        Ruleset::default().set_compatibility(CompatLevel::BestEffort).scope(scopes)?.create()?;
    // CMD holds every capability in its user namespace, so that programs may change users.
    let status = ruleset.no_new_privs(false).restrict_self()?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

//! Two policies as one: rules in front of others, and two that hold together.

use std::collections::HashSet;

use crate::limits::{MAX_HELD, MAX_RULES};
use crate::policy::{Policy, Second};
use crate::rule::Rule;
use crate::words::Action;

impl Policy {
    /// The same policy with the rules of `front` before its own, so that those are tried first. The
    /// default stays, and so do the warnings, those of `front` first. Lines in explanations are
    /// those of the text that each rule came from.
    ///
    /// `None` if a rule of `front` could reach into a native directory, or if there were more rules
    /// than [`MAX_RULES`] and [`crate::MAX_PRECEDING`] together.
    #[must_use]
    pub fn preceded_by(self, front: Self) -> Option<Self> {
        let reaches = |path: &str| {
            let mut globs = front.rules.iter().flat_map(|rule| &rule.globs);
            globs.any(|glob| glob.reaches_into(path.as_bytes()))
        };
        if front.rules.len() + self.rules.len() > MAX_HELD
            || self.native().iter().any(|native| reaches(&native.path))
        {
            return None;
        }
        let added = front.rules.len();
        let rules = front.rules.into_iter().chain(self.rules).collect();
        let warnings = front.warnings.into_iter().chain(self.warnings).collect();
        let audits_default = self.audits_default;
        let second = self.second.map(|second| Second { from: second.from + added, ..second });
        let mut policy = Self::new(self.default, rules, warnings).with_second(second);
        policy.audits_default = audits_default;
        Some(policy)
    }
}

/// Why two policies cannot hold together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotJoin {
    /// What is native is not asked about, so that the other policy could not hold there.
    #[error(
        "rule `{native}` makes `{directory}` native, where nobody is asked, and {other} of the other \
         policy would not hold in it"
    )]
    Native {
        /// The directory.
        directory: String,
        /// The rule that makes it so.
        native: String,
        /// What does not fit: a rule with its name, or the default.
        other: String,
    },
    /// What is sealed would be judged by what lies below, which is encrypted.
    #[error(
        "rule `{seal}` seals files that rule `{rule}` of the other policy may judge by content or size, \
         and below they are encrypted; write both rules into one policy, with `{seal}` first"
    )]
    Sealed {
        /// The rule that seals.
        seal: String,
        /// The rule that looks at them.
        rule: String,
    },
    /// Too many rules.
    #[error("the two policies have more than {MAX_RULES} rules together")]
    TooManyRules,
}

impl Policy {
    /// Both policies at once: each is asked, and the stricter answer holds. So neither can allow
    /// what the other refuses. Rules of `other` whose names are taken get `suffix` after them.
    ///
    /// # Errors
    /// A directory is native in one and not left alone by the other; one judges by content or size what
    /// the other may seal; there are too many rules.
    ///
    /// # Panics
    /// If one of them was joined before.
    pub fn joined(self, mut other: Self, suffix: &str) -> Result<Self, CannotJoin> {
        assert!(self.second.is_none() && other.second.is_none(), "two policies, not three");
        if self.rules.len() + other.rules.len() > MAX_RULES {
            return Err(CannotJoin::TooManyRules);
        }
        leaves_native_alone(&self, &other)?;
        leaves_native_alone(&other, &self)?;
        leaves_sealed_alone(&self, &other)?;
        leaves_sealed_alone(&other, &self)?;
        let mut taken: HashSet<_> = self.rules.iter().map(|rule| rule.name.clone()).collect();
        for rule in &mut other.rules {
            while !suffix.is_empty() && taken.contains(&rule.name) {
                rule.name.push_str(suffix);
            }
            taken.insert(rule.name.clone());
        }
        let second = Second {
            from: self.rules.len(),
            default: other.default,
            audits_default: other.audits_default,
        };
        let audits_default = self.audits_default;
        let rules = self.rules.into_iter().chain(other.rules).collect();
        let warnings = self.warnings.into_iter().chain(other.warnings).collect();
        let mut policy = Self::new(self.default, rules, warnings).with_second(Some(second));
        policy.audits_default = audits_default;
        Ok(policy)
    }
}

/// Whether `other` judges nothing by content or size that `policy` may seal.
fn leaves_sealed_alone(policy: &Policy, other: &Policy) -> Result<(), CannotJoin> {
    for seal in policy.rules.iter().filter(|rule| rule.action == Action::Seal) {
        if let Some(rule) = other.rules.iter().find(|rule| rule.judges_what_is_sealed_by(seal)) {
            let (seal, rule) = (seal.name.clone(), rule.name.clone());
            return Err(CannotJoin::Sealed { seal, rule });
        }
    }
    Ok(())
}

/// Whether `other` says nothing about the native directories of `policy`.
fn leaves_native_alone(policy: &Policy, other: &Policy) -> Result<(), CannotJoin> {
    let restricts = |action: Action| !matches!(action, Action::Passthrough | Action::Native);
    for native in policy.native() {
        let reaches = |rule: &&Rule| {
            restricts(rule.action)
                && rule.globs.iter().any(|glob| glob.reaches_into(native.path.as_bytes()))
        };
        let found = match other.rules.iter().find(reaches) {
            Some(rule) => format!("rule `{}`", rule.name),
            None if restricts(other.default) => format!("the default `{}`", other.default),
            None => continue,
        };
        return Err(CannotJoin::Native {
            directory: native.path,
            native: policy.rule(native.rule).name.clone(),
            other: found,
        });
    }
    Ok(())
}

//! Files whose bytes the view makes: what the rules say about an inode under the names it has.

use std::sync::Arc;

use crate::facts::InodeFacts;
use crate::matched::{Decision, Matched};
use crate::policy::{Part, Policy};
use crate::redaction::Redaction;
use crate::rule::{Holds, Rule};
use crate::words::{Action, Kind, Mode, Operation, Verdict};

/// What the rules say about the bytes of an inode, for the names that it has.
#[derive(Clone, Debug, Default)]
pub struct Made {
    /// What is masked by each rule that has a say. All of them hold.
    pub redactions: Vec<Arc<Redaction>>,
    /// What the file is bound to, each once. More than one is a contradiction: the file must not
    /// be opened then.
    pub domains: Vec<Arc<str>>,
}

impl Made {
    /// Whether the same bytes come of both: each masks what the other does, and both are bound to
    /// the same.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        let covered = |one: &Self, by: &Self| {
            let by_some = |redaction: &Arc<Redaction>| {
                by.redactions.iter().any(|other| other.covers(redaction))
            };
            one.redactions.iter().all(by_some)
        };
        self.domains == other.domains && covered(self, other) && covered(other, self)
    }

    /// Whether no bytes are those that all the rules ask for: masked and sealed, or bound to two domains.
    #[must_use]
    pub fn is_contradictory(&self) -> bool {
        self.domains.len() + usize::from(!self.redactions.is_empty()) > 1
    }

    fn add(&mut self, rule: &Rule) {
        if let Some(one) = &rule.redaction
            && !self.redactions.iter().any(|known| Arc::ptr_eq(known, one))
        {
            self.redactions.push(Arc::clone(one));
        }
        if let Some(domain) = &rule.domain
            && !self.domains.contains(domain)
        {
            self.domains.push(Arc::clone(domain));
        }
    }
}

impl Policy {
    /// Whether some rule has the view make the bytes of files ([`Mode::is_made`]).
    #[must_use]
    pub fn makes_bytes(&self) -> bool {
        self.rules.iter().any(|rule| rule.action.mode().is_some_and(Mode::is_made))
    }

    /// Whether the bytes of some files go through the view: they are made there, or only looked at
    /// ([`Mode::Userspace`]).
    #[must_use]
    pub fn takes_bytes(&self) -> bool {
        let takes = |action: Action| action.mode().is_some_and(|mode| mode != Mode::Passthrough);
        self.parts().any(|part| takes(part.default))
            || self.rules.iter().any(|rule| takes(rule.action))
    }

    /// Whether some rule seals files: their lower size is not the one to show.
    #[must_use]
    pub fn seals(&self) -> bool {
        self.rules.iter().any(|rule| rule.domain.is_some())
    }

    /// Adds what any rule says about the bytes of an inode that may have any name.
    pub fn made_anywhere(&self, facts: &InodeFacts<'_>, made: &mut Made) {
        let speaks = |rule: &&Rule| rule.holds_for_inode(facts) != Holds::No;
        self.rules.iter().filter(speaks).for_each(|rule| made.add(rule));
    }
}

impl<'p> Matched<'p> {
    /// Adds what the rules on this path say about the inode's bytes.
    pub fn made(&self, facts: &InodeFacts<'_>, made: &mut Made) {
        for part in self.policy.parts() {
            self.settling(part, facts).rules.into_iter().for_each(|rule| made.add(rule));
        }
    }

    /// No bytes are those that both of two policies ask for: masked and sealed, or bound to two domains.
    pub(crate) fn made_in_two_ways(&self, facts: &InodeFacts<'_>) -> Option<Decision> {
        if self.policy.second.is_none() || facts.kind != Kind::File {
            return None;
        }
        let (mode, rule) = self.mode(facts);
        if !mode.is_made() {
            return None;
        }
        let mut made = Made::default();
        self.made(facts, &mut made);
        made.is_contradictory().then_some(Decision { verdict: Verdict::Deny, rule })
    }

    /// A file that is larger than its rules say is not shown.
    pub(crate) fn too_large_to_redact(
        &self,
        facts: &InodeFacts<'_>,
        operation: Operation,
    ) -> Option<Decision> {
        let is_read = operation == Operation::Read && facts.kind == Kind::File;
        if !is_read || !self.policy.can_redact() {
            return None;
        }
        let (mode, rule) = self.mode(facts);
        let up_to = || self.redacted_up_to(facts);
        let is_too_large = mode == Mode::Redacted && up_to().is_some_and(|max| facts.size > max);
        is_too_large.then_some(Decision { verdict: Verdict::Deny, rule })
    }

    /// The most bytes that a file may have which is shown masked.
    pub(crate) fn redacted_up_to(&self, facts: &InodeFacts<'_>) -> Option<u64> {
        let mut made = Made::default();
        self.made(facts, &mut made);
        made.redactions.iter().map(|redaction| redaction.max_size()).min()
    }

    /// The rules of one part of which one settles the I/O mode.
    fn settling(&self, part: Part, facts: &InodeFacts<'_>) -> Settling<'p> {
        let mut settling = Settling { rules: Vec::new(), may_be_default: true };
        for (_, rule, holds) in self.inode_rules(part, facts) {
            if rule.asks_for_mode().is_some() {
                settling.rules.push(rule);
                settling.may_be_default = holds != Holds::Yes;
            }
            if !settling.may_be_default {
                break;
            }
        }
        settling
    }

    /// Whether the bytes would be masked less, or bound to something else, under the rules `to`. A
    /// file that is sealed, or not, stays so: its lower bytes are one or the other.
    pub(crate) fn is_made_otherwise(
        &self,
        part: Part,
        before: &InodeFacts<'_>,
        to: &Matched<'_>,
        after: &InodeFacts<'_>,
    ) -> bool {
        if !matches!(before.kind, Kind::File | Kind::Directory) {
            return false;
        }
        let (old, new) = (self.settling(part, before), to.settling(part, after));
        let masks_less = |one: &Rule, other: &Rule| match (&one.redaction, &other.redaction) {
            (Some(one), Some(other)) => !other.covers(one),
            _ => false,
        };
        let (old_domains, new_domains) = (old.domains(), new.domains());
        old_domains.iter().any(|one| new_domains.iter().any(|other| one != other))
            || old.rules.iter().any(|one| new.rules.iter().any(|other| masks_less(one, other)))
    }
}

/// Rules of which one settles how the bytes of an inode travel.
struct Settling<'p> {
    rules: Vec<&'p Rule>,
    /// None of them is known to hold.
    may_be_default: bool,
}

impl Settling<'_> {
    /// What the inode may be bound to; `None` is not sealed.
    fn domains(&self) -> Vec<Option<&str>> {
        let of_rules = self.rules.iter().map(|rule| rule.domain.as_deref());
        of_rules.chain(self.may_be_default.then_some(None)).collect()
    }
}

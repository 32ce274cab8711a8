//! Whether another name would make an inode weaker.
//!
//! A decision belongs to the inode, not to its name. Before a rename or a link, the view asks
//! whether any caller could get more under the new name. The answer is exact where the rules that
//! match are for everyone, and on the safe side where they look at callers: "yes" may be wrong,
//! "no" never is.

use crate::facts::InodeFacts;
use crate::glob::TwoPaths;
use crate::matched::Matched;
use crate::policy::{Part, Policy};
use crate::rule::{CallerCondition, Content, Holds, Rule};
use crate::words::{Kind, Mode, Operation, Verdict};

/// Up to this many rules for a name are compared pair by pair; with more, the strictest answer of
/// the old name is compared with the laxest of the new.
const MAX_PAIRWISE: usize = 32;

/// The verdicts or modes there may be, from lax to strict: the first entry whose condition holds
/// says it. The last has no condition.
type Outcomes<'p, A> = Vec<Outcome<'p, A>>;

#[derive(Clone, Copy)]
struct Outcome<'p, A> {
    answer: A,
    caller: Option<&'p CallerCondition>,
    /// A content condition that could not be judged.
    content: Option<&'p Content>,
}

impl<A> Outcome<'_, A> {
    /// Whether this condition holds wherever that of `other` does.
    fn follows_from(&self, other: &Self) -> bool {
        let caller = self.caller.is_none() || self.caller == other.caller;
        let content = match (self.content, other.content) {
            (None, _) => true,
            (Some(one), Some(other)) => std::ptr::eq(one, other),
            (Some(_), None) => false,
        };
        caller && content
    }

    fn excludes(&self, other: &Self) -> bool {
        matches!((self.caller, other.caller), (Some(one), Some(other)) if one.excludes(other))
    }
}

impl Matched<'_> {
    /// Whether any caller could get more on any operation, or the inode a laxer mode, if the inode
    /// `before`, covered by these rules, became `after`, covered by the rules `to` (of another
    /// path, the same contents). Never wrongly `false`.
    #[must_use]
    pub fn weakens(
        &self,
        before: &InodeFacts<'_>,
        to: &Matched<'_>,
        after: &InodeFacts<'_>,
    ) -> bool {
        debug_assert!(std::ptr::eq(self.policy, to.policy), "rules of one policy are compared");
        // Where neither of two policies gives more, the stricter of their answers does not either.
        self.policy.parts().any(|part| self.weakens_by(part, before, to, after))
    }

    fn weakens_by(
        &self,
        part: Part,
        before: &InodeFacts<'_>,
        to: &Matched<'_>,
        after: &InodeFacts<'_>,
    ) -> bool {
        // An inode whose bytes the server has to see must not become one that the kernel shows.
        let laxer_mode = may_get_more(&self.modes(part, before), &to.modes(part, after));
        let relevant = |operation: &Operation| {
            *operation != Operation::List
                || before.kind == Kind::Directory
                || after.kind == Kind::Directory
        };
        laxer_mode
            || self.policy.makes_bytes() && self.is_made_otherwise(part, before, to, after)
            || Operation::ALL.into_iter().filter(relevant).any(|operation| {
                let (old, new) =
                    (self.outcomes(part, before, operation), to.outcomes(part, after, operation));
                may_get_more(&old, &new)
            })
    }

    /// The modes that an inode may have, as far as it is known.
    fn modes(&self, part: Part, facts: &InodeFacts<'_>) -> Outcomes<'_, Mode> {
        let mut outcomes = Vec::new();
        for (_, rule, holds) in self.inode_rules(part, facts) {
            let Some(answer) = rule.asks_for_mode() else { continue };
            let content = rule.content.as_ref().filter(|_| holds == Holds::Maybe);
            outcomes.push(Outcome { answer, caller: None, content });
            if content.is_none() {
                return outcomes;
            }
        }
        outcomes.push(Outcome { answer: part.default_mode(), caller: None, content: None });
        outcomes
    }

    fn outcomes(
        &self,
        part: Part,
        facts: &InodeFacts<'_>,
        operation: Operation,
    ) -> Outcomes<'_, Verdict> {
        let all = |answer| Outcome { answer, caller: None, content: None };
        if self.hidden_by(part, facts.kind).is_some() {
            return vec![all(Verdict::Hide)];
        }
        let mut outcomes = Vec::new();
        for (_, rule, holds) in self.inode_rules(part, facts) {
            if !rule.operations.has(operation) {
                continue;
            }
            let content = rule.content.as_ref().filter(|_| holds == Holds::Maybe);
            let caller = rule.caller.as_ref();
            outcomes.push(Outcome { answer: rule.action.verdict(operation), caller, content });
            if caller.is_none() && content.is_none() {
                return outcomes;
            }
        }
        outcomes.push(all(part.default.verdict(operation)));
        outcomes
    }
}

impl Policy {
    /// Whether it can be proved that no path below a directory gets another decision when the
    /// directory moves: every rule matches the same paths below `from_dir` and below `to_dir`.
    pub fn subtree_move_is_neutral(&self, from_dir: &[u8], to_dir: &[u8]) -> bool {
        let dirs = TwoPaths::new(from_dir, to_dir);
        self.is_trivial() || self.rules.iter().all(|rule| same_below(rule, &dirs))
    }
}

/// Whether some caller may get a laxer answer from `to` than from `from`.
fn may_get_more<A: Copy + Ord>(from: &[Outcome<'_, A>], to: &[Outcome<'_, A>]) -> bool {
    let pairs = || from.iter().zip(to);
    let same = |(one, other): (&Outcome<'_, A>, &Outcome<'_, A>)| {
        one.answer == other.answer && one.follows_from(other) && other.follows_from(one)
    };
    if from.len() == to.len() && pairs().all(same) {
        return false;
    }
    if from.len().max(to.len()) > MAX_PAIRWISE {
        let strictest = from.iter().map(|one| one.answer).max();
        return to.iter().map(|one| one.answer).min() < strictest;
    }
    from.iter().enumerate().any(|(old, before)| {
        to.iter().enumerate().any(|(new, after)| {
            after.answer < before.answer && is_possible(&from[..old], before, &to[..new], after)
        })
    })
}

/// Whether a caller may exist for whom `before` and `after` are each the first that holds.
fn is_possible<A>(
    from_earlier: &[Outcome<'_, A>],
    before: &Outcome<'_, A>,
    to_earlier: &[Outcome<'_, A>],
    after: &Outcome<'_, A>,
) -> bool {
    let earlier = || from_earlier.iter().chain(to_earlier);
    !before.excludes(after)
        && !earlier().any(|one| one.follows_from(before) || one.follows_from(after))
}

/// Whether `rule` matches the same paths below both directories.
fn same_below(rule: &Rule, dirs: &TwoPaths<'_>) -> bool {
    let (mut covered, mut same) = ([false; 2], true);
    for glob in &rule.globs {
        let states = glob.states_below(dirs);
        for (covered, states) in covered.iter_mut().zip(states) {
            *covered |= glob.is_end(states);
        }
        same &= states[0] == states[1];
    }
    covered[0] == covered[1] && (covered[0] || same)
}

//! Braces spread out: a glob for each choice of alternatives.

use super::component::Token;
use crate::limits::MAX_SPREAD;

/// Most globs that the braces of one glob may stand for.
pub(super) const MAX_ALTERNATIVES: usize = 256;

/// One element of a glob's text, braces spread out.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Atom {
    pub(super) offset: usize,
    pub(super) sort: Sort,
}

impl Atom {
    fn weight(&self) -> usize {
        match &self.sort {
            Sort::Class(class) => class.weight(),
            Sort::Char(_) | Sort::One | Sort::Star | Sort::Slash => 1,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Sort {
    Char(char),
    One,
    Star,
    Class(Token),
    Slash,
}

/// The same with braces.
pub(super) enum Node {
    Atom(Atom),
    Braces(Vec<Vec<Node>>),
}

/// What braces stand for is too much.
pub(super) enum TooMuch {
    /// More than [`MAX_ALTERNATIVES`].
    Alternatives,
    /// Together longer than [`MAX_SPREAD`].
    Characters,
}

/// The ways to read `nodes`. None is made before it is known that all are short enough.
pub(super) fn spread(nodes: &[Node]) -> Result<Vec<Vec<Atom>>, TooMuch> {
    let mut all = vec![Vec::new()];
    let mut weight = 0;
    for node in nodes {
        match node {
            Node::Atom(atom) => {
                weight += all.len() * atom.weight();
                check_spread(all.len(), weight)?;
                all.iter_mut().for_each(|one| one.push(atom.clone()));
            }
            Node::Braces(choices) => {
                let (mut tails, mut of_tails) = (Vec::new(), 0);
                for choice in choices {
                    let more = spread(choice)?;
                    of_tails += more.iter().flatten().map(Atom::weight).sum::<usize>();
                    tails.extend(more);
                    check_spread(all.len() * tails.len(), of_tails)?;
                }
                weight = weight * tails.len() + of_tails * all.len();
                check_spread(all.len() * tails.len(), weight)?;
                all = all
                    .iter()
                    .flat_map(|head| tails.iter().map(move |tail| [&head[..], &tail[..]].concat()))
                    .collect();
            }
        }
    }
    Ok(all)
}

/// Whether so many alternatives of this weight together are too much.
fn check_spread(alternatives: usize, weight: usize) -> Result<(), TooMuch> {
    if alternatives > MAX_ALTERNATIVES {
        return Err(TooMuch::Alternatives);
    }
    if weight > MAX_SPREAD { Err(TooMuch::Characters) } else { Ok(()) }
}

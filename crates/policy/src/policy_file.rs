//! What a policy file says besides the policy of DIR.

use crate::policy::Policy;

/// A whole policy file.
#[derive(Debug)]
pub struct PolicyFile {
    /// The policy of DIR.
    pub policy: Policy,
    /// Further directories with policies of their own, in file order.
    pub views: Vec<ViewEntry>,
}

/// A `[[view]]` of a policy file.
#[derive(Debug)]
pub struct ViewEntry {
    /// The directory, as it is written: an absolute path, `~`, or a path that begins with `~/`.
    /// It has no `..` in it.
    pub dir: String,
    /// The line of its header, from 1.
    pub line: usize,
    /// The column of its header in characters, from 1.
    pub column: usize,
    /// What holds there.
    pub policy: Policy,
}

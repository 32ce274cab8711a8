//! What a policy may be at most.

/// Most rules in a policy, or in two that hold together.
pub const MAX_RULES: usize = 4096;
/// Most rules that may come before those of a policy ([`crate::Policy::preceded_by`]), so that who
/// enforces one with as many rules as it may have can add some.
pub const MAX_PRECEDING: usize = 64;
/// Most rules in all; a set of them is a fixed array of this many bits.
pub(crate) const MAX_HELD: usize = MAX_RULES + MAX_PRECEDING;
/// Longest policy in bytes.
pub const MAX_TEXT_LEN: usize = 4 << 20;
/// Most globs in a policy, braces spread out.
pub const MAX_GLOBS: usize = 1 << 16;
/// Longest glob in bytes: no path that a program may name is that long.
pub const MAX_GLOB_LEN: usize = 64 << 10;
/// What one glob may stand for with its braces spread out, in characters and ranges of classes.
pub const MAX_SPREAD: usize = 1 << 20;
/// The same for all globs of a policy together.
pub const MAX_SPREAD_IN_ALL: usize = 4 << 20;
/// What the regular expressions of a policy may take together in bytes, compiled.
pub const MAX_REGEXES_LEN: usize = 256 << 20;
/// Most directories that are native: each is a mount.
pub const MAX_NATIVE: usize = 64;
/// Most regular expressions of one `redact` rule.
pub const MAX_REGEXES: usize = 64;
/// Longest `domain` of a `seal` rule in bytes.
pub const MAX_DOMAIN_LEN: usize = 255;
/// How many bytes from the start of a file a content condition sees.
pub const HEAD_LEN: usize = 64 << 10;
/// Most views that a policy file has besides that of DIR.
pub const MAX_VIEWS: usize = 8;

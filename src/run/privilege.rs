//! How far a user's privilege goes.

/// How far this user's privilege goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Privilege {
    /// May mount in the user namespace it was started in.
    Mounter,
    /// May mount only in a user namespace of its own.
    User,
}

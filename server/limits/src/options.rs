//! The options of a limit: its decision without the owner of a key, and the form of a refusal.
//!
//! Not here: reading them (`file`).

/// The decision for a key while its owner is unreachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnUnavailable {
    /// The asked node decides by a count of its own.
    #[default]
    Local,
    /// Every attempt is allowed.
    Allow,
    /// Every attempt is denied.
    Deny,
    /// The reply is an error.
    Error,
}

impl OnUnavailable {
    /// The values in the limits file and of the flag.
    pub const ALL: [(&str, Self); 4] = [
        ("local", Self::Local),
        ("allow", Self::Allow),
        ("deny", Self::Deny),
        ("error", Self::Error),
    ];
}

/// The form in which the meta verbs report a denied attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Deny {
    /// With a number, like `incr`.
    #[default]
    Count,
    /// With `NS`.
    Ns,
}

impl Deny {
    /// The values in the limits file.
    pub(super) const ALL: [(&str, Self); 2] = [("count", Self::Count), ("ns", Self::Ns)];
}

//! The name of an override in force: its origin and its number.
//!
//! Not here: the tables of each origin (`overrides`).

/// The origin of an override. In this order they apply to a key: the first one that has an override
/// of it wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OverrideSource {
    /// Set by an operator or a program while the server runs.
    Api,
    /// Written in the limit itself.
    Inline,
    /// Read from the limit's `overrides_file`.
    File,
    /// Written in the limit with `where`. It has no table of keys.
    Where,
}

impl OverrideSource {
    /// The origins that have a table of keys.
    pub(super) const ALL: [Self; 3] = [Self::Api, Self::Inline, Self::File];

    /// Returns the word for the origin.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Inline => "inline",
            Self::File => "file",
            Self::Where => "where",
        }
    }
}

/// An override in force: its origin, and its number in the table of this origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverrideId {
    /// The origin.
    pub source: OverrideSource,
    /// The number, from 0.
    pub index: u32,
}

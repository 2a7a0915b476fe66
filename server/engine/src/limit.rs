//! What every limiting algorithm is asked and answers.
//!
//! Here: the question, the decision, and the one match over algorithms. Each algorithm is a file of
//! `limit/`: pure arithmetic in integers on a small run of bytes, its state. Not here: where states
//! lie (`store`), when they go, what a verdict looks like on the wire (`protocol`).
//!
//! A state is empty for a key never seen, and an idle state (bucket full, window empty) means the
//! same as an empty one: that is how memory is bounded.

/// What a caller wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Units, 0 to [`protocol::COUNT_MAX`].
    pub cost: u64,
    /// Take what there is when the whole cost is not there.
    pub part: bool,
    /// Look, change nothing.
    pub peek: bool,
    /// Refused attempts count too (the policy's `over`).
    pub over: bool,
    /// The caller's own bound on a wait, in nanoseconds; the policy's holds where it is shorter.
    pub wait: Option<u64>,
    /// How long a hold lasts in nanoseconds, where the caller says so. Only `concurrency`.
    pub hold: Option<u64>,
    /// The hash of the key, for what is spread over keys (`phase=auto`).
    pub hash: u64,
}

/// How it was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// All of the cost was taken.
    Allow,
    /// Nothing was taken.
    Deny,
    /// All of the cost was taken, and the caller is to wait before going on.
    Wait,
    /// A part of the cost was taken.
    Part,
}

/// The answer to an [`Ask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// How it was decided.
    pub verdict: Verdict,
    /// The limit: capacity, units per window, most holders.
    pub limit: u64,
    /// Units left to take at this instant, rounded down; 0 while something is owed.
    pub remaining: u64,
    /// Usage after the decision, rounded up: `limit − remaining` for a bucket, the weighted count
    /// of a window, the level, the holders. Above `limit` only where something is owed or `over`
    /// counted refused attempts.
    pub used: u64,
    /// Units taken.
    pub granted: u64,
    /// Deny: nanoseconds until the same cost passes if nobody else calls, `None` for never. Wait:
    /// nanoseconds to wait before going on. Otherwise 0.
    pub retry: Option<u64>,
    /// Nanoseconds until the state is idle if nobody else calls.
    pub reset: u64,
    /// Whether the state was changed.
    pub changed: bool,
    /// The lease of a hold (`concurrency`).
    pub lease: Option<u64>,
}

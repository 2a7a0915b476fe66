//! A value of a limits file with its line, for errors.

/// A value and its line.
#[derive(Debug, Clone)]
pub(super) struct WithLine<T> {
    pub(super) value: T,
    pub(super) line: usize,
}

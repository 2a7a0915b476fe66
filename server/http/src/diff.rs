//! The lines by which two texts differ.

use std::time::Duration;

use similar::{ChangeTag, TextDiff};

/// A line of the older text, the newer one, or both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DiffLine {
    /// `+`, `-` or a blank.
    pub(crate) sign: char,
    pub(crate) text: String,
}

impl DiffLine {
    /// Returns the class of the line's look.
    pub(crate) fn class(&self) -> &'static str {
        match self.sign {
            '+' => "added",
            '-' => "gone",
            _ => "kept",
        }
    }
}

/// Compares two texts line by line. After `time_max` the comparison is coarser.
pub(crate) fn lines(old: &str, new: &str, time_max: Duration) -> Vec<DiffLine> {
    let diff = TextDiff::configure().timeout(time_max).diff_lines(old, new);
    let line = |change: similar::Change<&str>| DiffLine {
        sign: match change.tag() {
            ChangeTag::Delete => '-',
            ChangeTag::Insert => '+',
            ChangeTag::Equal => ' ',
        },
        text: change.value().trim_end_matches(['\r', '\n']).to_owned(),
    };
    diff.iter_all_changes().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_lines_carry_a_sign() {
        let text = |old, new| {
            let lines = lines(old, new, Duration::from_secs(1))
                .into_iter()
                .map(|line| format!("{}{}", line.sign, line.text));
            lines.collect::<Vec<_>>().join("|")
        };
        assert_eq!(text("a\nb\n", "a\nc\n"), " a|-b|+c");
        assert_eq!(text("", "a"), "+a");
        assert_eq!(text("a\r\n", ""), "-a");
    }
}

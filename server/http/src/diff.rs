//! The lines by which two texts differ.

use std::time::{Duration, Instant};

use similar::ChangeTag;
use similar::algorithms::{Capture, Compact, Replace, myers};

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
    let old: Vec<&str> = old.split_inclusive('\n').collect();
    let new: Vec<&str> = new.split_inclusive('\n').collect();
    let mut found = Compact::new(Replace::new(Capture::new()), &old, &new);
    let deadline = Some(Instant::now() + time_max);
    // `TextDiff` would compile all algorithms, a quarter of a megabyte.
    let Ok(()) = myers::diff_deadline(&mut found, &old, 0..old.len(), &new, 0..new.len(), deadline);
    let changes = found.into_inner().into_inner().into_ops();
    let line = |change: similar::Change<&str>| DiffLine {
        sign: match change.tag() {
            ChangeTag::Delete => '-',
            ChangeTag::Insert => '+',
            ChangeTag::Equal => ' ',
        },
        text: change.value().trim_end_matches(['\r', '\n']).to_owned(),
    };
    changes.iter().flat_map(|change| change.iter_changes(&old, &new)).map(line).collect()
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
        assert_eq!(text("a\r\nb", "a\nb"), "-a|+a| b");
    }
}

//! The line of a file that an error is about, with a caret under the mistake.
//!
//! Here: reading the line again and marking it, for the terminal and the log of an operator. Not
//! here: the error itself (`error`), whose text elsewhere is one line.

use std::fmt::Write as _;
use std::path::Path;

use super::{LimitsError, read};

/// Most characters of a line that are shown.
const SHOWN_MAX: usize = 160;

/// A part of a line, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Marked {
    start: usize,
    len: usize,
}

impl LimitsError {
    /// Returns the error, and below it the line that it is about with the mistake marked, if it is
    /// a line of the file at `path`. Lines of other files, such as those of overrides, are not
    /// cited.
    #[must_use]
    pub fn with_excerpt(&self, path: Option<&Path>) -> String {
        let mut text = format!("{self}\n");
        if let Self::Refused { file, line, reason } = self
            && path == Some(Path::new(file))
            && let Ok(bytes) = read(Path::new(file))
            && let Some(shown) =
                line.checked_sub(1).and_then(|at| bytes.split(|b| *b == b'\n').nth(at))
        {
            text.push_str(&marked(*line, &String::from_utf8_lossy(shown), reason));
        }
        text
    }

    /// Returns [`LimitsError::with_excerpt`] as the text of one log record: a line that continues
    /// it begins with blanks.
    #[must_use]
    pub fn in_log(&self, path: &Path) -> String {
        self.with_excerpt(Some(path)).trim_end().replace('\n', "\n    ")
    }
}

/// Formats a line with its number, and the marks below it.
fn marked(number: usize, line: &str, reason: &str) -> String {
    let line = line.trim_end();
    let Marked { start, len } = place_of(line, reason);
    // A long line is shown from shortly before the mistake.
    let skip = if start + len > SHOWN_MAX { start.saturating_sub(SHOWN_MAX / 4) } else { 0 };
    let shown = line.chars().skip(skip).take(SHOWN_MAX);
    // A tab or a control character would shift the marks.
    let shown: String =
        shown.map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    let (number, mut text) = (number.to_string(), String::new());
    let marks = "^".repeat(len.clamp(1, SHOWN_MAX));
    let (front, margin) = (" ".repeat(start - skip), " ".repeat(number.len()));
    writeln!(text, "{margin} |\n{number} | {shown}\n{margin} | {front}{marks}")
        .expect("a String takes every write");
    text
}

/// The part of the line that the reason is about: the first text between backticks that the line
/// has, or for a policy the place in it; else the whole line.
fn place_of(line: &str, reason: &str) -> Marked {
    let chars = |bytes: usize| line[..bytes].chars().count();
    let mut cited = reason.split('`').skip(1).step_by(2).filter(|text| !text.is_empty());
    let found = cited.find_map(|text| Some((line.find(text)?, text)));
    let Some((at, text)) = found else {
        let front = line.len() - line.trim_start().len();
        return Marked { start: chars(front), len: line.trim().chars().count() };
    };
    let offset =
        || reason.contains("bad policy: ").then(|| reason.rsplit_once(" at ")?.1.parse().ok())?;
    match offset().filter(|offset: &usize| *offset <= text.len()) {
        Some(offset) if line.is_char_boundary(at + offset) => {
            Marked { start: chars(at + offset), len: 1 }
        }
        _ => Marked { start: chars(at), len: text.chars().count() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn below(line: &str, reason: &str) -> String {
        let text = marked(7, line, reason);
        let marks = text.lines().nth(2).expect("three lines");
        marks.strip_prefix("  | ").expect("a margin").to_owned()
    }

    #[test]
    fn a_caret_stands_below_the_mistake() {
        for (line, reason, marks) in [
            ("speed = 3", "unknown field `speed`: the fields are `name`", "^^^^^"),
            (
                "  policy = \"fixed:5/min\"",
                "`fixed:5/min`: bad policy: a minute is m at 8",
                "                    ^",
            ),
            ("policy = \"log:\"", "`log:`: bad policy: expected a count at 4", "              ^"),
            ("[[limit]]", "the limit lacks its `policy`", "^^^^^^^^^"),
            ("\tname = \"ä\"  # é", "`é`: no", "               ^"),
            ("", "nothing", "^"),
        ] {
            assert_eq!(below(line, reason), marks, "{line}");
        }
    }

    #[test]
    fn a_log_record_is_continued_by_indented_lines() {
        let folder = tempfile::tempdir().expect("a directory for one file");
        let path = folder.path().join("limits.toml");
        std::fs::write(&path, "\n[[limit]]\npolcy = 3\n").expect("the directory is ours");
        let error = super::super::Limits::load(&path).expect_err("no such field");
        let text = error.in_log(&path);
        let (first, excerpt) = text.split_once('\n').expect("an excerpt");
        assert_eq!(first, error.to_string());
        let ends = ["      |", "    3 | polcy = 3", "      | ^^^^^"];
        assert_eq!(excerpt.lines().collect::<Vec<&str>>(), ends.map(|end| end), "{text}");
        let gone = LimitsError::Emptied { path: path.clone() };
        assert_eq!(gone.in_log(&path), gone.to_string());
    }

    #[test]
    fn a_long_line_is_shown_around_the_mistake() {
        let line = format!("{}wrong{}", "x".repeat(5_000), "y".repeat(5_000));
        let text = marked(1, &line, "`wrong`: no");
        let rows: Vec<&str> = text.lines().collect();
        assert!(rows.iter().all(|row| row.chars().count() < SHOWN_MAX + 10), "{text}");
        let at = rows[2].find('^').expect("a mark");
        assert_eq!(&rows[1][at..at + 5], "wrong");
    }
}

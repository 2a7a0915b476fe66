//! The stored counts, and their comparison with new ones.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, ensure};
use kit::table::{Table, whole};

/// A count may exceed the stored one by this percentage; a count below it by more is reported.
const TOLERANCE_PERCENT: u64 = 5;

/// Instructions per operation, by `part.case`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    /// The compiler's version.
    pub(crate) rustc: String,
    /// The processor features by which the libraries choose their code paths.
    pub(crate) cpu: String,
    pub(crate) of: BTreeMap<String, u64>,
}

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Comparison {
    /// A table of all counts.
    pub(crate) table: String,
    /// The cases that became dearer.
    pub(crate) dearer: Vec<String>,
    /// The cases that became cheaper: the file should be written again.
    pub(crate) cheaper: Vec<String>,
    /// The cases that are only counted or only stored, and so not compared.
    pub(crate) alone: Vec<String>,
}

impl Counts {
    /// Parses a file of counts.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let file: toml::Table = text.parse()?;
        let word = |name: &str| file.get(name)?.as_str().map(str::to_owned);
        let mut counts = Self {
            rustc: word("rustc").context("no `rustc`")?,
            cpu: word("cpu").context("no `cpu`")?,
            of: BTreeMap::new(),
        };
        for (part, cases) in file.iter().filter_map(|(part, cases)| Some((part, cases.as_table()?)))
        {
            for (case, count) in cases {
                let count = count.as_integer().and_then(|count| u64::try_from(count).ok());
                let count = count.filter(|count| *count > 0).context("counts are positive")?;
                counts.of.insert(format!("{part}.{case}"), count);
            }
        }
        ensure!(!counts.of.is_empty(), "no counts");
        Ok(counts)
    }

    /// Renders the counts as a file.
    pub(crate) fn render(&self) -> String {
        let mut text = format!(
            "# Instructions an operation, as callgrind counts them: `just instructions --write` writes this.\n\
             rustc = \"{}\"\ncpu = \"{}\"\n",
            self.rustc, self.cpu
        );
        let mut last = "";
        for (name, count) in &self.of {
            let (part, case) = name.split_once('.').unwrap_or(("", name));
            let head = if part == last { String::new() } else { format!("\n[{part}]\n") };
            writeln!(text, "{head}{case} = {count}").expect("writing to a String cannot fail");
            last = part;
        }
        text
    }

    /// Compares these counts with the stored ones, for names that contain `only`.
    pub(crate) fn compare(&self, written: &Self, only: &str) -> Comparison {
        let mut found = Comparison::default();
        let mut table = Table::new(["operation", "before", "now", "change"], 1);
        for (name, now) in &self.of {
            let before = written.of.get(name);
            let share = before.map_or(0.0, |before| *now as f64 / *before as f64 - 1.0);
            let percent = |of: u64| before.map(|before| before * of);
            if before.is_none() {
                found.alone.push(name.clone());
            } else if percent(100 + TOLERANCE_PERCENT).is_some_and(|most| now * 100 > most) {
                found.dearer.push(name.clone());
            } else if percent(100 - TOLERANCE_PERCENT).is_some_and(|least| now * 100 < least) {
                found.cheaper.push(name.clone());
            }
            table.row(vec![
                name.clone(),
                before.map_or_else(|| "–".to_owned(), |before| whole(*before as f64)),
                whole(*now as f64),
                format!("{:+.1} %", share * 100.0),
            ]);
        }
        let is_gone = |name: &&String| name.contains(only) && !self.of.contains_key(*name);
        found.alone.extend(written.of.keys().filter(is_gone).cloned());
        found.table = table.render();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(&str, u64)]) -> Counts {
        let of = of.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        Counts { rustc: "rustc 1".to_owned(), cpu: "x86_64".to_owned(), of }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let counts = counts(&[("apply.get", 7), ("whole.get", 1), ("whole.incr", 2)]);
        assert_eq!(Counts::parse(&counts.render()).expect("a good file"), counts);
        assert!(Counts::parse("rustc = ''\ncpu = ''\n").is_err());
        assert!(Counts::parse("rustc = ''\ncpu = ''\n[whole]\nget = 0\n").is_err());
    }

    #[test]
    fn a_twentieth_more_is_let_pass() {
        let before = counts(&[("a.x", 100), ("a.y", 100), ("a.z", 100), ("b.gone", 1)]);
        let now = counts(&[("a.x", 105), ("a.y", 106), ("a.z", 94), ("a.new", 1)]);
        let found = now.compare(&before, "");
        assert_eq!(found.dearer, ["a.y"]);
        assert_eq!(found.cheaper, ["a.z"]);
        assert_eq!(found.alone, ["a.new", "b.gone"]);
        assert_eq!(now.compare(&before, "a.").alone, ["a.new"]);
    }
}

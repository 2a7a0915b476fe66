//! Numbers and tables as Markdown.
//!
//! Here: medians, thousands, ratios, columns. Not here: the content of tables (`report`).

use std::fmt;

/// The median: the middle number, or the mean of the two in the middle. `None` if there are none.
#[must_use]
pub fn median(numbers: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut numbers: Vec<f64> = numbers.into_iter().collect();
    numbers.sort_by(f64::total_cmp);
    let (low, high) = (numbers.get(numbers.len().checked_sub(1)? / 2)?, numbers[numbers.len() / 2]);
    Some(f64::midpoint(*low, high))
}

/// A ratio that was measured several times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// The median of the measurements.
    pub median: f64,
    /// The median's 95 % confidence interval. With fewer than nine measurements, the minimum and
    /// the maximum; with fewer than six, the confidence is lower.
    pub bounds: [f64; 2],
}

impl Ratio {
    /// Summarizes these measurements; `None` if there are none.
    ///
    /// The bounds are two of the measurements, counted from either end. They hold for any
    /// distribution: the number of measurements below the true median is binomial (David and
    /// Nagaraja, "Order Statistics", 2003, section 7.1).
    #[must_use]
    pub fn of(ratios: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut ratios: Vec<f64> = ratios.into_iter().collect();
        ratios.sort_by(f64::total_cmp);
        let count = ratios.len();
        // 1.96 standard deviations, of √count / 2 each, on either side: the exact sum is at least
        // 95 % from six measurements on.
        let outside = ((count as f64 - 1.0) / 2.0 - 0.98 * (count as f64).sqrt()).max(0.0) as usize;
        let bounds = [*ratios.get(outside)?, ratios[count - 1 - outside]];
        Some(Self { median: median(ratios)?, bounds })
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [low, high] = self.bounds;
        write!(f, "{} ({} to {})", times(self.median), digits(low), digits(high))
    }
}

/// The spread of the numbers as a share of their median: 0.1 is a tenth. `None` if there are none.
#[must_use]
pub fn span(numbers: &[f64]) -> Option<f64> {
    let middle = median(numbers.iter().copied())?;
    let least = numbers.iter().copied().min_by(f64::total_cmp)?;
    let most = numbers.iter().copied().max_by(f64::total_cmp)?;
    Some((most - least) / middle)
}

/// `1234567` → `1,234,567`.
#[must_use]
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A number that may be missing (a median of nothing) or not a number (a division by zero).
#[must_use]
pub fn cell(number: Option<f64>, show: impl FnOnce(f64) -> String) -> String {
    number.filter(|n| n.is_finite()).map_or_else(|| "–".to_owned(), show)
}

/// A ratio that may be missing or not a number, in the format of [`cell`].
#[must_use]
pub fn ratio_cell(ratio: Option<Ratio>) -> String {
    let ratio = ratio.filter(|ratio| ratio.median.is_finite());
    ratio.map_or_else(|| "–".to_owned(), |ratio| ratio.to_string())
}

/// `1.5`-fold as `1.50×`; from ten on with one decimal.
#[must_use]
pub fn times(ratio: f64) -> String {
    format!("{}×", digits(ratio))
}

fn digits(ratio: f64) -> String {
    if ratio < 10.0 { format!("{ratio:.2}") } else { format!("{ratio:.1}") }
}

/// Nanoseconds as microseconds, with one decimal for small numbers.
#[must_use]
pub fn micros(ns: f64) -> String {
    if ns < 9_950.0 { format!("{:.1}", ns / 1e3) } else { whole(ns / 1e3) }
}

/// Rounded, with thousands marked.
#[must_use]
pub fn whole(number: f64) -> String {
    thousands(number.round() as u64)
}

/// `0.123` → `12 %`.
#[must_use]
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// A Markdown table. Columns are padded, so that it can be read in a terminal too.
#[derive(Debug, Default)]
pub struct Table {
    /// The rows; the first is the head.
    rows: Vec<Vec<String>>,
    /// Columns from this index on hold numbers and are set flush right.
    numbers_from: usize,
}

impl Table {
    /// A table with these columns; those from index `numbers_from` on hold numbers.
    #[must_use]
    pub fn new<S: Into<String>>(head: impl IntoIterator<Item = S>, numbers_from: usize) -> Self {
        Self { rows: vec![head.into_iter().map(Into::into).collect()], numbers_from }
    }

    /// Adds a row. Missing cells stay empty.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table's lines.
    #[must_use]
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let text = |row: &[String], c: usize| row.get(c).cloned().unwrap_or_default();
        let width = |c: usize| {
            self.rows.iter().map(|row| text(row, c).chars().count()).max().unwrap_or(0).max(3)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut lines = String::new();
        for (n, row) in self.rows.iter().enumerate() {
            for (c, &width) in widths.iter().enumerate() {
                let cell = text(row, c);
                let pad = " ".repeat(width - cell.chars().count());
                let (before, after) = if c >= self.numbers_from {
                    (pad, String::new())
                } else {
                    (String::new(), pad)
                };
                lines.extend(["| ", &before, &cell, &after, " "]);
            }
            lines.push_str("|\n");
            if n == 0 {
                for (c, &width) in widths.iter().enumerate() {
                    let colon = if c >= self.numbers_from { ":" } else { "-" };
                    lines.extend(["| ", &"-".repeat(width - 1), colon, " "]);
                }
                lines.push_str("|\n");
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Ratio, Table, cell, median, micros, percent, ratio_cell, span, thousands, times, whole,
    };

    #[test]
    fn a_median_is_the_middle() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0]), Some(3.0));
        assert_eq!(median([9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([9.0, 1.0, 2.0, 4.0]), Some(3.0));
        assert_eq!(span(&[90.0, 100.0, 110.0]), Some(0.2));
        assert_eq!(span(&[]), None);
    }

    #[test]
    fn a_ratio_tells_how_sure_its_median_is() {
        let of = |count: u32| Ratio::of((1..=count).rev().map(f64::from));
        assert_eq!(of(0), None);
        assert_eq!(of(1), Some(Ratio { median: 1.0, bounds: [1.0, 1.0] }));
        assert_eq!(of(7), Some(Ratio { median: 4.0, bounds: [1.0, 7.0] }));
        assert_eq!(of(8).map(|ratio| ratio.bounds), Some([1.0, 8.0]));
        // Fewer than three of twelve coins, or more than nine, show heads in 3.9 % of all cases.
        assert_eq!(of(12).map(|ratio| ratio.bounds), Some([3.0, 10.0]));
        assert_eq!(of(21), Some(Ratio { median: 11.0, bounds: [6.0, 16.0] }));
        assert_eq!(of(101), Some(Ratio { median: 51.0, bounds: [41.0, 61.0] }));
        assert_eq!(of(3).map(|ratio| ratio.to_string()), Some("2.00× (1.00 to 3.00)".to_owned()));
        assert_eq!((ratio_cell(None), ratio_cell(Ratio::of([f64::NAN]))), ("–".into(), "–".into()));
    }

    #[test]
    fn numbers_are_shown_with_the_digits_they_deserve() {
        assert_eq!(["0", "999", "1,000", "1,234,567"], [0, 999, 1000, 1_234_567].map(thousands));
        assert_eq!(["0.99×", "9.99×", "12.3×"], [0.99, 9.99, 12.34].map(times));
        assert_eq!(
            ["0.1", "9.9", "10", "1,234"],
            [100.0, 9_940.0, 9_960.0, 1_234_400.0].map(micros)
        );
        assert_eq!(("12 %".to_owned(), "1,235".to_owned()), (percent(0.123), whole(1234.6)));
        assert_eq!((cell(None, whole), cell(Some(f64::NAN), whole)), ("–".into(), "–".into()));
    }

    #[test]
    fn a_table_lines_up() {
        let mut table = Table::new(["op", "µs"], 1);
        table.row(vec!["incr".to_owned(), "1,234".to_owned()]);
        table.row(vec!["a×b".to_owned()]);
        let expected = "\
| op   |    µs |
| ---- | ----: |
| incr | 1,234 |
| a×b  |       |
";
        assert_eq!(table.render(), expected);
    }
}

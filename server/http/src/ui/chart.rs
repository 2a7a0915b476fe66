//! Line charts as SVG: the points of lines, and the same numbers as a table.

use std::fmt::Write as _;

use crate::host::{LimitReport, SeriesPoint, ServerRates};

use super::format;

/// The width of a chart in its own units.
const CHART_WIDTH: f64 = 600.0;
/// The height of a chart in its own units.
const CHART_HEIGHT: f64 = 120.0;

/// A line of a chart.
#[derive(Debug)]
pub(super) struct ChartLine {
    /// The name, which selects the look too.
    pub(super) name: &'static str,
    /// The points, in the form of SVG's `points`.
    pub(super) points: String,
    /// The newest value.
    pub(super) last: String,
}

/// A chart with the numbers that it shows.
#[derive(Debug)]
pub(super) struct ChartView {
    pub(super) id: &'static str,
    pub(super) title: String,
    /// The value at the top.
    pub(super) top: String,
    /// The times at the left and right ends.
    pub(super) from: String,
    pub(super) to: String,
    pub(super) lines: Vec<ChartLine>,
    /// Times with the values of all lines, newest first.
    pub(super) rows: Vec<(String, Vec<String>)>,
}

impl ChartView {
    /// The rates of the last minutes, one point every ten seconds.
    pub(super) fn rates(rates: &ServerRates) -> Self {
        let columns = [("allowed", &rates.allowed[..]), ("denied", &rates.denied[..])];
        let count = columns[0].1.len().max(columns[1].1.len());
        let times = (0..count).map(|index| {
            let ago = (count - 1 - index) * 10;
            if ago == 0 { "now".to_owned() } else { format!("{ago} s ago") }
        });
        Self::new("rates", "Decisions a second", &times.collect::<Vec<_>>(), &columns, format::rate)
    }

    /// The series of a limit.
    pub(super) fn series(report: &LimitReport) -> Self {
        #[allow(clippy::cast_precision_loss)]
        let column = |of: fn(&SeriesPoint) -> u64| -> Vec<f64> {
            report.series.iter().map(|point| of(point) as f64).collect()
        };
        let allowed = column(|point| point.allowed);
        let denied = column(|point| point.denied);
        let shadow = column(|point| point.shadow_denied);
        let times: Vec<String> =
            report.series.iter().map(|point| format::time(point.at_ms)).collect();
        let title = if report.minutes > 60 { "Attempts an hour" } else { "Attempts a minute" };
        let columns = [("allowed", &allowed[..]), ("denied", &denied), ("shadow", &shadow)];
        Self::new("series", title, &times, &columns, format::rate)
    }

    fn new(
        id: &'static str,
        title: &str,
        times: &[String],
        columns: &[(&'static str, &[f64])],
        print: fn(f64) -> String,
    ) -> Self {
        let top = columns.iter().flat_map(|(_, values)| values.iter()).fold(1.0, |a, b| b.max(a));
        let line = |(name, values): &(&'static str, &[f64])| ChartLine {
            name,
            points: points(values, top, CHART_WIDTH, CHART_HEIGHT),
            last: values.last().map_or_else(|| "–".to_owned(), |value| print(*value)),
        };
        let value = |values: &[f64], index: usize| {
            values.get(index).map_or_else(|| "–".to_owned(), |value| print(*value))
        };
        let row = |(index, time): (usize, &String)| {
            let values = columns.iter().map(|(_, values)| value(values, index));
            (time.clone(), values.collect())
        };
        Self {
            id,
            title: title.to_owned(),
            top: print(top),
            from: times.first().cloned().unwrap_or_default(),
            to: times.last().cloned().unwrap_or_default(),
            lines: columns.iter().map(line).collect(),
            rows: times.iter().enumerate().rev().map(row).collect(),
        }
    }
}

/// Returns the points of a line through `values` in a box; `top` is the value at its upper edge.
fn points(values: &[f64], top: f64, width: f64, height: f64) -> String {
    let mut text = String::new();
    #[allow(clippy::cast_precision_loss)]
    let step = width / (values.len().max(2) - 1) as f64;
    let mut x = 0.0;
    for value in values {
        let y = height - (value / top).clamp(0.0, 1.0) * (height - 2.0) - 1.0;
        let separator = if text.is_empty() { "" } else { " " };
        // Writing to a String cannot fail.
        let _ = write!(text, "{separator}{x:.1},{y:.1}");
        x += step;
    }
    text
}

/// Returns the points of a small line of a limit's denials, 80 by 20.
pub(super) fn sparkline(minutes: &[SeriesPoint]) -> String {
    #[allow(clippy::cast_precision_loss)]
    let values: Vec<f64> = minutes.iter().map(|point| point.denied as f64).collect();
    let top = values.iter().fold(1.0, |a: f64, b| b.max(a));
    points(&values, top, 80.0, 20.0)
}

/// An arc of the circle of nodes.
#[derive(Debug)]
pub(super) struct CircleArc {
    pub(super) node: String,
    /// The path, in the form of SVG's `d`.
    pub(super) path: String,
    /// The place of the label.
    pub(super) x: String,
    pub(super) y: String,
    pub(super) share: String,
}

/// Returns the arcs of nodes in proportion to their `shares`, from the top clockwise, in a box of
/// 200 by 200.
pub(super) fn circle(shares: &[(String, u64)]) -> Vec<CircleArc> {
    let whole: u64 = shares.iter().map(|(_, share)| share).sum();
    let mut from = 0.0;
    let arc = |(node, share): &(String, u64)| {
        #[allow(clippy::cast_precision_loss)]
        let part = *share as f64 / whole.max(1) as f64;
        let to = from + part;
        let at = |turn: f64, radius: f64| {
            let angle = turn * std::f64::consts::TAU;
            (100.0 + radius * angle.sin(), 100.0 - radius * angle.cos())
        };
        // A whole turn would begin where it ends and be drawn as nothing.
        let (start, end) = (from + 0.002, (to - 0.002).max(from + 0.002));
        let ((ax, ay), (bx, by)) = (at(start, 84.0), at(end, 84.0));
        let large = i32::from(part > 0.5);
        let (x, y) = at(f64::midpoint(from, to), 62.0);
        from = to;
        CircleArc {
            node: node.clone(),
            path: format!("M{ax:.1} {ay:.1}A84 84 0 {large} 1 {bx:.1} {by:.1}"),
            x: format!("{x:.1}"),
            y: format!("{y:.1}"),
            share: format::percent(part),
        }
    };
    shares.iter().filter(|(_, share)| *share > 0).map(arc).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_fill_their_box() {
        assert_eq!(points(&[0.0, 5.0, 10.0], 10.0, 100.0, 20.0), "0.0,19.0 50.0,10.0 100.0,1.0");
        assert_eq!(points(&[], 1.0, 100.0, 20.0), "");
        assert_eq!(points(&[f64::MAX], 1.0, 100.0, 20.0), "0.0,1.0");
    }

    #[test]
    fn arcs_add_up_to_a_turn() {
        let shares = [("n1".to_owned(), 3), ("n2".to_owned(), 1), ("n3".to_owned(), 0)];
        let arcs = circle(&shares);
        assert_eq!(arcs.len(), 2);
        assert_eq!([&arcs[0].share, &arcs[1].share], ["75.0 %", "25.0 %"]);
        assert!(arcs[0].path.contains(" 1 1 "), "{}", arcs[0].path);
        assert_eq!(circle(&[]).len(), 0);
    }
}

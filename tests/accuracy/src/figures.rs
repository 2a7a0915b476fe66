//! The three pictures: the counted calls, the admitted calls, and the gain of an adversary.
//!
//! Here: the lines and the minutes of each picture. Not here: how a line is drawn (`chart`).
//! Between two points of a picture the maximum is shown, so that no spike is lost.

use plotters::chart::SeriesLabelPosition;
use plotters::style::RGBColor;

use crate::contender::{LIMIT, WINDOW_MS, named};
use crate::enforced::Enforced;
use crate::study::{ATTACK_MS, worst_attack};
use crate::subject::{ONLY_KEY, Subject};
use crate::traffic::Traffic;
use crate::truth::Trailing;
use kit::chart::{Axis, Chart, ChartError, Line, Panel};

const GREY: RGBColor = RGBColor(175, 175, 175);
const BLUE: RGBColor = RGBColor(0, 114, 178);
const ORANGE: RGBColor = RGBColor(213, 94, 0);
const GREEN: RGBColor = RGBColor(0, 158, 115);
const RED: RGBColor = RGBColor(200, 30, 30);

/// The time between two points of a line.
const STEP_MS: u64 = 500;
/// The length of the stretch of traffic that a picture shows.
const SHOWN_MS: u64 = 10 * WINDOW_MS;
/// The contenders with a panel of their own.
const SHOWN: [&str; 6] =
    ["fixed, calendar", "two-window", "6+1 slices", "6+1 strict", "bucket", "log"];

/// A picture and its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// The file's name in the folder of the page.
    pub file: &'static str,
    /// The SVG.
    pub svg: String,
}

/// All pictures of a seed.
///
/// # Errors
///
/// [`ChartError`], if a picture could not be drawn.
pub fn all(seed: u64) -> Result<Vec<Figure>, ChartError> {
    let arrivals = Traffic::Bursts.arrivals(seed);
    let figure = |file, chart: &Chart| Ok(Figure { file, svg: chart.draw()? });
    Ok(vec![
        figure("count.svg", &count(&arrivals))?,
        figure("admitted.svg", &admitted(&arrivals))?,
        figure("adversary.svg", &adversary())?,
    ])
}

/// A stretch of time.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    from_ms: u64,
    for_ms: u64,
}

impl Stretch {
    /// The stretch around an instant; it begins at a whole minute.
    fn around(at_ms: u64) -> Self {
        let from_ms = at_ms.saturating_sub(SHOWN_MS / 2) / WINDOW_MS * WINDOW_MS;
        Self { from_ms, for_ms: SHOWN_MS }
    }

    fn minutes(self) -> f64 {
        self.for_ms as f64 / 60_000.0
    }

    /// The instants at which a line has a point.
    fn instants(self) -> impl Iterator<Item = u64> {
        (0..=self.for_ms / STEP_MS).map(move |n| self.from_ms + n * STEP_MS)
    }

    fn point(self, at_ms: u64, calls: u64) -> (f64, f64) {
        ((at_ms - self.from_ms) as f64 / 60_000.0, calls as f64)
    }

    /// The perfect trailing count of these calls.
    fn truth(self, calls: &[u64]) -> Vec<(f64, f64)> {
        let mut trailing = Trailing::default();
        let mut calls = calls.iter().copied().peekable();
        let mut points = Vec::new();
        for at_ms in self.instants() {
            let mut most = 0;
            while let Some(call_ms) = calls.next_if(|call_ms| *call_ms <= at_ms) {
                let count = trailing.add(call_ms);
                most = if call_ms + STEP_MS > at_ms { count.max(most) } else { 0 };
            }
            points.push(self.point(at_ms, trailing.count(at_ms).max(most)));
        }
        points
    }

    /// The estimates of a contender's meter for these calls.
    fn estimate(self, name: &str, calls: &[u64]) -> Vec<(f64, f64)> {
        let policy = named(name).meter().expect("only what has a meter is drawn");
        let mut meter = Subject::new(policy);
        let mut calls = calls.iter().copied().peekable();
        let mut points = Vec::new();
        for at_ms in self.instants() {
            while let Some(call_ms) = calls.next_if(|call_ms| *call_ms <= at_ms) {
                meter.take(call_ms, ONLY_KEY);
            }
            points.push(self.point(at_ms, meter.used(at_ms)));
        }
        points
    }

    /// The limit as a line.
    fn limit(self) -> Line {
        let points = vec![(0.0, LIMIT as f64), (self.minutes(), LIMIT as f64)];
        Line { width: 1, ..line("limit", RED, points) }
    }
}

fn line(name: &str, color: RGBColor, points: Vec<(f64, f64)>) -> Line {
    Line { name: name.to_owned(), color, width: 2, dot: 0, points }
}

fn minutes(end: f64) -> Axis {
    Axis { label: "minutes", range: 0.0..end, numbers: 7, text: |at| at.to_string() }
}

fn calls(end: f64) -> Axis {
    Axis { label: "calls", range: 0.0..end, numbers: 6, text: |at| at.to_string() }
}

/// The instant at which the error of the two-window count is largest.
fn furthest(arrivals: &[u64]) -> u64 {
    let policy = named("two-window").meter().expect("a sliding count has a meter");
    let (mut meter, mut truth) = (Subject::new(policy), Trailing::default());
    let errors = arrivals.iter().map(|&at_ms| {
        let estimate = meter.take(at_ms, ONLY_KEY).used;
        (estimate.abs_diff(truth.add(at_ms)), at_ms)
    });
    errors.max().map_or(0, |(_, at_ms)| at_ms)
}

fn count(arrivals: &[u64]) -> Chart {
    let stretch = Stretch::around(furthest(arrivals));
    let lines = vec![
        Line { width: 6, ..line("perfect", GREY, stretch.truth(arrivals)) },
        line("fixed, calendar", ORANGE, stretch.estimate("fixed, calendar", arrivals)),
        line("two-window", BLUE, stretch.estimate("two-window", arrivals)),
        line("6+1 slices", GREEN, stretch.estimate("6+1 slices", arrivals)),
        stretch.limit(),
    ];
    let most =
        lines.iter().flat_map(|line| &line.points).map(|(_, calls)| *calls).fold(0.0, f64::max);
    let panel = Panel { title: String::new(), lines, legend: Some(SeriesLabelPosition::UpperLeft) };
    Chart {
        title: "Calls counted in the last 60 s (bursts, nothing refused)",
        x: minutes(stretch.minutes()),
        y: calls((most / 50.0 + 1.0).ceil() * 50.0),
        columns: 1,
        size: (960, 440),
        panels: vec![panel],
    }
}

fn admitted(arrivals: &[u64]) -> Chart {
    // The stretch is around the worst that a fixed window lets through.
    let mut passed = Trailing::default();
    let mut worst = (0, 0);
    Enforced::run(named("fixed, calendar"), arrivals, |at_ms| {
        let count = passed.add(at_ms);
        worst = if count > worst.0 { (count, at_ms) } else { worst };
    });
    let stretch = Stretch::around(worst.1);
    let mut offered = stretch.truth(arrivals);
    // Values above the panel are cut off there.
    let y_end = 2.4 * LIMIT as f64;
    for (_, calls) in &mut offered {
        *calls = calls.min(y_end);
    }
    let panels = SHOWN.map(|name| {
        let mut passed = Vec::new();
        Enforced::run(named(name), arrivals, |at_ms| passed.push(at_ms));
        panel(name, stretch, Some(offered.clone()), &passed)
    });
    Chart {
        title: "Calls let through in the last 60 s (bursts, limit 100; grey: calls that came, cut at 240)",
        ..grid(stretch, y_end, panels)
    }
}

fn adversary() -> Chart {
    let stretch = Stretch { from_ms: 0, for_ms: ATTACK_MS };
    let panels = SHOWN.map(|name| panel(name, stretch, None, &worst_attack(named(name)).admitted));
    Chart {
        title: "Calls that a greedy adversary gets through in the last 60 s (limit 100)",
        ..grid(stretch, 2.4 * LIMIT as f64, panels)
    }
}

/// A panel of the calls that passed, with the worst minute in the title.
fn panel(name: &str, stretch: Stretch, offered: Option<Vec<(f64, f64)>>, passed: &[u64]) -> Panel {
    let passed = stretch.truth(passed);
    let worst = passed.iter().map(|(_, calls)| *calls).fold(0.0, f64::max);
    let mut lines: Vec<Line> = offered.map(|points| line("", GREY, points)).into_iter().collect();
    lines.push(Line { name: String::new(), ..stretch.limit() });
    lines.push(line("", BLUE, passed));
    Panel { title: format!("{name}: up to {worst}"), lines, legend: None }
}

fn grid(stretch: Stretch, y_end: f64, panels: [Panel; 6]) -> Chart {
    Chart {
        title: "",
        x: minutes(stretch.minutes()),
        y: calls(y_end),
        columns: 2,
        size: (960, 780),
        panels: panels.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::Stretch;

    #[test]
    fn a_spike_between_two_points_is_seen() {
        // 100 calls at 0:00.001 and one more 59.998 s later: 101 for a millisecond.
        let mut calls = vec![1; 100];
        calls.push(59_999);
        let points = Stretch { from_ms: 0, for_ms: 120_000 }.truth(&calls);
        let most = points.iter().map(|(_, calls)| *calls).fold(0.0, f64::max);
        assert!((most - 101.0).abs() < f64::EPSILON);
        assert_eq!(points.first().map(|(_, calls)| *calls > 0.0), Some(false));
        assert_eq!(points.len(), 241);
    }
}

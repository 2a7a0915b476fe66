//! The two pictures: CPU of an operation by pipeline, and latency by load.
//!
//! Here: the lines. Not here: how a line is drawn (`chart`). Axes are logarithmic: a position is
//! the decimal logarithm of the nanoseconds, or the binary one of the pipeline.

use plotters::chart::SeriesLabelPosition;
use plotters::style::RGBColor;

use super::LATENCIES;
use super::targets::Figure;
use crate::cell::Measurement;
use crate::lineup::{CONNECTIONS, LIMITS, OPEN, PLAIN, SHARES};
use crate::rate::shape_of_share;
use crate::report::Report;
use kit::chart::{Axis, Chart, ChartError, Line, Panel};
use kit::table::median;

/// The file of the first picture.
pub const CPU: &str = "peers-cpu.svg";
/// The file of the second picture.
pub const LATENCY: &str = "peers-latency.svg";

/// The colours of the servers, in their order; a sixth server gets the first colour again.
const COLORS: [RGBColor; 5] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(120, 120, 120),
    RGBColor(0, 114, 178),
];

/// Both pictures, with their files.
///
/// # Errors
///
/// [`ChartError`], if one could not be drawn.
pub fn all(report: &Report) -> Result<[(&'static str, String); 2], ChartError> {
    Ok([(CPU, cpu(report).draw()?), (LATENCY, latency(report).draw()?)])
}

fn cpu(report: &Report) -> Chart {
    let pipelines = report.pipelines(CONNECTIONS);
    let kinds = PLAIN.iter().chain(&LIMITS);
    let panels = kinds.map(|kind| {
        let points = |server: &str| -> Vec<(f64, f64)> {
            let point = |&pipeline: &u32| {
                let figure = Figure::Cpu(pipeline);
                let rounds = report.rounds(kind, &figure.shape(), server)?;
                let ns = median(rounds.iter().filter_map(|rounds| figure.of(rounds)))?;
                Some((f64::from(pipeline).log2(), ns.log10()))
            };
            pipelines.iter().filter_map(point).collect()
        };
        panel(report, (*kind).to_owned(), SeriesLabelPosition::UpperRight, points)
    });
    let panels: Vec<Panel> = panels.collect();
    Chart {
        title: "Server CPU of an operation (50 connections)",
        x: Axis {
            label: "pipeline",
            range: 0.0..6.0,
            numbers: 4,
            text: |at| at.exp2().to_string(),
        },
        y: times(&panels),
        columns: 2,
        size: (960, 1300),
        panels,
    }
}

fn latency(report: &Report) -> Chart {
    let mut panels = Vec::new();
    for (n, percentile) in LATENCIES.into_iter().enumerate() {
        for (kind, of) in OPEN {
            let points = |server: &str| -> Vec<(f64, f64)> {
                let point = |share: f64| {
                    let rounds =
                        report.rounds(kind, &shape_of_share(CONNECTIONS, share, of), server)?;
                    let latency = |round: &Measurement| round.undisturbed_ns(n);
                    Some((share * 100.0, median(rounds.iter().filter_map(latency))?.log10()))
                };
                SHARES.into_iter().filter_map(point).collect()
            };
            let shape = shape_of_share(CONNECTIONS, 0.0, of);
            let whose = shape.rsplit_once("of ").map_or("", |(_, whose)| whose);
            let title = format!("{kind}, {percentile}, % of {whose}");
            panels.push(panel(report, title, SeriesLabelPosition::UpperLeft, points));
        }
    }
    Chart {
        title: "Latency in the open loop (50 connections)",
        x: Axis { label: "load, %", range: 45.0..95.0, numbers: 5, text: |at| at.to_string() },
        y: times(&panels),
        columns: OPEN.len(),
        size: (1200, 1000),
        panels,
    }
}

/// The powers of ten around all points, and one above for the legend.
fn times(panels: &[Panel]) -> Axis {
    let points = panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.points);
    let places = || points.clone().map(|(_, place)| *place);
    let low = places().fold(f64::INFINITY, f64::min).floor().clamp(0.0, 8.0);
    let high = places().fold(low, f64::max).floor() + 2.0;
    Axis { label: "", range: low..high, numbers: (high - low) as usize + 1, text: time }
}

/// The label at a position on the axis of times.
fn time(place: f64) -> String {
    let (unit, power) = match place {
        ..3.0 => ("ns", place),
        3.0..6.0 => ("µs", place - 3.0),
        6.0..9.0 => ("ms", place - 6.0),
        _ => ("s", place - 9.0),
    };
    format!("{:.0} {unit}", 10f64.powf(power))
}

/// A line for each server that has points, and a legend of them.
fn panel(
    report: &Report,
    title: String,
    legend: SeriesLabelPosition,
    points: impl Fn(&str) -> Vec<(f64, f64)>,
) -> Panel {
    let line = |(server, color): (&str, &RGBColor)| {
        let points = points(server);
        let name = server.to_owned();
        (!points.is_empty()).then_some(Line { name, color: *color, width: 2, dot: 3, points })
    };
    let lines = report.names().zip(COLORS.iter().cycle()).filter_map(line).collect();
    Panel { title, lines, legend: Some(legend) }
}

//! The two pictures: CPU of an operation by pipeline, and latency by load.
//!
//! Here: which lines. Not here: how a line is drawn (`chart`). Nanoseconds and microseconds lie apart by
//! factors, so they are drawn as the logarithms that they are called by on the axis.

use plotters::chart::SeriesLabelPosition;
use plotters::style::RGBColor;

use super::targets::{CONNECTIONS, Figure};
use super::{LIMITS, OPEN, PLAIN};
use crate::cell::Measurement;
use crate::chart::{Axis, Chart, ChartError, Line, Panel};
use crate::compare::shape_of_share;
use crate::report::Report;
use crate::table::median;

/// The file of the first picture.
pub const CPU: &str = "peers-cpu.svg";
/// The file of the second.
pub const LATENCY: &str = "peers-latency.svg";

/// Of the servers, in their order; the sixth would be the first's again.
const COLORS: [RGBColor; 5] = [
    RGBColor(213, 94, 0),
    RGBColor(200, 30, 30),
    RGBColor(204, 121, 167),
    RGBColor(120, 120, 120),
    RGBColor(0, 114, 178),
];
/// Shares of the load that are drawn.
const SHARES: [f64; 3] = [0.5, 0.7, 0.9];
const LATENCIES: [&str; 3] = ["p50", "p99", "p99.9"];

/// Both, by file.
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
                let ns = median(rounds.iter().map(|rounds| figure.of(rounds)))?;
                Some((f64::from(pipeline).log2(), ns.log10()))
            };
            pipelines.iter().filter_map(point).collect()
        };
        panel(report, (*kind).to_owned(), points)
    });
    Chart {
        title: "Server CPU of an operation, ns (50 connections)",
        x: Axis { label: "pipeline", range: 0.0..6.0, numbers: 4, text: |x| x.exp2().to_string() },
        y: Axis { label: "ns", range: 2.0..6.0, numbers: 5, text: power_of_ten },
        columns: 2,
        size: (960, 1300),
        panels: panels.collect(),
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
                    let latency = |round: &Measurement| round.latency_ns[n] as f64;
                    Some((share * 100.0, (median(rounds.iter().map(latency))? / 1e3).log10()))
                };
                SHARES.into_iter().filter_map(point).collect()
            };
            let shape = shape_of_share(CONNECTIONS, 0.0, of);
            let whose = shape.rsplit_once("of ").map_or("", |(_, whose)| whose);
            panels.push(panel(report, format!("{kind}, {percentile}, % of {whose}"), points));
        }
    }
    Chart {
        title: "Latency in the open loop, µs (50 connections)",
        x: Axis { label: "load, %", range: 45.0..95.0, numbers: 5, text: |x| x.to_string() },
        y: Axis { label: "µs", range: 1.0..5.0, numbers: 5, text: power_of_ten },
        columns: OPEN.len(),
        size: (1200, 1000),
        panels,
    }
}

fn power_of_ten(place: f64) -> String {
    10f64.powf(place).round().to_string()
}

/// A line for each server that has points, and a legend of them.
fn panel(report: &Report, title: String, points: impl Fn(&str) -> Vec<(f64, f64)>) -> Panel {
    let line = |(server, color): (&str, &RGBColor)| {
        let points = points(server);
        let name = server.to_owned();
        (!points.is_empty()).then_some(Line { name, color: *color, width: 2, dot: 3, points })
    };
    let lines = report.names().zip(COLORS.iter().cycle()).filter_map(line).collect();
    Panel { title, lines, legend: Some(SeriesLabelPosition::UpperRight) }
}

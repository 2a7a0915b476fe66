//! Line charts as SVG: panels in a grid, each with its axes.
//!
//! Here: the properties that all pictures share, size and fonts. Not here: which lines there are,
//! and how a value becomes a position on an axis (`accuracy::figures`, `peers::plots`). The
//! background is white, so that a picture is readable on a dark page.

use std::io;
use std::ops::Range;

use plotters::backend::SVGBackend;
use plotters::chart::{ChartBuilder, SeriesLabelPosition};
use plotters::drawing::{DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::PathElement;
use plotters::series::LineSeries;
use plotters::style::{BLACK, Color, IntoFont, RGBColor, ShapeStyle, WHITE};

/// The error of drawing a picture.
pub type ChartError = DrawingAreaErrorKind<io::Error>;

const FONT: &str = "sans-serif";

/// A line of a panel.
#[derive(Debug, Clone)]
pub struct Line {
    /// The name in the legend; empty for none.
    pub name: String,
    /// Its colour.
    pub color: RGBColor,
    /// The width in pixels.
    pub width: u32,
    /// The radius of the dot on each point, in pixels; 0 for none.
    pub dot: u32,
    /// Positions along both axes.
    pub points: Vec<(f64, f64)>,
}

/// A pair of axes with lines.
#[derive(Debug, Clone)]
pub struct Panel {
    /// The text above the panel; empty for none.
    pub title: String,
    /// The lines, drawn in this order.
    pub lines: Vec<Line>,
    /// The position of the legend, if there is one.
    pub legend: Option<SeriesLabelPosition>,
}

/// One of the two axes, the same in all panels.
#[derive(Debug, Clone)]
pub struct Axis {
    /// The text beside the axis.
    pub label: &'static str,
    /// The visible range.
    pub range: Range<f64>,
    /// The approximate number of labelled positions.
    pub numbers: usize,
    /// Formats the label of a position.
    pub text: fn(f64) -> String,
}

/// A whole picture.
#[derive(Debug, Clone)]
pub struct Chart {
    /// The text above all panels.
    pub title: &'static str,
    /// The horizontal axis, drawn below each column.
    pub x: Axis,
    /// The vertical axis, drawn beside each row.
    pub y: Axis,
    /// Panels in a row.
    pub columns: usize,
    /// Width and height in pixels.
    pub size: (u32, u32),
    /// The panels, row by row.
    pub panels: Vec<Panel>,
}

impl Chart {
    /// Draws the picture and returns the SVG.
    ///
    /// # Errors
    ///
    /// [`ChartError`], if a panel has no room.
    pub fn draw(&self) -> Result<String, ChartError> {
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, self.size).into_drawing_area();
            root.fill(&WHITE)?;
            let body = root.titled(self.title, (FONT, 19).into_font())?;
            let rows = self.panels.len().div_ceil(self.columns);
            for (area, panel) in body.split_evenly((rows, self.columns)).iter().zip(&self.panels) {
                let mut builder = ChartBuilder::on(area);
                builder.margin(8).margin_right(16).x_label_area_size(40).y_label_area_size(52);
                if !panel.title.is_empty() {
                    builder.caption(&panel.title, (FONT, 15));
                }
                let mut chart =
                    builder.build_cartesian_2d(self.x.range.clone(), self.y.range.clone())?;
                chart
                    .configure_mesh()
                    .x_desc(self.x.label)
                    .y_desc(self.y.label)
                    .label_style((FONT, 13))
                    .axis_desc_style((FONT, 13))
                    .x_labels(self.x.numbers)
                    .y_labels(self.y.numbers)
                    .x_label_formatter(&|at| (self.x.text)(*at))
                    .y_label_formatter(&|at| (self.y.text)(*at))
                    .bold_line_style(BLACK.mix(0.12))
                    .light_line_style(WHITE)
                    .draw()?;
                for line in &panel.lines {
                    let style = ShapeStyle::from(&line.color).stroke_width(line.width);
                    let points = thinned(&line.points);
                    let drawn =
                        chart.draw_series(LineSeries::new(points, style).point_size(line.dot))?;
                    if !line.name.is_empty() {
                        drawn.label(&line.name).legend(move |(x, y)| {
                            PathElement::new(vec![(x, y), (x + 22, y)], style)
                        });
                    }
                }
                if let Some(position) = &panel.legend {
                    chart
                        .configure_series_labels()
                        .position(position.clone())
                        .background_style(WHITE.mix(0.85))
                        .border_style(BLACK.mix(0.3))
                        .label_font((FONT, 13))
                        .draw()?;
                }
            }
            root.present()?;
        }
        Ok(svg)
    }
}

/// Removes the inner points of each level stretch.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let level = |n: usize| {
        n > 0 && n + 1 < points.len() && {
            let (before, at, after) = (points[n - 1].1, points[n].1, points[n + 1].1);
            before.total_cmp(&at).is_eq() && at.total_cmp(&after).is_eq()
        }
    };
    (0..points.len()).filter(|n| !level(*n)).map(|n| points[n]).collect()
}

#[cfg(test)]
mod tests {
    use plotters::style::BLACK;

    use super::{Axis, Chart, Line, Panel, thinned};

    #[test]
    fn level_stretches_need_two_points() {
        let points = [(0.0, 1.0), (1.0, 1.0), (2.0, 1.0), (3.0, 2.0), (4.0, 1.0)];
        assert_eq!(thinned(&points), [points[0], points[2], points[3], points[4]]);
        assert_eq!(thinned(&[]), []);
    }

    #[test]
    fn a_chart_is_the_same_text_twice() {
        let line = Line {
            name: "a line".to_owned(),
            color: BLACK,
            width: 1,
            dot: 2,
            points: vec![(0.0, 0.0), (1.0, 9.0)],
        };
        let axis =
            |label, end| Axis { label, range: 0.0..end, numbers: 5, text: |at| at.to_string() };
        let panel = Panel { title: "a panel".to_owned(), lines: vec![line], legend: None };
        let chart = Chart {
            title: "a chart",
            x: axis("minutes", 1.0),
            y: axis("calls", 10.0),
            columns: 2,
            size: (400, 300),
            panels: vec![panel.clone(), panel],
        };
        let svg = chart.draw().expect("there is room");
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"), "{svg}");
        assert_eq!(svg.matches("a panel").count(), 2);
        assert_eq!(chart.draw().expect("there is room"), svg);
    }
}

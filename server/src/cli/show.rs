//! What nodes answered, for people or as JSON.
//!
//! Here: tables, the sentence on top of a status, JSON of the same. Not here: what the figures mean
//! (`cluster_stats`). Figures that this program does not know are shown all the same: the node may be
//! newer.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::ask::Stats;
use super::drain::Told;

/// Columns of a table: what stands above, and the figure's name.
type Columns = &'static [(&'static str, &'static str)];

const NODES: Columns = &[
    ("RING NAME", "ring_name"),
    ("CLIENTS", "client"),
    ("PEERS", "peer"),
    ("ZONE", "zone"),
    ("WEIGHT", "weight"),
    ("STATE", "state"),
    ("READY", "ready"),
    ("VOTER", "voter"),
    ("LEADER", "leader"),
    ("PRIMARIES", "primaries"),
    ("BACKUPS", "backups"),
    ("LEARNERS", "learners"),
    ("OPS/S", "ops_per_second"),
    ("HEARD MS", "heard_ms_ago"),
    ("LINK", "link"),
    ("CLOCK MS", "clock_offset_ms"),
];

const PARTITIONS: Columns = &[
    ("STATE", "state"),
    ("PRIMARY", "primary"),
    ("BACKUPS", "backups"),
    ("LEARNER", "learner"),
    ("TO", "to"),
    ("TERM", "term"),
    ("ERA", "era"),
    ("VER", "ver"),
];

/// One node or partition: its id, and its figures by name.
pub(super) struct Row<'a> {
    pub(super) id: &'a str,
    figures: Vec<(&'a str, &'a str)>,
}

impl<'a> Row<'a> {
    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        self.figures.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
    }

    fn json(&self) -> Value {
        let figures = self.figures.iter().map(|(name, text)| ((*name).to_owned(), value(text)));
        let mut object: Map<String, Value> = figures.collect();
        object.insert("id".to_owned(), json!(self.id));
        Value::Object(object)
    }
}

/// Nodes, from lines like `n1:state active`: those of a node stand together.
pub(super) fn rows(stats: &Stats) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for (name, text) in stats {
        let Some((id, name)) = name.split_once(':') else { continue };
        match rows.last_mut() {
            Some(row) if row.id == id => row.figures.push((name, text)),
            _ => rows.push(Row { id, figures: vec![(name, text)] }),
        }
    }
    rows
}

/// `stats cluster`, with the most important as a sentence on top.
pub(super) fn status(stats: &Stats, as_json: bool) -> String {
    if as_json {
        return pretty(&object(stats));
    }
    let mut page = format!("{}\n\n", verdict(stats));
    page.push_str(&pairs(stats));
    page
}

/// `stats cluster nodes`.
pub(super) fn nodes(stats: &Stats, as_json: bool) -> String {
    let rows = rows(stats);
    if as_json {
        return pretty(&Value::Array(rows.iter().map(Row::json).collect()));
    }
    table("NODE", NODES, &rows)
}

/// `stats cluster partitions`: totals, then partitions.
pub(super) fn partitions(stats: &Stats, as_json: bool) -> String {
    // Of a partition the value is its figures: `p17 state=moving,primary=n1`.
    let (lines, totals): (Stats, Stats) =
        stats.iter().cloned().partition(|(_, value)| value.contains('='));
    let row = |(id, value)| Row { id, figures: figures_of(value) };
    let rows: Vec<Row<'_>> =
        lines.iter().map(|(id, value)| (id.as_str(), value.as_str())).map(row).collect();
    if as_json {
        let mut all = object(&totals);
        all["list"] = Value::Array(rows.iter().map(Row::json).collect());
        return pretty(&all);
    }
    let mut page = pairs(&totals);
    if !rows.is_empty() {
        page.push('\n');
        page.push_str(&table("PARTITION", PARTITIONS, &rows));
    }
    page
}

fn figures_of(value: &str) -> Vec<(&str, &str)> {
    value.split(',').filter_map(|figure| figure.split_once('=')).collect()
}

/// How a drain goes.
pub(super) fn progress(told: &Told, as_json: bool) -> String {
    if as_json {
        let line = match told {
            Told::Begun => json!({"done": true}),
            Told::Left { node, primaries, backups } => json!({
                "node": node, "gone": false, "primaries": primaries, "backups": backups
            }),
            Told::Gone { node } => json!({"node": node, "gone": true}),
        };
        return format!("{line}\n");
    }
    match told {
        Told::Begun => done(false),
        Told::Left { node, primaries, backups } => format!(
            "{node}: {} copies left, {primaries} of them primaries\n",
            primaries.saturating_add(*backups)
        ),
        Told::Gone { node } => format!("{node} has left\n"),
    }
}

/// All limits: a limits file.
pub(super) fn limits(text: &str, as_json: bool) -> String {
    if as_json { pretty(&serde_json::json!({ "limits": text })) } else { text.to_owned() }
}

/// The cluster did what it was told.
pub(super) fn done(as_json: bool) -> String {
    if as_json { "{\"done\":true}\n".to_owned() } else { "done\n".to_owned() }
}

/// How the cluster is, in one sentence: the worst first.
fn verdict(stats: &Stats) -> String {
    let text = |name: &str| {
        let found = stats.iter().find(|(other, _)| other == name);
        found.map_or("-", |(_, value)| value.as_str())
    };
    let count = |name| text(name).parse::<u64>().unwrap_or(0);
    let partitions = |name, what| match count(name) {
        0 => None,
        1 => Some(format!("1 partition {what}")),
        more => Some(format!("{more} partitions {what}")),
    };
    if text("fault") != "-" {
        return format!("This node's part in the control plane has failed: {}", text("fault"));
    }
    if !matches!(text("place"), "active" | "joining" | "draining") {
        return format!("This node is in no cluster now: {}.", text("place"));
    }
    if text("leader") == "-" {
        return "There is no leader: keys are served, nothing changes.".to_owned();
    }
    let lacks = [
        ("partitions_without_primary", "without a primary"),
        ("partitions_under_replicated", "with too few copies"),
        ("partitions_moving", "moving"),
        ("partitions_learners", "being copied"),
    ];
    let lacks: Vec<String> =
        lacks.into_iter().filter_map(|(name, what)| partitions(name, what)).collect();
    match (lacks.is_empty(), count("nodes_dead")) {
        (true, 0) => "All partitions are served and have their copies.".to_owned(),
        (true, dead) => format!("All partitions have their copies; dead nodes: {dead}."),
        (false, 0) => format!("Not yet as it should be: {}.", lacks.join(", ")),
        (false, dead) => {
            format!("Not yet as it should be: {}; dead nodes: {dead}.", lacks.join(", "))
        }
    }
}

/// Names and values, the values under each other.
fn pairs(stats: &Stats) -> String {
    let width = stats.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let mut page = String::new();
    for (name, value) in stats {
        writeln!(page, "{name:width$}  {value}").expect("a String takes every write");
    }
    page
}

/// A table, columns as wide as what is in them.
fn table(first: &str, columns: Columns, rows: &[Row<'_>]) -> String {
    let mut cells: Vec<Vec<&str>> = vec![
        [first].into_iter().chain(columns.iter().map(|(title, _)| *title)).collect::<Vec<_>>(),
    ];
    for row in rows {
        let figures = columns.iter().map(|(_, name)| row.get(name).unwrap_or("-"));
        cells.push([row.id].into_iter().chain(figures).collect());
    }
    let width = |at: usize| {
        let widths = cells.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..=columns.len()).map(width).collect();
    let mut page = String::new();
    for row in &cells {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            write!(line, "{cell:width$}  ").expect("a String takes every write");
        }
        page.push_str(line.trim_end());
        page.push('\n');
    }
    page
}

fn object(stats: &Stats) -> Value {
    let figures = stats.iter().map(|(name, text)| (name.clone(), value(text)));
    Value::Object(figures.collect())
}

/// A figure as JSON has it: a number, true or false, null for what nobody knows, else text.
fn value(text: &str) -> Value {
    match text {
        "-" => Value::Null,
        "yes" => json!(true),
        "no" => json!(false),
        _ => match (text.parse::<u64>(), text.parse::<i64>()) {
            (Ok(number), _) => json!(number),
            (_, Ok(number)) => json!(number),
            _ => json!(text),
        },
    }
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

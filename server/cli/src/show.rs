//! Formats the replies of nodes as text or as JSON.
//!
//! Here: tables, the first sentence of a status, JSON of the same. Not here: the meaning of the
//! stats (`server`). Stats that this program does not know are shown too: the node may be
//! newer.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::client::StatPairs;
use super::drain::DrainReport;

/// Columns of a table: title and name of the stat.
type Columns = &'static [(&'static str, &'static str)];

/// The columns fit [`WIDTH`] if the name is cut; the other stats are in [`NODES_WIDE`].
const NODES: Columns = &[
    ("NAME", "ring_name"),
    ("STATE", "state"),
    ("READY", "ready"),
    ("VOTER", "voter"),
    ("LEADER", "leader"),
    ("PRIM", "primaries"),
    ("BACK", "backups"),
    ("LEARN", "learners"),
    ("OPS/S", "ops_per_second"),
    ("LINK", "link"),
    ("CLOCK", "clock_offset_ms"),
];

const NODES_WIDE: Columns = &[
    ("NAME", "ring_name"),
    ("CLIENTS", "client"),
    ("PEERS", "peer"),
    ("ZONE", "zone"),
    ("WEIGHT", "weight"),
    ("STATE", "state"),
    ("READY", "ready"),
    ("VOTER", "voter"),
    ("LEADER", "leader"),
    ("PRIM", "primaries"),
    ("BACK", "backups"),
    ("LEARN", "learners"),
    ("OPS/S", "ops_per_second"),
    ("HEARD", "heard_ms_ago"),
    ("LINK", "link"),
    ("CLOCK", "clock_offset_ms"),
];

/// Maximum width of a table of nodes, in characters.
const WIDTH: usize = 100;
/// Minimum width to which a name is cut.
const NAME_MIN: usize = 10;

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

/// Stats that are text, even if it looks like a number or a boolean.
const TEXTS: [&str; 8] =
    ["client", "cluster", "fault", "not_ready", "not_safe", "peer", "ring_name", "zone"];
/// The names of settings that this program may not know begin with this. Their values are text.
const SETTING: &str = "setting:";

/// One node or partition: its id, and its stats by name.
pub(super) struct StatRow<'a> {
    pub(super) id: &'a str,
    stats: Vec<(&'a str, &'a str)>,
}

impl<'a> StatRow<'a> {
    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        self.stats.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
    }

    pub(super) fn json(&self) -> Value {
        let stats = self.stats.iter().map(|(name, text)| ((*name).to_owned(), value(name, text)));
        let mut object: Map<String, Value> = stats.collect();
        object.insert("id".to_owned(), json!(self.id));
        Value::Object(object)
    }
}

/// Groups lines such as `n1:state active` by node. The lines of one node must be adjacent.
pub(super) fn rows(stats: &StatPairs) -> Vec<StatRow<'_>> {
    let mut rows: Vec<StatRow<'_>> = Vec::new();
    for (name, text) in stats {
        let Some((id, name)) = name.split_once(':') else { continue };
        match rows.last_mut() {
            Some(row) if row.id == id => row.stats.push((name, text)),
            _ => rows.push(StatRow { id, stats: vec![(name, text)] }),
        }
    }
    rows
}

/// The value of a stat, or `-` if the node does not report it.
pub(super) fn printed<'s>(stats: &'s StatPairs, name: &str) -> &'s str {
    let found = stats.iter().find(|(other, _)| other == name);
    found.map_or("-", |(_, value)| value.as_str())
}

/// Formats the most important of `stats cluster` between two sentences; as JSON, all of it.
pub(super) fn status(stats: &StatPairs, as_json: bool) -> String {
    if as_json {
        return pretty(&object(stats));
    }
    let stat = |name: &str| printed(stats, name);
    let line = |name: &str, value: String| (name.to_owned(), value);
    let ready = match (stat("ready"), stat("not_ready")) {
        ("yes", _) => "ready".to_owned(),
        (_, why) => format!("not ready: {why}"),
    };
    let some = |name: &str, what: &str| match stat(name) {
        "0" | "-" => None,
        count => Some(format!("{count} {what}")),
    };
    let list = |first: String, rest: &[(&str, &str)]| {
        let rest = rest.iter().filter_map(|(name, what)| some(name, what));
        std::iter::once(first).chain(rest).collect::<Vec<_>>().join(", ")
    };
    let nodes =
        [("nodes_joining", "joining"), ("nodes_draining", "draining"), ("nodes_dead", "dead")];
    let lacks = [
        ("partitions_without_primary", "without a primary"),
        ("partitions_under_replicated", "with too few copies"),
        ("partitions_moving", "moving"),
        ("partitions_learners", "being copied"),
    ];
    let lines: StatPairs = vec![
        line("node", format!("{}, {}, {ready}", stat("node"), stat("place"))),
        line("cluster", stat("cluster").to_owned()),
        line("nodes", list(format!("{}: {} active", stat("nodes"), stat("nodes_active")), &nodes)),
        line("leader", stat("leader").to_owned()),
        line("voters", stat("voters").replace(',', " ")),
        line(
            "partitions",
            list(format!("{}: {} served", stat("partitions"), stat("partitions_served")), &lacks),
        ),
        line("replicas", stat("replicas").to_owned()),
        line("lost_after", stat("lost_after").to_owned()),
    ];
    format!("{}\n\n{}\n{}\n", verdict(stats), pairs(&lines), safe_to_proceed(stats))
}

/// The last sentence of a status: whether the next node of a rolling restart may follow.
pub(super) fn safe_to_proceed(stats: &StatPairs) -> String {
    match (printed(stats, "safe_to_proceed"), printed(stats, "not_safe")) {
        ("yes", _) => "Safe to proceed with the next node.".to_owned(),
        ("no", why) => format!("Not yet safe to proceed with the next node: {why}."),
        _ => "Not known whether it is safe to proceed: the asked node is older.".to_owned(),
    }
}

/// Formats the success of `ready`.
pub(super) fn ready(as_json: bool) -> String {
    if as_json { "{\"ready\":true}\n".to_owned() } else { "ready\n".to_owned() }
}

/// Formats `stats cluster nodes`.
pub(super) fn nodes(stats: &StatPairs, is_wide: bool, as_json: bool) -> String {
    let rows = rows(stats);
    if as_json {
        return pretty(&Value::Array(rows.iter().map(StatRow::json).collect()));
    }
    if is_wide {
        return table("NODE", NODES_WIDE, &rows, usize::MAX);
    }
    let whole = table("NODE", NODES, &rows, usize::MAX);
    let width = whole.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    let names = rows.iter().filter_map(|row| row.get("ring_name"));
    let longest = names.map(|name| name.chars().count()).max().unwrap_or(0);
    match width.saturating_sub(WIDTH) {
        0 => whole,
        over => table("NODE", NODES, &rows, longest.saturating_sub(over).max(NAME_MIN)),
    }
}

/// Formats `stats cluster partitions`: totals, then partitions.
pub(super) fn partitions(stats: &StatPairs, as_json: bool) -> String {
    // A partition's value is a list of stats: `p17 state=moving,primary=n1`.
    let (lines, totals): (StatPairs, StatPairs) =
        stats.iter().cloned().partition(|(_, value)| value.contains('='));
    let row = |(id, value)| StatRow { id, stats: stats_of(value) };
    let rows: Vec<StatRow<'_>> =
        lines.iter().map(|(id, value)| (id.as_str(), value.as_str())).map(row).collect();
    if as_json {
        let mut all = object(&totals);
        all["list"] = Value::Array(rows.iter().map(StatRow::json).collect());
        return pretty(&all);
    }
    let is_total = |(name, _): &&(String, String)| name != "partitions_left_out";
    let mut page = pairs(&totals.iter().filter(is_total).cloned().collect());
    if !rows.is_empty() {
        page.push('\n');
        page.push_str(&table("PARTITION", PARTITIONS, &rows, usize::MAX));
    }
    let left_out = totals.iter().find(|(name, _)| name == "partitions_left_out");
    if let Some((_, count)) = left_out.filter(|(_, count)| count != "0") {
        writeln!(page, "and {count} more, which --all lists").expect("a String takes every write");
    }
    page
}

fn stats_of(value: &str) -> Vec<(&str, &str)> {
    value.split(',').filter_map(|pair| pair.split_once('=')).collect()
}

/// Formats the progress of a drain.
pub(super) fn progress(response: &DrainReport, as_json: bool) -> String {
    if as_json {
        let line = match response {
            DrainReport::Begun => json!({"done": true}),
            DrainReport::Left { node, primaries, backups } => json!({
                "node": node, "gone": false, "primaries": primaries, "backups": backups
            }),
            DrainReport::Gone { node } => json!({"node": node, "gone": true}),
        };
        return format!("{line}\n");
    }
    match response {
        DrainReport::Begun => done(false),
        DrainReport::Left { node, primaries, backups } => format!(
            "{node}: {} copies left, {primaries} of them primaries\n",
            primaries.saturating_add(*backups)
        ),
        DrainReport::Gone { node } => format!("{node} has left\n"),
    }
}

/// Formats all limits: as text, a limits file.
pub(super) fn limits(text: &str, as_json: bool) -> String {
    if as_json { pretty(&serde_json::json!({ "limits": text })) } else { text.to_owned() }
}

/// Formats the success of a change.
pub(super) fn done(as_json: bool) -> String {
    if as_json { "{\"done\":true}\n".to_owned() } else { "done\n".to_owned() }
}

/// The state of the cluster in one sentence, the worst problem first.
fn verdict(stats: &StatPairs) -> String {
    let text = |name: &str| printed(stats, name);
    let count = |name| text(name).parse::<u64>().unwrap_or(0);
    let partitions = |name, what| match count(name) {
        0 => None,
        1 => Some(format!("1 partition {what}")),
        more => Some(format!("{more} partitions {what}")),
    };
    if text("fault") != "-" {
        return format!("This node serves on with a fault: {}", text("fault"));
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

/// Formats names and values as two columns.
fn pairs(stats: &StatPairs) -> String {
    let width = stats.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let mut page = String::new();
    for (name, value) in stats {
        writeln!(page, "{name:width$}  {value}").expect("a String takes every write");
    }
    page
}

/// Formats a table. Each column is as wide as its widest cell, and cells are cut to `cell_max`
/// characters.
fn table(first: &str, columns: Columns, rows: &[StatRow<'_>], cell_max: usize) -> String {
    let titles = columns.iter().map(|(title, _)| (*title).to_owned());
    let mut cells: Vec<Vec<String>> = vec![[first.to_owned()].into_iter().chain(titles).collect()];
    for row in rows {
        let stats = columns.iter().map(|(_, name)| cut(row.get(name).unwrap_or("-"), cell_max));
        cells.push([row.id.to_owned()].into_iter().chain(stats).collect());
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

/// Cuts `text` to `chars_max` characters; a cut text ends with an ellipsis.
fn cut(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    text.chars().take(chars_max.saturating_sub(1)).chain(['…']).collect()
}

pub(super) fn object(stats: &StatPairs) -> Value {
    let values = stats.iter().map(|(name, text)| (name.clone(), value(name, text)));
    Value::Object(values.collect())
}

/// Converts the stat `name` to JSON: a number, a boolean, null for `-`, else text.
pub(super) fn value(name: &str, text: &str) -> Value {
    match text {
        "-" => Value::Null,
        _ if TEXTS.contains(&name) || name.starts_with(SETTING) => json!(text),
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

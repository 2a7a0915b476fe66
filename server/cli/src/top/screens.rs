//! The screens of `tollgate top`: figures → lines of plain ASCII, within the terminal's size.
//!
//! Here: tables, sorting, the filter, and the neutralization of hostile names. Not here: reading
//! figures (`figures`), the terminal (`terminal`).

use std::cmp::Ordering;
use std::collections::HashMap;

use super::super::client::StatPairs;
use super::super::show::{StatRow, printed, safe_to_proceed};
use super::figures::{COMMANDS, TopFigures, TopRates, hot_keys};
use super::{Screen, View};

/// Widest column that is not the last.
const CELL_MAX: usize = 24;

/// A cell of a table.
enum Cell {
    Text(String),
    Number(f64, String),
    /// Not known.
    Absent,
}

struct Table {
    titles: &'static [&'static str],
    rows: Vec<Vec<Cell>>,
    /// The column that sorts a new screen.
    sorts: usize,
}

impl Cell {
    fn text(text: &str) -> Self {
        Self::Text(plain(text))
    }

    fn number(number: f64) -> Self {
        Self::Number(number, short(number))
    }

    /// A number as the server wrote it.
    fn count(text: Option<&str>) -> Self {
        match text.and_then(|text| Some((text, text.parse::<f64>().ok()?))) {
            Some((text, number)) if number.is_finite() => Self::Number(number, plain(text)),
            _ => Self::Absent,
        }
    }

    fn shown(&self) -> &str {
        match self {
            Self::Text(text) | Self::Number(_, text) => text,
            Self::Absent => "-",
        }
    }

    fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            // The highest number first, text by the alphabet, unknown cells last.
            (Self::Number(one, _), Self::Number(two, _)) => two.total_cmp(one),
            (Self::Text(one), Self::Text(two)) => one.cmp(two),
            (Self::Absent, Self::Absent) => Ordering::Equal,
            (_, Self::Absent) | (Self::Number(..), Self::Text(_)) => Ordering::Less,
            (Self::Absent, _) | (Self::Text(_), Self::Number(..)) => Ordering::Greater,
        }
    }
}

/// Replaces everything but printable ASCII by `?`: keys and names may come from an attacker, and
/// other characters may move the cursor, or be wider than a column.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if matches!(c, ' '..='~') { c } else { '?' }).collect()
}

/// A number with about three digits.
pub(super) fn short(number: f64) -> String {
    const UNITS: [&str; 6] = ["", "k", "M", "G", "T", "P"];
    let (mut number, mut unit) = (number.max(0.0), 0);
    while number >= 999.5 && unit + 1 < UNITS.len() {
        number /= 1000.0;
        unit += 1;
    }
    let is_whole = number >= 99.95 || (unit == 0 && number.fract() == 0.0);
    let digits = usize::from(!is_whole);
    format!("{number:.digits$}{}", UNITS[unit])
}

fn cut(text: &str, width: usize) -> String {
    if text.len() <= width {
        return text.to_owned();
    }
    // The text is ASCII.
    format!("{}~", &text[..width.saturating_sub(1)])
}

impl Table {
    fn lines(mut self, view: &View, width: usize, height: usize) -> Vec<String> {
        let column = view.sorts[view.screen as usize].unwrap_or(self.sorts);
        let column = column.min(self.titles.len() - 1);
        let wanted = view.filter.to_ascii_lowercase();
        let is_wanted = |text: &str| text.to_ascii_lowercase().contains(&wanted);
        let has = |cell: &Cell| matches!(cell, Cell::Text(text) if is_wanted(text));
        self.rows.retain(|row| wanted.is_empty() || row.iter().any(has));
        self.rows.sort_by(|one, other| one[column].order(&other[column]));
        let left_out = self.rows.len().saturating_sub(height.saturating_sub(1));
        let shown = self.rows.len().min(height.saturating_sub(1 + usize::from(left_out > 0)));
        let last = self.titles.len() - 1;
        let titles = self.titles.iter().enumerate();
        let titles =
            titles.map(
                |(at, title)| {
                    if at == column { format!("{title}*") } else { (*title).to_owned() }
                },
            );
        let titles: Vec<String> = titles.collect();
        let is_number = |at: usize| self.rows.iter().any(|row| matches!(row[at], Cell::Number(..)));
        let widths: Vec<(usize, bool)> = (0..last)
            .map(|at| {
                let cells = self.rows.iter().take(shown).map(|row| row[at].shown().len());
                let widest = cells.max().unwrap_or(0).min(CELL_MAX);
                (widest.max(titles[at].len()), is_number(at))
            })
            .collect();
        let line = |cells: &[&str]| {
            let mut line = String::new();
            for (cell, (width, is_number)) in cells.iter().zip(&widths) {
                let cell = cut(cell, *width);
                let pad = " ".repeat(width - cell.len());
                let (left, right) = if *is_number { (&*pad, "") } else { ("", &*pad) };
                line.extend([left, cell.as_str(), right, "  "]);
            }
            line.push_str(cells[last]);
            cut(line.trim_end(), width)
        };
        let mut lines = vec![line(&titles.iter().map(String::as_str).collect::<Vec<_>>())];
        lines.extend(
            self.rows
                .iter()
                .take(shown)
                .map(|row| line(&row.iter().map(Cell::shown).collect::<Vec<_>>())),
        );
        if self.rows.is_empty() {
            let why = if wanted.is_empty() { "none" } else { "none that the filter passes" };
            lines.push(why.to_owned());
        }
        if shown < self.rows.len() {
            lines.push(format!("and {} more", self.rows.len() - shown));
        }
        lines
    }
}

/// Returns the number of columns of a screen, for the sort key.
pub(super) fn columns(screen: Screen) -> usize {
    match screen {
        Screen::Overview => 1,
        Screen::Limits => LIMITS.len(),
        Screen::Hot | Screen::Denied => KEYS.len(),
        Screen::Nodes => NODES.len(),
    }
}

const LIMITS: &[&str] = &["LIMIT", "ALLOW/S", "DENY/S", "SHADOW/S", "KEYS", "POLICY"];
const KEYS: &[&str] = &["RATE/S", "AT LEAST", "LIMIT", "KEY"];
const NODES: &[&str] =
    &["NODE", "STATE", "READY", "PRIM", "BACK", "LEARN", "OPS/S", "LINK", "CLOCK", "NAME"];

/// The default column of each table.
pub(super) fn default_sort(screen: Screen) -> usize {
    match screen {
        Screen::Limits => 2,
        Screen::Overview | Screen::Hot | Screen::Denied | Screen::Nodes => 0,
    }
}

/// Returns the lines of a frame: at most `height`, none longer than `width`, all of printable
/// ASCII.
pub(super) fn frame(
    view: &View,
    now: &TopFigures,
    before: &TopFigures,
    (width, height): (usize, usize),
) -> Vec<String> {
    let names = Screen::ALL.iter().zip(1..).map(|(screen, number)| {
        let name = screen.name();
        if *screen == view.screen {
            format!("[{number} {name}]")
        } else {
            format!(" {number} {name} ")
        }
    });
    let mut lines = vec![
        cut(&format!("tollgate {}  {}", names.collect::<String>(), plain(&view.server)), width),
        cut(&status(view), width),
    ];
    let left = height.saturating_sub(lines.len());
    let rates = TopRates::of(now, before);
    let body = match view.screen {
        Screen::Overview => overview(now, &rates),
        Screen::Limits => match &now.limits {
            Some(_) => limits(now, &rates).lines(view, width, left),
            None => vec![NOT_AVAILABLE.to_owned()],
        },
        Screen::Hot => keys(now.hot.as_ref(), view, width, left),
        Screen::Denied => keys(now.denied.as_ref(), view, width, left),
        Screen::Nodes => match &now.nodes {
            Some(_) => {
                let mut lines = vec![safety(now.cluster.as_ref())];
                lines.extend(nodes(now).lines(view, width, left.saturating_sub(1)));
                lines
            }
            None => vec!["the server is in no cluster".to_owned()],
        },
    };
    lines.extend(body.iter().take(left).map(|line| cut(&plain(line), width)));
    lines.truncate(height);
    lines
}

const NOT_AVAILABLE: &str = "not available: the server is older";

fn status(view: &View) -> String {
    let mut words = Vec::new();
    if let Some(fault) = &view.fault {
        words.push(plain(fault));
    }
    if view.is_paused {
        words.push("paused".to_owned());
    }
    if view.is_typing {
        words.push(format!("filter: {}_", plain(&view.filter)));
    } else if !view.filter.is_empty() {
        words.push(format!("filter: {}", plain(&view.filter)));
    }
    words.join("  ")
}

fn keys(stats: Option<&StatPairs>, view: &View, width: usize, height: usize) -> Vec<String> {
    let Some(stats) = stats else { return vec![NOT_AVAILABLE.to_owned()] };
    if stats.is_empty() {
        return vec!["not available: no key yet, or the server is older".to_owned()];
    }
    let row = |row: super::figures::HotKeyRow<'_>| {
        vec![
            Cell::number(row.rate),
            Cell::number(row.rate_at_least),
            row.limit.map_or(Cell::Absent, Cell::text),
            Cell::text(row.key),
        ]
    };
    let rows = hot_keys(stats).into_iter().map(row).collect();
    let table = Table { titles: KEYS, rows, sorts: default_sort(Screen::Hot) };
    table.lines(view, width, height)
}

fn limits(now: &TopFigures, rates: &TopRates<'_>) -> Table {
    let row = |(name, figures): (&str, HashMap<&str, &str>)| {
        let rate = |figure| Cell::number(rates.of_limit(name, figure));
        vec![
            Cell::text(name),
            rate("allowed"),
            rate("denied"),
            rate("shadow_denied"),
            Cell::count(figures.get("active_keys").copied()),
            Cell::text(figures.get("policy").copied().unwrap_or("-")),
        ]
    };
    let rows = now.limit_rows().into_iter().map(row).collect();
    Table { titles: LIMITS, rows, sorts: default_sort(Screen::Limits) }
}

fn nodes(now: &TopFigures) -> Table {
    let row = |row: &StatRow<'_>| {
        let text =
            |name| row.get(name).filter(|text| *text != "-").map_or(Cell::Absent, Cell::text);
        let count = |name| Cell::count(row.get(name));
        let is_self = row.get("self") == Some("yes");
        vec![
            Cell::text(row.id),
            text("state"),
            text("ready"),
            count("primaries"),
            count("backups"),
            count("learners"),
            count("ops_per_second"),
            if is_self { Cell::text("self") } else { text("link") },
            count("clock_offset_ms"),
            text("ring_name"),
        ]
    };
    Table {
        titles: NODES,
        rows: now.node_rows().iter().map(row).collect(),
        sorts: default_sort(Screen::Nodes),
    }
}

/// The sentence about the next node of a rolling restart.
fn safety(cluster: Option<&StatPairs>) -> String {
    let Some(cluster) = cluster else { return String::new() };
    if printed(cluster, "safe_to_proceed") == "-" {
        String::new()
    } else {
        safe_to_proceed(cluster)
    }
}

/// A line of the overview.
fn entry(name: &str, value: &str) -> String {
    format!("{name:<11}{value}")
}

fn overview(now: &TopFigures, rates: &TopRates<'_>) -> Vec<String> {
    let stat = |name: &str| printed(&now.general, name);
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    let large = |name: &str| short(now.count(name) as f64);
    let rate = |name: &str| short(rates.general(name));
    let seconds = now.count("uptime");
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let up = format!("{days} d {hours:02}:{:02}:{:02}", seconds / 60 % 60, seconds % 60);
    let (version, threads) = (stat("version"), stat("threads"));
    let (clients, clients_max) = (stat("curr_connections"), stat("max_connections"));
    let refused = stat("rejected_connections");
    let commands = COMMANDS.iter();
    let commands: Vec<String> = commands
        .map(|(name, counters)| format!("{name} {}", short(rates.commands(counters))))
        .collect();
    let (read, written) = (rate("bytes_read"), rate("bytes_written"));
    let (used, cap, items) = (large("bytes"), large("limit_maxbytes"), large("curr_items"));
    let percent = now.count("bytes").saturating_mul(100) / now.count("limit_maxbytes").max(1);
    let evicted = rate("evictions");
    let memory = format!("{used}B of {cap}B ({percent} %), {items} items, evictions/s {evicted}");
    let mut lines = vec![
        entry("server", &format!("version {version}, up {up}, {threads} threads")),
        entry("clients", &format!("{clients} of {clients_max}, refused {refused}")),
        entry("commands/s", &commands.join("  ")),
        entry("network/s", &format!("in {read}B  out {written}B")),
        entry("memory", &memory),
        entry("latency", &latency(now)),
    ];
    lines.extend(decisions(now, rates));
    lines.extend(cluster(now));
    lines
}

fn latency(now: &TopFigures) -> String {
    let Some(stats) = now.latency.as_ref().filter(|stats| !stats.is_empty()) else {
        return NOT_AVAILABLE.to_owned();
    };
    let [p50, p99, p999, max] =
        ["p50", "p99", "p999", "max"].map(|name| printed(stats, &format!("latency_{name}_us")));
    format!("p50 {p50} us  p99 {p99} us  p99.9 {p999} us  max {max} us")
}

fn decisions(now: &TopFigures, rates: &TopRates<'_>) -> Vec<String> {
    let Some(stats) = &now.limits else { return vec![entry("limits/s", NOT_AVAILABLE)] };
    let [allowed, denied, shadow] =
        ["allowed", "denied", "shadow_denied"].map(|figure| short(rates.decisions(figure)));
    let count = printed(stats, "limits");
    let rates =
        format!("allowed {allowed}  denied {denied}  shadow denied {shadow}, {count} limits");
    let mut lines = vec![entry("limits/s", &rates)];
    let fault = printed(stats, "limits_fault");
    if fault != "-" {
        lines.push(entry("fault", &format!("limits: {fault}")));
    }
    lines
}

fn cluster(now: &TopFigures) -> Vec<String> {
    let Some(stats) = &now.cluster else { return vec![entry("cluster", "none")] };
    let [node, place, leader, nodes, dead] =
        ["node", "place", "leader", "nodes", "nodes_dead"].map(|name| printed(stats, name));
    let [served, all] = ["partitions_served", "partitions"].map(|name| printed(stats, name));
    let nodes = format!("{node}, {place}, leader {leader}, nodes {nodes}, dead {dead}");
    vec![
        entry("cluster", &nodes),
        entry("", &format!("partitions {served} of {all} served")),
        entry("", &safety(Some(stats))),
    ]
}

#[cfg(test)]
mod tests;

//! The figures of one moment, read over the client port, and the rates between two moments.
//!
//! Not here: their display (`screens`).

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tollgate::net::clock::Clock;

use super::super::CliError;
use super::super::client::{ServerClient, StatPairs};
use super::super::show::{StatRow, object, printed, rows, value};
use super::Screen;

/// Hot keys that are requested.
pub(super) const KEYS_MAX: usize = 100;

/// The figures of a server at one moment. A topic that the server does not know is `None`.
#[derive(Debug, Default)]
pub(super) struct TopFigures {
    pub(super) general: StatPairs,
    pub(super) limits: Option<StatPairs>,
    pub(super) hot: Option<StatPairs>,
    pub(super) denied: Option<StatPairs>,
    pub(super) latency: Option<StatPairs>,
    pub(super) cluster: Option<StatPairs>,
    pub(super) nodes: Option<StatPairs>,
    /// Nanoseconds on the monotonic clock; `None` for no figures.
    at_ns: Option<u64>,
}

/// A key of `stats hotkeys` or `stats denied`.
#[derive(Debug, PartialEq)]
pub(super) struct HotKeyRow<'a> {
    pub(super) rate: f64,
    pub(super) rate_at_least: f64,
    /// None for a plain key.
    pub(super) limit: Option<&'a str>,
    pub(super) key: &'a str,
}

/// Reads a topic that an older server, or one outside a cluster, refuses.
fn optional(server: &mut ServerClient, topic: &str) -> Result<Option<StatPairs>, CliError> {
    match server.stats(topic) {
        Ok(stats) => Ok(Some(stats)),
        Err(CliError::NoCluster(_) | CliError::Refused { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

impl TopFigures {
    /// Reads the topics that `screen` needs; all without one.
    pub(super) fn read(
        server: &mut ServerClient,
        screen: Option<Screen>,
        clock: &Clock,
    ) -> Result<Self, CliError> {
        let needs = |screens: &[Screen]| screen.is_none_or(|screen| screens.contains(&screen));
        let mut read = |topic: &str, screens: &[Screen]| {
            if needs(screens) { optional(server, topic) } else { Ok(None) }
        };
        let keys = format!("hotkeys {KEYS_MAX}");
        let denied = format!("denied {KEYS_MAX}");
        let (limits, hot, denied, latency, cluster, nodes) = (
            read("limits", &[Screen::Overview, Screen::Limits])?,
            read(&keys, &[Screen::Hot])?,
            read(&denied, &[Screen::Denied])?,
            read("latency", &[Screen::Overview])?,
            read("cluster", &[Screen::Overview, Screen::Nodes])?,
            read("cluster nodes", &[Screen::Nodes])?,
        );
        let general = server.stats("")?;
        let at_ns = Some(clock.now().mono.0);
        Ok(Self { general, limits, hot, denied, latency, cluster, nodes, at_ns })
    }

    /// A figure of `stats`.
    pub(super) fn count(&self, name: &str) -> u64 {
        printed(&self.general, name).parse().unwrap_or(0)
    }

    /// Returns the limits with their figures, in the server's order.
    pub(super) fn limit_rows(&self) -> Vec<(&str, HashMap<&str, &str>)> {
        let mut limits: Vec<(&str, HashMap<&str, &str>)> = Vec::new();
        for (name, value) in self.limits.iter().flatten() {
            // A limit's name may have colons.
            let Some((limit, figure)) = name.rsplit_once(':') else { continue };
            match limits.last_mut() {
                Some((last, figures)) if *last == limit => drop(figures.insert(figure, value)),
                _ => limits.push((limit, [(figure, value.as_str())].into())),
            }
        }
        limits
    }

    pub(super) fn node_rows(&self) -> Vec<StatRow<'_>> {
        self.nodes.as_ref().map(rows).unwrap_or_default()
    }

    /// Returns the sum of a figure over all limits.
    fn limit_sum(&self, figure: &str) -> u64 {
        let count = |(_, figures): &(&str, HashMap<&str, &str>)| number(figures.get(figure));
        self.limit_rows().iter().map(count).fold(0, u64::saturating_add)
    }

    /// The figures as one JSON object, with rates since `before`.
    pub(super) fn json(&self, before: &Self, server: &str) -> Value {
        let keys = |stats: &Option<StatPairs>| {
            stats.as_ref().map(|stats| {
                let keys = hot_keys(stats).into_iter().map(|row| {
                    json!({
                        "key": row.key, "limit": row.limit,
                        "rate": row.rate, "rate_at_least": row.rate_at_least,
                    })
                });
                Value::Array(keys.collect())
            })
        };
        let rates = TopRates::of(self, before);
        let limits: Vec<Value> = self
            .limit_rows()
            .into_iter()
            .map(|(name, figures)| {
                let pair = |(name, text): (&str, &str)| (name.to_owned(), value(name, text));
                let mut limit: Map<String, Value> = figures.into_iter().map(pair).collect();
                limit.insert("name".to_owned(), json!(name));
                for figure in ["allowed", "denied", "shadow_denied"] {
                    let rate = rates.of_limit(name, figure);
                    limit.insert(format!("{figure}_per_second"), json!(rate));
                }
                Value::Object(limit)
            })
            .collect();
        let nodes = self
            .nodes
            .as_ref()
            .map(|_| Value::Array(self.node_rows().iter().map(StatRow::json).collect()));
        json!({
            "server": server,
            "rates": rates.json(),
            "stats": object(&self.general),
            "limits": limits,
            "hot": keys(&self.hot),
            "denied": keys(&self.denied),
            "latency": self.latency.as_ref().filter(|stats| !stats.is_empty()).map(object),
            "cluster": self.cluster.as_ref().map(object),
            "nodes": nodes,
        })
    }
}

/// Reads the lines `hot:<rank> <rate> <rate_at_least> <limit|-> <key>`; other lines are left out.
pub(super) fn hot_keys(stats: &StatPairs) -> Vec<HotKeyRow<'_>> {
    let row = |(name, value): &'_ (String, String)| -> Option<(f64, f64, usize)> {
        name.split_once(':')?.1.parse::<u32>().ok()?;
        let mut words = value.splitn(3, ' ');
        let mut rate = || words.next()?.parse().ok().filter(|rate: &f64| rate.is_finite());
        let (rate, at_least) = (rate()?, rate()?);
        Some((rate, at_least, value.len() - words.next()?.len()))
    };
    let keys = stats.iter().filter_map(|stat| {
        let (rate, rate_at_least, rest) = row(stat)?;
        let (limit, key) = stat.1[rest..].split_once(' ')?;
        let limit = Some(limit).filter(|limit| *limit != "-");
        Some(HotKeyRow { rate, rate_at_least, limit, key })
    });
    keys.take(KEYS_MAX).collect()
}

fn number(text: Option<&&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Rates a second between two moments.
pub(super) struct TopRates<'a> {
    now: &'a TopFigures,
    before: &'a TopFigures,
    seconds: f64,
    limits_now: HashMap<&'a str, HashMap<&'a str, &'a str>>,
    limits_before: HashMap<&'a str, HashMap<&'a str, &'a str>>,
}

/// Kinds of commands, and the counters of each.
pub(super) const COMMANDS: [(&str, &[&str]); 5] = [
    ("get", &["cmd_get"]),
    ("set", &["cmd_set"]),
    ("incr", &["incr_hits", "incr_misses", "decr_hits", "decr_misses"]),
    ("touch", &["cmd_touch"]),
    ("delete", &["delete_hits", "delete_misses"]),
];

impl<'a> TopRates<'a> {
    pub(super) fn of(now: &'a TopFigures, before: &'a TopFigures) -> Self {
        let took_ns = match (now.at_ns, before.at_ns) {
            (Some(now), Some(before)) => now.saturating_sub(before),
            _ => 0,
        };
        Self {
            now,
            before,
            seconds: Duration::from_nanos(took_ns).as_secs_f64(),
            limits_now: now.limit_rows().into_iter().collect(),
            limits_before: before.limit_rows().into_iter().collect(),
        }
    }

    /// A rate from two counts; 0 if the counter was reset, or no time has passed.
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    fn rate(&self, now: u64, before: u64) -> f64 {
        if self.seconds > 0.0 { now.saturating_sub(before) as f64 / self.seconds } else { 0.0 }
    }

    /// The rate of a counter of `stats`.
    pub(super) fn general(&self, name: &str) -> f64 {
        self.rate(self.now.count(name), self.before.count(name))
    }

    /// The rate of commands of a kind.
    pub(super) fn commands(&self, counters: &[&str]) -> f64 {
        counters.iter().map(|name| self.general(name)).sum()
    }

    /// The rate of a figure over all limits; 0 if the limits were not read before, as after a
    /// change of screen.
    pub(super) fn decisions(&self, figure: &str) -> f64 {
        if self.before.limits.is_none() {
            return 0.0;
        }
        self.rate(self.now.limit_sum(figure), self.before.limit_sum(figure))
    }

    /// The rate of a limit's figure; 0 for a limit that was not there before.
    pub(super) fn of_limit(&self, limit: &str, figure: &str) -> f64 {
        let count = |limits: &HashMap<&str, HashMap<&str, &str>>| {
            limits.get(limit).map(|figures| number(figures.get(figure)))
        };
        let now = count(&self.limits_now).unwrap_or(0);
        self.rate(now, count(&self.limits_before).unwrap_or(now))
    }

    fn json(&self) -> Value {
        let mut rates: Map<String, Value> = COMMANDS
            .iter()
            .map(|(name, counters)| ((*name).to_owned(), json!(self.commands(counters))))
            .collect();
        for figure in ["allowed", "denied", "shadow_denied"] {
            rates.insert(figure.to_owned(), json!(self.decisions(figure)));
        }
        for figure in ["bytes_read", "bytes_written", "evictions"] {
            rates.insert(figure.to_owned(), json!(self.general(figure)));
        }
        Value::Object(rates)
    }
}

#[cfg(test)]
pub(super) fn figures_of(topics: &[(&str, &str)], at: Duration) -> TopFigures {
    let at_ns = u64::try_from(at.as_nanos()).ok();
    let mut figures = TopFigures { at_ns, ..TopFigures::default() };
    for (topic, text) in topics {
        let pair = |line: &str| {
            let (name, value) = line.trim_start().split_once(' ').unwrap_or((line, ""));
            (name.to_owned(), value.to_owned())
        };
        let stats = text.lines().filter(|line| !line.trim().is_empty()).map(pair).collect();
        match *topic {
            "limits" => figures.limits = Some(stats),
            "hotkeys" => figures.hot = Some(stats),
            "denied" => figures.denied = Some(stats),
            "latency" => figures.latency = Some(stats),
            "cluster" => figures.cluster = Some(stats),
            "nodes" => figures.nodes = Some(stats),
            _ => figures.general = stats,
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_key_lines_are_read_and_others_left_out() {
        let lines = "hot:1 12.5 10 api user:1\nhot:2 3 0 - a key with blanks\nhot:x 1 1 - k\n\
                     hot:3 nan 1 - k\nhot:4 1\nhotkeys 2\nhot:5 1 1 -\nhot:6 1 1 - ";
        let figures = figures_of(&[("hotkeys", lines)], Duration::ZERO);
        let rows = hot_keys(figures.hot.as_ref().expect("it is there"));
        let row = |rate, rate_at_least, limit, key| HotKeyRow { rate, rate_at_least, limit, key };
        let expected = [
            row(12.5, 10.0, Some("api"), "user:1"),
            row(3.0, 0.0, None, "a key with blanks"),
            row(1.0, 1.0, None, ""),
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn rates_are_differences_by_time() {
        let at = |count: u64, seconds| {
            let general = format!("cmd_get {count}\ncmd_set 5");
            let limits = format!("limits 1\na:b:policy block\na:b:denied {count}");
            figures_of(&[("", &general), ("limits", &limits)], Duration::from_secs(seconds))
        };
        let (before, now) = (at(10, 0), at(50, 2));
        let rates = TopRates::of(&now, &before);
        let close = |rate: f64, expected: f64| assert!((rate - expected).abs() < 1e-9, "{rate}");
        close(rates.general("cmd_get"), 20.0);
        close(rates.general("cmd_set"), 0.0);
        close(rates.of_limit("a:b", "denied"), 20.0);
        close(rates.decisions("denied"), 20.0);
        close(rates.of_limit("none", "denied"), 0.0);
        close(TopRates::of(&before, &now).general("cmd_get"), 0.0);
        close(TopRates::of(&now, &TopFigures::default()).of_limit("a:b", "denied"), 0.0);
        close(TopRates::of(&now, &TopFigures::default()).general("cmd_get"), 0.0);
    }

    #[test]
    fn decisions_have_no_rate_before_a_second_reading() {
        let limits = "limits 1\napi:policy block\napi:denied 500";
        let now = figures_of(&[("", "cmd_get 9"), ("limits", limits)], Duration::from_secs(2));
        // Another screen, which needs no limits.
        let before = figures_of(&[("", "cmd_get 5")], Duration::from_secs(1));
        let rates = TopRates::of(&now, &before);
        let close = |rate: f64, expected: f64| assert!((rate - expected).abs() < 1e-9, "{rate}");
        close(rates.decisions("denied"), 0.0);
        close(rates.general("cmd_get"), 4.0);
    }

    #[test]
    fn json_tells_missing_topics_from_empty_ones() {
        let now = figures_of(&[("", "version 1.6.45"), ("hotkeys", "")], Duration::ZERO);
        let json = now.json(&TopFigures::default(), "a:1");
        assert_eq!((&json["hot"], &json["denied"]), (&json!([]), &Value::Null));
        assert_eq!((&json["latency"], &json["nodes"]), (&Value::Null, &Value::Null));
        assert_eq!((&json["server"], &json["stats"]["version"]), (&json!("a:1"), &json!("1.6.45")));
        assert_eq!(json["rates"]["denied"], json!(0.0));
    }
}

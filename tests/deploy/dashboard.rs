//! `deploy/grafana`: the form of the dashboard, as Grafana reads it.
//!
//! Here: ids, positions, units, variables, data sources, and the syntax of every query by promtool.
//! Not here: the metrics that the queries name (`monitoring`). Grafana itself is not available.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use super::chart::list;
use super::monitoring::{DASHBOARD, matches};
use super::{read, text};
use crate::http::promtool;

/// Versions of the form that Grafana 10 to 12 read.
const SCHEMA_VERSIONS: std::ops::RangeInclusive<u64> = 36..=41;
/// Columns of the grid.
const COLUMNS: u64 = 24;
/// Grafana's names of the units that the dashboard has.
const UNITS: [&str; 8] = ["short", "reqps", "percentunit", "Bps", "cps", "bytes", "s", "ops"];
/// Variables that Grafana defines, each with a duration in its place.
const BUILT_IN: [(&str, &str); 2] = [("__rate_interval", "5m"), ("__range", "1h")];

fn dashboard() -> Value {
    serde_json::from_str(&read(DASHBOARD)).expect("good JSON")
}

/// The panels that are no rows.
fn charts(dashboard: &Value) -> impl Iterator<Item = &Value> {
    list(&dashboard["panels"]).iter().filter(|panel| panel["type"] != "row")
}

/// The queries of all panels.
fn expressions(dashboard: &Value) -> Vec<String> {
    let targets = charts(dashboard).flat_map(|panel| list(&panel["targets"]));
    targets.map(|target| text(&target["expr"])).collect()
}

/// The names of the dashboard's variables.
fn variables(dashboard: &Value) -> Vec<String> {
    list(&dashboard["templating"]["list"]).iter().map(|variable| text(&variable["name"])).collect()
}

#[test]
fn the_dashboard_needs_no_plug_in() {
    let dashboard = dashboard();
    assert_eq!(variables(&dashboard), ["datasource", "job", "instance", "limit"]);
    for panel in charts(&dashboard) {
        let kind = text(&panel["type"]);
        assert!(["stat", "table", "timeseries"].contains(&kind.as_str()), "{kind}");
    }
    let rows = list(&dashboard["panels"]).iter().filter(|panel| panel["type"] == "row");
    let rows: Vec<String> = rows.map(|row| text(&row["title"])).collect();
    let expected = [
        "Traffic",
        "Decisions by limit",
        "Latency",
        "Memory",
        "Cluster",
        "Process",
        "Admin listener",
    ];
    assert_eq!(rows, expected);
}

#[test]
fn panels_have_ids_units_and_queries() {
    let dashboard = dashboard();
    let version = dashboard["schemaVersion"].as_u64().expect("a number");
    assert!(SCHEMA_VERSIONS.contains(&version), "{version}");
    for name in ["uid", "title"] {
        assert!(dashboard[name].as_str().is_some_and(|text| !text.is_empty()), "no {name}");
    }
    let mut ids = BTreeSet::new();
    for panel in list(&dashboard["panels"]) {
        let id = panel["id"].as_u64().expect("a number");
        assert!(id > 0 && ids.insert(id), "two panels have the id {id}");
        assert!(panel["title"].as_str().is_some_and(|title| !title.is_empty()), "{id}: no title");
    }
    let source = json!({ "type": "prometheus", "uid": "${datasource}" });
    for panel in charts(&dashboard) {
        let title = &panel["title"];
        assert_eq!(panel["datasource"], source, "{title}");
        let unit = text(&panel["fieldConfig"]["defaults"]["unit"]);
        assert!(UNITS.contains(&unit.as_str()), "{title}: {unit}");
        let mut names = BTreeSet::new();
        for target in list(&panel["targets"]) {
            assert_eq!(target["datasource"], source, "{title}");
            assert!(names.insert(text(&target["refId"])), "{title}: one name for two queries");
            let is_query = target["expr"].as_str().is_some_and(|query| !query.trim().is_empty());
            assert!(is_query, "{title}: no query");
        }
        assert!(!names.is_empty(), "{title}: no query");
    }
}

#[test]
fn panels_do_not_overlap() {
    let dashboard = dashboard();
    let mut taken: Vec<([u64; 4], String)> = Vec::new();
    for panel in list(&dashboard["panels"]) {
        let title = text(&panel["title"]);
        let place = ["x", "y", "w", "h"].map(|side| {
            panel["gridPos"][side].as_u64().unwrap_or_else(|| panic!("{title}: no {side}"))
        });
        let [x, y, width, height] = place;
        assert!(width > 0 && height > 0 && x + width <= COLUMNS, "{title}: {place:?}");
        if panel["type"] == "row" {
            assert_eq!((x, width, height), (0, COLUMNS, 1), "{title}");
        }
        for ([other_x, other_y, other_width, other_height], other) in &taken {
            let is_beside = x + width <= *other_x || other_x + other_width <= x;
            let is_above = y + height <= *other_y || other_y + other_height <= y;
            assert!(is_beside || is_above, "{title} covers {other}");
        }
        taken.push((place, title));
    }
}

#[test]
fn variables_are_defined() {
    let dashboard = dashboard();
    let mut known = variables(&dashboard);
    known.extend(BUILT_IN.map(|(name, _)| name.to_owned()));
    let mut texts = expressions(&dashboard);
    for variable in list(&dashboard["templating"]["list"]) {
        texts.extend(variable.get("definition").map(text));
        texts.extend(variable.get("datasource").map(|source| text(&source["uid"])));
    }
    for panel in charts(&dashboard) {
        texts.extend([text(&panel["title"]), text(&panel["datasource"]["uid"])]);
        let legends = list(&panel["targets"]).iter();
        texts.extend(legends.filter_map(|target| target.get("legendFormat")).map(text));
    }
    let mut used = BTreeSet::new();
    for found in texts.iter().flat_map(|text| matches("[$][{]?([A-Za-z_]+)", text)) {
        assert!(known.contains(&found[0]), "no variable {}", found[0]);
        used.insert(found[0].clone());
    }
    let unused: Vec<&String> = known.iter().filter(|name| !used.contains(*name)).collect();
    assert!(unused.is_empty(), "nothing uses {unused:?}");
}

#[test]
fn every_query_of_the_dashboard_parses() {
    let dashboard = dashboard();
    let mut rules = Vec::new();
    for (index, query) in expressions(&dashboard).into_iter().enumerate() {
        let mut query = BUILT_IN
            .iter()
            .fold(query, |query, (name, span)| query.replace(&format!("${name}"), span));
        for name in variables(&dashboard) {
            query = query.replace(&format!("${name}"), ".*");
        }
        rules.push(json!({ "record": format!("query:{index}"), "expr": query }));
    }
    assert!(rules.len() > 50, "the queries are somewhere else");
    // JSON is YAML.
    let file = json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("rules.yaml");
    let check = |file: &Value| {
        fs::write(&path, file.to_string()).expect("the folder is ours");
        let output = Command::new(promtool()).args(["check", "rules"]).arg(&path).output();
        let output = output.expect("tests/setup.sh has unpacked promtool");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), errors)
    };
    let (is_good, errors) = check(&file);
    assert!(is_good, "{errors}");
    // The check finds a mistake.
    let mut broken = file;
    broken["groups"][0]["rules"][0]["expr"] = "sum(rate(a[5m])".into();
    assert!(!check(&broken).0);
}

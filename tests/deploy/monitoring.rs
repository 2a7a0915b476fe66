//! `deploy/prometheus`, `deploy/grafana` and the chart's `metrics` values.
//!
//! Here: the rules pass promtool's checks and their unit tests; all metrics and labels that rules
//! and dashboard name are those of real servers; the manifests of a chart with metrics. Not here:
//! the metrics themselves (`http`), the start of the chart's pods (`chart`).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use regex_automata::meta::Regex;
use serde_json::Value;

use super::chart::{list, of_kind, render, words};
use super::machine::LONG;
use super::{read, text};
use crate::http::{Admin, free_port, promtool};

const RULES: &str = "prometheus/tollgate.rules.yaml";
const TESTS: &str = "prometheus/tollgate.rules.test.yaml";
const DASHBOARD: &str = "grafana/tollgate.json";

/// Labels that Prometheus adds.
const TARGET_LABELS: [&str; 2] = ["job", "instance"];

/// The value without which the chart is refused.
const KEY: &str = "peerKey.value=0123456789abcdef0123456789abcdef";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root").to_owned()
}

/// The rules of the only group.
fn rules() -> Vec<Value> {
    let file: Value = serde_saphyr::from_str(&read(RULES)).expect("good YAML");
    let groups = list(&file["groups"]);
    assert_eq!(groups.len(), 1, "one group");
    list(&groups[0]["rules"]).to_vec()
}

/// The expressions of the rules and the dashboard, and the queries of its variables.
fn queries() -> Vec<String> {
    let mut found: Vec<String> = rules().iter().map(|rule| text(&rule["expr"])).collect();
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).expect("good JSON");
    for panel in list(&dashboard["panels"]) {
        found.extend(list(&panel["targets"]).iter().map(|target| text(&target["expr"])));
    }
    let variables = list(&dashboard["templating"]["list"]).iter();
    found.extend(variables.filter_map(|variable| variable.get("definition")).map(text));
    assert!(found.len() > 50, "the queries are somewhere else");
    found
}

/// The groups of each match.
fn matches(pattern: &str, haystack: &str) -> Vec<Vec<String>> {
    let regex = Regex::new(pattern).expect("the test writes patterns");
    let mut found = Vec::new();
    for captures in regex.captures_iter(haystack) {
        let spans = captures.iter().skip(1).flatten();
        found.push(spans.map(|span| haystack[span.range()].to_owned()).collect());
    }
    found
}

/// The samples of a server with limits and snapshots, and of a node with a peer.
fn samples() -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let limits = folder.path().join("limits.toml");
    let limit = "[[limit]]\nname = \"login\"\nmatch = \"login:{ip}\"\npolicy = \"fixed:2/1h\"\n";
    fs::write(&limits, limit).expect("the folder is ours");
    let limits = limits.to_string_lossy();
    let alone = Admin::start(&["--limits", &limits, "-e", "{folder}/snapshot"]);

    let peer = format!("127.0.0.1:{}", free_port());
    let data = ["--data-dir", "{folder}/data", "--ring-name"];
    let founder = ["one", "--partition-bits", "4", "--peer-listen", &peer];
    let _first = Admin::start(&[data.as_slice(), &founder].concat());
    let joining = ["two", "--peer-listen", "127.0.0.1:0", "--join", &peer];
    let second = Admin::start(&[data.as_slice(), &joining].concat());
    let start = Instant::now();
    let page = loop {
        let page = second.get("/metrics").body;
        let is_whole = ["tollgate_peer_up{", "tollgate_control_lease_seconds "]
            .iter()
            .all(|name| page.lines().any(|line| line.starts_with(name)));
        if is_whole {
            break page;
        }
        assert!(start.elapsed() < LONG, "no peer: {page}\n{}", second.server.log());
        thread::sleep(Duration::from_millis(50));
    };
    let page = alone.get("/metrics").body + &page;
    page.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn promtool_accepts_the_rules_and_their_tests() {
    for (command, file) in [("check", RULES), ("test", TESTS)] {
        let output = Command::new(promtool())
            .args([command, "rules"])
            .arg(root().join("deploy").join(file))
            .output()
            .expect("tests/setup.sh has unpacked promtool");
        let (out, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{command}: {out}{errors}");
    }
}

#[test]
fn alerts_are_tested_and_described() {
    let tests = read(TESTS);
    let page = fs::read_to_string(root().join("docs/operations/monitoring.md"));
    let page = page.expect("the page is there");
    let rules = rules();
    assert!(rules.len() > 10, "the rules are somewhere else");
    for rule in rules {
        let name = text(&rule["alert"]);
        assert!(tests.contains(&format!("alertname=\"{name}\"")), "{name} is not tested");
        assert!(page.contains(&format!("\n| `{name}` |")), "{name} is not described");
        let severity = text(&rule["labels"]["severity"]);
        assert!(["info", "warning", "critical"].contains(&severity.as_str()), "{name}: {severity}");
        for annotation in ["summary", "description"] {
            assert!(rule["annotations"][annotation].is_string(), "{name} has no {annotation}");
        }
    }
}

#[test]
fn rules_and_dashboard_name_metrics_that_exist() {
    let samples = samples();
    // A histogram has its suffixes in the scrape, as in the queries.
    let names: BTreeSet<&str> =
        samples.iter().filter_map(|sample| sample.split(['{', ' ']).next()).collect();
    let mut missing = BTreeSet::new();
    // Descriptions name metrics too.
    for groups in matches("((?:tollgate|process)_[a-z_]+)", &(read(RULES) + &read(DASHBOARD))) {
        if !names.contains(groups[0].as_str()) {
            missing.insert(groups[0].clone());
        }
    }
    for query in queries() {
        for selector in matches("([a-z_]+)\\{([^}]*)\\}", &query) {
            let prefix = format!("{}{{", selector[0]);
            for matcher in matches("([a-z_]+)=~?\"([^\"]*)\"", &selector[1]) {
                let (label, values) = (&matcher[0], &matcher[1]);
                if TARGET_LABELS.contains(&label.as_str()) {
                    continue;
                }
                for value in values.split('|') {
                    // A variable of the dashboard stands for any value.
                    let wanted = if value.starts_with('$') {
                        format!("{label}=\"")
                    } else {
                        format!("{label}=\"{value}\"")
                    };
                    let mut of_metric = samples.iter().filter(|line| line.starts_with(&prefix));
                    if !of_metric.any(|line| line.contains(&wanted)) {
                        missing.insert(format!("{prefix}{wanted}"));
                    }
                }
            }
        }
    }
    assert!(missing.is_empty(), "no server has {missing:?}");
}

#[test]
fn the_dashboard_needs_no_plug_in() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).expect("good JSON");
    let variables = list(&dashboard["templating"]["list"]).iter();
    let variables: Vec<String> = variables.map(|variable| text(&variable["name"])).collect();
    assert_eq!(variables, ["datasource", "job", "instance", "limit"]);
    let mut rows = Vec::new();
    let mut ids = BTreeSet::new();
    for panel in list(&dashboard["panels"]) {
        assert!(ids.insert(text(&panel["id"])), "two panels have the id {}", panel["id"]);
        let kind = text(&panel["type"]);
        if kind == "row" {
            rows.push(text(&panel["title"]));
            continue;
        }
        assert!(["stat", "table", "timeseries"].contains(&kind.as_str()), "{kind}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
    }
    assert_eq!(rows, ["Traffic", "Decisions by limit", "Latency", "Memory", "Cluster", "Process"]);
}

/// The pod of the chart's set.
fn pod(manifests: &[Value]) -> &Value {
    &of_kind(manifests, "StatefulSet")[0]["spec"]["template"]["spec"]
}

/// The flags of the admin listener.
fn listener_flags(manifests: &[Value]) -> Vec<String> {
    let args = words(&pod(manifests)["containers"][0]["args"]);
    let is_of_listener = |flag: &String| flag.starts_with("--http") || flag.starts_with("--tokens");
    args.into_iter().filter(is_of_listener).collect()
}

/// The Services with a port for metrics.
fn metrics_services(manifests: &[Value]) -> Vec<&Value> {
    let has_port = |service: &&Value| {
        list(&service["spec"]["ports"]).iter().any(|port| port["name"] == "metrics")
    };
    of_kind(manifests, "Service").into_iter().filter(has_port).collect()
}

#[test]
fn the_chart_opens_metrics_when_asked() {
    let closed = render(&[KEY]).expect("it renders");
    assert_eq!(listener_flags(&closed), [""; 0]);
    assert_eq!(list(&pod(&closed)["containers"][0]["ports"]).len(), 2);
    assert_eq!(metrics_services(&closed).len(), 0);
    assert_eq!(of_kind(&closed, "ServiceMonitor").len(), 0);

    let open = render(&[KEY, "metrics.enabled=true"]).expect("it renders");
    assert_eq!(listener_flags(&open), ["--http=0.0.0.0:31211", "--http-insecure"]);
    let port = &list(&pod(&open)["containers"][0]["ports"])[2];
    assert_eq!((&port["name"], &port["containerPort"]), (&"metrics".into(), &31211.into()));
    let services = metrics_services(&open);
    assert_eq!(services.len(), 1, "no pod is scraped twice");
    let port = &list(&services[0]["spec"]["ports"])[2];
    assert_eq!((&port["port"], &port["targetPort"]), (&31211.into(), &"metrics".into()));
    assert_eq!(services[0]["spec"]["publishNotReadyAddresses"], true);
    assert_eq!(of_kind(&open, "ServiceMonitor").len(), 0);
}

#[test]
fn a_service_monitor_finds_the_service() {
    let monitor = "metrics.serviceMonitor.enabled=true";
    let refused = render(&[KEY, monitor]).expect_err("there is nothing to scrape");
    assert!(refused.contains("metrics.serviceMonitor needs metrics.enabled"), "{refused}");

    let interval = "metrics.serviceMonitor.interval=7s";
    let open = render(&[KEY, "metrics.enabled=true", monitor, interval]).expect("it renders");
    let monitors = of_kind(&open, "ServiceMonitor");
    assert_eq!(monitors.len(), 1);
    assert_eq!(monitors[0]["apiVersion"], "monitoring.coreos.com/v1");
    let endpoints = list(&monitors[0]["spec"]["endpoints"]);
    assert_eq!(endpoints.len(), 1);
    let words = ["port", "path", "interval"].map(|name| text(&endpoints[0][name]));
    assert_eq!(words, ["metrics", "/metrics", "7s"]);
    assert!(endpoints[0].get("authorization").is_none());
    let service = metrics_services(&open)[0];
    let wanted = monitors[0]["spec"]["selector"]["matchLabels"].as_object().expect("labels");
    assert!(!wanted.is_empty());
    for (label, value) in wanted {
        assert_eq!(service["metadata"]["labels"][label], *value, "{label}");
    }
}

#[test]
fn a_secret_of_tokens_guards_the_metrics() {
    let values = [
        KEY,
        "metrics.enabled=true",
        "metrics.serviceMonitor.enabled=true",
        "metrics.tokensSecret=scrape",
    ];
    let guarded = render(&values).expect("it renders");
    let flags = listener_flags(&guarded);
    assert_eq!(flags, ["--http=0.0.0.0:31211", "--tokens=/etc/tollgate/metrics/tokens"]);
    let pod = pod(&guarded);
    let mounts = list(&pod["containers"][0]["volumeMounts"]);
    let mount = mounts.iter().find(|mount| mount["name"] == "tokens").expect("it is mounted");
    assert_eq!(mount["mountPath"], "/etc/tollgate/metrics");
    let volumes = list(&pod["volumes"]);
    let volume = volumes.iter().find(|volume| volume["name"] == "tokens").expect("it is declared");
    assert_eq!(volume["secret"]["secretName"], "scrape");
    let items = list(&volume["secret"]["items"]);
    assert_eq!(items.len(), 1, "the token itself stays out of the pod");
    assert_eq!((&items[0]["key"], &items[0]["path"]), (&"tokens".into(), &"tokens".into()));
    let endpoint = &of_kind(&guarded, "ServiceMonitor")[0]["spec"]["endpoints"][0];
    let credentials = &endpoint["authorization"]["credentials"];
    assert_eq!((&credentials["name"], &credentials["key"]), (&"scrape".into(), &"token".into()));
}

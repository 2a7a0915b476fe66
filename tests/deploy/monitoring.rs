//! `deploy/prometheus`, `deploy/grafana` and the chart's `metrics` values.
//!
//! Here: the rules pass promtool's checks and their unit tests; all metrics and labels that rules,
//! dashboard and the reference name are those of real servers; the manifests of a chart with
//! metrics. Not here: the metrics themselves (`http`), the form of the dashboard (`dashboard`), the
//! start of the chart's pods (`chart`).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use regex_automata::meta::Regex;
use serde_json::Value;

use super::chart::{KEY, list, of_kind, render, words};
use super::machine::LONG;
use super::{read, text};
use crate::http::{Admin, free_port, promtool};

const RULES: &str = "prometheus/tollgate.rules.yaml";
const TESTS: &str = "prometheus/tollgate.rules.test.yaml";
pub(super) const DASHBOARD: &str = "grafana/tollgate.json";

/// Labels that Prometheus adds.
const TARGET_LABELS: [&str; 2] = ["job", "instance"];

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
pub(super) fn matches(pattern: &str, haystack: &str) -> Vec<Vec<String>> {
    let regex = Regex::new(pattern).expect("the test writes patterns");
    let mut found = Vec::new();
    for captures in regex.captures_iter(haystack) {
        let spans = captures.iter().skip(1).flatten();
        found.push(spans.map(|span| haystack[span.range()].to_owned()).collect());
    }
    found
}

/// The files of an authority, and of a certificate for 127.0.0.1 with its key, as flags of peers.
fn peer_certificate(folder: &Path) -> Vec<String> {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority =
        CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("sound");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("an address");
    let certificate = params.signed_by(&key, &authority).expect("sound");
    let files = [
        ("--peer-ca", authority.pem()),
        ("--peer-cert", certificate.pem()),
        ("--peer-key", key.serialize_pem()),
    ];
    let write = |(flag, text): (&str, String)| {
        let path = folder.join(flag);
        fs::write(&path, text).expect("the folder is ours");
        [flag.to_owned(), path.display().to_string()]
    };
    files.into_iter().flat_map(write).collect()
}

/// The samples of a server with limits and snapshots, and of a node with two peers behind TLS, of
/// which one was killed.
fn samples() -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let limits = folder.path().join("limits.toml");
    let limit = "[[limit]]\nname = \"login\"\nmatch = \"login:{ip}\"\npolicy = \"fixed:2/1h\"\n";
    fs::write(&limits, limit).expect("the folder is ours");
    let limits = limits.to_string_lossy();
    let alone = Admin::start(&["--limits", &limits, "-e", "{folder}/snapshot"]);

    let peer = format!("127.0.0.1:{}", free_port());
    let certificate = peer_certificate(folder.path());
    let mut data: Vec<&str> = certificate.iter().map(String::as_str).collect();
    data.extend(["--data-dir", "{folder}/data", "--ring-name"]);
    let founder = ["one", "--partition-bits", "4", "--peer-listen", &peer];
    let _first = Admin::start(&[data.as_slice(), &founder].concat());
    let joining = ["two", "--peer-listen", "127.0.0.1:0", "--join", &peer];
    let second = Admin::start(&[data.as_slice(), &joining].concat());
    let joining = ["three", "--peer-listen", "127.0.0.1:0", "--join", &peer];
    // Dropping a server kills it.
    drop(Admin::start(&[data.as_slice(), &joining].concat()));
    let start = Instant::now();
    let page = loop {
        let page = second.get("/metrics").body;
        let is_whole = [
            "tollgate_peer_up{",
            "tollgate_peer_clock_offset_seconds{",
            "tollgate_control_lease_seconds ",
        ]
        .iter()
        .all(|name| page.lines().any(|line| line.starts_with(name)))
            && page.contains("state=\"dead\"");
        if is_whole {
            break page;
        }
        assert!(start.elapsed() < LONG, "no peer, or none dead: {page}\n{}", second.server.log());
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

/// The alerts that the rules have at least, without `Tollgate`.
const ALERTS: [&str; 13] = [
    "Down",
    "NotReady",
    "PartitionsBelowReplicas",
    "Degraded",
    "ControlLost",
    "LimitsFault",
    "LimitDenying",
    "NearLimit",
    "Evicting",
    "MemoryHigh",
    "SnapshotOld",
    "CertificateExpires",
    "SamplesDropped",
];

#[test]
fn each_alert_fires_in_a_test() {
    let names: Vec<String> = rules().iter().map(|rule| text(&rule["alert"])).collect();
    for alert in ALERTS {
        let alert = format!("Tollgate{alert}");
        assert!(names.contains(&alert), "no alert {alert}");
    }
    let tests: Value = serde_saphyr::from_str(&read(TESTS)).expect("good YAML");
    for name in names {
        let wanted = format!("alertname=\"{name}\"");
        let fires = list(&tests["tests"]).iter().any(|test| {
            let expected = list(&test["promql_expr_test"]).iter();
            let mut samples = expected.filter_map(|one| one["exp_samples"].as_array()).flatten();
            samples.any(|sample| text(&sample["labels"]).contains(&wanted) && sample["value"] == 1)
        });
        assert!(fires, "{name} fires in no test");
    }
}

/// The metrics that every server and node has, each with its labels.
const METRICS: &str = "
    tollgate_build_info version protocol_level
    tollgate_start_time_seconds
    tollgate_ready
    tollgate_requests_total
    tollgate_commands_total command result
    tollgate_decisions_total limit outcome
    tollgate_decision_units_total limit
    tollgate_near_limit_total limit
    tollgate_limit_active_keys limit
    tollgate_limits
    tollgate_overrides source
    tollgate_limits_generation
    tollgate_limits_refused_total
    tollgate_limits_fault
    tollgate_limit_changes_total via
    tollgate_request_duration_seconds_bucket listener le
    tollgate_connections listener
    tollgate_connections_accepted_total listener
    tollgate_connections_rejected_total listener
    tollgate_connections_max
    tollgate_received_bytes_total
    tollgate_sent_bytes_total
    tollgate_items
    tollgate_item_bytes
    tollgate_memory_limit_bytes
    tollgate_memory_used_bytes
    tollgate_evictions_total kind
    tollgate_expired_total kind
    tollgate_samples_total kind
    tollgate_samples_dropped_total kind
    tollgate_tls_handshakes_total surface result
    tollgate_tls_cert_expiry_timestamp_seconds surface
    tollgate_auth_failures_total surface
    tollgate_snapshot_last_success_timestamp_seconds
    tollgate_snapshot_items
    tollgate_snapshot_failures_total
    tollgate_http_requests_total route code
    tollgate_node_info node ring_name zone state
    tollgate_peer_up peer
    tollgate_peer_clock_offset_seconds peer
    tollgate_operations_total way
    tollgate_not_applied_total
    tollgate_unknown_outcome_total
    tollgate_degraded_admitted_total
    tollgate_debt_pending
    tollgate_held_requests
    tollgate_partitions state
    tollgate_partitions_lost_total
    tollgate_map_version
    tollgate_control_lease_seconds
    tollgate_control_leader
    process_cpu_seconds_total
    process_resident_memory_bytes
    process_open_fds
    process_max_fds
    process_start_time_seconds
";

/// Compares the metrics of real servers with [`METRICS`] and with the reference.
fn assert_metrics_are_those_of_the_list(samples: &[String]) {
    let mut found = BTreeSet::new();
    for sample in samples {
        let name = sample.split(['{', ' ']).next().expect("a name");
        let labels: BTreeSet<String> =
            matches("[{,]([a-z_]+)=\"", sample).into_iter().flatten().collect();
        found.insert((name, labels));
    }
    let listed: Vec<&str> = METRICS.lines().map(str::trim).filter(|row| !row.is_empty()).collect();
    for row in &listed {
        let mut words = row.split(' ');
        let name = words.next().expect("a name");
        let labels: BTreeSet<String> = words.map(str::to_owned).collect();
        let of_name = found.iter().filter(|(other, _)| *other == name);
        let has: Vec<_> = of_name.map(|(_, labels)| labels).collect();
        assert!(has.iter().all(|has| **has == labels) && !has.is_empty(), "{row}: {has:?}");
    }
    let page = fs::read_to_string(root().join("docs/reference/http.md"));
    let page = page.expect("the page is there");
    for (name, _) in found {
        let is_listed = listed.iter().any(|row| row.split(' ').next() == Some(name));
        let family = name.trim_end_matches("_sum").trim_end_matches("_count");
        let of_histogram = format!("{family}_bucket");
        assert!(
            is_listed
                || listed.iter().any(|row| row.starts_with(&of_histogram))
                || name.starts_with("process_"),
            "{name} is not in the list of this test"
        );
        let family = family.trim_end_matches("_bucket");
        let is_described = name.starts_with("process_") || page.contains(&format!("`{family}`"));
        assert!(is_described, "{name} is not in the reference");
    }
}

#[test]
fn rules_and_dashboard_name_metrics_that_exist() {
    let samples = samples();
    assert_metrics_are_those_of_the_list(&samples);
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

/// The flag of the tokens, whoever provides their file.
const TOKENS: &str = "--tokens=/etc/tollgate/metrics/tokens";

/// The volume with the file of [`TOKENS`], which is mounted as a folder.
fn tokens_volume(manifests: &[Value]) -> &Value {
    let pod = pod(manifests);
    let mounts = list(&pod["containers"][0]["volumeMounts"]);
    let mount = mounts.iter().find(|mount| mount["name"] == "tokens").expect("it is mounted");
    assert_eq!(mount["mountPath"], "/etc/tollgate/metrics");
    assert!(mount.get("subPath").is_none(), "a file mounted alone never sees a change");
    let volumes = list(&pod["volumes"]);
    volumes.iter().find(|volume| volume["name"] == "tokens").expect("it is declared")
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
    assert_eq!(of_kind(&closed, "ConfigMap").len(), 0);

    let open = render(&[KEY, "metrics.enabled=true"]).expect("it renders");
    assert_eq!(listener_flags(&open), ["--http=0.0.0.0:31211", TOKENS]);
    assert_eq!(tokens_volume(&open)["configMap"]["name"], "counts-tollgate-tokens");
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
    assert_eq!(flags, ["--http=0.0.0.0:31211", TOKENS]);
    assert_eq!(of_kind(&guarded, "ConfigMap").len(), 0);
    let volume = tokens_volume(&guarded);
    assert_eq!(volume["secret"]["secretName"], "scrape");
    let items = list(&volume["secret"]["items"]);
    assert_eq!(items.len(), 1, "the token itself stays out of the pod");
    assert_eq!((&items[0]["key"], &items[0]["path"]), (&"tokens".into(), &"tokens".into()));
    let endpoint = &of_kind(&guarded, "ServiceMonitor")[0]["spec"]["endpoints"][0];
    let credentials = &endpoint["authorization"]["credentials"];
    assert_eq!((&credentials["name"], &credentials["key"]), (&"scrape".into(), &"token".into()));
}

//! `deploy/helm/tollgate`, rendered by Helm and started.
//!
//! Here: pods as the chart describes them: arguments, environment, volumes, probes, `preStop`. Not
//! here: whether Kubernetes would accept the manifests.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use serde_json::Value;

use super::compose::Image;
use super::machine::{LONG, Machine, Plan, three_count_as_one};
use super::{VERSION, text};
use crate::api::TestedApi;
use crate::cluster::net::Net;
use crate::live::Program;

/// The value without which the chart is refused.
pub(super) const KEY: &str = "peerKey.value=0123456789abcdef0123456789abcdef";

/// The path of Helm, as installed by `tests/setup.sh`.
fn helm() -> PathBuf {
    let program = Program::Tollgate.path();
    let target = program.ancestors().nth(2).expect("it lies in target/<profile>");
    let helm = target.join("clients/helm");
    assert!(helm.exists(), "{} is missing: run `tests/setup.sh`", helm.display());
    helm
}

/// The manifests with these `--set` values, or Helm's error message.
pub(super) fn render(values: &[&str]) -> Result<Vec<Value>, String> {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/helm/tollgate");
    let mut command = Command::new(helm());
    command.args(["template", "counts", "--namespace", "prod"]).arg(chart);
    for value in values {
        command.args(["--set", value]);
    }
    let output = command.output().expect("helm runs");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = String::from_utf8(output.stdout).expect("YAML is text");
    Ok(serde_saphyr::from_multiple(&text).expect("good YAML"))
}

pub(super) fn of_kind<'a>(manifests: &'a [Value], kind: &str) -> Vec<&'a Value> {
    manifests.iter().filter(|manifest| manifest["kind"] == kind).collect()
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn words(value: &Value) -> Vec<String> {
    list(value).iter().map(text).collect()
}

/// Shell lines that create a pod's volume.
fn volume(name: &str, folder: &str, set: &Value, manifests: &[Value]) -> String {
    let spec = &set["spec"];
    let claims = list(&spec["volumeClaimTemplates"]);
    if claims.iter().any(|claim| claim["metadata"]["name"] == name) {
        return format!("install -d -m 2775 -g 11211 {folder}\n");
    }
    let volumes = list(&spec["template"]["spec"]["volumes"]);
    let volume = volumes.iter().find(|volume| volume["name"] == name).expect("it is declared");
    if volume.get("emptyDir").is_some() {
        return format!("install -d -m 2777 -g 11211 {folder}\n");
    }
    let (named, kind, data) = if volume.get("secret").is_some() {
        (&volume["secret"]["secretName"], "Secret", "stringData")
    } else {
        (&volume["configMap"]["name"], "ConfigMap", "data")
    };
    let all = of_kind(manifests, kind);
    let source = all.iter().find(|source| source["metadata"]["name"] == *named);
    let source = source.unwrap_or_else(|| panic!("no {kind} {named}"));
    let mut lines = format!("install -d -m 0755 {folder}\n");
    for (file, content) in source[data].as_object().expect("it has files") {
        let content = text(content);
        let path = format!("{folder}/{file}");
        writeln!(lines, "cat > {path} <<'END'\n{}\nEND", content.trim_end()).expect("a String");
        writeln!(lines, "chgrp 11211 {path}; chmod 0440 {path}").expect("a String");
    }
    lines
}

/// The plan of one pod of the set.
fn plan(number: u8, set: &Value, manifests: &[Value]) -> Plan {
    let template = &set["spec"]["template"]["spec"];
    let container = &template["containers"][0];
    assert_eq!(
        container["image"],
        format!("tollgate:{VERSION}"),
        "the tag that the Dockerfile has"
    );
    assert!(container.get("command").is_none(), "the image's entry point");
    let security = &template["securityContext"];
    let image = Image::read();
    let user = format!("{}:{}", security["runAsUser"], security["runAsGroup"]);
    assert_eq!((&user, &security["fsGroup"]), (&image.user, &security["runAsGroup"]));

    let mut plan = image.plan();
    let pod = format!("{}-{number}", text(&set["metadata"]["name"]));
    for variable in list(&container["env"]) {
        assert_eq!(variable["valueFrom"]["fieldRef"]["fieldPath"], "metadata.name");
        plan.environment.insert(text(&variable["name"]), pod.clone());
    }
    plan.args = words(&container["args"]);
    for arg in &mut plan.args {
        for (name, value) in &plan.environment {
            *arg = arg.replace(&format!("$({name})"), value);
        }
    }
    for mount in list(&container["volumeMounts"]) {
        let (name, folder) = (text(&mount["name"]), text(&mount["mountPath"]));
        plan.prepare += &volume(&name, &folder, set, manifests);
    }
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    plan.is_read_only = true;
    let drain = plan.args.iter().find_map(|arg| arg.strip_prefix("--drain-timeout="));
    let drain = drain.and_then(|text| text.parse::<u64>().ok()).expect("seconds");
    let grace = template["terminationGracePeriodSeconds"].as_u64().expect("seconds");
    assert!(grace > drain, "a drain may end");
    plan
}

#[test]
fn the_chart_starts_three_pods_that_count_as_one() {
    let name = "the_chart_starts_three_pods_that_count_as_one";
    let Some(mut net) = Net::or_say_why(name) else { return };
    let limits =
        "limits=[[limit]]\nname = \"login\"\nmatch = \"login:{ip}\"\npolicy = \"fixed:5/h\"\n";
    let manifests = render(&[KEY, limits, "metrics.enabled=true"]).expect("the chart renders");
    let set = of_kind(&manifests, "StatefulSet")[0];
    assert_eq!(set["spec"]["replicas"], 3);
    let peers = format!("{}.prod.svc.cluster.local", text(&set["spec"]["serviceName"]));
    let services = of_kind(&manifests, "Service");
    let headless = services
        .iter()
        .find(|service| service["metadata"]["name"] == set["spec"]["serviceName"])
        .expect("the set has its service");
    assert_eq!(headless["spec"]["clusterIP"], "None");
    assert_eq!(headless["spec"]["publishNotReadyAddresses"], true, "founders find each other");

    let (mut names, mut plans) = (String::new(), Vec::new());
    for number in 0..3 {
        net.add().expect("a place more");
        let pod = format!("{}-{number}", text(&set["metadata"]["name"]));
        writeln!(names, "{0} {pod}.{peers}\n{0} {peers}", net.host(number)).expect("a String");
        plans.push(plan(number, set, &manifests));
    }
    let container = &set["spec"]["template"]["spec"]["containers"][0];
    let ready = words(&container["readinessProbe"]["exec"]["command"]);
    let alive = words(&container["livenessProbe"]["exec"]["command"]);
    let stop = words(&container["lifecycle"]["preStop"]["exec"]["command"]);
    let plans = plans.try_into().expect("there are three");
    three_count_as_one(&net, &names, plans, &ready, |first| {
        assert_eq!(first.check(&alive), Ok(()));
        let listener = TestedApi::new((first.host, 31211).into());
        let status = |method, path| listener.send(method, path, &[], "").status;
        for path in ["/livez", "/readyz", "/metrics"] {
            assert_eq!(status("GET", path), 200, "{path} needs no token");
        }
        assert_eq!(status("GET", "/api/v1/status"), 401);
        assert_eq!(status("POST", "/api/v1/nodes/n1/drain"), 401);
        assert_eq!(first.ask("incr login:a 6\r\n").as_deref(), Some("6"), "the limits hold");
        assert_eq!(first.ask("incr login:a 0\r\n").as_deref(), Some("0"), "and took nothing");
        let output = first.run(&stop);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "preStop: {said}");
    });
}

#[test]
fn without_a_secret_of_tokens_nobody_is_admin() {
    let manifests = render(&[KEY, "metrics.enabled=true"]).expect("it renders");
    let set = of_kind(&manifests, "StatefulSet")[0];
    let args = words(&set["spec"]["template"]["spec"]["containers"][0]["args"]);
    assert!(!args.contains(&"--http-insecure".to_owned()), "{args:?}");
    let maps = of_kind(&manifests, "ConfigMap");
    assert_eq!(maps.len(), 1);
    assert_eq!(maps[0]["metadata"]["name"], "counts-tollgate-tokens");
    let file = text(&maps[0]["data"]["tokens"]);
    let lines: Vec<&str> = file.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines, [format!("nobody viewer {}", "0".repeat(64))], "no token has this hash");
}

#[test]
fn no_probe_depends_on_the_address_of_clients() {
    let manifests = render(&[KEY, "listen=[::]"]).expect("it renders");
    let container =
        &of_kind(&manifests, "StatefulSet")[0]["spec"]["template"]["spec"]["containers"][0];
    let args = words(&container["args"]);
    assert!(args.contains(&"--listen=[::]".to_owned()), "{args:?}");
    assert!(args.contains(&"--admin-socket=/run/tollgate/admin.sock".to_owned()), "{args:?}");
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let command = words(&container[probe]["exec"]["command"]);
        let server = ["--server", "/run/tollgate/admin.sock"];
        assert_eq!(command[command.len() - 2..], server, "{probe}");
    }
}

#[test]
fn the_liveness_probe_tells_a_stopped_server() {
    let name = "the_liveness_probe_tells_a_stopped_server";
    let Some(mut net) = Net::or_say_why(name) else { return };
    net.add().expect("a place");
    let manifests = render(&[KEY]).expect("it renders");
    let set = of_kind(&manifests, "StatefulSet")[0];
    let container = &set["spec"]["template"]["spec"]["containers"][0];
    let alive = words(&container["livenessProbe"]["exec"]["command"]);
    assert_eq!(alive, words(&container["startupProbe"]["exec"]["command"]));
    let mut machine = Machine::start(&net, 0, "", Image::read().plan());
    machine.until_it_listens();
    assert_eq!(machine.check(&alive), Ok(()));
    machine.signal(nix::sys::signal::Signal::SIGSTOP);
    thread::sleep(Duration::from_millis(50));
    assert!(machine.check(&alive).is_err(), "it accepts and answers nothing");
    machine.signal(nix::sys::signal::Signal::SIGCONT);
    let start = std::time::Instant::now();
    while machine.check(&alive).is_err() {
        assert!(start.elapsed() < LONG, "{}", machine.log());
    }
}

#[test]
fn the_chart_refuses_values_that_cannot_be_right() {
    for (values, why) in [
        (&[][..], "peers must be secured"),
        (&[KEY, "replicaCount=2"], "replicaCount is below expect"),
        (&[KEY, "replicaCount=6"], "two clusters could be founded"),
        (&[KEY, "drainTimeout=120"], "drainTimeout must be below"),
        (&[KEY, "peerTls.existingSecret=x"], "one of the two"),
    ] {
        let said = render(values).expect_err(why);
        assert!(said.contains(why), "{values:?}: {said}");
    }
}

//! `.github/`: its files parse, and the commands of the workflows exist.
//!
//! Here: recipes, scripts, pinned actions, permissions, and the compiler's version wherever it is
//! written. Not here: the effect of the recipes (`tests/check.sh` runs the same commands).

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Programs that the machines of the workflows provide.
const PROGRAMS: [&str; 3] = ["gh", "rustup", "sudo"];

/// Recipes whose commands are steps of `tests/check.sh`.
const STEPS: [&str; 3] = ["lint", "docs", "fuzz-build"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root").to_owned()
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The YAML files of a folder: their names without extension, and their content.
fn yaml(folder: &str) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join(folder)).expect("the folder is there").flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "yml") {
            let name = path.file_stem().and_then(|name| name.to_str()).expect("names are text");
            let text = fs::read_to_string(&path).expect("our sources are UTF-8");
            let value = serde_saphyr::from_str(&text)
                .unwrap_or_else(|error| panic!("{folder}/{name}.yml: {error}"));
            found.push((name.to_owned(), value));
        }
    }
    found
}

fn jobs(workflow: &Value) -> impl Iterator<Item = &Value> {
    workflow["jobs"].as_object().expect("a workflow has jobs").values()
}

fn steps(workflow: &Value) -> impl Iterator<Item = &Value> {
    jobs(workflow).flat_map(|job| job["steps"].as_array().expect("a job has steps"))
}

/// The recipes of a justfile, with their commands.
fn recipes(justfile: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in justfile.lines() {
        if let Some(command) = line.strip_prefix("    ") {
            if let Some((_, commands)) = found.last_mut() {
                commands.push(command);
            }
        } else if !line.starts_with('#') && !line.contains(":=") {
            let name = line.split([' ', ':']).next().unwrap_or_default();
            if !name.is_empty() {
                found.push((name, Vec::new()));
            }
        }
    }
    found
}

/// The reason that a command of a workflow cannot run; empty if it can.
fn fault(command: &str, recipes: &[(&str, Vec<&str>)]) -> String {
    let mut words = command.split_whitespace();
    let program = words.next().unwrap_or_default();
    if program == "just" {
        let recipe = words.next().unwrap_or_default();
        let is_there = recipes.iter().any(|(name, _)| *name == recipe);
        return if is_there { String::new() } else { format!("no recipe {recipe}") };
    }
    if program.contains('/') {
        return match fs::metadata(root().join(program)) {
            Ok(file) if file.is_file() && file.permissions().mode() & 0o111 != 0 => String::new(),
            Ok(_) => format!("{program} is not executable"),
            Err(error) => format!("{program}: {error}"),
        };
    }
    if PROGRAMS.contains(&program) { String::new() } else { format!("unknown program {program}") }
}

/// Whether an action is pinned by a commit.
fn is_pinned(action: &str) -> bool {
    action.split_once('@').is_some_and(|(_, commit)| {
        commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

#[test]
fn forms_and_updates_parse() {
    let forms = yaml(".github/ISSUE_TEMPLATE");
    assert!(forms.len() > 1, "the forms are somewhere else");
    for (name, form) in forms.iter().filter(|(name, _)| name != "config") {
        assert!(
            form["body"].as_array().is_some_and(|body| !body.is_empty()),
            "{name} asks nothing"
        );
    }
    let (name, updates) = &yaml(".github")[0];
    assert_eq!((name.as_str(), &updates["version"]), ("dependabot", &Value::from(2)));
}

#[test]
fn workflow_commands_exist() {
    let justfile = read("justfile");
    let recipes = recipes(&justfile);
    let workflows = yaml(".github/workflows");
    assert!(workflows.len() > 5, "the workflows are somewhere else");
    let mut faults = Vec::new();
    for (name, workflow) in &workflows {
        let commands = steps(workflow).filter_map(|step| step["run"].as_str());
        for command in commands.flat_map(str::lines) {
            let fault = fault(command, &recipes);
            if !fault.is_empty() {
                faults.push(format!("{name}: {fault}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn workflows_are_pinned_and_bounded() {
    for (name, workflow) in yaml(".github/workflows") {
        assert_eq!(workflow["name"], name.as_str());
        let permissions = workflow["permissions"].as_object().expect("permissions are written");
        assert!(permissions.values().all(|value| value == "read"), "{name} may write everywhere");
        for job in jobs(&workflow) {
            assert!(job["timeout-minutes"].is_u64(), "a job of {name} has no time-out");
        }
        for action in steps(&workflow).filter_map(|step| step["uses"].as_str()) {
            assert!(is_pinned(action), "{name}: {action} is not pinned by its commit");
        }
    }
}

#[test]
fn recipes_run_what_the_check_runs() {
    let (justfile, check) = (read("justfile"), read("tests/check.sh"));
    let recipes = recipes(&justfile);
    for step in STEPS {
        let (_, commands) = recipes.iter().find(|(name, _)| *name == step).expect(step);
        assert!(!commands.is_empty(), "{step} does nothing");
        for command in commands {
            assert!(check.lines().any(|line| line == *command), "{step}: {command}");
        }
    }
}

#[test]
fn compiler_version_is_the_same_everywhere() {
    let version = env!("CARGO_PKG_RUST_VERSION");
    let channel = format!("channel = \"{version}.");
    assert!(read("rust-toolchain.toml").contains(&channel), "rust-toolchain.toml");
    let image = format!("rust:{version}-bookworm");
    assert!(read("deploy/Dockerfile").contains(&format!("FROM {image} AS build\n")), "Dockerfile");
    for (name, workflow) in yaml(".github/workflows") {
        for job in jobs(&workflow) {
            let container = &job["container"];
            let found = container["image"].as_str().or(container.as_str());
            assert!(found.is_none_or(|found| found == image), "{name}: {found:?}");
        }
    }
}

#[test]
fn faults_of_commands_are_found() {
    let recipes =
        recipes("export A := \"b\"\n# lint: no\nlint FLAGS=\"\":\n    cargo fmt\n\n_x:\n");
    assert_eq!(recipes, [("lint", vec!["cargo fmt"]), ("_x", vec![])]);
    for good in ["just lint", "tests/check.sh", "gh release list"] {
        assert_eq!(fault(good, &recipes), "", "{good}");
    }
    for bad in ["just lint-all", "tests/none.sh", "tests/main.rs", "make all"] {
        assert_ne!(fault(bad, &recipes), "", "{bad}");
    }
    assert!(is_pinned("a/b@08c6903cd8c0fde910a37f88322edcfb5dd907a8"));
    assert!(!is_pinned("a/b@v5") && !is_pinned("a/b"));
}

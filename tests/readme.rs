//! The shell snippets of the README and of the book's first steps: each page is typed in order into
//! one shell, in a network namespace of its own.
//!
//! Here: each prints the output on the page, one server after the other on the ports on the page.
//! Not here: installing (`tests/check.sh` runs that command), the prose between.
//!
//! The test replaces the person at the terminal in two ways: after a command that ends in `&` it
//! waits until the server listens, and a time in a reply may differ by some seconds.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    process::{Command, Stdio},
};

use crate::cluster::net::Net;
use crate::live::Program;

/// A command, with the output that the page prints below it.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    command: String,
    printed: Vec<String>,
}

/// Commands that set a machine up.
const SET_UP: [&str; 2] = [
    "sudo apt-get install -y build-essential netcat-openbsd",
    "cargo install --locked --path server/program",
];

/// The most that a time may differ, in milliseconds.
const SLACK_MS: i64 = 10_000;

/// The text of a page, by its path from the root of the repository.
fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    fs::read_to_string(path).expect("the page is there")
}

/// The commands of all blocks with a prompt. Lines after `> ` continue the command, as do those of
/// a here-document.
fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for block in text.split("```\n").skip(1).step_by(2).filter(|block| block.starts_with("$ ")) {
        let mut is_document = false;
        for line in block.lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                steps.push(Step { command: command.to_owned(), printed: Vec::new() });
                is_document = command.contains("<<'END'");
                continue;
            }
            let step = steps.last_mut().expect("a block begins with a prompt");
            if let Some(more) = line.strip_prefix("> ") {
                write!(step.command, "\n{more}").expect("a String");
            } else if is_document {
                write!(step.command, "\n{line}").expect("a String");
                is_document = line != "END";
            } else {
                step.printed.push(line.to_owned());
            }
        }
    }
    steps
}

/// The ports on which a command in the background listens.
fn ports(command: &str) -> Vec<String> {
    if !command.split('\n').any(|line| line.ends_with('&')) {
        return Vec::new();
    }
    match command.split_once("-p ") {
        None => vec!["11211".to_owned()],
        Some((_, port)) if port.starts_with("1122$n") => {
            ["11221", "11222", "11223"].map(str::to_owned).to_vec()
        }
        Some((_, port)) => vec![port.chars().take_while(char::is_ascii_digit).collect()],
    }
}

/// Whether a line equals the printed one, except for times.
fn is_as_printed(line: &str, printed: &str) -> bool {
    let (words, expected): (Vec<_>, Vec<_>) =
        (line.split(' ').collect(), printed.split(' ').collect());
    let is_verdict = ["ALLOW", "DENY"].contains(&expected[0]) && expected.len() == 5;
    let is_count = expected.len() == 3 && expected.iter().all(|word| word.parse::<i64>().is_ok());
    let times = if is_verdict {
        3..
    } else if is_count {
        2..
    } else {
        usize::MAX..
    };
    words.len() == expected.len()
        && words.iter().zip(&expected).enumerate().all(|(index, (word, expected))| {
            match (word.parse::<i64>(), expected.parse::<i64>()) {
                (Ok(word), Ok(expected)) if times.contains(&index) && expected > 0 => {
                    (expected - SLACK_MS..=expected).contains(&word)
                }
                _ => word == expected,
            }
        })
}

#[test]
fn the_readme_does_what_it_prints() {
    does_what_it_prints("README.md", 10);
}

#[test]
fn the_first_steps_do_what_they_print() {
    does_what_it_prints("docs/start/first-steps.md", 13);
}

/// Types the commands of a page, at least `steps_min`, and compares their output.
fn does_what_it_prints(name: &str, steps_min: usize) {
    let Some(mut net) = Net::or_say_why(name) else { return };
    net.add().expect("a place");
    let steps = steps(&page(name));
    let (set_up, steps): (Vec<_>, Vec<_>) = steps
        .into_iter()
        .partition(|step| SET_UP.contains(&step.command.split("  ").next().unwrap_or("")));
    assert_eq!(set_up.len(), SET_UP.len(), "the machine is set up");
    assert!(steps.len() >= steps_min, "{steps:#?}");

    // Standard output has the commands' output, and a line between two commands.
    let mut script = String::new();
    for (number, step) in steps.iter().enumerate() {
        let command = &step.command;
        writeln!(script, "{command}").expect("a String");
        for port in ports(command) {
            writeln!(
                script,
                "until (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.05; done"
            )
            .expect("a String");
        }
        writeln!(script, "echo '--- {number}'").expect("a String");
    }
    script.push_str("jobs -p | xargs kill -9\n");

    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let log = fs::File::create(folder.path().join("log")).expect("the folder is ours");
    let program = Program::Tollgate.path();
    let bin = program.parent().expect("it lies in a folder");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("there is one"));
    let output = Command::new("timeout")
        .args([
            "--kill-after=5",
            "120",
            "ip",
            "netns",
            "exec",
            &net.space(0),
            "bash",
            "-c",
            &script,
        ])
        .current_dir(folder.path())
        .env("PATH", path)
        .stdin(Stdio::null())
        .stderr(log)
        .output()
        .expect("the shell runs");
    let said = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    let log = fs::read_to_string(folder.path().join("log")).unwrap_or_default();
    let mut rest = said.as_str();
    for (number, step) in steps.iter().enumerate() {
        let end = format!("--- {number}\n");
        let (lines, more) =
            rest.split_once(&end).unwrap_or_else(|| panic!("{step:?}: {rest}\n{log}"));
        let lines: Vec<_> = lines.lines().collect();
        let is_good = lines.len() == step.printed.len()
            && lines.iter().zip(&step.printed).all(|(line, printed)| is_as_printed(line, printed));
        assert!(is_good, "{step:#?}\nprints {lines:#?}\n{log}");
        rest = more;
    }
    assert!(!log.contains("the same node"), "no warning about nothing:\n{log}");
}

#[test]
fn the_readme_names_the_compiler_that_is_needed() {
    let version = env!("CARGO_PKG_RUST_VERSION");
    for name in ["README.md", "docs/start/first-steps.md"] {
        assert!(page(name).contains(&format!("Rust {version} or newer")), "{name}: {version}");
    }
}

#[test]
fn snippets_are_read_as_a_shell_reads_them() {
    let text = "x\n```\n$ a <<'END'\n1\nEND\nout\n$ b \\\n>   c &\n```\n```\nnone\n```\n";
    let step = |command: &str, printed: &[&str]| Step {
        command: command.to_owned(),
        printed: printed.iter().map(|line| (*line).to_owned()).collect(),
    };
    assert_eq!(steps(text), [step("a <<'END'\n1\nEND", &["out"]), step("b \\\n  c &", &[])]);
    assert_eq!(ports("tollgate --limits x &"), ["11211"]);
    assert_eq!(ports("cat x"), [""; 0]);
}

#[test]
fn times_may_have_run_on_and_nothing_else() {
    assert!(is_as_printed("ALLOW 200 199 0 444", "ALLOW 200 199 0 600"));
    assert!(is_as_printed("1 1 59999", "1 1 60000"));
    for (line, printed) in [
        ("ALLOW 200 198 0 600", "ALLOW 200 199 0 600"),
        ("ALLOW 200 199 0 601", "ALLOW 200 199 0 600"),
        ("DENY 200 199 5 600", "DENY 200 199 -1 600"),
        ("5", "6"),
        ("1 0 60000", "1 1 60000"),
        ("ALLOW 200 199 0", "ALLOW 200 199 0 600"),
    ] {
        assert!(!is_as_printed(line, printed), "{line} for {printed}");
    }
}

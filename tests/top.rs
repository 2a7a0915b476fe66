//! `tollgate top` beside a live server: frames, JSON, and a terminal of 80 columns and 24 lines.
//!
//! Here: the built program, alone and under tmux. Not here: frames from written figures, hostile
//! names (`server/cli/src/top`).

use std::{
    fs,
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

use crate::live::{PATIENCE, Program, Server};

const LIMITS: &str =
    "[[limit]]\nname = \"api\"\nmatch = \"api:{user}\"\npolicy = \"fixed:100/h\"\n";

fn server() -> Server {
    let folder = tempfile::tempdir().expect("there is a place for it");
    fs::write(folder.path().join("limits.toml"), LIMITS).expect("the folder takes a file");
    Server::start_in(Program::Tollgate, &["--limits", "{folder}/limits.toml"], folder)
}

fn top(server: &Server, words: &[&str]) -> Output {
    let mut command = Command::new(Program::Tollgate.path());
    command.args(["top", "--server", &server.address().to_string()]).args(words);
    command.env_clear().output().expect("the program is built")
}

/// Runs `top --once` and returns its frame with `N` for each number.
fn frame(server: &Server, screen: &str) -> String {
    let output = top(server, &["--once", "--screen", screen]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("a frame is ASCII");
    assert!(text.lines().count() <= 24, "{text}");
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    assert!(text.chars().all(|c| matches!(c, ' '..='~' | '\n')), "{text:?}");
    let body = text.split_once('\n').map_or("", |(_, body)| body);
    let mut shown = String::new();
    for letter in body.chars() {
        match letter {
            '0'..='9' | '.' if shown.ends_with('N') => {}
            '0'..='9' => shown.push('N'),
            letter => shown.push(letter),
        }
    }
    shown
}

#[test]
fn top_prints_a_frame_of_a_live_server() {
    let server = server();
    let mut client = server.connect();
    client.ask("incr api:ann 1\r\n", "1\r\n");
    let overview = frame(&server, "overview");
    for line in [
        "server     version N, up N d N:N:N, ",
        "clients    N of N, refused N\n",
        "commands/s get N  set N  incr N  touch N  delete N\n",
        "limits/s   allowed N  denied N  shadow denied N, N limits\n",
        "cluster    none\n",
    ] {
        assert!(overview.contains(line), "{line:?} {overview}");
    }
    let limits = frame(&server, "limits");
    let titles = "LIMIT  ALLOW/S  DENY/S*  SHADOW/S  KEYS  POLICY\n";
    let row = "api          N        N         N     N  fixed:N/h";
    assert!(limits.contains(titles) && limits.contains(row), "{limits}");
    for screen in ["hot", "denied"] {
        let keys = frame(&server, screen);
        assert!(keys.contains("not available") || keys.contains("RATE/S"), "{keys}");
    }
    assert_eq!(frame(&server, "nodes"), "\nthe server is in no cluster\n");
}

#[test]
fn top_prints_one_json_object() {
    let server = server();
    let output = top(&server, &["--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(json["limits"][0]["name"], "api");
    assert_eq!(json["limits"][0]["denied_per_second"], 0.0);
    assert!(json["stats"]["uptime"].is_u64() && json["rates"]["get"].is_f64(), "{json}");
    assert!(json["nodes"].is_null() && json["cluster"].is_null(), "{json}");
}

#[test]
fn top_needs_a_server_and_a_terminal() {
    let server = server();
    let output = top(&server, &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("use --once or --json"), "{said}");
    let gone = Command::new(Program::Tollgate.path())
        .args(["top", "--once", "--server", "127.0.0.1:1"])
        .output()
        .expect("the program is built");
    assert_eq!(gone.status.code(), Some(1), "{gone:?}");
}

/// A terminal of 80 columns and 24 lines, with a server of tmux of its own.
struct Tmux {
    socket: String,
}

impl Tmux {
    fn start(command: &str) -> Self {
        let tmux = Self { socket: format!("tollgate-test-{}", std::process::id()) };
        tmux.run(&["new-session", "-d", "-x", "80", "-y", "24", command]);
        tmux
    }

    fn run(&self, words: &[&str]) -> String {
        // No file of the user: it may change keys and colours.
        let mut command = Command::new("tmux");
        command.args(["-f", "/dev/null", "-L", &self.socket]).args(words);
        let output = command.output().expect("tests/setup.sh installs tmux");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn press(&self, keys: &[&str]) {
        self.run(&[&["send-keys"], keys].concat());
    }

    #[track_caller]
    fn until(&self, text: &str) -> String {
        let start = Instant::now();
        loop {
            let page = self.run(&["capture-pane", "-p"]);
            if page.contains(text) {
                return page;
            }
            assert!(start.elapsed() < PATIENCE, "{text:?} is not shown: {page}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.run(&["kill-server"]);
    }
}

#[test]
fn top_works_in_a_terminal_and_restores_it() {
    let server = server();
    let program = Program::Tollgate.path();
    let program = program.to_str().expect("the path is text");
    let command = format!("'{program}' top --server {}", server.address());
    // The shell shows that the terminal has its modes again: it echoes what is typed.
    let script = format!("{command}; echo first-ended; {command}; echo second-ended; exec cat");
    let tmux = Tmux::start(&script);
    let page = tmux.until("clients ");
    assert!(page.starts_with("tollgate [1 overview]"), "{page}");
    assert!(page.contains("1-5 screen  s sort  / filter  p pause  q quit"), "{page}");
    tmux.press(&["2"]);
    tmux.until("LIMIT  ALLOW/S  DENY/S*");
    tmux.until("fixed:100/h");
    tmux.press(&["s"]);
    tmux.until("SHADOW/S*");
    tmux.press(&["/", "x", "y", "z"]);
    tmux.until("filter: xyz_");
    tmux.until("none that the filter passes");
    tmux.press(&["Escape"]);
    tmux.until("fixed:100/h");
    tmux.press(&["p"]);
    tmux.until("paused");
    tmux.press(&["q"]);
    // The second run is ended by Ctrl-C.
    tmux.until("clients ");
    tmux.press(&["C-c"]);
    let page = tmux.until("second-ended");
    assert!(page.contains("first-ended") && !page.contains("clients "), "{page}");
    tmux.press(&["e", "c", "h", "o", "e", "d", "Enter"]);
    assert_eq!(tmux.until("echoed\nechoed").matches("echoed").count(), 2, "modes are restored");
    let cursor = tmux.run(&["display-message", "-p", "#{cursor_flag} #{alternate_on}"]);
    assert_eq!(cursor.trim(), "1 0", "the cursor is shown, on the main screen");
}

//! `tollgate limits` and `tollgate explain` against a scripted admin listener: requests, output and
//! exit codes.
//!
//! Here: the built program. Not here: the replies of a real server (`server/http`), command lines
//! (`server/cli`).

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tollgate");

/// The limit `login` as a server shows it.
const LOGIN: &str = r#"{"name":"login","toml":"[[limit]]\nname = \"login\"\n","version":7}"#;

/// A reply with a status and a body.
type Reply = (u16, &'static str);

/// Answers one request a connection with these replies, then returns the requests: the line, the
/// headers that matter, the body.
fn serve(listener: &TcpListener, replies: &[Reply]) -> Vec<String> {
    let mut requests = Vec::new();
    for (status, body) in replies {
        let (stream, _) = listener.accept().expect("the program connects");
        let mut reader = BufReader::new(stream);
        let (mut text, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).expect("the program sends a head");
            let line = line.trim_end().to_owned();
            if line.is_empty() {
                break;
            }
            let lower = line.to_ascii_lowercase();
            if let Some(count) = lower.strip_prefix("content-length: ") {
                length = count.parse().expect("a length");
            }
            let names = ["if-match", "if-none-match", "authorization", "content-type"];
            if text.is_empty() {
                text = line;
            } else if names.iter().any(|name| lower.starts_with(name)) {
                text.extend([" | ", &lower]);
            }
        }
        let mut sent = vec![0; length];
        reader.read_exact(&mut sent).expect("the program sends its body");
        if length > 0 {
            text.extend([" | ", &String::from_utf8_lossy(&sent)]);
        }
        requests.push(text);
        let reply = format!(
            "HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        reader.get_mut().write_all(reply.as_bytes()).expect("the program reads");
    }
    requests
}

/// Runs the program with `words` and `input` against `replies`. Returns its exit code, what it
/// printed, and the requests that it sent.
fn run(words: &str, input: &str, replies: &[Reply]) -> (i32, String, Vec<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let replies = replies.to_vec();
    let served = thread::spawn(move || serve(&listener, &replies));
    let mut child = Command::new(PROGRAM)
        .args(words.split(' '))
        .args(["--admin", &url])
        .env_clear()
        .env("TOLLGATE_TOKEN", "tg_x")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program is built");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(input.as_bytes()).expect("the program waits");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).replace(&url, "URL");
    (output.status.code().expect("it was not killed"), text, served.join().expect("it served"))
}

#[test]
fn a_limit_is_read() {
    let (code, text, requests) = run("limits get login", "", &[(200, LOGIN)]);
    assert_eq!((code, text.as_str()), (0, "[[limit]]\nname = \"login\"\n"));
    assert_eq!(requests, ["GET /api/v1/limits/login HTTP/1.1 | authorization: bearer tg_x"]);
    let (_, text, _) = run("limits get login --json", "", &[(200, LOGIN)]);
    assert_eq!(text, format!("{LOGIN}\n"));
    let missing = r#"{"status":404,"detail":"there is no limit a/b"}"#;
    let (code, text, requests) = run("limits get a/b", "", &[(404, missing)]);
    assert_eq!((code, text.as_str()), (1, "tollgate: URL: there is no limit a/b\n"));
    assert!(requests[0].starts_with("GET /api/v1/limits/a%2Fb HTTP/1.1"), "{requests:?}");
}

#[test]
fn pages_of_limits_are_joined() {
    let first = r#"{"limits":[{"name":"a","policy":"x","source":"api","owner":null,"version":1,
        "minute":{"allowed":3,"denied":1}}],"next":"a"}"#;
    let second = r#"{"limits":[{"name":"b","policy":"y","source":"file","owner":"o","version":2,
        "minute":null}],"next":null}"#;
    let (code, text, requests) =
        run("limits list login --source api", "", &[(200, first), (200, second)]);
    let expected = "\
        NAME  POLICY  SOURCE  OWNER  VERSION  MINUTE ALLOWED  MINUTE DENIED\n\
        a     x       api     -      1        3               1\n\
        b     y       file    o      2        -               -\n";
    assert_eq!((code, text.as_str()), (0, expected));
    assert!(requests[1].contains("limit=1000&q=login&source=api&after=a"), "{requests:?}");
}

#[test]
fn a_limit_is_put_in_place_of_its_present_version() {
    let file = "[[limit]]\nname = \"login\"\n";
    let done = r#"{"version":8,"seq":3}"#;
    let words = "limits put - --note more --before api";
    let (code, text, requests) = run(words, file, &[(200, LOGIN), (200, done)]);
    assert_eq!((code, text.as_str()), (0, "ok\n"));
    let (line, rest) = requests[1].split_once(" | ").expect("headers");
    assert_eq!(line, "PUT /api/v1/limits/login HTTP/1.1");
    assert!(rest.contains("if-match: \"7\"") && rest.contains(r#""note":"more""#), "{rest}");
    assert!(rest.contains("content-type: application/json"), "{rest}");
    let (_, _, requests) = run("limits put -", file, &[(404, "{}"), (201, done)]);
    assert!(requests[1].contains("if-none-match: *"), "{requests:?}");
    let changed = r#"{"status":412,"detail":"it has version 9 now: read it again","version":9}"#;
    let (code, text, requests) = run("limits put - --if-version 5", file, &[(412, changed)]);
    assert_eq!((code, text.as_str()), (1, "tollgate: URL: it has version 9 now: read it again\n"));
    assert!(requests[0].contains("if-match: \"5\""), "{requests:?}");
    let mistake = r#"{"status":422,"detail":"no policy","line":2}"#;
    let (code, text, _) = run("limits put - --if-version 0", file, &[(422, mistake)]);
    assert_eq!((code, text.as_str()), (1, "tollgate: URL: line 2: no policy\n"));
    for (file, reason) in [
        ("", "no limits"),
        ("[[limit]]\nname = \"a\"\n[[limit]]\nname = \"b\"\n", "several limits"),
        ("[[limit]]\n", "no name"),
        ("x = ", "-: "),
    ] {
        let (code, text, _) = run("limits put -", file, &[]);
        assert!(code == 1 && text.contains(reason), "{text}");
    }
}

#[test]
fn a_key_is_blocked_for_a_time() {
    let none = r#"{"overrides":[{"key":"login:a","source":"file","version":0}],"total":1}"#;
    let some = r#"{"overrides":[{"key":"login:a","source":"api","version":4}],"total":1}"#;
    let done = r#"{"version":5,"seq":9}"#;
    let words = "limits block login login:a --for 2h --note abuse";
    let (code, _, requests) = run(words, "", &[(200, none), (201, done)]);
    assert_eq!(code, 0);
    assert!(requests[1].starts_with("PUT /api/v1/limits/login/overrides/login%3Aa "));
    assert!(requests[1].contains("if-none-match: *"), "{requests:?}");
    assert!(requests[1].contains(r#""for_ms":7200000"#), "{requests:?}");
    assert!(requests[1].contains(r#""policy":"block""#), "{requests:?}");
    let words = "limits override login login:a --remove";
    let (code, _, requests) = run(words, "", &[(200, some), (200, done)]);
    assert_eq!(code, 0);
    assert!(requests[1].starts_with("DELETE ") && requests[1].contains("if-match: \"4\""));
    let (code, text, _) = run(words, "", &[(200, none)]);
    assert_eq!(code, 1);
    assert!(text.contains("login has no override of the API for login:a"), "{text}");
}

#[test]
fn a_verdict_is_explained() {
    let explained = r#"{"cost":2,"allowed":false,"refused_by":["login"],"retry_ms":500,"value":null,
        "matched":{"key":"login:a","limit":"login","captures":[{"name":"user","value":"a\u001b[2J"}],
        "counted_key":"login:a","policy":"fixed:5/m","shadowed":[],"parents":[]},
        "standings":[{"limit":"login","key":"login:a","policy":"fixed:5/m",
        "verdict":{"remaining":0,"reset_ms":60000},"fault":null,"owner":"n1","copies":[]}]}"#;
    let (code, text, requests) = run("explain login:a 2", "", &[(200, explained)]);
    assert_eq!(code, 0);
    assert!(requests[0].starts_with("GET /api/v1/explain?key=login%3Aa&cost=2 "), "{requests:?}");
    for line in ["allowed     no", "refused_by  login", "retry_ms    500", "capture  user=a?[2J"] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    let (code, text, _) = run("explain login:a", "", &[(502, "<html>")]);
    assert_eq!((code, text.as_str()), (1, "tollgate: URL: HTTP status 502\n"));
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let url = format!("http://{}", port.expect("a port was free"));
    let output = Command::new(PROGRAM)
        .args(["limits", "list", "--admin", &url])
        .env_clear()
        .output()
        .expect("the program is built");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.starts_with(&format!("tollgate: {url}: ")), "{text}");
}

#[test]
fn packages_get_their_pages() {
    for (kind, part) in [
        ("man", ".TH tollgate 1"),
        ("bash", "_tollgate()"),
        ("zsh", "#compdef tollgate"),
        ("fish", "complete -c tollgate"),
    ] {
        let output = Command::new(PROGRAM).args(["generate", kind]).output().expect("it is built");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0));
        assert!(text.contains(part) && text.contains("healthcheck"), "{kind}: {text}");
    }
}

//! The command line as a user sees it: output, stream and exit code.
//!
//! Here: the built program, run to its end. Not here: the meaning of settings (tests of `config`),
//! a serving process. The snapshots in `snapshots/` specify the wording.

use std::fmt::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tollgate");

/// Runs the program as `name` with an empty environment.
fn run_as(name: &str, args: &[&str]) -> Output {
    Command::new(PROGRAM).arg0(name).args(args).env_clear().output().expect("the program is built")
}

fn run(args: &[&str]) -> Output {
    run_as("tollgate", args)
}

/// Returns the exit code and the output of each stream.
fn transcript(output: &Output) -> String {
    let mut text = format!("exit {}\n", output.status.code().expect("it was not killed"));
    for (stream, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        if !bytes.is_empty() {
            write!(text, "{stream}:\n{}", String::from_utf8_lossy(bytes)).expect("a String");
        }
    }
    text
}

#[test]
fn help_is_grouped() {
    insta::assert_snapshot!(transcript(&run(&["-h"])));
}

#[test]
fn the_first_line_names_the_version() {
    let first = |output: Output| {
        String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned()
    };
    let ours = concat!("tollgate ", env!("CARGO_PKG_VERSION"));
    for flag in ["-h", "--help", "-V", "--version", "-i"] {
        assert_eq!(first(run(&[flag])), ours, "{flag}");
        assert_eq!(first(run_as("/usr/bin/memcached", &[flag])), "memcached 1.6.45", "{flag}");
        assert_eq!(first(run(&["memcached", flag])), "memcached 1.6.45", "{flag}");
    }
}

#[test]
fn the_licence_is_printed() {
    insta::assert_snapshot!(transcript(&run(&["-i"])));
}

#[test]
fn help_into_a_closed_pipe_is_no_crash() {
    let mut child = Command::new(PROGRAM)
        .arg("-h")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the program is built");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    for flag in ["--help", "--version", "--check-config"] {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("it is there");
        let output = Command::new(PROGRAM).arg(flag).env_clear().stdout(full).output();
        let output = output.expect("the program is built");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{flag}: {error}");
        assert!(error.starts_with("tollgate: cannot write: "), "{flag}: {error}");
    }
}

#[test]
fn files_that_stop_the_start_are_refused() {
    for flags in [
        &["--tokens", "/nonexistent/t"][..],
        &["-e", "/nonexistent/x"],
        &["--limits-store", "/nonexistent/x"],
        &["-P", "/nonexistent/p"],
        &["-s", "/nonexistent/s"],
        &["--admin-socket", "/nonexistent/s"],
        &["--insecure", "--data-dir", "/proc/nope"],
    ] {
        let output = run(&[&["--check-config"], flags].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{flags:?}: {error}");
        assert!(output.stdout.is_empty() && error.contains("No such file"), "{flags:?}: {error}");
    }
}

#[test]
fn the_default_configuration_is_printed() {
    insta::assert_snapshot!(transcript(&run(&["--check-config"])));
}

#[test]
fn a_full_configuration_is_printed_with_its_warnings() {
    let args = "--check-config -l tag[in]:127.0.0.1:11212,[::1] -p 11300 -m 8192 -I 5m -c 16384 \
                -vv -u 11211 \
                -P /tmp/tollgate.pid -e /tmp/file -o modern,track_sizes,idle_timeout=30 \
                -f 1.05 -B auto -D / -A -F -X -W -M -C -k -L -r --log-format json --snapshot-interval 60";
    insta::assert_snapshot!(transcript(&run(&args.split_whitespace().collect::<Vec<_>>())));
}

#[test]
fn the_configuration_of_a_cluster_is_printed() {
    let args = "--check-config -l 10.0.0.1 --seeds dns:cache:21211,10.0.0.2 --expect 3 --zone a \
                --peer-cert /c --peer-key /k --peer-ca /a --lost-after never";
    let output = run(&args.split_whitespace().collect::<Vec<_>>());
    // `--check-config` reads the named files, which do not exist.
    assert_eq!(output.status.code(), Some(64));
    let args = args.replace("--peer-cert /c --peer-key /k --peer-ca /a", "--insecure");
    let output = run(&args.split_whitespace().collect::<Vec<_>>());
    insta::assert_snapshot!(transcript(&output));
}

#[test]
fn a_word_that_is_no_command_is_refused() {
    for (words, meant) in [
        (&["help"][..], "Perhaps you mean --help."),
        (&["start"], "Perhaps you mean no word at all"),
        (&["check-limit", "f"], "Perhaps you mean check-limits FILE."),
        (&["clustr", "status"], "Perhaps you mean cluster, as the first word."),
        (&["-m", "64", "cluster", "status"], "Perhaps you mean cluster, as the first word."),
        (&["nonsense"], "The commands are cluster, check-limits, doctor, explain"),
        (&["--check-config", "word"], "The commands are cluster, check-limits, doctor, explain"),
    ] {
        let output = run(words);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{words:?}: {stderr}");
        assert!(stderr.contains(meant) && stderr.lines().count() == 1, "{words:?}: {stderr}");
    }
    // Accepted as in memcached, for scripts that call it this way.
    let output = run(&["memcached", "--check-config", "word"]);
    assert_eq!(output.status.code(), Some(0), "{}", transcript(&output));
}

#[test]
fn a_unix_socket_takes_the_place_of_tcp() {
    let output = run(&["--check-config", "-s", "/tmp/t.sock", "-a", "770", "-l", "127.0.0.1"]);
    let text = String::from_utf8_lossy(&output.stdout);
    insta::assert_snapshot!(text.lines().take(4).collect::<Vec<_>>().join("\n"));
}

#[test]
fn mistakes_exit_with_64_and_one_line_that_names_them() {
    let mut page = String::new();
    for line in [
        "--bogus",
        "-Q",
        "-p",
        "-p http",
        "-p 65536",
        "-p -2",
        "-U 11211",
        "-m 64m",
        "-m 0",
        "-m -5",
        "-m 1",
        "-c 0",
        "-c many",
        "-t 0",
        "-t 1025",
        "-I 512",
        "-I 2g",
        "-I 5mb",
        "-I 40m",
        "-R 0",
        "-b -1",
        "-D ab",
        "-a 999 -s /s",
        "-f 1",
        "-n 0",
        "-N 0",
        "-B binary",
        "-B smtp",
        "-S",
        "-Z",
        "-l mtls:127.0.0.1:1",
        "-l proto[binary]:127.0.0.1:1",
        "-l 127.0.0.1:port",
        "-l ::1:11211:x",
        "-o bogus",
        "-o modern,bogus=1",
        "-o idle_timeout",
        "-o idle_timeout=soon",
        "-o ext_path=/f:1G",
        "-o proxy_config=/c",
        "-o ssl_key=/k",
        "--log-format xml",
        "--daemon=perhaps",
        "--config /nonexistent/t.toml",
        "--memcached-conf /nonexistent/m.conf",
        "--check-config -Y /nonexistent/users",
        "--replicas 3",
        "--expect 3",
        "--join 10.0.0.1 -l 10.0.0.2",
        "--expect 1 -C",
        "--check-config --expect 1 --peer-key-file /nonexistent/key",
        "cluster",
        "cluster drain",
        "cluster nodes --wait",
    ] {
        let output = run(&line.split(' ').collect::<Vec<_>>());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{line}: {error}");
        assert!(output.stdout.is_empty(), "{line}");
        assert_eq!(error.lines().count(), 1, "{line}: {error}");
        write!(page, "{line}\n    {error}").expect("a String");
    }
    insta::assert_snapshot!(page);
}

#[test]
fn an_empty_value_is_a_mistake_not_a_zero() {
    // A systemd unit with `-p ${PORT}` and PORT unset: memcached would start without TCP.
    for flag in ["-p", "-m", "-u", "-P", "-l"] {
        assert_eq!(run(&[flag, ""]).status.code(), Some(64), "{flag}");
    }
}

#[test]
fn a_mistake_in_a_file_is_named_by_file_and_line() {
    let dir = tempfile::tempdir().expect("a directory for two files");
    let (toml, conf) = (dir.path().join("t.toml"), dir.path().join("m.conf"));
    std::fs::write(&toml, "threads = 4\nthread = 4\n").expect("the directory is ours");
    std::fs::write(&conf, "-t 4\n-m lots\n").expect("the directory is ours");
    let mut page = String::new();
    for (flag, file) in [("--config", &toml), ("--memcached-conf", &conf)] {
        let output = run(&["--check-config", flag, &file.display().to_string()]);
        page += &transcript(&output).replace(&dir.path().display().to_string(), "DIR");
    }
    insta::assert_snapshot!(page);
}

#[test]
fn the_environment_and_its_mistakes_are_read() {
    let run = |name, text| {
        let mut command = Command::new(PROGRAM);
        let command = command.arg("--check-config").env_clear().env(name, text);
        command.output().expect("the program is built")
    };
    let output = run("TOLLGATE_MEMORY_LIMIT", "128");
    assert!(String::from_utf8_lossy(&output.stdout).contains("memory_limit = 128\n"));
    let output = run("TOLLGATE_MEMORY_LIMIT", "lots");
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("TOLLGATE_MEMORY_LIMIT: "));
}

#[test]
fn passwords_are_never_printed() {
    let dir = tempfile::tempdir().expect("a directory for one file");
    let users = dir.path().join("users");
    for (text, code) in [("me:hunter2\n", 0), ("hunter2\n", 64)] {
        std::fs::write(&users, text).expect("the directory is ours");
        let output = run(&["--check-config", "-Y", &users.display().to_string()]);
        assert_eq!(output.status.code(), Some(code));
        assert!(!transcript(&output).contains("hunter2"));
    }
}

//! Tests of `source`: values that each source accepts, skips and refuses, and the origins in
//! errors.

use std::fs;

use super::super::value::Verbosity;
use super::*;

fn file(name: &str, text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().expect("a directory for one file");
    let path = dir.path().join(name);
    fs::write(&path, text).expect("the directory is ours");
    (dir, path)
}

/// The result of a source, without the file's directory.
fn outcome(
    read: Result<ConfigSource, ConfigError>,
    dir: &tempfile::TempDir,
) -> Result<ConfigSource, String> {
    let dir = format!("{}/", dir.path().display());
    read.map_err(|error| error.to_string().replace(&dir, ""))
}

fn read_conf(text: &str) -> Result<ConfigSource, String> {
    let (dir, path) = file("memcached.conf", text);
    outcome(memcached_conf(&path), &dir)
}

fn read_toml(text: &str) -> Result<ConfigSource, String> {
    let (dir, path) = file("tollgate.toml", text);
    outcome(toml(&path), &dir)
}

fn read_env(pairs: &[(&str, &str)]) -> Result<ConfigSource, String> {
    let pairs = pairs.iter().map(|(name, text)| (OsString::from(name), OsString::from(text)));
    environment(pairs).map_err(|error| error.to_string())
}

#[test]
fn words_are_split_as_a_shell_would() {
    for (line, expected) in [
        ("-m 64", vec!["-m", "64"]),
        ("\t-m64   -vv\t", vec!["-m64", "-vv"]),
        ("-s '/run/my sock' # why", vec!["-s", "/run/my sock"]),
        ("-s /run/\"my sock\"", vec!["-s", "/run/my sock"]),
        (r"-D \#", vec!["-D", "#"]),
        ("-u ''", vec!["-u", ""]),
        ("# -c 1024", vec![]),
        ("-d# comment", vec!["-d"]),
        ("", vec![]),
    ] {
        assert_eq!(shell_words(line).expect(line), expected, "{line}");
    }
    assert_eq!(shell_words("-s 'x"), Err("a ' is not closed".to_owned()));
}

#[test]
fn a_conf_line_may_have_several_flags_and_crlf() {
    let source = read_conf("-m 128 -c 2048\r\n\r\n--threads=8\r\n").expect("good flags");
    assert_eq!(source.raw.memory_limit, Some(128));
    assert_eq!(source.raw.conn_limit, Some(2048));
    assert_eq!(source.raw.threads, Some(8));
    assert_eq!(source.warnings, Vec::<String>::new());
}

#[test]
fn a_conf_never_sends_us_to_the_background() {
    for text in ["-d\n", "--daemon\n", "-m 64 -d\n", "-dv\n"] {
        let source = read_conf(text).expect(text);
        assert_eq!(source.raw.daemon, None, "{text}");
        assert_eq!(source.warnings.len(), 1, "{text}");
    }
}

#[test]
fn a_conf_is_refused_at_its_line() {
    for (text, expected) in [
        (
            "# top\n\n-m lots\n",
            "memcached.conf:3: invalid value 'lots' for '--memory-limit <MB>': \
             expected a whole number from 1 to 16777216",
        ),
        ("-q\n", "memcached.conf:1: unexpected argument '-q' found"),
        (
            "-o bogus\n",
            "memcached.conf:1: invalid value 'bogus' for '--extended <LIST>': \
             Illegal suboption \"bogus\"",
        ),
        ("-s \"x\n", "memcached.conf:1: a \" is not closed"),
        (
            "--config x\n",
            "memcached.conf: --config and --memcached-conf belong on the command line",
        ),
    ] {
        assert_eq!(read_conf(text).expect_err(text), expected);
    }
}

#[test]
fn a_toml_file_takes_every_kind_of_value() {
    let source = read_toml(
        "port = -1\nlisten = [\"127.0.0.1\", \"::1\"]\nmax_item_size = \"5m\"\nlock_memory = true\n\
         disable_cas = false\nslab_growth_factor = 1.5\nunix_mask = 0o700\nverbose = 2\n\
         extended = [\"modern\", \"idle_timeout=5\"]\nlog_format = \"json\"\n",
    );
    // 0o700 is 448, which is no octal file mode: the mask is written as in the flag.
    assert!(source.expect_err("a number in another base").contains("tollgate.toml:7: "));

    let source = read_toml("port = -1\nverbose = 2\nlock_memory = true\ndisable_cas = false\n")
        .expect("good fields");
    assert_eq!(source.raw.port, Some(-1));
    assert_eq!(source.raw.verbose, [Verbosity { steps: 2, unknown: None }]);
    assert_eq!(source.raw.lock_memory, Some(true));
    assert_eq!(source.raw.disable_cas, Some(false));
}

#[test]
fn a_toml_file_is_refused_at_its_line() {
    for (text, expected) in [
        ("\n\nmemory_limits = 64\n", "tollgate.toml:3: unknown field `memory_limits`"),
        ("memory-limit = 64\n", "tollgate.toml:1: unknown field `memory-limit`"),
        ("config = \"x\"\n", "tollgate.toml:1: unknown field `config`"),
        ("memcached_conf = \"x\"\n", "tollgate.toml:1: unknown field `memcached_conf`"),
        ("help = true\n", "tollgate.toml:1: unknown field `help`"),
        ("[server]\nport = 1\n", "tollgate.toml:1: unknown field `server`"),
        (
            "port = { tcp = 1 }\n",
            "tollgate.toml:1: `port` takes text, a number, true, false, or a list",
        ),
        (
            "threads = 4\nport = 65536\n",
            "tollgate.toml:2: invalid value '65536' for '--port <NUM>': \
             expected a port from 0 (no TCP) to 65535, or -1 for any free one",
        ),
        (
            "daemon = \"maybe\"\n",
            "tollgate.toml:1: invalid value 'maybe' for '--daemon[=<YES|NO>]': \
             expected true or false",
        ),
    ] {
        assert_eq!(read_toml(text).expect_err(text), expected);
    }
    let broken = read_toml("threads = 4\nport =\n").expect_err("no value");
    assert!(broken.starts_with("tollgate.toml:2: "), "{broken}");
    assert!(!broken.contains('\n'), "{broken}");
    let twice = read_toml("port = 1\nport = 2\n").expect_err("a field twice");
    assert!(twice.starts_with("tollgate.toml:2: "), "{twice}");
}

#[test]
fn the_environment_is_named_after_the_long_options() {
    let source = read_env(&[
        ("TOLLGATE_MEMORY_LIMIT", " 128 "),
        ("TOLLGATE_DISABLE_EVICTIONS", "1"),
        ("TOLLGATE_LOCK_MEMORY", "off"),
        ("TOLLGATE_VERBOSE", "2"),
        ("TOLLGATE_PORT", ""),
        ("PATH", "/bin"),
        ("MEMCACHED_PORT", "1"),
    ])
    .expect("good variables");
    assert_eq!(source.raw.memory_limit, Some(128));
    assert_eq!(source.raw.disable_evictions, Some(true));
    assert_eq!(source.raw.lock_memory, Some(false));
    assert_eq!(source.raw.verbose, [Verbosity { steps: 2, unknown: None }]);
    assert_eq!(source.raw.port, None);
    assert_eq!(source.warnings, Vec::<String>::new());
}

#[test]
fn service_links_do_not_keep_a_pod_from_starting() {
    let source = read_env(&[
        ("TOLLGATE_PORT", "tcp://10.96.0.12:11211"),
        ("TOLLGATE_PORT_11211_TCP_ADDR", "10.96.0.12"),
        ("TOLLGATE_SERVICE_HOST", "10.96.0.12"),
        ("TOLLGATE_SERVICE_PORT", "11211"),
    ])
    .expect("variables of a service");
    assert_eq!(source.raw, RawConfig::default());
    let expected = "TOLLGATE_PORT=tcp://10.96.0.12:11211 is a service link, not a port; ignored";
    assert_eq!(source.warnings, [expected]);
}

#[test]
fn a_bad_variable_fails_an_unknown_one_warns() {
    assert_eq!(
        read_env(&[("TOLLGATE_THREADS", "many")]).expect_err("no number"),
        "TOLLGATE_THREADS: invalid value 'many' for '--threads <NUM>': \
         expected a whole number from 1 to 1024"
    );
    let source = read_env(&[("TOLLGATE_THREAD", "4"), ("TOLLGATE_HELP", "1")]).expect("a warning");
    assert_eq!(
        source.warnings,
        ["TOLLGATE_HELP is not a setting; ignored", "TOLLGATE_THREAD is not a setting; ignored"]
    );
}

#[test]
fn a_missing_file_is_named() {
    let path = Path::new("/nonexistent/tollgate.toml");
    for error in [toml(path).expect_err("missing"), memcached_conf(path).expect_err("missing")] {
        let text = error.to_string();
        assert!(text.starts_with("cannot read /nonexistent/tollgate.toml: "), "{text}");
    }
}

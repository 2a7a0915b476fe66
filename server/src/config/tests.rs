//! Tests of resolving arguments to `Config`: precedence, rules, command lines in use.

use std::fs;

use super::*;

/// Parses a command line (the program's name first) and environment variables.
fn start(args: &[&str], variables: &[(&str, &str)]) -> Result<Config, String> {
    let args = args.iter().map(OsString::from);
    let variables =
        variables.iter().map(|(name, text)| (OsString::from(name), OsString::from(text)));
    match Config::from_sources(args, variables) {
        Ok(Startup::Serve(config) | Startup::Check(config)) => Ok(*config),
        Ok(Startup::Print(text)) => Err(format!("printed {text}")),
        Ok(Startup::CheckLimits(path)) => Err(format!("checks {}", path.display())),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn snapshots_at_intervals_need_a_file() {
    let config = tollgate(&["-e", "/e", "--snapshot-interval", "60"]).expect("a good line");
    assert_eq!(config.snapshot_interval, Some(Duration::from_mins(1)));
    let config = tollgate(&["--snapshot-interval", "0"]).expect("none is none");
    assert_eq!(config.snapshot_interval, None);
    let reason = "--snapshot-interval needs the file of the snapshot: add -e FILE";
    assert_eq!(tollgate(&["--snapshot-interval", "60"]), Err(reason.to_owned()));
    assert!(tollgate(&["-e", "/e", "--snapshot-interval", "31622401"]).is_err());
}

#[test]
fn a_limits_file_is_checked_by_a_verb_of_its_own() {
    assert_eq!(tollgate(&["check-limits", "a.toml"]), Err("checks a.toml".to_owned()));
    assert_eq!(tollgate(&["check-limits"]), Err("write check-limits FILE".to_owned()));
    assert_eq!(tollgate(&["check-limits", "a", "b"]), Err("write check-limits FILE".to_owned()));
    let config = tollgate(&["--limits", "a.toml"]).expect("a good command line");
    assert_eq!(config.limits_file, Some(PathBuf::from("a.toml")));
    assert!(config.to_toml().contains("limits = \"a.toml\"\n"));
}

fn tollgate(args: &[&str]) -> Result<Config, String> {
    start(&[&["tollgate"], args].concat(), &[])
}

/// The addresses of a good command line.
fn listen(args: &[&str]) -> Vec<String> {
    let config = start(args, &[]).expect("a good command line");
    config.listen.iter().map(ToString::to_string).collect()
}

fn written(dir: &tempfile::TempDir, name: &str, text: &str) -> String {
    let path = dir.path().join(name);
    fs::write(&path, text).expect("the directory is ours");
    path.display().to_string()
}

#[test]
fn each_source_outweighs_the_next() {
    let dir = tempfile::tempdir().expect("a directory for two files");
    let toml = written(&dir, "t.toml", "threads = 3\nconn_limit = 30\nmemory_limit = 300\n");
    let conf = written(&dir, "m.conf", "-t 2\n-c 20\n-m 200\n-b 20\n");
    let files = ["tollgate", "--config", &toml, "--memcached-conf", &conf];
    let config = start(
        &[&files[..], &["-t", "5"]].concat(),
        &[("TOLLGATE_THREADS", "4"), ("TOLLGATE_CONN_LIMIT", "40")],
    )
    .expect("good sources");
    assert_eq!(
        (config.threads, config.connections_max, config.memory_bytes, config.backlog),
        (5, 40, 300 << 20, 20)
    );
    assert_eq!(config.requests_per_event, 512);
}

#[test]
fn a_source_can_turn_off_what_a_lesser_one_turned_on() {
    let dir = tempfile::tempdir().expect("a directory for one file");
    let conf = written(&dir, "m.conf", "-M -k -A\n-v\n");
    let args = ["tollgate", "--memcached-conf", &conf, "--lock-memory=no", "--verbose=0"];
    let config = start(&args, &[("TOLLGATE_DISABLE_EVICTIONS", "false")]).expect("good sources");
    assert!(config.evict && !config.lock_memory && config.shutdown_command);
    assert_eq!(config.log_level, LogLevel::Warn);
}

#[test]
fn addresses_replace_and_extended_options_merge() {
    let variables = [
        ("TOLLGATE_LISTEN", "10.0.0.1,10.0.0.2"),
        ("TOLLGATE_EXTENDED", "idle_timeout=5,no_maxconns_fast,modern"),
    ];
    let args = ["tollgate", "-l", "127.0.0.1", "-l", "::1", "-o", "idle_timeout=9"];
    let config = start(&args, &variables).expect("good sources");
    assert_eq!(config.listen.len(), 2);
    assert_eq!(config.listen[1].host, "::1");
    assert_eq!(config.idle_timeout, Some(Duration::from_secs(9)));
    assert!(!config.connections_fast);
    assert_eq!(config.warnings, ["-o modern: accepted without effect"]);
}

#[test]
fn files_may_be_named_by_the_environment() {
    let dir = tempfile::tempdir().expect("a directory for one file");
    let toml = written(&dir, "t.toml", "threads = 3\n");
    let config = start(&["tollgate"], &[("TOLLGATE_CONFIG", &toml)]).expect("good sources");
    assert_eq!(config.threads, 3);
}

#[test]
fn every_interface_only_under_memcacheds_name() {
    assert_eq!(listen(&["tollgate"]), ["127.0.0.1:11211"]);
    assert_eq!(listen(&["/usr/bin/memcached"]), ["*:11211"]);
    assert_eq!(listen(&["memcached-tool", "-p", "7"]), ["127.0.0.1:7"]);
    assert_eq!(listen(&["tollgate", "memcached", "-m", "64"]), ["*:11211"]);
    assert_eq!(listen(&["memcached", "-l", "127.0.0.1"]), ["127.0.0.1:11211"]);
    assert_eq!(listen(&["tollgate", "-l", "*"]), ["*:11211"]);
    assert!(Config::from_sources([], []).is_ok());
}

#[test]
fn addresses_and_sockets_combine_as_in_memcached() {
    assert_eq!(
        listen(&["tollgate", "-p", "-1", "-l", "127.0.0.1,::1"]),
        ["127.0.0.1:0", "[::1]:0"]
    );
    assert_eq!(listen(&["tollgate", "-p", "7", "-p", "8"]), ["127.0.0.1:8"]);
    assert_eq!(listen(&["tollgate", "-l", "a:1,a:1,a:2,a", "-p", "1"]), ["a:1", "a:2"]);
    assert_eq!(listen(&["tollgate", "-p", "-1", "-l", "a,a"]).len(), 2);
    assert!(listen(&["tollgate", "-s", "/s", "-l", "127.0.0.1"]).is_empty());
    assert!(listen(&["tollgate", "-p", "0", "-l", "127.0.0.1:5"]).is_empty());

    let config = tollgate(&["-p0", "-s/run/t.sock", "-a", "0770"]).expect("a good command line");
    let expected = UnixSocket { path: "/run/t.sock".into(), mask: 0o770 };
    assert_eq!(config.unix_socket, Some(expected));
    assert_eq!(config.warnings, Vec::<String>::new());
}

#[test]
fn operators_get_in_only_where_a_flag_says_so() {
    let config = tollgate(&[]).expect("a good command line");
    assert!(config.admin_socket.is_none() && !config.admin_loopback && !config.shutdown_command);
    let variables = [("TOLLGATE_ADMIN_SOCKET", "/run/t.sock"), ("TOLLGATE_ADMIN_LOOPBACK", "yes")];
    let config = start(&["tollgate"], &variables).expect("good variables");
    assert_eq!(config.admin_socket, Some("/run/t.sock".into()));
    assert!(config.admin_loopback && config.warnings.is_empty());
    // The operator's password is no setting of the server.
    let config = start(&["tollgate"], &[("TOLLGATE_PASSWORD", "x"), ("TOLLGATE_ADMIN_SOCKET", "")]);
    let config = config.expect("good variables");
    assert!(config.admin_socket.is_none() && config.warnings.is_empty());
    let same = tollgate(&["-s", "/run/t.sock", "--admin-socket", "/run/t.sock"]);
    assert_eq!(
        same.expect_err("one file for two sockets"),
        "--admin-socket and -s name the same file; give each its own"
    );
}

#[test]
fn an_item_takes_at_most_half_of_the_memory() {
    assert!(tollgate(&["-m", "2"]).is_ok());
    assert!(tollgate(&["-m", "1", "-I", "512k"]).is_ok());
    let reason = tollgate(&["-m", "1"]).expect_err("1m of 1 MB");
    let expected = "Cannot set item size limit higher than 1/2 of memory max.";
    assert_eq!(reason, format!("-I 1048576 with -m 1: {expected}"));
    assert!(tollgate(&["-m", "64", "-I", "33m"]).expect_err("more than half").ends_with(expected));
    assert!(tollgate(&["-m", "2048", "-I", "1g"]).is_ok());
}

#[test]
fn values_may_be_glued_and_options_abbreviated() {
    for args in [
        &["-m1024"][..],
        &["-m", "1024"],
        &["-m 1024"],
        &["  -m 1024 "],
        &["-m", " 1024 "],
        &["-m", "1", "-m", "1024"],
        &["--memory-limit=1024"],
        &["--memory-limit", "1024"],
        &["--memory-l=1024"],
        &["-vm1024"],
        &["", "-m", "1024", " "],
    ] {
        assert_eq!(tollgate(args).map(|config| config.memory_bytes >> 20), Ok(1024), "{args:?}");
    }
}

#[test]
fn verbosity_is_counted() {
    for (args, expected) in [
        (&[][..], LogLevel::Warn),
        (&["-v"], LogLevel::Info),
        (&["-vv"], LogLevel::Debug),
        (&["-v", "-v"], LogLevel::Debug),
        (&["-vvv"], LogLevel::Trace),
        (&["-vvvvvv"], LogLevel::Trace),
        (&["--verbose"], LogLevel::Info),
        (&["--verbose=2"], LogLevel::Debug),
        (&["--verbose=vvv"], LogLevel::Trace),
        (&["--verbose=yes"], LogLevel::Info),
    ] {
        assert_eq!(tollgate(args).map(|config| config.log_level), Ok(expected), "{args:?}");
    }
}

#[test]
fn command_lines_from_the_field_are_taken() {
    let loki = ["-m 8192", "--extended=modern,track_sizes", "-I 5m", "-c 16384", "-v", "-u 11211"];
    let apart = "-m 8192 --extended=modern,track_sizes -I 5m -c 16384 -v -u 11211";
    for args in [loki.to_vec(), apart.split(' ').collect()] {
        let config = start(&[&["memcached"], &args[..]].concat(), &[]).expect("Loki's chart");
        assert_eq!((config.memory_bytes, config.item_bytes_max), (8192 << 20, 5 << 20));
        assert_eq!((config.connections_max, config.user.as_deref()), (16384, Some("11211")));
        assert_eq!(config.warnings, ["-o modern,track_sizes: accepted without effect"]);
    }

    let line = "-u memcached -p 11211 -v -l 0.0.0.0 -m 64 -c 1024 -t 4 -I 1m \
                -e /cache-state/memory_file";
    let line: Vec<_> = ["memcached"].into_iter().chain(line.split_whitespace()).collect();
    let config = start(&line, &[]).expect("bitnami's run.sh");
    assert_eq!(config.snapshot_file, Some("/cache-state/memory_file".into()));
    assert_eq!(config.snapshot_interval, None);
    assert_eq!(config.warnings, Vec::<String>::new());
    let reason = start(&[&line[..], &["-S"]].concat(), &[]).expect_err("SASL");
    assert_eq!(reason, "-S (--enable-sasl): SASL is not built yet; use -Y FILE");
}

#[test]
fn the_flags_of_debians_conf_are_taken() {
    let dir = tempfile::tempdir().expect("a directory for one file");
    let text = "# how we run it\n-d\n\nlogfile /var/log/memcached.log\n\n# -vv\n-m 64\n-p 11211\n\
                -u memcache\n-l 127.0.0.1\n# -c 1024\n# -M\n-P /var/run/memcached/memcached.pid\n";
    let conf = written(&dir, "memcached.conf", text);
    let config = tollgate(&["--memcached-conf", &conf]).expect("Debian's flags");
    assert_eq!(config.listen[0].to_string(), "127.0.0.1:11211");
    assert_eq!(config.user.as_deref(), Some("memcache"));
    assert_eq!(config.pidfile, Some("/var/run/memcached/memcached.pid".into()));
    assert!(!config.daemon);
    assert_eq!(config.warnings, [format!("{conf}: -d is ignored, as by Debian's scripts")]);
}

#[test]
fn every_flag_of_memcached_is_known() {
    // `memcached -h` of 1.6.18, short and long, with a value where one is required.
    let flags = "-p1 -U0 -s/s -a700 -A -l::1 -d -r -uroot -m64 -M -c9 -k -v -P/p -f1.25 -n48 -L \
                 -D: -t4 -R20 -C -b9 -Bauto -I1m -F -X -W -Y/y -e/e -omodern -N2 \
                 --port=1 --udp-port=0 --unix-socket=/s --unix-mask=700 --enable-shutdown \
                 --listen=::1 --daemon --enable-coredumps --user=root --memory-limit=64 \
                 --disable-evictions --conn-limit=9 --lock-memory --verbose --pidfile=/p \
                 --slab-growth-factor=1.25 --slab-min-size=48 --enable-largepages --threads=4 \
                 --max-reqs-per-event=20 --disable-cas --listen-backlog=9 --protocol=ascii \
                 --max-item-size=1m --disable-flush-all --disable-dumping --disable-watch \
                 --auth-file=/y --memory-file=/e --extended=modern --napi-ids=2 --napi_ids=2";
    for flag in flags.split_whitespace() {
        assert!(tollgate(&[flag]).is_ok(), "{flag}: {:?}", tollgate(&[flag]));
    }
    for flag in ["-h", "--help", "-i", "--license", "-V", "--version"] {
        assert!(tollgate(&[flag]).expect_err(flag).starts_with("printed tollgate "), "{flag}");
    }
    let refused = ["-S", "--enable-sasl", "-Z", "--enable-ssl", "-U1", "--udp-port=1", "-Bbinary"];
    for flag in refused {
        let reason = tollgate(&[flag]).expect_err(flag);
        assert!(reason.contains("not built yet") || reason.contains("UDP not supported"), "{flag}");
    }
}

#[test]
fn a_flag_without_effect_is_warned_of_once() {
    let args =
        ["-f", "1.5", "-f1.25", "-n", "48", "-N", "2", "-B", "auto", "-o", "modern", "-a700"];
    let config = tollgate(&args).expect("flags without effect");
    assert_eq!(config.warnings.len(), 6, "{:#?}", config.warnings);
    assert!(tollgate(&["-B", "ascii"]).expect("what we speak").warnings.is_empty());
}

#[test]
fn a_daemons_paths_are_absolute() {
    let config = tollgate(&["-d", "-P", "pid", "-e", "/e", "--admin-socket", "a"]);
    let config = config.expect("a good command line");
    assert!(config.pidfile.is_some_and(|path| path.is_absolute()));
    assert!(config.admin_socket.is_some_and(|path| path.is_absolute()));
    assert_eq!(config.snapshot_file, Some("/e".into()));
    let config = tollgate(&["-P", "pid"]).expect("a good command line");
    assert_eq!(config.pidfile, Some("pid".into()));
}

#[test]
fn the_port_file_is_memcacheds() {
    let config = start(&["tollgate"], &[("MEMCACHED_PORT_FILENAME", "/p")]).expect("good sources");
    assert_eq!(config.port_file, Some("/p".into()));
    let config = start(&["tollgate"], &[("MEMCACHED_PORT_FILENAME", "")]).expect("good sources");
    assert_eq!(config.port_file, None);
}

#[test]
fn printed_settings_read_back_to_the_same() {
    let dir = tempfile::tempdir().expect("a directory for one file");
    for line in [
        "",
        "-p 0",
        "-s /run/t.sock -a 770",
        "--admin-socket /run/t.sock --admin-loopback",
        "-l tag[x]:[::1]:7,*:8 -D / -vv -o idle_timeout=7,hashpower=20,no_maxconns_fast",
        "-M -C -L -k -A -F -X -W -r -u 11211 -P /p -Y /y -e /e -I 2048 -R 20 --log-format json",
        "-e /e --snapshot-interval 9",
    ] {
        let args: Vec<_> = line.split_whitespace().collect();
        // Under the name memcached, words are ignored with a warning.
        let args = [&["memcached"], &args[..], &["a word\n= of two lines"]].concat();
        let mut first = start(&args, &[]).expect(line);
        let file = written(&dir, "t.toml", &first.to_toml());
        let mut second = start(&["memcached", "--config", &file], &[]).expect(line);
        (first.warnings, second.warnings) = (Vec::new(), Vec::new());
        assert_eq!(second, first, "{line}");
    }
}

#[test]
fn a_level_that_is_none_is_a_warning() {
    let warnings = |flag: &str| {
        let args = ["tollgate", flag].map(OsString::from);
        let Ok(Startup::Serve(config)) = Config::from_sources(args, []) else { panic!("{flag}") };
        (config.log_level, config.warnings)
    };
    for word in ["debug", "trace", "bogus"] {
        let text =
            format!("--verbose={word}: no level, so taken as -v; write 0 to 3, or v, vv, vvv");
        assert_eq!(warnings(&format!("--verbose={word}")), (LogLevel::Info, vec![text]));
    }
    assert_eq!(warnings("--verbose=vv"), (LogLevel::Debug, Vec::new()));
    assert_eq!(warnings("-v"), (LogLevel::Info, Vec::new()));
}

#[test]
fn secrets_of_sub_commands_are_known_variables() {
    let variables = ["TOLLGATE_TOKEN", "TOLLGATE_PASSWORD"].map(|name| (name.into(), "x".into()));
    match Config::from_sources(["tollgate".into()], variables) {
        Ok(Startup::Serve(config)) => assert_eq!(config.warnings, Vec::<String>::new()),
        other => panic!("{other:?}"),
    }
}

//! The program: parses arguments, prepares the process, returns the exit code.
//!
//! Here: the order of the steps. Not here: the steps (`server`), the sub-commands (`server/cli`).

use std::env::{args_os, vars_os};
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write, stderr, stdout};
use std::process::ExitCode;

use tollgate::config::{Config, ConfigError, LogFormat, LogLevel, Startup};
use tollgate::runtime::process::{self, Pidfile};
use tollgate::{AUDIT, LIFE, Server, ServerError};
use tollgate_cli::{self as cli, CliError, Parsed, StartRefusal};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::{fmt, reload};

/// Uses huge pages (`.cargo/config.toml`) and returns memory of removed items to the system
/// ([`configure_allocator`]); the system's allocator does neither.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Exit code if an address cannot be bound: `EX_OSERR` of sysexits.h, as in memcached.
const EX_OSERR: u8 = 71;

fn main() -> ExitCode {
    let args: Vec<OsString> = args_os().collect();
    match cli::sub_command(&args) {
        None => start(args),
        Some(Ok(Parsed::Help(text))) => print(&text),
        Some(Ok(Parsed::Request(request))) => ended(request.run(&mut Output)),
        Some(Ok(Parsed::Snapshot(request))) => ended(request.run(&mut Output)),
        Some(Ok(Parsed::Token(request))) => ended(request.run(&mut Output)),
        Some(Ok(Parsed::Healthcheck(request))) => ended(request.run(&mut Output)),
        Some(Ok(Parsed::Top(request))) => ended(request.run(&mut Output)),
        Some(Ok(Parsed::Doctor(request))) => ended(request.run(&mut Output)),
        Some(Ok(Parsed::Limits(request))) => ended(request.run(&mut Output)),
        Some(Ok(Parsed::CheckLimits(request))) => match request.run(&mut Output) {
            Err(CliError::Limits(error)) => {
                let excerpt = error.with_excerpt(Some(request.file()));
                fail(&excerpt.trim_end(), ConfigError::EXIT_CODE)
            }
            result => ended(result),
        },
        Some(Ok(Parsed::Explain(request))) => ended(request.run(&mut Output)),
        Some(Ok(Parsed::Generate(request))) => ended(request.run(&mut Output)),
        Some(Err(error)) => fail(&error, ConfigError::EXIT_CODE),
    }
}

/// Runs a command line without a sub-command of `server/cli`: serves, unless a flag asks for less.
fn start(args: Vec<OsString>) -> ExitCode {
    match Config::from_sources(args, vars_os()) {
        Ok(Startup::Print(text)) => print(&text),
        Ok(Startup::Check(config)) => check(&config),
        Ok(Startup::CheckLimits(path)) => match tollgate_limits::check_file(&path) {
            Ok((limits, warnings)) => {
                for warning in warnings {
                    let _ = writeln!(stderr(), "tollgate: warning: {warning}");
                }
                print(&tollgate_limits::listing(&limits))
            }
            Err(error) => fail(&error.with_excerpt(Some(&path)).trim_end(), ConfigError::EXIT_CODE),
        },
        Ok(Startup::Serve(config)) => serve(&config),
        Err(error) => fail(&error, ConfigError::EXIT_CODE),
    }
}

/// Standard output of the sub-commands. When its reader has left, as in `tollgate -h | head -1`,
/// the rest is written nowhere: the command still does what it is to do, and its exit code tells.
struct Output;

impl Output {
    fn or_dropped<T>(result: io::Result<T>, dropped: T) -> io::Result<T> {
        match result {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(dropped),
            result => result,
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::or_dropped(stdout().write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Self::or_dropped(stdout().flush(), ())
    }
}

/// Returns the exit code of a sub-command.
fn ended(result: Result<(), CliError>) -> ExitCode {
    match result.and_then(|()| Ok(Output.flush()?)) {
        Ok(()) => ExitCode::SUCCESS,
        // The output has said why.
        Err(CliError::NotSafe | CliError::Faults) => ExitCode::from(1),
        Err(error @ CliError::WouldNotStart(_)) => fail(&error, ConfigError::EXIT_CODE),
        Err(error) => fail(&error, 1),
    }
}

/// `--check-config`: prints the resulting configuration; reads the files that it names to check
/// them.
fn check(config: &Config) -> ExitCode {
    match cli::check_start(config, false) {
        Ok(()) => print(&config.to_toml()),
        Err(StartRefusal::Limits(error)) => {
            let path = config.limits_file.as_deref();
            fail(&error.with_excerpt(path).trim_end(), ConfigError::EXIT_CODE)
        }
        Err(error) => fail(&error, ConfigError::EXIT_CODE),
    }
}

fn serve(config: &Config) -> ExitCode {
    let set_verbosity = match start_log(config) {
        Ok(set_verbosity) => set_verbosity,
        Err(error) => return fail(&error, 1),
    };
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    match prepare_and_run(config, set_verbosity) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let code = match error.downcast_ref() {
                Some(ServerError::Bind { .. }) => EX_OSERR,
                Some(error) if error.is_configuration() => ConfigError::EXIT_CODE,
                _ => 1,
            };
            // Log or print the error once; our errors include their cause.
            if config.log_format == LogFormat::Json {
                tracing::error!(target: LIFE, "{error}");
                return ExitCode::from(code);
            }
            match error.downcast_ref() {
                Some(ServerError::Limits(error)) => {
                    let path = config.limits_file.as_deref();
                    fail(&error.with_excerpt(path).trim_end(), code)
                }
                _ => fail(&error, code),
            }
        }
    }
}

/// Starts threads of the allocator that return free memory to the system after about ten seconds,
/// even if no further allocation happens.
///
/// Call it after [`process::daemonize`]: the threads do not survive a fork.
fn configure_allocator() {
    if let Err(error) = tikv_jemalloc_ctl::background_thread::write(true) {
        tracing::warn!("free memory is not returned to the system: {error}");
    }
}

/// Prepares the process and serves. The order is required: fork while there is one thread, bind
/// with the initial privileges, lock memory, drop privileges, and write the pidfile as the final
/// user.
fn prepare_and_run(
    config: &Config,
    set_verbosity: impl Fn(u32) + Send + Sync + 'static,
) -> anyhow::Result<()> {
    if config.coredumps {
        process::raise_core_limit()?;
    }
    process::raise_descriptor_limit(config.connections_max)?;
    if config.daemon {
        process::daemonize(config)?;
    }
    configure_allocator();
    let server = Server::bind(config.clone(), set_verbosity)?;
    if config.lock_memory {
        process::lock_memory();
    }
    process::drop_privileges(config)?;
    let _pidfile = config.pidfile.as_deref().map(Pidfile::create).transpose()?;
    tracing::info!(
        target: LIFE,
        version = env!("CARGO_PKG_VERSION"),
        addresses = ?server.addresses(),
        unix_socket = ?config.unix_socket.as_ref().map(|socket| &socket.path),
        admin_socket = ?config.admin_socket,
        threads = config.threads,
        memory_bytes = config.memory_bytes,
        "started"
    );
    server.run()?;
    tracing::info!(target: LIFE, "stopped");
    Ok(())
}

/// Filters openraft's lines at the operators' levels: it logs every step there, and an unreachable
/// node several times a second. `control` logs the end of the consensus itself, and the server logs
/// dead nodes.
fn filter(level: LogLevel) -> Targets {
    let (level, raft) = match level {
        LogLevel::Warn => (LevelFilter::WARN, LevelFilter::OFF),
        LogLevel::Info => (LevelFilter::INFO, LevelFilter::OFF),
        LogLevel::Debug => (LevelFilter::DEBUG, LevelFilter::INFO),
        LogLevel::Trace => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    let targets = [(LIFE, LevelFilter::INFO), (AUDIT, LevelFilter::INFO), ("openraft", raft)];
    Targets::new().with_default(level).with_targets(targets)
}

/// Logs to standard error. Lines of the targets [`LIFE`] and [`AUDIT`] pass at every level. The
/// returned function changes the level, for the `verbosity` command.
fn start_log(config: &Config) -> anyhow::Result<impl Fn(u32) + Send + Sync + 'static> {
    let (targets, handle) = reload::Layer::new(filter(config.log_level));
    let lines = fmt::layer().with_writer(stderr).with_ansi(false);
    let lines = match config.log_format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    let log = tracing_subscriber::registry().with(targets).with(lines);
    tracing::dispatcher::set_global_default(log.into())?;
    Ok(move |level| {
        // Reloading fails only without a subscriber, which lives as long as the process.
        let _ = handle.reload(filter(LogLevel::of_verbosity(level)));
    })
}

/// Prints a text as the sub-commands print theirs.
fn print(text: &str) -> ExitCode {
    ended(Output.write_all(text.as_bytes()).map_err(CliError::Output))
}

fn fail(error: &impl Display, code: u8) -> ExitCode {
    let _ = writeln!(stderr(), "tollgate: {error}");
    ExitCode::from(code)
}

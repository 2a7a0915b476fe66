//! The sources of settings, and parsing each of them to a [`RawConfig`].
//!
//! Here: command line, `TOLLGATE_*` environment, TOML file, memcached.conf. Each source is
//! converted to words of a command line, so that one parser (`raw`) defines every flag, bound and
//! message; errors are prefixed with the file and line, or the variable. Not here: defaults
//! (`resolve`).

use std::ffi::OsString;
use std::io;
use std::path::Path;

use tollgate_limits::files;
use toml::de::{DeTable, DeValue};

use super::raw::{self, RawConfig};
use super::sub_commands::TOKEN_VARIABLE;
use super::{ConfigError, PASSWORD_VARIABLE, ProgramName};

/// Maximum size of a file of settings.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Prefix of the server's environment variables.
const ENV_PREFIX: &str = "TOLLGATE_";

/// Flags that only the command line may contain, because they concern one run.
const COMMAND_LINE_ONLY: [&str; 4] = ["help", "version", "license", "check-config"];

/// Flags that name a file of settings. Such a file cannot name another one.
const FILES: [&str; 2] = ["config", "memcached-conf"];

/// The words of one place in a source.
struct SourcedText {
    /// `file:line`, or the name of a variable.
    origin: String,
    words: Vec<String>,
}

/// The settings of one source, and warnings for the operator.
#[derive(Debug, Default)]
pub(super) struct ConfigSource {
    pub(super) raw: RawConfig,
    pub(super) warnings: Vec<String>,
}

impl ConfigSource {
    /// Parses each place alone, to attach its origin to an error, then all places together.
    fn read(places: &[SourcedText], warnings: Vec<String>) -> Result<Self, ConfigError> {
        for place in places {
            RawConfig::parse(&place.words).map_err(|error| error.at(&place.origin))?;
        }
        let raw = RawConfig::parse(places.iter().flat_map(|place| &place.words))?;
        Ok(Self { raw, warnings })
    }
}

/// Parses the command line (the program's name first), and returns the program's name too.
///
/// `docker run image memcached -m 64` passes the name as a word, which is accepted as the name.
pub(super) fn command_line(
    args: impl IntoIterator<Item = OsString>,
) -> Result<(ProgramName, RawConfig), ConfigError> {
    let mut args = args.into_iter().peekable();
    let mut name = args.next().map_or(ProgramName::Tollgate, |program| ProgramName::of(&program));
    if let Some(word) = args.next_if(|word| word == "memcached" || word == "tollgate") {
        name = ProgramName::of(&word);
    }
    // Helm charts pass "-m 1024" as one argument, and pad it with blanks.
    let words = args.map(|word| match word.to_str() {
        Some(text) => OsString::from(text.trim()),
        None => word,
    });
    Ok((name, RawConfig::parse(words)?))
}

/// Parses the environment.
pub(super) fn environment(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<ConfigSource, ConfigError> {
    let longs = longs(&COMMAND_LINE_ONLY);
    let (mut places, mut warnings) = (Vec::new(), Vec::new());
    let mut variables: Vec<_> = variables
        .into_iter()
        .filter_map(|(variable, text)| Some((variable.into_string().ok()?, text)))
        .filter(|(variable, _)| variable.starts_with(ENV_PREFIX))
        .collect();
    variables.sort();
    for (variable, text) in variables {
        let long = variable[ENV_PREFIX.len()..].to_ascii_lowercase().replace('_', "-");
        let Ok(text) = text.into_string() else {
            let reason = "the value is not UTF-8".to_owned();
            return Err(ConfigError::Written { origin: variable, reason });
        };
        // In a pod beside a service called tollgate, Kubernetes sets these to describe the service.
        let linked = ["TOLLGATE_SERVICE_", "TOLLGATE_PORT_"];
        let is_linked = linked.iter().any(|prefix| variable.starts_with(prefix));
        // Secrets of sub-commands, which may share an environment with the server.
        let is_secret = variable == PASSWORD_VARIABLE || variable == TOKEN_VARIABLE;
        if is_linked || is_secret {
            continue;
        }
        if variable == "TOLLGATE_PORT" && text.contains("://") {
            warnings.push(format!("{variable}={text} is a service link, not a port; ignored"));
        } else if !longs.contains(&long) {
            warnings.push(format!("{variable} is not a setting; ignored"));
        } else if !text.trim().is_empty() {
            let words = vec![format!("--{long}={}", text.trim())];
            places.push(SourcedText { origin: variable, words });
        }
    }
    ConfigSource::read(&places, warnings)
}

/// Parses the TOML file of `--config`: the long flag names with `_` for `-`.
pub(super) fn toml(path: &Path) -> Result<ConfigSource, ConfigError> {
    let text = read(path)?;
    let at = |offset: usize| {
        let line = text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1;
        format!("{}:{line}", path.display())
    };
    let table = DeTable::parse(&text).map_err(|error| ConfigError::Written {
        origin: at(error.span().map_or(0, |span| span.start)),
        reason: error.message().lines().next().unwrap_or_default().to_owned(),
    })?;
    let longs = longs(&[&COMMAND_LINE_ONLY[..], &FILES].concat());
    let mut places = Vec::new();
    for (key, value) in table.get_ref() {
        let origin = at(key.span().start);
        let long = key.get_ref().replace('_', "-");
        if !longs.contains(&long) || key.get_ref().contains('-') {
            let reason = format!("unknown field `{}`", key.get_ref());
            return Err(ConfigError::Written { origin, reason });
        }
        let values = scalars(value.get_ref()).ok_or_else(|| ConfigError::Written {
            origin: origin.clone(),
            reason: format!("`{}` takes text, a number, true, false, or a list", key.get_ref()),
        })?;
        let words = values.into_iter().map(|value| format!("--{long}={value}")).collect();
        places.push((key.span().start, SourcedText { origin, words }));
    }
    places.sort_by_key(|(offset, _)| *offset);
    let places: Vec<_> = places.into_iter().map(|(_, place)| place).collect();
    ConfigSource::read(&places, Vec::new())
}

/// The values of a field, one or a list; `None` for a type that no flag accepts.
fn scalars(value: &DeValue<'_>) -> Option<Vec<String>> {
    match value {
        DeValue::Array(values) => values.iter().map(|value| scalar(value.get_ref())).collect(),
        value => Some(vec![scalar(value)?]),
    }
}

fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => {
            i64::from_str_radix(number.as_str(), number.radix()).ok().map(|n| n.to_string())
        }
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(yes) => Some(yes.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

/// Parses the format of Debian's `/etc/memcached.conf`: flags by line, `#` comments, `logfile`.
///
/// Debian's scripts drop `-d`, `-h` and every line that is no flag, and pass the rest to a shell.
/// So `-d` is ignored here too (systemd would lose the process), and quotes are supported.
pub(super) fn memcached_conf(path: &Path) -> Result<ConfigSource, ConfigError> {
    let text = read(path)?;
    let (mut places, mut warnings) = (Vec::new(), Vec::new());
    for (index, line) in text.lines().enumerate() {
        let origin = format!("{}:{}", path.display(), index + 1);
        let words = shell_words(line)
            .map_err(|reason| ConfigError::Written { origin: origin.clone(), reason })?;
        match words.first().map(String::as_str) {
            None | Some("logfile" | "-h" | "--help") => {}
            Some(flag) if !flag.starts_with('-') => {
                warnings.push(format!("{origin}: {flag} is not a flag; ignored"));
            }
            Some(_) => places.push(SourcedText { origin, words }),
        }
    }
    let mut source = ConfigSource::read(&places, warnings)?;
    if source.raw.config.is_some() || source.raw.memcached_conf.is_some() {
        let reason = "--config and --memcached-conf belong on the command line".to_owned();
        return Err(ConfigError::Written { origin: path.display().to_string(), reason });
    }
    if source.raw.daemon.take() == Some(true) {
        source.warnings.push(format!("{}: -d is ignored, as by Debian's scripts", path.display()));
    }
    Ok(source)
}

/// Splits a line like a shell: blanks, quotes, backslashes, and `#` for a comment.
fn shell_words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '#' => break,
            '\\' => word.get_or_insert_default().extend(chars.next()),
            '"' | '\'' => {
                let quoted = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        Some(end) if end == c => break,
                        Some(inner) => quoted.push(inner),
                        None => return Err(format!("a {c} is not closed")),
                    }
                }
            }
            c if c.is_whitespace() => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

/// The long names of all flags except `without`.
fn longs(without: &[&str]) -> Vec<String> {
    let command = raw::command();
    let longs = command.get_arguments().filter_map(clap::Arg::get_long);
    longs.filter(|long| !without.contains(long)).map(str::to_owned).collect()
}

fn read(path: &Path) -> Result<String, ConfigError> {
    files::read(path, FILE_BYTES_MAX)
        .and_then(|bytes| String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8")))
        .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests;

//! `tollgate check-limits FILE [KEY [COST]]`: a limits file without a server.
//!
//! Here: its command line, and the limit of a key as text and JSON. Not here: the list of limits
//! (`server`), the same for a running server (`explain`).

use std::ffi::OsString;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};

use protocol::{COUNT_MAX, duration_text};
use serde_json::{Value, json};
use tollgate::config::ConfigError;
use tollgate_limits::{
    ExplainedKey, Explanation, Limit, Limits, check_file, first_verdict, key_mistake, listing,
    override_reason,
};

use super::{CliError, Parsed, api_show, help_or, parse_words};

/// Check a limits file without a server: list its limits, or show why a key has its limit
#[derive(Debug, Clone, PartialEq, Eq, clap::Parser)]
#[command(name = "tollgate check-limits", term_width = 100)]
pub struct CheckLimitsRequest {
    /// The limits file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// A key, to show its limit
    #[arg(value_name = "KEY")]
    key: Option<String>,
    /// Cost of the attempt
    #[arg(
        value_name = "COST",
        default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(..=COUNT_MAX)
    )]
    cost: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Parses the words after `check-limits`.
pub(crate) fn parse(words: &[OsString]) -> Result<Parsed, ConfigError> {
    match parse_words::<CheckLimitsRequest>(words) {
        Ok(request) => match request.key.as_deref().and_then(|key| key_mistake(key.as_bytes())) {
            Some(mistake) => Err(ConfigError::Usage(mistake)),
            None => Ok(Parsed::CheckLimits(request)),
        },
        Err(error) => help_or(error, "write tollgate check-limits FILE [--json] [KEY [COST]]"),
    }
}

impl CheckLimitsRequest {
    /// The limits file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Prints the limits, or the limit of the key, on `out`; warnings on standard error.
    ///
    /// # Errors
    ///
    /// The file is refused or unreadable, or the key has no valid counted key.
    pub fn run(&self, out: &mut impl Write) -> Result<(), CliError> {
        let (limits, warnings) = check_file(&self.file)?;
        for warning in warnings {
            writeln!(stderr(), "tollgate: warning: {warning}")?;
        }
        let Some(key) = &self.key else {
            if self.json {
                return api_show::print_json(out, &listed(&limits).to_string());
            }
            out.write_all(listing(&limits).as_bytes())?;
            return Ok(());
        };
        let explained = limits.explain(key.as_bytes());
        let explained = explained.map_err(|error| CliError::Input(error.to_string()))?;
        let value = explained.map_or_else(
            || {
                let exempt = limits.exemption(key.as_bytes());
                json!({ "key": key, "limit": null, "exempt": exempt })
            },
            |explained| self.explained(&limits, &explained),
        );
        if self.json {
            return api_show::print_json(out, &value.to_string());
        }
        out.write_all(text(&value).as_bytes())?;
        Ok(())
    }

    fn explained(&self, limits: &Limits, explained: &Explanation) -> Value {
        let captures = explained.captures.iter();
        let captures = captures.map(|(name, value)| json!({ "name": name, "value": lossy(value) }));
        let mut value = self.key_value(limits, &explained.key);
        value["captures"] = captures.collect();
        value["parents"] =
            explained.parents.iter().map(|parent| self.key_value(limits, parent)).collect();
        value["passes_by"] = json!(explained.later);
        value
    }

    fn key_value(&self, limits: &Limits, key: &ExplainedKey) -> Value {
        let counted = lossy(&key.counted);
        let of = limits.by_name(key.limit.as_bytes());
        let policy = of.map(|limit| *limit.policy_of(&key.counted));
        let ban = policy.and_then(|policy| policy.ban()).map(|ban| {
            json!({
                "refusals": ban.refusals,
                "within": duration_text(ban.within),
                "for": duration_text(ban.first),
                "max": duration_text(ban.longest),
            })
        });
        let mut value = json!({
            "key": lossy(&key.key),
            "limit": key.limit,
            "match": of.map(Limit::pattern),
            "counted_key": counted,
            "policy": key.policy,
            "ban": ban,
            "cost": self.cost,
            "first_attempt": policy.map(|policy| first_verdict(&policy, self.cost)),
        });
        if let Some((text, source)) = &key.overridden {
            let reason = override_reason(text, source.word(), &counted);
            value["override"] = json!({ "text": text, "source": source.word(), "reason": reason });
        }
        value
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// All limits as JSON.
fn listed(all: &Limits) -> Value {
    let limits = all.iter().map(|limit| {
        let overrides = limit.written_overrides();
        let overrides = overrides.map(|(text, policy, weight)| {
            json!({ "text": text, "policy": policy.to_string(), "weight": weight })
        });
        json!({
            "name": limit.name(),
            "match": limit.pattern(),
            "policy": limit.policy().to_string(),
            "order": limit.order(),
            "weight": limit.weight(),
            "key": limit.key_text(),
            "parents": limit.parent_texts().collect::<Vec<String>>(),
            "overrides": overrides.collect::<Vec<Value>>(),
            "overrides_file": limit.overrides_file(),
        })
    });
    let exempt: Vec<&str> = all.exemptions().collect();
    json!({ "limits": limits.collect::<Vec<Value>>(), "exempt": exempt })
}

/// The limit of a key as lines.
fn text(value: &Value) -> String {
    let mut text = String::new();
    let mut line = |word: &str, of: String| {
        text.extend([&format!("{word:<12}"), of.as_str(), "\n"]);
    };
    let plain = api_show::plain;
    line("key", plain(&value["key"]));
    if value["limit"].is_null() {
        let plain_item = "the key is a plain item";
        line(
            "limit",
            match value["exempt"].as_str() {
                Some(entry) => format!("none: exempt by `{entry}`: {plain_item}, and take passes"),
                None => format!("none: {plain_item}"),
            },
        );
        return text;
    }
    line("limit", format!("{}  {}", plain(&value["limit"]), plain(&value["match"])));
    for capture in api_show::entries(value, "captures") {
        line("capture", format!("{} = {}", plain(&capture["name"]), plain(&capture["value"])));
    }
    line("counted key", plain(&value["counted_key"]));
    line("policy", plain(&value["policy"]));
    if !value["ban"].is_null() {
        let [refusals, within, first, max] =
            ["refusals", "within", "for", "max"].map(|name| plain(&value["ban"][name]));
        let longest =
            if first == max { String::new() } else { format!(", each twice as long, up to {max}") };
        line("ban", format!("after {refusals} refusals within {within}: for {first}{longest}"));
    }
    if let Some(over) = value.get("override") {
        let [text, source, reason] = ["text", "source", "reason"].map(|name| plain(&over[name]));
        line("override", format!("{text} ({source}): {reason}"));
    }
    line("first", format!("cost {} {}", plain(&value["cost"]), plain(&value["first_attempt"])));
    for parent in api_show::entries(value, "parents") {
        let of = ["limit", "counted_key", "policy", "first_attempt"];
        let [limit, counted, policy, first] = of.map(|name| plain(&parent[name]));
        line(
            "parent",
            format!("{limit}  {counted}  {policy}: cost {} {first}", plain(&value["cost"])),
        );
    }
    for other in api_show::entries(value, "passes_by") {
        line("passes by", plain(other));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_cannot_be_sent_is_refused() {
        let long = "k".repeat(251);
        for key in ["", "login:a b", "a\nb", long.as_str()] {
            let words = ["limits.toml".into(), key.into()];
            let Err(ConfigError::Usage(mistake)) = parse(&words) else { panic!("a key: {key}") };
            assert_eq!(mistake, "a key has 1 to 250 bytes, and no blanks or control characters");
        }
        let words = ["limits.toml".into(), "login:a".into()];
        assert!(matches!(parse(&words), Ok(Parsed::CheckLimits(_))));
    }
}

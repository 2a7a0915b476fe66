//! A policy as fields of a form: the token split into its parts and joined again.
//!
//! Here: the form of a token. Not here: its meaning and its bounds, which the server checks.

/// An option of policies.
#[derive(Debug, Clone, Copy)]
pub(super) struct PolicyOption {
    pub(super) name: &'static str,
    /// The algorithms that have it.
    pub(super) of: &'static [&'static str],
    pub(super) is_flag: bool,
    /// A word about its value.
    pub(super) hint: &'static str,
}

/// The algorithms, each with a phrase for people.
pub(super) const ALGORITHMS: [(&str, &str); 9] = [
    ("bucket", "token bucket: a burst, then the rate"),
    ("gcra", "evenly spaced, with a burst"),
    ("leaky", "leaky bucket: a meter, or a queue with wait"),
    ("fixed", "windows that begin anew"),
    ("sliding", "the last window, in slices"),
    ("log", "the last window, exactly"),
    ("concurrency", "units held at once"),
    ("unlimited", "everything passes"),
    ("block", "nothing passes"),
];

const COUNTING: &[&str] = &["bucket", "gcra", "leaky", "fixed", "sliding", "log", "concurrency"];

/// All options, in the order of a token.
pub(super) const OPTIONS: [PolicyOption; 17] = [
    value("capacity", &["bucket", "leaky"], "units; the count"),
    value("init", &["bucket"], "tokens of a new key"),
    value("debt", &["bucket"], "tokens to overdraw"),
    value("warm", &["bucket"], "duration:factor"),
    flag("interval", &["bucket"], "refill in whole periods"),
    value("burst", &["gcra"], "units at once; count − 1"),
    value("wait", &["leaky"], "longest wait, such as 10m"),
    value("align", &["fixed"], "first or calendar"),
    value("tz", &["fixed"], "such as +09:00"),
    value("phase", &["fixed"], "duration or auto"),
    value("slices", &["sliding"], "1 to 120"),
    flag("strict", &["sliding"], "never above the count"),
    flag("flat", &["sliding"], "whole slices only"),
    value("entries", &["log"], "at most 65,536"),
    value("hold", &["concurrency"], "60s"),
    flag("over", COUNTING, "refusals count too"),
    flag("shadow", COUNTING, "never refuses"),
];

const fn value(
    name: &'static str,
    of: &'static [&'static str],
    hint: &'static str,
) -> PolicyOption {
    PolicyOption { name, of, is_flag: false, hint }
}

const fn flag(name: &'static str, of: &'static [&'static str], hint: &'static str) -> PolicyOption {
    PolicyOption { name, of, is_flag: true, hint }
}

/// The parts of a policy. A flag has the value `on`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PolicyFields {
    /// Empty if fields cannot show the token.
    pub(super) algorithm: String,
    pub(super) count: String,
    pub(super) per: String,
    /// The values of [`OPTIONS`]; empty where not given.
    pub(super) options: [String; OPTIONS.len()],
}

impl PolicyFields {
    /// Splits a token. A token with parts that the fields lack leaves all of them empty.
    pub(super) fn parse(token: &str) -> Self {
        Self::split(token.trim()).unwrap_or_default()
    }

    fn split(token: &str) -> Option<Self> {
        // Several policies.
        if token.contains(';') {
            return None;
        }
        let (head, options) = token.split_once(',').unwrap_or((token, ""));
        let mut fields = Self::default();
        let (algorithm, rate) = head.split_once(':').unwrap_or((head, ""));
        let (name, _) = ALGORITHMS.iter().find(|(name, _)| *name == algorithm)?;
        (*name).clone_into(&mut fields.algorithm);
        match rate.split_once('/') {
            Some((count, per)) if counts_per_time(algorithm) => {
                (fields.count, fields.per) = (count.to_owned(), per.to_owned());
            }
            None if algorithm == "concurrency" => rate.clone_into(&mut fields.count),
            None if rate.is_empty() && !counts_per_time(algorithm) => {}
            _ => return None,
        }
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let has = |known: &PolicyOption| {
                known.name == name
                    && known.of.contains(&algorithm)
                    && known.is_flag == value.is_empty()
            };
            let index = OPTIONS.iter().position(has)?;
            let value = if value.is_empty() { "on" } else { value };
            value.clone_into(&mut fields.options[index]);
        }
        Some(fields)
    }

    /// Joins the parts; `None` without an algorithm. Options of other algorithms are left out.
    pub(super) fn join(&self) -> Option<String> {
        let algorithm = self.algorithm.as_str();
        let mut token = match algorithm {
            "" => return None,
            "concurrency" => format!("concurrency:{}", self.count),
            _ if counts_per_time(algorithm) => {
                format!("{algorithm}:{}/{}", self.count, self.per)
            }
            _ => algorithm.to_owned(),
        };
        for (option, value) in OPTIONS.iter().zip(&self.options) {
            if value.is_empty() || !option.of.contains(&algorithm) {
                continue;
            }
            token.push(',');
            token.push_str(option.name);
            if !option.is_flag {
                token.push('=');
                token.push_str(value);
            }
        }
        Some(token)
    }
}

fn counts_per_time(algorithm: &str) -> bool {
    !matches!(algorithm, "concurrency" | "unlimited" | "block")
}

/// Returns the policy that a form means: of token and fields the one that differs from `before`,
/// the token that the form showed.
///
/// # Errors
///
/// Both differ, and from each other.
pub(super) fn reconcile(
    before: &str,
    token: &str,
    fields: &PolicyFields,
) -> Result<String, &'static str> {
    let joined = fields.join();
    if joined == PolicyFields::parse(before).join() {
        return Ok(token.trim().to_owned());
    }
    let Some(joined) = joined else { return Ok(token.trim().to_owned()) };
    if token == before || PolicyFields::parse(token).join().as_ref() == Some(&joined) {
        return Ok(joined);
    }
    Err("the policy and its fields say different things: change only one of them")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_join_to_the_token_they_came_from() {
        for token in [
            "bucket:100/60s,capacity=200,interval",
            "gcra:30/60s,burst=15",
            "leaky:1/m,capacity=60,wait=10m,shadow",
            "fixed:1000/mo,align=calendar,tz=+09:00",
            "sliding:5/60s,slices=12,strict,over",
            "log:2/1h,entries=5",
            "concurrency:20,hold=5m",
            "unlimited",
            "block",
        ] {
            assert_eq!(PolicyFields::parse(token).join().as_deref(), Some(token));
        }
        for token in ["", "other:1/s", "fixed:5", "fixed:5/m,burst=1", "fixed:5/m,new=1", "block:1"]
        {
            assert_eq!(PolicyFields::parse(token), PolicyFields::default(), "{token}");
        }
    }

    #[test]
    fn the_changed_one_of_token_and_fields_wins() {
        let before = "fixed:5/m";
        let fields = PolicyFields::parse;
        let check = |token: &str, of: &str| reconcile(before, token, &fields(of)).ok();
        assert_eq!(check("fixed:5/m", "fixed:5/m").as_deref(), Some("fixed:5/m"));
        assert_eq!(check("fixed:6/m", "fixed:5/m").as_deref(), Some("fixed:6/m"));
        assert_eq!(check("fixed:5/m", "log:5/m").as_deref(), Some("log:5/m"));
        assert_eq!(check("log:5/m", "log:5/m").as_deref(), Some("log:5/m"));
        assert_eq!(check("fixed:6/m", "log:5/m"), None);
        assert_eq!(check("anything", "").as_deref(), Some("anything"));
    }
}

//! A limit as fields of a form, and as the text of its `[[limit]]`.

use std::fmt::Write as _;

use toml::{Table, Value};

/// The fields of a limit. Those that have no field of their own stand in `rest`, as TOML.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LimitFields {
    pub(super) name: String,
    /// Whether `pattern` is a `regex`, not a `match`.
    pub(super) is_regex: bool,
    pub(super) pattern: String,
    /// Several policies are separated by `;`.
    pub(super) policy: String,
    /// The template of the counted key; empty: the client's key.
    pub(super) key: String,
    /// One template a line.
    pub(super) parents: String,
    pub(super) owner: String,
    pub(super) note: String,
    pub(super) expires: String,
    pub(super) shadow: bool,
    pub(super) disabled: bool,
    pub(super) rest: String,
}

impl LimitFields {
    /// Reads the text of a limit.
    ///
    /// # Errors
    ///
    /// The text is no TOML, or has no `[[limit]]`, or several.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut file: Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
        let Some(Value::Array(mut limits)) = file.remove("limit") else {
            return Err("the text has no [[limit]]".to_owned());
        };
        let (Some(Value::Table(mut table)), true) = (limits.pop(), limits.is_empty()) else {
            return Err("the text has more than one [[limit]]".to_owned());
        };
        let mut fields = Self {
            is_regex: table.contains_key("regex"),
            shadow: take_flag(&mut table, "shadow"),
            disabled: take_flag(&mut table, "disabled"),
            parents: take_lines(&mut table, "parents"),
            ..Self::default()
        };
        fields.pattern = take_text(&mut table, if fields.is_regex { "regex" } else { "match" });
        join_policies(table.get_mut("policy"));
        for (name, field) in fields.texts() {
            *field = take_text(&mut table, name);
        }
        // The server writes the shadow of a limit into its policies, those of overrides included.
        fields.shadow |= take_shadow(&mut fields.policy);
        if fields.shadow {
            override_policies(&mut table).for_each(|policy| {
                take_shadow(policy);
            });
        }
        for (name, value) in &table {
            // Writing to a String cannot fail.
            let _ = writeln!(fields.rest, "{name} = {}", printed(value));
        }
        Ok(fields)
    }

    /// The fields that are text, by their names in the file.
    fn texts(&mut self) -> [(&'static str, &mut String); 6] {
        [
            ("name", &mut self.name),
            ("policy", &mut self.policy),
            ("key", &mut self.key),
            ("owner", &mut self.owner),
            ("note", &mut self.note),
            ("expires", &mut self.expires),
        ]
    }

    /// Writes the text of the limit.
    pub(super) fn to_toml(&self) -> String {
        let mut text = "[[limit]]\n".to_owned();
        let mut put = |name: &str, value: Value| {
            let _ = writeln!(text, "{name} = {}", printed(&value));
        };
        let string = |text: &str| Value::String(text.to_owned());
        put("name", string(&self.name));
        put(if self.is_regex { "regex" } else { "match" }, string(&self.pattern));
        put("policy", policy_value(&self.policy));
        let parents: Vec<Value> = self
            .parents
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .map(string)
            .collect();
        if !parents.is_empty() {
            put("parents", Value::Array(parents));
        }
        for (name, value) in [
            ("key", &self.key),
            ("owner", &self.owner),
            ("note", &self.note),
            ("expires", &self.expires),
        ] {
            if !value.is_empty() {
                put(name, string(value));
            }
        }
        for (name, is_set) in [("shadow", self.shadow), ("disabled", self.disabled)] {
            if is_set {
                put(name, Value::Boolean(true));
            }
        }
        let rest = self.rest.replace("\r\n", "\n");
        text.push_str(rest.trim_end());
        if !rest.trim_end().is_empty() {
            text.push('\n');
        }
        text
    }
}

fn take_flag(table: &mut Table, name: &str) -> bool {
    let is_set = matches!(table.get(name), Some(Value::Boolean(true)));
    is_set && table.remove(name).is_some()
}

/// Makes a list of policies one text, separated by `;`.
fn join_policies(value: Option<&mut Value>) {
    let Some(value) = value else { return };
    let texts = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
    if let Some(texts) = texts {
        let texts: Vec<&str> = texts;
        *value = Value::String(texts.join("; "));
    }
}

/// The value of `policy`: a text, or a list of several.
fn policy_value(policy: &str) -> Value {
    if !policy.contains(';') {
        return Value::String(policy.to_owned());
    }
    let policies = policy.split(';').map(|one| Value::String(one.trim().to_owned()));
    Value::Array(policies.collect())
}

/// Removes the option `shadow` from a policy, or from each of several, and returns whether it was
/// there.
fn take_shadow(policy: &mut String) -> bool {
    let without = |one: &str| {
        let (head, options) = one.split_once(',')?;
        let kept = options.split(',').filter(|option| option.trim() != "shadow");
        Some([head].into_iter().chain(kept).collect::<Vec<_>>().join(","))
    };
    let each = policy.split(';').map(|one| without(one).unwrap_or_else(|| one.to_owned()));
    let kept = each.collect::<Vec<_>>().join(";");
    let is_there = kept.len() < policy.len();
    *policy = kept;
    is_there
}

/// The policies of a limit's inline overrides.
fn override_policies(table: &mut Table) -> impl Iterator<Item = &mut String> {
    let overrides = table.get_mut("overrides").and_then(Value::as_array_mut);
    overrides
        .into_iter()
        .flatten()
        .flat_map(|one| match one.get_mut("policy") {
            Some(Value::Array(policies)) => policies.iter_mut().collect(),
            Some(policy) => vec![policy],
            None => Vec::new(),
        })
        .filter_map(|policy| match policy {
            Value::String(policy) => Some(policy),
            _ => None,
        })
}

fn take_text(table: &mut Table, name: &str) -> String {
    match table.get(name) {
        Some(Value::String(text)) => {
            let text = text.clone();
            table.remove(name);
            text
        }
        _ => String::new(),
    }
}

fn take_lines(table: &mut Table, name: &str) -> String {
    let Some(Value::Array(items)) = table.get(name) else { return String::new() };
    let Some(items) = items.iter().map(Value::as_str).collect::<Option<Vec<_>>>() else {
        return String::new();
    };
    let lines = items.join("\n");
    table.remove(name);
    lines
}

/// Prints a value on one line; a list of tables with one of them a line.
fn printed(value: &Value) -> String {
    match value {
        Value::Array(items) if items.iter().any(Value::is_table) => {
            let items: Vec<String> = items.iter().map(|item| format!("    {item},\n")).collect();
            format!("[\n{}]", items.concat())
        }
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_text_say_the_same() {
        let text = "[[limit]]\nname = \"user\"\nmatch = \"user:{tenant}:{user}\"\n\
            policy = \"sliding:30/60s\"\nparents = [\"tenant:{tenant}\"]\nowner = \"team \\\"a\\\"\"\n\
            shadow = true\ncompanions = [\"#retry\"]\noverrides = [\n    \
            { key = \"user:a:b\", policy = \"block\" },\n]\n";
        let fields = LimitFields::parse(text).expect("it is well formed");
        assert_eq!(fields.owner, "team \"a\"");
        assert_eq!(fields.parents, "tenant:{tenant}");
        assert!(fields.rest.contains("companions"), "{}", fields.rest);
        let again = LimitFields::parse(&fields.to_toml()).expect("it is well formed");
        assert_eq!(again, fields);
        let table = |text: &str| text.parse::<Table>().expect("it is TOML");
        assert_eq!(table(text), table(&fields.to_toml()));
    }

    #[test]
    fn regexes_and_unusual_types_survive() {
        let text = "[[limit]]\nname = \"r\"\nregex = '^a\\d+$'\npolicy = \"block\"\n\
            expires = 2026-12-01T00:00:00Z\nshadow = false\nparents = [1]\n";
        let fields = LimitFields::parse(text).expect("it is well formed");
        assert!(fields.is_regex);
        let table = |text: &str| text.parse::<Table>().expect("it is TOML");
        assert_eq!(table(text), table(&fields.to_toml()));
    }

    #[test]
    fn a_shadow_in_the_policy_is_the_flag() {
        // The form in which the server keeps `shadow = true`.
        let text = "[[limit]]\nname = \"a\"\nmatch = \"a:{x}\"\npolicy = \"log:2/m,shadow,over\"\n\
            overrides = [\n    { key = \"a:b\", policy = \"log:9/m,shadow\" },\n]\n";
        let mut fields = LimitFields::parse(text).expect("it is well formed");
        assert!(fields.shadow);
        assert_eq!(fields.policy, "log:2/m,over");
        assert!(fields.to_toml().contains("shadow = true"));
        fields.shadow = false;
        assert!(!fields.to_toml().contains("shadow"), "{}", fields.to_toml());
        // An override in shadow says nothing about its limit.
        let text = text.replace(",shadow,over", "");
        let fields = LimitFields::parse(&text).expect("it is well formed");
        assert!(!fields.shadow && fields.rest.contains("log:9/m,shadow"), "{}", fields.rest);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "limit = 1", "[[limit]]\n[[limit]]\n", "[[limit", "limit = [1]"] {
            assert!(LimitFields::parse(text).is_err(), "{text}");
        }
    }
}

//! Replies of the API as text for a terminal.
//!
//! Here: tables and lines. Not here: the requests (`api_limits`, `explain`), replies of the client
//! port (`show`).

use std::io::Write;

use serde_json::Value;

use super::CliError;

/// Replaces control characters: keys and notes come from strangers.
pub(super) fn clean(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

/// Replaces control characters in text of several lines.
pub(super) fn clean_lines(text: &str) -> String {
    let is_kept = |letter: char| !letter.is_control() || letter == '\n' || letter == '\t';
    text.chars().map(|letter| if is_kept(letter) { letter } else { '?' }).collect()
}

/// A value as one word or sentence: `-` for none, names joined by blanks.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => clean(text),
        Value::Array(values) if values.is_empty() => "-".to_owned(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(" "),
        Value::Number(number) if number.is_f64() => {
            format!("{:.3}", number.as_f64().unwrap_or_default())
        }
        other => clean(&other.to_string()),
    }
}

/// Columns of `rows`, each as wide as its widest value, below their names in capitals.
pub(super) fn table(columns: &[&str], rows: &[Value]) -> String {
    let head = columns.iter().map(|name| name.replace(['_', '.'], " ").to_uppercase()).collect();
    let cell =
        |row: &Value, column: &&str| plain(column.split('.').fold(row, |row, name| &row[name]));
    let rows = rows.iter().map(|row| columns.iter().map(|column| cell(row, column)).collect());
    let lines: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| {
        lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// One line for each of `fields`: its name and its value.
pub(super) fn fields(value: &Value, fields: &[&str]) -> String {
    let width = fields.iter().map(|name| name.len()).max().unwrap_or_default();
    let line = |name: &&str| format!("{name:<width$}  {}\n", plain(&value[*name]));
    fields.iter().map(line).collect()
}

/// The entries of an array in a reply.
pub(super) fn entries<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

/// A limit that a key has, and the reason.
pub(super) fn matched(value: &Value) -> String {
    let mut text = fields(
        value,
        &[
            "key",
            "limit",
            "exempt",
            "policy",
            "counted_key",
            "override_key",
            "override_source",
            "shadowed",
        ],
    );
    if let [Some(over), Some(source), Some(counted)] =
        ["override_key", "override_source", "counted_key"].map(|name| value[name].as_str())
    {
        text.extend(["why       ", tollgate_limits::override_reason(over, source, counted), "\n"]);
    }
    for capture in entries(value, "captures") {
        let [name, value] = ["name", "value"].map(|name| plain(&capture[name]));
        text.extend(["capture  ", &name, "=", &value, "\n"]);
    }
    let parents = entries(value, "parents");
    if !parents.is_empty() {
        text.push('\n');
        text.push_str(&table(&["limit", "key", "policy"], parents));
    }
    text
}

/// The changes of a limit with their differences.
pub(super) fn changes(changes: &[Value]) -> String {
    let mut lines = Vec::new();
    for change in changes {
        let [seq, at, by, via, note] =
            ["seq", "at", "by", "via", "note"].map(|name| plain(&change[name]));
        let key = match &change["key"] {
            Value::Null => String::new(),
            key => format!(", key {}", plain(key)),
        };
        // A change by expiry has neither a sender nor a note.
        let text = if via == "expiry" {
            format!("change {seq} at {at} by expiry{key}: the override expired\n")
        } else {
            format!("change {seq} at {at} by {by} ({via}){key}: {note}\n")
        };
        lines.push(text);
        let diff = entries(change, "diff").iter().filter_map(Value::as_str);
        lines.extend(diff.map(|line| format!("    {}\n", clean(line))));
    }
    lines.concat()
}

/// Prints JSON in one line.
pub(super) fn print_json(out: &mut impl Write, json: &str) -> Result<(), CliError> {
    let json = if json.is_empty() { "{}" } else { json.trim_end() };
    writeln!(out, "{json}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_table_is_aligned_and_clean() {
        let rows = [
            json!({ "name": "login", "minute": { "denied": 3 }, "note": null }),
            json!({ "name": "a\u{1b}[1m", "minute": { "denied": 12 }, "note": "x y" }),
        ];
        let text = table(&["name", "minute.denied", "note"], &rows);
        let expected = "\
            NAME   MINUTE DENIED  NOTE\n\
            login  3              -\n\
            a?[1m  12             x y\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn changes_name_the_key_of_an_override() {
        let change = |via: &str, by: &str, key: Value, note: Value| {
            let mut change = json!({ "seq": 7, "at": "T", "by": by, "via": via, "key": key });
            change["note"] = note;
            change
        };
        let text = changes(&[
            change("api", "ann", json!("login:a\u{1b}[1m"), json!("abuse")),
            change("expiry", "", json!("login:a"), Value::Null),
            change("api", "ann", Value::Null, Value::Null),
        ]);
        assert_eq!(
            text,
            "change 7 at T by ann (api), key login:a?[1m: abuse\n\
             change 7 at T by expiry, key login:a: the override expired\n\
             change 7 at T by ann (api): -\n"
        );
    }

    #[test]
    fn fields_have_a_line_each() {
        let value = json!({ "key": "a", "shadowed": ["x", "y"], "rate": 0.5, "is_up": true });
        let text = fields(&value, &["key", "shadowed", "rate", "is_up", "gone"]);
        assert_eq!(
            text,
            "key       a\nshadowed  x y\nrate      0.500\nis_up     yes\ngone      -\n"
        );
    }
}

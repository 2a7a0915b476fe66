//! Overrides and exemptions that cannot match: the rows of `docs/reference/override-mistakes.md`,
//! each refused with its message.

use super::mistake_rows::{EXEMPTIONS, PAGE, rows};
use super::*;

/// The limit before each of the table.
const VIP: &str = "[[limit]]\nname = 'vip'\nmatch = 'login:admin'\npolicy = 'block'\n";

#[test]
fn every_mistake_of_the_page_has_its_message() {
    let rows = rows();
    assert!(rows.len() >= 40, "{} rows", rows.len());
    for (limit, message) in rows {
        let error = Limits::parse("l.toml", format!("{VIP}{limit}").as_bytes());
        let error = error.expect_err(&limit).to_string();
        let (_, reason) = error.split_once(": ").expect("a place");
        assert_eq!(reason, message, "{limit}");
    }
}

/// The rows of exemptions: the text of a file, and the message.
fn exempt_rows() -> Vec<(String, String)> {
    let (_, page) = PAGE.split_once(EXEMPTIONS).expect("a part about exemptions");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let rows = rows.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [fields, entries, message] = cells[..] else { panic!("three cells: {line}") };
        let (fields, entries) = (fields.trim_matches('`'), entries.trim_matches('`'));
        let limit = format!("[[limit]]\nname = 'one'\n{fields}\npolicy = 'fixed:5/s'\n");
        let message = message.trim_matches('`').trim().to_owned();
        (format!("exempt = [{entries}]\n{limit}"), message)
    });
    rows.collect()
}

#[test]
fn every_bad_exemption_of_the_page_has_its_message() {
    let rows = exempt_rows();
    assert!(rows.len() >= 16, "{} rows", rows.len());
    for (file, message) in rows {
        let error = Limits::parse("l.toml", file.as_bytes()).expect_err(&file).to_string();
        let (place, reason) = error.split_once(": ").expect("a place");
        assert_eq!((place, reason), ("l.toml:1", message.as_str()), "{file}");
    }
}

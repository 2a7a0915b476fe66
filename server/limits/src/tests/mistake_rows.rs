//! The rows of `docs/reference/override-mistakes.md` about overrides: limits with their messages.
//!
//! Not here: the checks, of limits files (`mistakes`) and of changes through the API (`server`).

/// The page with the table.
pub(crate) const PAGE: &str = include_str!("../../../../docs/reference/override-mistakes.md");

/// The heading above the rows of exemptions.
pub(crate) const EXEMPTIONS: &str = "\n## Exemptions\n";

/// A row: the text of a limit named `one`, and the message.
pub(crate) fn rows() -> Vec<(String, String)> {
    let (page, _) = PAGE.split_once(EXEMPTIONS).expect("a part about exemptions");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let rows = rows.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [fields, entries, message] = cells[..] else { panic!("three cells: {line}") };
        let fields = fields.trim_matches('`').replace("`, `", "\n");
        let entries = entries.trim_matches('`');
        let entries = entries
            .replace("{ key", "{ policy = 'block', key")
            .replace("{ where", "{ policy = 'block', where")
            .replace("{ }", "{ policy = 'block' }");
        let limit = format!(
            "[[limit]]\nname = 'one'\n{fields}\npolicy = 'fixed:5/s'\noverrides = [{entries}]\n"
        );
        let message = message.trim_matches('`').trim().to_owned();
        (limit, message)
    });
    rows.collect()
}

//! The body of a limit: its position, its origin and its TOML.
//!
//! Not here: the order of all limits, and edits (`super`).

use super::super::toml_writer::Quoted;
use super::{EXEMPT, LimitText};

/// The first bytes of a body.
const ORDER: &str = "order = ";

/// The end of an origin, and the first bytes of the TOML behind it: of a limit, or exemptions.
const LIMIT: &str = "\n[[limit]]";
const EXEMPTIONS: &str = "\nexempt = ";

/// A limit and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderedLimit {
    /// The limit.
    pub text: LimitText,
    /// The number that orders the limits. `None` until one is assigned.
    pub order: Option<i64>,
    /// The origin of its present text.
    pub origin: Origin,
}

/// The origin of a limit's text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origin {
    /// `file`, `rls` or `api`. `None` means `api`: bodies of earlier versions have no origin.
    pub source: Option<String>,
    /// The sender of the last change.
    pub by: Option<String>,
    /// The time of the last change, in milliseconds since the Unix epoch; 0 if unknown.
    pub at_ms: u64,
    /// Whether the limit was one of a file before.
    pub adopted: bool,
}

impl Origin {
    /// The source of a limit that API or operators change.
    pub const API: &'static str = "api";
    /// The source of a limit that the limits file decides about.
    pub const FILE: &'static str = "file";

    /// Returns the source.
    #[must_use]
    pub fn source(&self) -> &str {
        self.source.as_deref().unwrap_or(Self::API)
    }

    /// Whether API and operators may change the limit.
    #[must_use]
    pub fn is_api(&self) -> bool {
        self.source() == Self::API
    }

    /// Reads a line of a body. Unknown lines are of later versions, and are ignored.
    fn read(&mut self, line: &str) {
        let Some((field, value)) = line.split_once(" = ") else { return };
        let text = || serde_json::from_str(value).ok();
        match field {
            "source" => self.source = text(),
            "by" => self.by = text(),
            "at" => self.at_ms = value.parse().unwrap_or(0),
            "adopted" => self.adopted = value == "true",
            _ => {}
        }
    }

    fn lines(&self) -> String {
        let Some(source) = &self.source else { return String::new() };
        let by = self.by.as_ref().map(|by| format!("by = {}\n", Quoted(by))).unwrap_or_default();
        let adopted = if self.adopted { "adopted = true\n" } else { "" };
        format!("source = {}\n{by}at = {}\n{adopted}", Quoted(source), self.at_ms)
    }
}

impl OrderedLimit {
    /// Splits a body into number, origin and TOML. An invalid body becomes a limit with the body as
    /// its TOML, which is refused when it is compiled.
    #[must_use]
    pub fn of_body(name: &str, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let mut origin = Origin::default();
        let (order, mut toml) = text
            .strip_prefix(ORDER)
            .and_then(|rest| rest.split_once('\n'))
            .and_then(|(number, toml)| Some((number.trim_end().parse().ok()?, toml)))
            .unwrap_or((i64::MAX, &text));
        // A text within an origin has no line end.
        let first = if name == EXEMPT { EXEMPTIONS } else { LIMIT };
        if let Some(end) = toml.find(first).filter(|_| !toml.starts_with(&first[1..])) {
            let (lines, limit) = toml.split_at(end + 1);
            lines.lines().for_each(|line| origin.read(line));
            toml = limit;
        }
        let text = LimitText { name: name.to_owned(), toml: toml.to_owned() };
        Self { text, order: Some(order), origin }
    }

    /// Returns a limit of unknown origin that has no number yet.
    #[must_use]
    pub fn new(text: LimitText) -> Self {
        Self { text, order: None, origin: Origin::default() }
    }

    /// The place among all texts: exemptions come first.
    #[must_use]
    pub fn place(&self) -> (bool, Option<i64>, &str) {
        (self.text.name != EXEMPT, self.order, &self.text.name)
    }

    /// Returns the body of the limit.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        let (order, origin) = (self.order.unwrap_or(i64::MAX), self.origin.lines());
        format!("{ORDER}{order}\n{origin}{}", self.text.toml).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_keeps_order_origin_and_text() {
        let text = LimitText { name: "a".to_owned(), toml: "[[limit]]\nname = \"a\"\n".to_owned() };
        let by = Some("\"x\\\n[[limit]]".to_owned());
        let origins = [
            Origin::default(),
            Origin { source: Some("api".to_owned()), by, at_ms: 7, adopted: true },
            Origin { source: Some("file".to_owned()), ..Origin::default() },
        ];
        for origin in origins {
            let entry = OrderedLimit { text: text.clone(), order: Some(-3), origin };
            assert_eq!(OrderedLimit::of_body("a", &entry.body()), entry);
        }
        let later = b"order = 5\nsource = \"api\"\ncolour = 3\n[[limit]]\nname = \"a\"\n";
        let entry = OrderedLimit::of_body("a", later);
        assert_eq!((entry.order, entry.text, entry.origin.is_api()), (Some(5), text, true));
    }
}

//! The exemptions as a text beside those of the limits.
//!
//! Not here: their meaning (`super::super::exempt`), the texts of limits (`super`).

use cluster::map::OWN_NAME;

use super::super::LimitsError;
use super::super::file::{Drafts, File};
use super::super::with_line::WithLine;
use super::{LimitText, OrderedLimit};

/// The name of the record with the exemptions, and of their text.
pub const EXEMPT: &str = "@exempt";

/// Reads the text of [`EXEMPT`].
pub(super) fn exemptions(
    file: &File<'_>,
    text: &[u8],
) -> Result<Vec<WithLine<String>>, LimitsError> {
    let Drafts { limits, exempt, .. } = file.drafts(text)?;
    if limits.is_empty() && !exempt.is_empty() {
        return Ok(exempt);
    }
    Err(file.refuse_at_start("it is not `exempt = […]` with at least one entry"))
}

/// Whether a record of the map or of a store is the text of a limit, or of the exemptions.
#[must_use]
pub fn is_text(name: &str) -> bool {
    !name.starts_with(OWN_NAME) || name == EXEMPT
}

/// The text of the exemptions.
#[must_use]
pub fn exemptions_of(entries: &[OrderedLimit]) -> Option<&str> {
    let entry = entries.iter().find(|entry| entry.text.name == EXEMPT)?;
    Some(&entry.text.toml)
}

/// The number of limits among texts.
pub fn limit_count<'t>(texts: impl IntoIterator<Item = &'t LimitText>) -> usize {
    texts.into_iter().filter(|text| text.name != EXEMPT).count()
}

//! All texts together → [`Limits`].
//!
//! Here: the three degrees of strictness. Not here: the rules between limits (`rules`).

use super::super::error::BadOverrides;
use super::super::file::File;
use super::super::rules::{self, LINES_MAX};
use super::super::{Limits, LimitsError};
use super::exempt_text::exemptions;
use super::{EXEMPT, OrderedLimit, one_draft};

/// Maximum number of limits that are left out so that the others can be used.
const LEFT_OUT_MAX: usize = 100;

/// Above the number of lines of any one text.
const LINES_OF_ONE: usize = 1 << 20;

/// Compiles all limits together.
///
/// # Errors
///
/// The first mistake, with the name of its limit and the line in that limit.
pub fn limits(entries: &[OrderedLimit]) -> Result<Limits, LimitsError> {
    compile(entries, BadOverrides::Refused).map_err(|(_, error)| error)
}

/// Compiles all limits together, and leaves exemptions that match nothing out with a warning.
///
/// # Errors
///
/// The first other mistake, with the name of its limit and the line in that limit.
pub fn limits_beside_exemptions(entries: &[OrderedLimit]) -> Result<Limits, LimitsError> {
    compile(entries, BadOverrides::ExemptionsLeftOut).map_err(|(_, error)| error)
}

/// Compiles all limits that are stored already. An override that cannot match is left out with a
/// warning: earlier versions accepted some of them, and their limits stay in force. So does a limit
/// whose parent has expired; it charges this parent no longer. The key of that parent may then
/// match the limit itself, or a limit whose parents lead back to it: such a parent is left out.
/// [`Limits::left_out`] counts them.
///
/// # Errors
///
/// The first other mistake, with the name of its limit and the line in that limit.
pub fn stored_limits(entries: &[OrderedLimit]) -> Result<Limits, LimitsError> {
    compile(entries, BadOverrides::LeftOut).map_err(|(_, error)| error)
}

/// Compiles as many limits as possible: a limit that is refused is left out. Also returns the error
/// of the first one left out.
#[must_use]
pub fn limits_that_agree(mut entries: Vec<OrderedLimit>) -> (Limits, Option<LimitsError>) {
    let mut first = None;
    for _ in 0..LEFT_OUT_MAX {
        match compile(&entries, BadOverrides::LeftOut) {
            Ok(limits) => return (limits, first),
            Err((index, error)) => {
                first.get_or_insert(error);
                if index >= entries.len() {
                    break;
                }
                entries.remove(index);
            }
        }
    }
    (Limits::default(), first)
}

/// Compiles all limits. An error comes with the index of the limit that has the first mistake.
fn compile(
    entries: &[OrderedLimit],
    bad_overrides: BadOverrides,
) -> Result<Limits, (usize, LimitsError)> {
    let before = |index: usize| LINES_MAX + index * LINES_OF_ONE;
    let read = || {
        let (mut drafts, mut exempt) = (Vec::with_capacity(entries.len()), Vec::new());
        for (index, OrderedLimit { text, .. }) in entries.iter().enumerate() {
            let toml = text.toml.as_bytes();
            let file = File::new("", toml).behind(before(index));
            if text.name == EXEMPT {
                exempt = exemptions(&file, toml)?;
            } else {
                drafts.push(one_draft(&file, &text.name, toml)?);
            }
        }
        Ok((drafts, exempt))
    };
    let file = File::new("", b"");
    let compiled = read().and_then(|(drafts, exempt)| {
        let mut limits = rules::compile(&file, &drafts, bad_overrides)?;
        limits.set_exemptions(&file, &exempt, bad_overrides)?;
        Ok(limits)
    });
    compiled.map_err(|error| {
        let LimitsError::Refused { line, reason, .. } = error else { return (usize::MAX, error) };
        let (index, line) = match line.checked_sub(LINES_MAX) {
            Some(line) => (line / LINES_OF_ONE, line % LINES_OF_ONE),
            None => (usize::MAX, line),
        };
        let name = entries.get(index).map_or("", |entry| &entry.text.name);
        (index, LimitsError::Refused { file: format!("limit {name}"), line, reason })
    })
}

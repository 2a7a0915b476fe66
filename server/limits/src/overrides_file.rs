//! Files of overrides: a line is a key or a network, its policy, and a weight if it has one.
//!
//! Here: the bounds of such files, reading one, and giving limits their tables. Not here: the
//! tables (`overrides`), and when a file is read again (`server`).

use std::path::Path;
use std::sync::Arc;

use protocol::Policy;

use super::counted_keys::CountedKeys;
use super::override_id::OverrideSource;
use super::override_tables::{parse_policy, parse_weight};
use super::overrides::{OverrideKeys, OverrideTable, OverrideTableBuilder};
use super::shape::Shape;
use super::{Limit, Limits, LimitsError};
use crate::files::{self, FileMark};

/// Most overrides of one file.
const FILE_OVERRIDES_MAX: usize = 1_000_000;
/// Longest line, in bytes.
const LINE_BYTES_MAX: usize = 1_024;
/// Largest file, in bytes.
const ONE_BYTES_MAX: u64 = 64 << 20;
/// Size of all files together, in bytes.
const ALL_BYTES_MAX: u64 = 256 << 20;
/// Most limits with a file.
const FILES_MAX: usize = 256;

/// The result of reading the file of a limit.
#[derive(Debug)]
pub struct OverridesRead {
    /// The name of the limit.
    pub limit: String,
    /// The version that was read; `None`: there was no file.
    pub mark: Option<FileMark>,
    /// The mistake of the file.
    pub fault: Option<LimitsError>,
}

/// The table of a file that was read, or the mistake; and the version that was read.
pub type TableRead = (Result<Arc<OverrideTable>, LimitsError>, Option<FileMark>);

/// Checks the number of limits with a file.
pub(super) fn check_count(count: usize) -> Result<(), String> {
    if count <= FILES_MAX {
        return Ok(());
    }
    Err(format!("at most {FILES_MAX} limits have an `overrides_file`"))
}

/// The words of a line: key, policy, and weight if it has one.
type LineWords<'l> = (&'l str, &'l str, Option<&'l str>);

/// The words of a line; `None`: it has none.
fn words(line: &str) -> Result<Option<LineWords<'_>>, &'static str> {
    let mut words = line.split_ascii_whitespace().take_while(|word| !word.starts_with('#'));
    let Some(key) = words.next() else { return Ok(None) };
    match (words.next(), words.next(), words.next()) {
        (Some(policy), weight, None) if weight.is_none_or(|word| word.starts_with("weight=")) => {
            Ok(Some((key, policy, weight)))
        }
        _ => Err("a line is a key or a network, and its policy, `allow` or `block`"),
    }
}

impl Limit {
    /// The path of the file with further overrides.
    #[must_use]
    pub fn overrides_file(&self) -> Option<&str> {
        self.overrides_file.as_deref()
    }

    /// Whether the overrides of a file are the same in another version of the limit.
    pub(super) fn has_file_as(&self, other: &Self) -> bool {
        self.overrides_file.is_some()
            && self.overrides_file == other.overrides_file
            && self.makes_tables_of(other)
    }
}

impl Limits {
    /// The indices of the limits with a file.
    fn with_files(&self) -> Vec<usize> {
        let limits = self.limits.iter().filter(|limit| limit.overrides_file.is_some());
        limits.map(Limit::index).collect()
    }

    /// The same limit of these with the same file.
    #[must_use]
    pub fn with_file_of(&self, other: &Limit) -> Option<&Limit> {
        let limit = self.by_name(other.name.as_bytes());
        limit.filter(|limit| limit.has_file_as(other))
    }

    /// Gives limits with a file the tables that they have in `before`, which agree with the other
    /// limits still, or reads the files.
    ///
    /// # Errors
    ///
    /// A file that is new for its limit is unreadable or has a mistake, or an override cannot match
    /// any more.
    pub fn read_override_files(&mut self, before: &Self) -> Result<(), LimitsError> {
        for index in self.with_files() {
            let limit = &self.limits[index];
            if limit.table(OverrideSource::File).is_some() {
                continue;
            }
            let table = match before.with_file_of(limit) {
                Some(same) => {
                    let table = same.table(OverrideSource::File).cloned();
                    table.iter().try_for_each(|table| self.check_exact_keys(limit, table))?;
                    table
                }
                None => Some(self.read_override_file(limit).0?),
            };
            self.limits[index].set_table(OverrideSource::File, table);
        }
        Ok(())
    }

    /// Gives limits with a file the tables that they have in `active`, the limits in force, or
    /// reads the files. A file with a mistake has no effect. Returns the files that are new in
    /// force.
    pub fn give_override_files(&mut self, active: &Self) -> Vec<OverridesRead> {
        let mut reads = Vec::new();
        for index in self.with_files() {
            let limit = &self.limits[index];
            let name = limit.name.to_string();
            let table = if let Some(same) = active.with_file_of(limit) {
                same.table(OverrideSource::File).cloned()
            } else if let Some(table) = limit.table(OverrideSource::File) {
                reads.push(OverridesRead { limit: name, mark: table.mark, fault: None });
                Some(Arc::clone(table))
            } else {
                let (table, mark) = self.read_override_file(limit);
                let (table, fault) = match table {
                    Ok(table) => (Some(table), None),
                    Err(fault) => (None, Some(fault)),
                };
                reads.push(OverridesRead { limit: name, mark, fault });
                table
            };
            self.limits[index].set_table(OverrideSource::File, table);
        }
        reads
    }

    /// Replaces the overrides of a limit's file by those of another version.
    pub fn set_override_file(&mut self, name: &str, table: Arc<OverrideTable>) {
        if let Some(index) = self.by_name(name.as_bytes()).map(Limit::index) {
            self.limits[index].set_table(OverrideSource::File, Some(table));
        }
    }

    /// Refuses a table of a file if another limit now takes one of its keys.
    fn check_exact_keys(&self, limit: &Limit, table: &OverrideTable) -> Result<(), LimitsError> {
        let (own, front) = (Shape::of(&limit.pattern), limit.pattern.prefix());
        let may_take = |other: &Limit| {
            let prefix = other.pattern.prefix();
            (prefix.starts_with(&front) || front.starts_with(&prefix))
                && Shape::of(&other.pattern).meets(&own)
        };
        if limit.key.is_some() || !self.limits[..limit.index()].iter().any(may_take) {
            return Ok(());
        }
        let taken = table
            .exact_keys()
            .find_map(|key| Some((key, self.taken_by(limit, OverrideKeys::Exact(key))?)));
        let Some((key, other)) = taken else { return Ok(()) };
        let path = limit.overrides_file().unwrap_or_default().into();
        let reason = format!("`{key}` cannot match: `{}` takes that key", other.name);
        Err(LimitsError::Conflict { path, reason })
    }

    /// Reads the file of a limit.
    pub fn read_override_file(&self, limit: &Limit) -> TableRead {
        let path = limit.overrides_file().unwrap_or_default();
        let place = Path::new(path);
        // Before the content: a write in between makes another version.
        let mark = FileMark::of(place);
        let others = self.limits.iter().filter(|other| other.index != limit.index);
        let marks = others.filter_map(|other| other.table(OverrideSource::File)?.mark);
        let bytes = marks.chain(mark).map(|mark| mark.bytes).fold(0, u64::saturating_add);
        if bytes > ALL_BYTES_MAX {
            let reason = format!(
                "with it all files of overrides have {bytes} bytes, and may have {ALL_BYTES_MAX}"
            );
            return (Err(LimitsError::Conflict { path: place.to_owned(), reason }), mark);
        }
        let table = files::read(place, ONE_BYTES_MAX)
            .map_err(|source| LimitsError::Unreadable { path: place.to_owned(), source })
            .and_then(|text| self.parse_override_file(limit, path, &text, mark));
        (table, mark)
    }

    /// Parses the file of a limit. A mistake does not cite the line: an editor of limits may name
    /// any file of the server.
    fn parse_override_file(
        &self,
        limit: &Limit,
        path: &str,
        text: &[u8],
        mark: Option<FileMark>,
    ) -> Result<Arc<OverrideTable>, LimitsError> {
        let counted = CountedKeys::of(limit);
        let mut table = OverrideTableBuilder::default();
        let mut last: Option<(&str, Policy)> = None;
        for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            let wrong = |reason: String| LimitsError::Refused {
                file: path.to_owned(),
                line: number,
                reason,
            };
            if line.len() > LINE_BYTES_MAX {
                return Err(wrong(format!("a line has at most {LINE_BYTES_MAX} bytes")));
            }
            let line = str::from_utf8(line).map_err(|_| wrong("it is not UTF-8".to_owned()))?;
            let Some((key, word, weight)) =
                words(line).map_err(|reason| wrong(reason.to_owned()))?
            else {
                continue;
            };
            if table.len() == FILE_OVERRIDES_MAX {
                return Err(wrong(format!("a file has at most {FILE_OVERRIDES_MAX} overrides")));
            }
            let policy = match last {
                Some((same, policy)) if same == word => policy,
                _ => {
                    let policy = parse_policy(word).map_err(wrong)?;
                    limit.with_flags(policy).map_err(|error| wrong(error.to_string()))?
                }
            };
            last = Some((word, policy));
            let weight = weight.map(parse_weight).transpose().map_err(wrong)?;
            let keys = self.override_keys(limit, &counted, key).map_err(wrong)?;
            if !table.push(key, keys, (policy, weight)) {
                return Err(wrong("there is an override of it already".to_owned()));
            }
        }
        let table = table.build_of_file(mark);
        if table.hidden_network().is_some() {
            let reason = "a network of it is hidden: a prefix of it takes the same keys first";
            return Err(LimitsError::Conflict { path: path.into(), reason: reason.to_owned() });
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests;

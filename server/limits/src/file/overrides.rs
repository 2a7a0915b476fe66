//! The overrides of a limit as fields: `overrides` and `overrides_file`.
//!
//! Not here: the other fields (`super`), checking overrides (`rules`).

use std::path::Path;

use toml::Spanned;
use toml::de::DeValue;

use super::super::LimitsError;
use super::super::wheres::WhereText;
use super::super::with_line::WithLine;
use super::{Field, File, OverrideText, in_order, unknown};

/// Longest path of a file of overrides, in bytes.
const PATH_BYTES_MAX: usize = 1_024;

/// Overrides by key, and overrides by captures.
type OverrideDrafts = (Vec<OverrideText>, Vec<WhereText>);

/// The names of captures, each with its values.
type WhereCaptures = Vec<(WithLine<String>, Vec<WithLine<String>>)>;

/// One entry of `overrides`.
enum OverrideDraft {
    Key(OverrideText),
    Where(WhereText),
}

impl File<'_> {
    /// Reads the overrides by key, and those by captures.
    pub(super) fn overrides(&self, field: Field<'_, '_>) -> Result<OverrideDrafts, LimitsError> {
        let (mut keys, mut wheres) = OverrideDrafts::default();
        for entry in self.array(field)? {
            match self.one_override(entry)? {
                OverrideDraft::Key(entry) => keys.push(entry),
                OverrideDraft::Where(entry) => wheres.push(entry),
            }
        }
        Ok((keys, wheres))
    }

    /// Reads `{ ip = ["10.0.0.0/8"], user = "root" }`.
    fn captures(&self, field: Field<'_, '_>) -> Result<WhereCaptures, LimitsError> {
        let line = self.line(field.0.span().start);
        let table = field.1.get_ref().as_table().filter(|table| !table.is_empty());
        let table = table.ok_or_else(|| {
            self.refuse(line, "`where` names captures and their values: `{ user = \"root\" }`")
        })?;
        let captures = in_order(table).into_iter().map(|field| {
            let (name, line) = (field.0.get_ref().to_string(), self.line(field.0.span().start));
            let values = match field.1.get_ref().as_array() {
                Some(_) => self.texts(field)?,
                None => vec![self.text(field)?],
            };
            Ok((WithLine { value: name, line }, values))
        });
        captures.collect()
    }

    /// Reads the path of a file of overrides, and makes it absolute.
    pub(super) fn overrides_file(
        &self,
        field: Field<'_, '_>,
    ) -> Result<WithLine<String>, LimitsError> {
        let WithLine { value, line } = self.text(field)?;
        let path = absolute(&value, self.place);
        match path {
            Ok(value) => Ok(WithLine { value, line }),
            Err(reason) => Err(self.refuse(line, format!("`overrides_file`: {reason}"))),
        }
    }

    fn one_override(&self, entry: &Spanned<DeValue<'_>>) -> Result<OverrideDraft, LimitsError> {
        let line = self.line(entry.span().start);
        let table = entry
            .get_ref()
            .as_table()
            .ok_or_else(|| self.refuse(line, "an override is `{ key = \"…\", policy = \"…\" }`"))?;
        let (mut key, mut captures, mut policy, mut weight) = (None, None, None, None);
        for field in in_order(table) {
            match field.0.get_ref().as_ref() {
                "key" | "where" if key.is_some() || captures.is_some() => {
                    let line = self.line(field.0.span().start);
                    return Err(self.refuse(line, "an override has either `key` or `where`"));
                }
                "key" => key = Some(self.text(field)?),
                "where" => captures = Some(self.captures(field)?),
                "policy" => policy = Some(self.policy(field)?.value),
                "weight" => weight = Some(self.weight(field)?),
                other => {
                    let line = self.line(field.0.span().start);
                    return Err(self.unknown(line, other, &unknown::OF_OVERRIDE));
                }
            }
        }
        let lacks = |field: &str| self.refuse(line, format!("the override lacks its `{field}`"));
        match (key, captures) {
            (Some(key), _) => {
                let policy = policy.ok_or_else(|| lacks("policy"))?;
                Ok(OverrideDraft::Key(OverrideText { key, policy, weight }))
            }
            (None, Some(captures)) => {
                let policy = policy.ok_or_else(|| lacks("policy"))?;
                Ok(OverrideDraft::Where(WhereText { line, captures, policy, weight }))
            }
            (None, None) => Err(lacks("key` or `where")),
        }
    }
}

/// Returns the absolute path of a file of overrides. `place` is the limits file that names it.
///
/// # Errors
///
/// The path is too long, has control characters, or is relative and in no file.
fn absolute(path: &str, place: Option<&Path>) -> Result<String, String> {
    let check = |path: String| {
        if path.is_empty() || path.len() > PATH_BYTES_MAX || path.contains(char::is_control) {
            return Err(format!("a path has 1 to {PATH_BYTES_MAX} bytes in one line"));
        }
        Ok(path)
    };
    let path = check(path.to_owned())?;
    if Path::new(&path).is_absolute() {
        return Ok(path);
    }
    let Some(place) = place else {
        return Err("a limit that is in no limits file names an absolute path".to_owned());
    };
    let place = std::path::absolute(place).map_err(|error| error.to_string())?;
    let whole = place.parent().unwrap_or(&place).join(path);
    let whole = whole.to_str().ok_or("the path of the limits file is not UTF-8")?;
    check(whole.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_relative_to_the_limits_file() {
        let place = Path::new("/etc/tollgate/limits.toml");
        assert_eq!(absolute("/x/y", None), Ok("/x/y".to_owned()));
        assert_eq!(absolute("lists/y", Some(place)), Ok("/etc/tollgate/lists/y".to_owned()));
        assert!(absolute("y", None).expect_err("no file").contains("names an absolute path"));
        for path in [String::new(), "/x\n".to_owned(), format!("/{}", "x".repeat(PATH_BYTES_MAX))] {
            assert!(absolute(&path, Some(place)).is_err(), "{path}");
        }
        assert!(absolute(&format!("/{}", "x".repeat(PATH_BYTES_MAX - 1)), None).is_ok());
    }
}

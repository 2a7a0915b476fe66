//! `tollgate check-limits FILE`: lists a limits file, or reports why it is refused.

use std::fmt::Write as _;
use std::path::Path;

use super::{Limits, LimitsError, OverrideSource};

/// Parses the file as the server would, with the files of overrides that it names. Returns one line
/// per limit (name, pattern, canonical policy, weight, parents if one has a rule, overrides of a
/// file), and a warning if the file has no limits.
///
/// # Errors
///
/// The file is refused or unreadable.
pub fn check_file(path: &Path) -> Result<(String, Option<String>), LimitsError> {
    let limits = Limits::load(path)?;
    Ok((listing(&limits), limits.warning(path)))
}

/// Formats three columns, the first two padded, the charges, and the file of overrides.
fn listing(limits: &Limits) -> String {
    let width = |column: fn(&super::Limit) -> &str| {
        limits.iter().map(|limit| column(limit).chars().count()).max().unwrap_or_default()
    };
    let (names, patterns) = (width(super::Limit::name), width(super::Limit::pattern));
    let mut out = String::new();
    for limit in limits {
        let (name, pattern, policy) = (limit.name(), limit.pattern(), limit.policy());
        write!(out, "{name:names$}  {pattern:patterns$}  {policy}")
            .expect("writing to a String cannot fail");
        out.push_str(limit.charging());
        if let Some(path) = limit.overrides_file() {
            let count = limit.override_table_len(OverrideSource::File);
            write!(out, "  {count} overrides in {path}").expect("writing to a String cannot fail");
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_limit() {
        let file = br#"
            [[limit]]
            name = "login"
            match = "login:{ip}"
            policy = "fixed:5/60s"
            [[limit]]
            name = "b"
            regex = '^b\d+$'
            policy = "unlimited"
            weight = 5
            parents = ["login:1", { key = "login:2", cost = 1, hold = "120s" }]
        "#;
        let limits = Limits::parse("limits.toml", file).expect("a good file");
        let expected = "login  login:{ip}  fixed:5/m\nb      ^b\\d+$      unlimited  weight 5  \
                        parents \"login:1\", { key = \"login:2\", cost = 1, hold = \"2m\" }\n";
        assert_eq!(listing(&limits), expected);
    }
}

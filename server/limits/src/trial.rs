//! The limits in force with one limit's text put in, for a trial on recorded traffic.
//!
//! Not here: the compilation (`rules`), the trial (`server`).

use super::file::File;
use super::map_text::one_draft;
use super::{Limits, LimitsError, rules};

impl Limits {
    /// Returns these limits with `toml`, one `[[limit]]`, in place of the limit of this name, or
    /// behind all others. The limit refuses even if its text says `shadow`.
    ///
    /// # Errors
    ///
    /// The first mistake, with its line; a name other than `name`; no limit, or several.
    pub fn with_trial(&self, name: &str, toml: &str) -> Result<Self, LimitsError> {
        let title = format!("limit {name}");
        let file = File::new(&title, toml.as_bytes());
        let mut draft = one_draft(&file, name, toml.as_bytes())?;
        rules::check_length(&file, &draft)?;
        draft.policy.value.shadow = false;
        draft.override_policies_mut().for_each(|policy| policy.shadow = false);
        rules::compile_in_place(&file, &draft, self)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{OverrideSource, parse_weighted_policy};
    use super::*;

    fn limit(name: &str, pattern: &str, more: &str) -> String {
        format!("[[limit]]\nname = \"{name}\"\nmatch = \"{pattern}\"\n{more}\n")
    }

    fn policy(limits: &Limits, key: &str) -> Option<(String, String)> {
        let mut scratch = Vec::new();
        let found = limits.find(key.as_bytes(), &mut scratch).expect("a short key")?;
        Some((found.limit().name().to_owned(), found.policy().to_string()))
    }

    #[test]
    fn trial_replaces_the_limit_of_its_name_in_place() {
        let text = limit("a", "a:{x}", "policy = \"fixed:1/s\"")
            + &limit("b", "{y}", "policy = \"fixed:2/s\"\nparents = [\"a:{y}\"]");
        let limits = Limits::parse("limits.toml", text.as_bytes()).expect("a good file");
        let toml = limit("a", "a:9{x}", "policy = \"fixed:3/s\"\nshadow = true")
            + "overrides = [{ key = \"a:97\", policy = \"block\" }]\n";
        let trial = limits.with_trial("a", &toml).expect("a good limit");
        let of = |name: &str, policy: &str| Some((name.to_owned(), policy.to_owned()));
        assert_eq!(policy(&trial, "a:1"), of("b", "fixed:2/s"));
        assert_eq!(policy(&trial, "a:98"), of("a", "fixed:3/s"));
        assert_eq!(policy(&trial, "a:97"), of("a", "block"));
        assert_eq!(policy(&limits, "a:98"), of("a", "fixed:1/s"));
        assert_eq!((trial.len(), limits.len()), (2, 2));
        let found = trial.by_name(b"b").expect("it stays");
        assert_eq!(found.index(), 1);
    }

    #[test]
    fn trial_gives_overrides_of_the_api_its_own_flags() {
        let ban = "ban = { refusals = 3, within = \"1m\", for = \"1h\" }";
        let text = |more: &str| limit("a", "a:{x}", &format!("policy = \"fixed:1/s\"\n{more}"));
        for (now, then, before, after) in [
            ("shadow = true", "shadow = true", "fixed:9/s,shadow", "fixed:9/s"),
            ("shadow = true", "", "fixed:9/s,shadow", "fixed:9/s"),
            ("over = true", "", "fixed:9/s,over", "fixed:9/s"),
            ("", "over = true", "fixed:9/s", "fixed:9/s,over"),
            (ban, "", "fixed:9/s;ban=3/1m,for=1h,max=1h", "fixed:9/s"),
            ("", ban, "fixed:9/s", "fixed:9/s;ban=3/1m,for=1h,max=1h"),
            ("over = true", ban, "fixed:9/s,over", "fixed:9/s;ban=3/1m,for=1h,max=1h"),
        ] {
            let mut limits = Limits::parse("l.toml", text(now).as_bytes()).expect("a good file");
            let weighted = |text| parse_weighted_policy(text).expect("a policy");
            let rows = [
                ("a:1", weighted("block")),
                ("a:2", weighted("fixed:9/s weight=5")),
                ("a:3", weighted("fixed:9/s,over")),
            ];
            assert_eq!(limits.set_overrides("a", OverrideSource::Api, rows), []);
            let is_shadow = now.starts_with("shadow");
            let of = |limits: &Limits| limits.by_name(b"a").expect("the limit").clone();
            assert_eq!(of(&limits).policy_of(b"a:1").shadow, is_shadow, "{now}");
            assert_eq!(of(&limits).policy_of(b"a:2").to_string(), before);
            let trial = of(&limits.with_trial("a", &text(then)).expect("a good limit"));
            assert!(!trial.policy_of(b"a:1").shadow, "{now}, {then}");
            assert_eq!(trial.policy_of(b"a:2").to_string(), after, "{now}, {then}");
            // The flags of the override itself stay.
            assert!(trial.policy_of(b"a:3").over, "{now}, {then}");
            let rows = trial.override_rows(OverrideSource::Api, "");
            let weights: Vec<_> = rows.map(|(_, _, weight)| weight).collect();
            assert_eq!(weights, [None, Some(5), None]);
            // The limits in force have their own still.
            assert_eq!(of(&limits).policy_of(b"a:2").to_string(), before);
        }
    }

    #[test]
    fn trial_without_other_flags_shares_the_table_of_the_api() {
        let text = limit("a", "a:{x}", "policy = \"fixed:1/s,over\"");
        let mut limits = Limits::parse("l.toml", text.as_bytes()).expect("a good file");
        let rows = [("a:1", parse_weighted_policy("block").expect("a policy"))];
        assert_eq!(limits.set_overrides("a", OverrideSource::Api, rows), []);
        let table = |limits: &Limits| {
            let limit = limits.by_name(b"a").expect("the limit");
            limit.table(OverrideSource::Api).map(Arc::as_ptr)
        };
        let other = limit("a", "a:{x}", "policy = \"fixed:2/s,over\"");
        assert_eq!(table(&limits.with_trial("a", &other).expect("good")), table(&limits));
        // Its keys are others: none of the overrides can match.
        let other = limit("a", "b:{x}", "policy = \"fixed:2/s,over\"");
        assert_eq!(table(&limits.with_trial("a", &other).expect("good")), None);
    }

    #[test]
    fn trial_of_a_new_name_comes_last() {
        let text = limit("a", "a:{x}", "policy = \"fixed:1/s\"");
        let limits = Limits::parse("limits.toml", text.as_bytes()).expect("a good file");
        let toml = limit("new", "{x}", "policy = \"fixed:3/s\"");
        let trial = limits.with_trial("new", &toml).expect("a good limit");
        assert_eq!(policy(&trial, "a:1").map(|(name, _)| name).as_deref(), Some("a"));
        assert_eq!(policy(&trial, "b:1").map(|(name, _)| name).as_deref(), Some("new"));
    }

    #[test]
    fn trial_with_a_mistake_names_its_line() {
        let limits = Limits::default();
        for (toml, line) in [
            (limit("a", "a:{x}", "policy = \"fixed:0/s\""), ":4:"),
            (limit("b", "a:{x}", "policy = \"fixed:1/s\""), ":2:"),
            (String::new(), ":1:"),
            (limit("a", "a:{x", "policy = \"fixed:1/s\""), ":3:"),
        ] {
            let error = limits.with_trial("a", &toml).expect_err("a mistake").to_string();
            assert!(error.contains(line), "{error}");
        }
    }
}

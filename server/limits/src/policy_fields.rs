//! The fields of a limit that make its policies: `policy`, `over`, `shadow` and `ban`.
//!
//! Here: a text or a list of texts → one policy, and the flags and the ban of a limit in it. Not
//! here: the other fields (`file`), the grammar of a policy (`protocol`).

use protocol::{Algorithm, Ban, Policy, PolicyListError};

use super::LimitsError;
use super::file::{Draft, Field, File, in_order, unknown, unsigned};
use super::with_line::WithLine;

/// Makes the policy of a limit from the texts of its policies.
///
/// # Errors
///
/// The mistake, with the index of the text if it is one of a single text.
fn policy_of_list(texts: &[&str]) -> Result<Policy, (Option<usize>, String)> {
    let policies = texts.iter().enumerate().map(|(at, text)| {
        Policy::parse(text.as_bytes()).map_err(|why| (Some(at), why.to_string()))
    });
    let policies: Vec<Policy> = policies.collect::<Result<_, _>>()?;
    Policy::several(&policies).map_err(|error| (None, error.to_string()))
}

/// Adds the ban of a limit to a policy of it. `unlimited`, `block` and `concurrency` have none.
pub(super) fn banned(policy: Policy, ban: Option<&Ban>) -> Result<Policy, PolicyListError> {
    match policy.with_ban(ban.copied()) {
        Err(PolicyListError::Unbannable(_)) => Ok(policy),
        other => other,
    }
}

/// Adds the flags of a limit to a policy of it. `unlimited` has none, and `block` counts nothing.
pub(super) fn flagged(mut policy: Policy, over: bool, shadow: bool) -> Policy {
    let (counts, refuses) = match policy.algorithm {
        Algorithm::Unlimited => (false, false),
        Algorithm::Block => (false, true),
        _ => (true, true),
    };
    policy.over |= counts && over;
    policy.shadow |= refuses && shadow;
    policy
}

impl File<'_> {
    /// Reads the table of a ban.
    pub(super) fn ban(&self, field: Field<'_, '_>) -> Result<WithLine<Ban>, LimitsError> {
        let line = self.line(field.1.span().start);
        let table = field.1.get_ref().as_table().ok_or_else(|| {
            self.refuse(line, "`ban` is a table with refusals, within, for and max")
        })?;
        let (mut refusals, mut within, mut first, mut longest) = (None, None, None, None);
        for field in in_order(table) {
            match field.0.get_ref().as_ref() {
                "refusals" => refusals = Some(self.whole_number(field)?),
                "within" => within = Some(self.text(field)?.value),
                "for" => first = Some(self.text(field)?.value),
                "max" => longest = Some(self.text(field)?.value),
                other => {
                    let line = self.line(field.0.span().start);
                    return Err(self.unknown(line, other, &unknown::OF_BAN));
                }
            }
        }
        let lacks = |name: &str| self.refuse(line, format!("the ban lacks its `{name}`"));
        let refusals = refusals.ok_or_else(|| lacks("refusals"))?;
        let within = within.ok_or_else(|| lacks("within"))?;
        let first = first.ok_or_else(|| lacks("for"))?;
        let ban = Ban::new(refusals, &within, &first, longest.as_deref());
        ban.map(|value| WithLine { value, line })
            .map_err(|error| self.refuse(line, error.to_string()))
    }

    fn whole_number(&self, (field, value): Field<'_, '_>) -> Result<u64, LimitsError> {
        unsigned(value).ok_or_else(|| {
            let line = self.line(value.span().start);
            self.refuse(line, format!("`{}` takes a whole number", field.get_ref()))
        })
    }

    /// Adds the ban of a limit to its policies.
    pub(super) fn fold_ban(
        &self,
        draft: &mut Draft,
        ban: Option<&WithLine<Ban>>,
    ) -> Result<(), LimitsError> {
        let Some(WithLine { value: ban, line }) = ban else { return Ok(()) };
        let wrong = |error: PolicyListError| self.refuse(*line, error.to_string());
        draft.policy.value = draft.policy.value.with_ban(Some(*ban)).map_err(wrong)?;
        for policy in draft.override_policies_mut() {
            *policy = banned(*policy, Some(ban)).map_err(wrong)?;
        }
        Ok(())
    }

    /// Reads the policy of a limit or an override: a text, or a list of texts.
    pub(super) fn policy(&self, field: Field<'_, '_>) -> Result<WithLine<Policy>, LimitsError> {
        if field.1.get_ref().as_array().is_some() {
            let texts = self.texts(field)?;
            let line = self.line(field.1.span().start);
            let words: Vec<&str> = texts.iter().map(|text| text.value.as_str()).collect();
            return match policy_of_list(&words) {
                Ok(value) => Ok(WithLine { value, line }),
                Err((at, reason)) => {
                    let of = at.and_then(|at| texts.get(at));
                    let line = of.map_or(line, |text| text.line);
                    let text = of.map_or_else(String::new, |text| format!("`{}`: ", text.value));
                    Err(self.refuse(line, format!("{text}{reason}")))
                }
            };
        }
        let WithLine { value, line } = self.string("policy", field.1).map_err(|_| {
            self.refuse(self.line(field.1.span().start), "`policy` takes text, or a list of texts")
        })?;
        match Policy::parse(value.as_bytes()) {
            Ok(value) => Ok(WithLine { value, line }),
            Err(error) => Err(self.refuse(line, format!("`{value}`: {error}"))),
        }
    }

    /// Writes the fields `over` and `shadow` of a limit into its policies.
    pub(super) fn fold_flags(
        &self,
        draft: &mut Draft,
        over: Option<&WithLine<bool>>,
        shadow: Option<&WithLine<bool>>,
    ) -> Result<(), LimitsError> {
        for (flag, name, own) in
            [(over, "over", draft.policy.value.over), (shadow, "shadow", draft.policy.value.shadow)]
        {
            if let Some(WithLine { value: false, line }) = flag
                && own
            {
                let reason = format!("`{name} = false`, but the policy says `{name}`");
                return Err(self.refuse(*line, reason));
            }
        }
        let set = |flag: Option<&WithLine<bool>>| flag.is_some_and(|flag| flag.value);
        let own = &mut draft.policy.value;
        *own = flagged(*own, set(over), set(shadow));
        // The flags of a limit hold for its overrides too, also those that its policy says.
        let (over, shadow) = (own.over, own.shadow);
        for policy in draft.override_policies_mut() {
            *policy = flagged(*policy, over, shadow);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Limits;
    use super::super::map_text::LimitText;

    fn file(policy: &str, more: &str) -> String {
        format!("[[limit]]\nname = \"sms\"\nmatch = \"sms:{{phone}}\"\npolicy = {policy}\n{more}")
    }

    fn policy_of(text: &str, key: &str) -> String {
        let limits = Limits::parse("l.toml", text.as_bytes()).expect(text);
        let found = limits.by_name(b"sms").expect("the limit");
        found.policy_of(key.as_bytes()).to_string()
    }

    fn wrong(text: &str) -> String {
        Limits::parse("l.toml", text.as_bytes()).expect_err(text).to_string()
    }

    #[test]
    fn list_of_policies_is_written_and_read_again() {
        let text = file(
            "[\"fixed:1/60s\", \"sliding:100/30d\"]",
            "over = true\noverrides = [{ key = \"sms:a\", policy = [\"log:1/m\", \"log:5/h\"] }, \
             { key = \"sms:b\", policy = \"unlimited\" }, { key = \"sms:c\", policy = [\"log:7/h\"] }]\n",
        );
        assert_eq!(policy_of(&text, "sms:x"), "fixed:1/m,over;sliding:100/30d,over");
        assert_eq!(policy_of(&text, "sms:a"), "log:1/m,over;log:5/h,over");
        assert_eq!(policy_of(&text, "sms:b"), "unlimited");
        assert_eq!(policy_of(&text, "sms:c"), "log:7/h,over");
        let written = LimitText::of_file("l.toml", text.as_bytes()).expect("a good file");
        let toml = &written.limits[0].toml;
        let expected = "policy = [\"fixed:1/m,over\", \"sliding:100/30d,over\"]\n";
        assert!(toml.contains(expected), "{toml}");
        let again = LimitText::of_file("l.toml", toml.as_bytes()).expect("a good file");
        assert_eq!(again, written);
    }

    #[test]
    fn mistake_in_a_list_has_the_line_of_its_policy() {
        for (policy, reason) in [
            ("[]", "l.toml:4: a limit has 1 to 8 policies, and this one 0"),
            ("[\n\"fixed:1/m\",\n\"fixed:0/m\"]", "l.toml:6: `fixed:0/m`: bad policy: "),
            ("[\"fixed:1/m\", \"fixed:1/60s\"]", "l.toml:4: policy 1 is policy 0 again"),
            ("[\"fixed:1/m\", \"block\"]", "l.toml:4: policy 1: unlimited and block go with no"),
            ("[\"fixed:1/m\", 5]", "l.toml:4: `policy` takes text"),
            ("5", "l.toml:4: `policy` takes text, or a list of texts"),
            ("\"fixed:1/m;log:5/h\"", "l.toml:4: `fixed:1/m;log:5/h`: bad policy: "),
        ] {
            let error = wrong(&file(policy, ""));
            assert!(error.starts_with(reason), "{policy}: {error}");
        }
        let more = "shadow = false\n";
        let error = wrong(&file("[\"fixed:1/m,shadow\", \"log:5/h,shadow\"]", more));
        assert!(error.ends_with("but the policy says `shadow`"), "{error}");
    }

    #[test]
    fn ban_is_written_and_read_again() {
        let text = file(
            "\"sliding:5/60s\"",
            "overrides = [{ key = \"sms:a\", policy = [\"log:1/m\", \"log:5/h\"] }, \
             { key = \"sms:b\", policy = \"unlimited\" }]\n\
             [limit.ban]\nrefusals = 20\nwithin = \"10m\"\nfor = \"1h\"\nmax = \"24h\"\n",
        );
        let ban = "ban=20/10m,for=1h,max=1d";
        assert_eq!(policy_of(&text, "sms:x"), format!("sliding:5/m;{ban}"));
        assert_eq!(policy_of(&text, "sms:a"), format!("log:1/m;log:5/h;{ban}"));
        assert_eq!(policy_of(&text, "sms:b"), "unlimited");
        let written = LimitText::of_file("l.toml", text.as_bytes()).expect("a good file");
        let toml = &written.limits[0].toml;
        let line = "ban = { refusals = 20, within = \"10m\", for = \"1h\", max = \"1d\" }\n";
        assert!(toml.contains(line), "{toml}");
        let again = LimitText::of_file("l.toml", toml.as_bytes()).expect("a good file");
        assert_eq!(again, written);
        // An override of the API gets the ban of its limit.
        let mut limits = Limits::parse("l.toml", text.as_bytes()).expect("a good file");
        let policy = protocol::Policy::parse(b"fixed:9/m").expect("a policy");
        let rows = [("sms:c", (policy, None))];
        assert_eq!(limits.set_overrides("sms", super::super::OverrideSource::Api, rows), []);
        let of = limits.by_name(b"sms").expect("the limit").policy_of(b"sms:c");
        assert_eq!(of.to_string(), format!("fixed:9/m;{ban}"));
    }

    #[test]
    fn mistake_in_a_ban_is_refused() {
        let ban = |body: &str| file("\"fixed:5/m\"", &format!("ban = {body}\n"));
        for (text, reason) in [
            (ban("5"), "l.toml:5: `ban` is a table"),
            (ban("{ refusals = 5 }"), "l.toml:5: the ban lacks its `within`"),
            (ban("{ within = \"1m\", for = \"1m\" }"), "l.toml:5: the ban lacks its `refusals`"),
            (
                ban("{ refusals = \"5\", within = \"1m\", for = \"1m\" }"),
                "l.toml:5: `refusals` takes a whole number",
            ),
            (
                ban("{ refusals = -5, within = \"1m\", for = \"1m\" }"),
                "l.toml:5: `refusals` takes a whole number",
            ),
            (
                ban("{ refusals = 1001, within = \"1m\", for = \"1m\" }"),
                "l.toml:5: a ban needs 1 to 1000 refusals",
            ),
            (
                ban("{ refusals = 5, within = \"1m\", for = \"2m\", max = \"1m\" }"),
                "l.toml:5: `max` of a ban is at least its `for`",
            ),
            (ban("{ refusal = 5 }"), "l.toml:5: unknown field `refusal`"),
            (
                file("\"block\"", "ban = { refusals = 5, within = \"1m\", for = \"2m\" }\n"),
                "l.toml:5: a ban does not go with block",
            ),
        ] {
            let error = wrong(&text);
            assert!(error.starts_with(reason), "{text}: {error}");
        }
    }

    #[test]
    fn only_limits_with_one_policy_are_simple() {
        for (policy, more, expected) in [
            ("\"fixed:1/m\"", "", true),
            ("[\"fixed:1/m\"]", "", true),
            ("[\"fixed:1/m\", \"fixed:9/h\"]", "", false),
            (
                "\"fixed:1/m\"",
                "overrides = [{ key = \"sms:a\", policy = [\"log:1/m\", \"log:5/h\"] }]\n",
                false,
            ),
            ("\"fixed:1/m\"", "overrides = [{ key = \"sms:a\", policy = \"log:1/m\" }]\n", true),
        ] {
            let text = file(policy, more);
            let limits = Limits::parse("l.toml", text.as_bytes()).expect("a good file");
            let mut scratch = Vec::new();
            let found = limits.find(b"sms:q", &mut scratch).expect("a short key").expect("a limit");
            assert_eq!(found.is_simple(), expected, "{text}");
        }
    }
}

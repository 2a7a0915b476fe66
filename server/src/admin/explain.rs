//! The reasons behind the verdict on a key.
//!
//! Here: verdicts by peek, owners and copies. Not here: the limit of a key (`limits::explain`), the
//! connection of the requests (`own_client`).

use futures_util::future::join_all;
use tollgate_http::{
    ExplainView, KeyBan, KeyStanding, KeyVerdict, MatchView, ParentView, ServiceError,
};
use tollgate_limits::{ExplainedKey, Explanation, key_mistake};

use super::host::ServerHost;
use crate::config::KeyDisplay;
use crate::node::partition_of;
use crate::observe::shown_key;

/// Greatest cost of an attempt.
const COST_MAX: u64 = (1 << 53) - 1;

/// Most bytes of a plain value that are shown.
const VALUE_BYTES_MAX: u64 = 1024;

/// Checks that `key` can stand on a line of the text protocol.
pub(super) fn check_key(key: &[u8]) -> Result<(), ServiceError> {
    match key_mistake(key) {
        None => Ok(()),
        Some(detail) => Err(ServiceError::Invalid { detail, line: None }),
    }
}

/// Formats bytes of clients as text.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The reply of a peek.
enum Peek {
    /// With the ban that refuses; its limit is empty if the line names none.
    Verdict(KeyVerdict, Option<KeyBan>),
    Fault(String),
}

impl Peek {
    /// Parses a verdict line.
    fn of(line: &[u8]) -> Self {
        let line = text(line);
        let mut words = line.split(' ');
        let word = words.next().unwrap_or_default();
        let numbers: Vec<i64> =
            words.by_ref().take(4).map_while(|word| word.parse().ok()).collect();
        let pairs: Vec<&str> = words.collect();
        let (true, &[limit, remaining, retry_ms, reset_ms]) =
            (["ALLOW", "DENY", "WAIT", "PART", "EXISTS"].contains(&word), numbers.as_slice())
        else {
            return Self::Fault(line);
        };
        if pairs.contains(&"degraded=1") {
            let reason = "the owner of the key is out of reach, so nobody can tell";
            return Self::Fault(reason.to_owned());
        }
        let verdict = KeyVerdict {
            allowed: word != "DENY",
            would_refuse: word == "DENY" || pairs.contains(&"shadow=1"),
            remaining: remaining.try_into().unwrap_or(0),
            limit: limit.try_into().unwrap_or(0),
            retry_ms: (word == "DENY").then(|| retry_ms.try_into().ok()).flatten(),
            reset_ms: reset_ms.try_into().unwrap_or(0),
        };
        let ban = pairs.contains(&"ban=1").then(|| {
            let limit = pairs.iter().find_map(|pair| pair.strip_prefix("by="));
            KeyBan { limit: limit.unwrap_or_default().to_owned(), ends_ms: verdict.retry_ms }
        });
        Self::Verdict(verdict, ban)
    }
}

/// Adds a limit to those that refuse the attempt, or in shadow to those that would.
fn add_refusal(view: &mut ExplainView, limit: &str, is_shadow: bool) {
    let names = if is_shadow { &mut view.shadow_refused_by } else { &mut view.refused_by };
    if !names.iter().any(|name| name == limit) {
        names.push(limit.to_owned());
    }
}

/// Returns the verdict of a limit, made of that of a peek with its policy. `is_beyond`: the cost is
/// more than any limit can have.
fn own_verdict(mut verdict: KeyVerdict, is_shadow: bool, is_beyond: bool) -> KeyVerdict {
    if is_beyond {
        (verdict.allowed, verdict.would_refuse, verdict.retry_ms) = (false, true, None);
    }
    // The text of `block` does not say that it is a shadow, so the peek refused.
    if is_shadow {
        (verdict.allowed, verdict.retry_ms) = (true, None);
    }
    verdict
}

impl ServerHost {
    /// Returns the limit of a key and the reason.
    ///
    /// # Errors
    ///
    /// The key is no key, or a key that is counted with it is invalid.
    pub(super) fn explain_match(
        &self,
        key: &[u8],
    ) -> Result<(MatchView, Option<Explanation>), ServiceError> {
        check_key(key)?;
        let active = self.service.limits().load();
        let explained = active
            .limits()
            .explain(key)
            .map_err(|error| ServiceError::Invalid { detail: error.to_string(), line: None })?;
        let Some(explanation) = explained else {
            let exempt = active.limits().exemption(key).map(str::to_owned);
            return Ok((MatchView { key: text(key), exempt, ..MatchView::default() }, None));
        };
        let Explanation { key: found, captures, parents, later, .. } = &explanation;
        let parent = |parent: &ExplainedKey| ParentView {
            limit: parent.limit.clone(),
            key: self.shown_counted(key, parent),
            policy: parent.policy.clone(),
        };
        let counted = self.shown_counted(key, found);
        // An override of the counted key itself is as much the caller's as that key.
        let override_key = |over: &String| {
            let is_counted = over.as_bytes() == found.counted;
            if is_counted { counted.clone() } else { over.clone() }
        };
        let view = MatchView {
            key: text(key),
            limit: Some(found.limit.clone()),
            exempt: None,
            captures: captures.iter().map(|(name, value)| (name.clone(), text(value))).collect(),
            counted_key: Some(counted.clone()),
            policy: Some(found.policy.clone()),
            override_key: found.overridden.as_ref().map(|(over, _)| override_key(over)),
            override_source: found.overridden.as_ref().map(|(_, from)| from.word().to_owned()),
            weight: found.cost.of(1),
            parents: parents.iter().map(parent).collect(),
            shadowed: later.clone(),
        };
        Ok((view, Some(explanation)))
    }

    /// Returns the reasons behind the verdict on an attempt of `cost` units.
    ///
    /// # Errors
    ///
    /// The key is no key, the cost is too large, or the workers do not run.
    pub(super) async fn explain_key(
        &self,
        key: &[u8],
        cost: u64,
    ) -> Result<ExplainView, ServiceError> {
        if cost > COST_MAX {
            let detail = format!("a cost is at most {COST_MAX}");
            return Err(ServiceError::Invalid { detail, line: None });
        }
        let (matched, explanation) = self.explain_match(key)?;
        let Some(Explanation { key: found, parents, .. }) = explanation else {
            let value = self.plain_value(key).await?;
            return Ok(ExplainView { cost, matched, value, ..ExplainView::default() });
        };
        let mut view = ExplainView { cost, matched, ..ExplainView::default() };
        let whole_cost = cost.to_string();
        let line = [b"take", found.key.as_slice(), whole_cost.as_bytes(), b"-", b"peek"];
        let mut policies: Vec<(&ExplainedKey, &str)> = Vec::new();
        for explained in std::iter::once(&found).chain(&parents) {
            policies.extend(explained.policies().map(|policy| (explained, policy)));
        }
        // At once: an owner out of reach takes its time.
        let standings = policies.iter();
        let standings = standings.map(|(of, policy)| self.standing(key, of, policy, cost));
        let standings = join_all(standings);
        let (standings, whole) = tokio::join!(standings, self.peek(&line));
        for ((explained, _), standing) in policies.iter().zip(standings) {
            if standing.verdict.as_ref().is_some_and(|verdict| verdict.would_refuse) {
                add_refusal(&mut view, &explained.limit, explained.shadow);
            }
            view.standings.push(standing);
        }
        if let Peek::Verdict(verdict, ban) = whole {
            view.allowed = Some(verdict.allowed);
            view.retry_ms = verdict.retry_ms;
            view.ban = ban.map(|ban| match ban.limit.as_str() {
                "" => KeyBan { limit: found.limit.clone(), ..ban },
                _ => ban,
            });
        }
        // The policies of a key alone know nothing of its ban.
        if let (Some(allowed), Some(ban)) = (view.allowed, view.ban.clone()) {
            // A ban that lets the attempt pass is one of a shadow.
            add_refusal(&mut view, &ban.limit, allowed);
        }
        Ok(view)
    }

    /// Returns the form in which a counted key is shown to a caller who typed `typed`: that key as
    /// it is, another one as `--key-display` says.
    fn shown_counted(&self, typed: &[u8], key: &ExplainedKey) -> String {
        let display = self.service.config().key_display;
        if key.counted == typed || display == KeyDisplay::Full {
            return text(&key.counted);
        }
        let hash = self.service.shards().hash(&key.counted);
        shown_key(display, hash, (&key.counted, false), Some(&key.limit))
    }

    /// Asks for a verdict; no answer is a fault.
    async fn peek(&self, line: &[&[u8]]) -> Peek {
        match self.request_line(line).await {
            Ok(reply) => Peek::of(&reply),
            Err(error) => Peek::Fault(error.to_string()),
        }
    }

    /// Returns the verdict on one counted key alone, by a peek with `policy`, one of those in
    /// force. `typed` is the key that the caller asked for.
    async fn standing(
        &self,
        typed: &[u8],
        key: &ExplainedKey,
        policy: &str,
        cost: u64,
    ) -> KeyStanding {
        let units = key.cost.capped(cost);
        let written = units.to_string();
        let line = [b"take", key.key.as_slice(), written.as_bytes(), policy.as_bytes(), b"peek"];
        let (verdict, fault) = match self.peek(&line).await {
            Peek::Verdict(verdict, _) => {
                let is_beyond = key.cost.of(cost).is_none();
                (Some(own_verdict(verdict, key.shadow, is_beyond)), None)
            }
            Peek::Fault(reason) => (None, Some(reason)),
        };
        let (owner, copies) = self.holders(&key.counted);
        KeyStanding {
            limit: key.limit.clone(),
            key: self.shown_counted(typed, key),
            policy: policy.to_owned(),
            shadow: key.shadow,
            cost: units,
            hold_ms: key.hold.map(|nanos| nanos.div_ceil(1_000_000)),
            verdict,
            fault,
            owner,
            copies,
        }
    }

    /// The value of a key without a limit, shortened; `None`: there is none.
    async fn plain_value(&self, key: &[u8]) -> Result<Option<String>, ServiceError> {
        let mut reply = self.request([b"get ", key, b"\r\n"].concat()).await?;
        let line = reply.line().await?;
        let Some(head) = line.strip_prefix(b"VALUE ") else {
            return match line.as_slice() {
                b"END" => Ok(None),
                _ => Err(ServiceError::Unavailable(text(&line))),
            };
        };
        let length = head
            .rsplit(|byte| *byte == b' ')
            .next()
            .and_then(|word| str::from_utf8(word).ok()?.parse::<u64>().ok());
        let length = length.unwrap_or(0);
        let shown = text(&reply.block(length, VALUE_BYTES_MAX).await?);
        if length > VALUE_BYTES_MAX {
            return Ok(Some(format!("{shown}… ({length} bytes)")));
        }
        Ok(Some(shown))
    }

    /// The node that owns a counted key and those with copies, in a cluster.
    fn holders(&self, counted: &[u8]) -> (Option<String>, Vec<String>) {
        let unknown = (None, Vec::new());
        let Some(node) = &self.node else { return unknown };
        let hash = self.service.shards().hash(counted);
        let Some(keyspace) = node.keyspace() else { return unknown };
        let partition = partition_of(keyspace, hash);
        let holders = node.with_view(self.service.clock().now(), |view| {
            let name = |id: cluster::id::NodeId| format!("n{}", id.0);
            let entry = view.map.partitions().get(usize::from(partition.0))?;
            let primary = entry.primary.map(|copy| copy.node);
            let others = entry.in_sync.iter().map(|copy| copy.node);
            let others = others.filter(|node| Some(*node) != primary);
            Some((primary.map(name), others.map(name).collect()))
        });
        holders.flatten().unwrap_or(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_lines_are_read_and_the_rest_is_a_fault() {
        let Peek::Verdict(verdict, None) = Peek::of(b"DENY 5 0 1500 60000") else {
            panic!("a verdict line")
        };
        assert!(!verdict.allowed);
        assert_eq!((verdict.retry_ms, verdict.reset_ms), (Some(1500), 60_000));
        let Peek::Verdict(verdict, _) = Peek::of(b"DENY 5 -3 -1 60000 by=login") else {
            panic!("a verdict line")
        };
        assert_eq!((verdict.remaining, verdict.retry_ms), (0, None));
        let Peek::Verdict(_, Some(ban)) = Peek::of(b"DENY 5 0 1500 60000 ban=1 by=login") else {
            panic!("a ban")
        };
        assert_eq!((ban.limit.as_str(), ban.ends_ms), ("login", Some(1500)));
        let Peek::Verdict(_, Some(ban)) = Peek::of(b"ALLOW 5 0 0 60000 shadow=1 ban=1") else {
            panic!("a ban that shows")
        };
        assert_eq!(ban, KeyBan::default());
        let Peek::Verdict(verdict, None) = Peek::of(b"ALLOW 5 0 0 60000 shadow=1") else {
            panic!("a verdict line")
        };
        assert!(verdict.allowed && verdict.would_refuse);
        for line in [
            &b"ALLOW 5 4 0 1 degraded=1"[..],
            b"SERVER_ERROR not applied: the node is starting",
            b"NOT_FOUND",
            b"DENY 5 x 1 1",
            b"",
        ] {
            assert!(matches!(Peek::of(line), Peek::Fault(_)));
        }
    }

    #[test]
    fn a_shadow_never_refuses_but_says_that_it_would() {
        let of = |line: &[u8], is_shadow, is_beyond| {
            let Peek::Verdict(verdict, _) = Peek::of(line) else { panic!("a verdict line") };
            let verdict = own_verdict(verdict, is_shadow, is_beyond);
            (verdict.allowed, verdict.would_refuse, verdict.retry_ms)
        };
        assert_eq!(of(b"DENY 0 0 -1 0", true, false), (true, true, None));
        assert_eq!(of(b"DENY 1 0 500 500", false, false), (false, true, Some(500)));
        assert_eq!(of(b"ALLOW 1 0 0 500 shadow=1", true, false), (true, true, None));
        assert_eq!(of(b"ALLOW 1 1 0 0", true, false), (true, false, None));
        assert_eq!(of(b"ALLOW 1 1 0 0", true, true), (true, true, None));
        assert_eq!(of(b"ALLOW 1 1 0 0", false, true), (false, true, None));
        let mut view = ExplainView::default();
        for (limit, is_shadow) in [("a", true), ("b", false), ("a", true), ("b", false)] {
            add_refusal(&mut view, limit, is_shadow);
        }
        assert_eq!((view.refused_by, view.shadow_refused_by), (vec!["b".into()], vec!["a".into()]));
    }
}

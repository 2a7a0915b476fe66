//! Several policies in one limit, each of which counts every attempt, and the ban of a limit.
//!
//! Here: which policies go together, and the text of all. Not here: one policy (`parse`, `print`),
//! the decision over all of them (`engine`).

use std::collections::HashSet;
use std::fmt::{self, Display, Formatter};
use std::hash::{Hash, Hasher};
use std::sync::{LazyLock, PoisonError, RwLock};

use super::{Algorithm, Ban, BanError, Policy, PolicyError};
use crate::bounds::POLICY_BYTES_MAX;

/// Most policies of one limit.
pub const LIST_POLICIES_MAX: usize = 8;

/// Longest text of several policies in bytes: each, and a separator between two, and a ban.
pub const LIST_BYTES_MAX: usize = LIST_POLICIES_MAX * (POLICY_BYTES_MAX + 1) + BAN_BYTES_MAX;

/// Longest text of a ban in bytes: three durations of up to 17 bytes, and the words between them.
const BAN_BYTES_MAX: usize = 80;

/// Most different lists that a process makes. Only limits have lists: no client can make one.
pub const LISTS_MAX: usize = 1 << 14;

/// The separator of policies in a text without blanks.
const SEPARATOR: u8 = b';';

/// Policies in their order, up to [`LIST_POLICIES_MAX`], and a ban; one policy only with a ban.
/// Equal lists are one value.
#[derive(Clone, Copy)]
pub struct PolicyList(&'static ListEntry);

/// The content of a list.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ListEntry {
    policies: Box<[Policy]>,
    ban: Option<Ban>,
}

/// Lists that were made, each once.
type Lists = RwLock<HashSet<&'static ListEntry>>;

/// The lists that limits of this process have named.
static LISTS: LazyLock<Lists> = LazyLock::new(RwLock::default);

/// The reason why policies are not those of one limit. `Display` is for operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PolicyListError {
    /// The policy at a position, from 0, is invalid.
    #[error("policy {0}: {1}")]
    Policy(usize, PolicyError),
    /// The number of policies.
    #[error("a limit has 1 to {LIST_POLICIES_MAX} policies, and this one {0}")]
    Count(usize),
    /// `unlimited` or `block`.
    #[error("policy {0}: unlimited and block go with no other policy")]
    Whole(usize),
    /// Holders.
    #[error(
        "policy {0}: concurrency goes with no other policy, because holders do not leave with a \
         window: give it a limit of its own, and name that as a parent"
    )]
    Holders(usize),
    /// The same policy as another one.
    #[error("policy {1} is policy {0} again")]
    Repeated(usize, usize),
    /// `over` or `shadow` of some policies only.
    #[error("policy {0}: `{1}` holds for a whole limit: every policy says it, or none")]
    Mixed(usize, &'static str),
    /// The ban is invalid.
    #[error("{0}")]
    Ban(#[from] BanError),
    /// A policy that no ban goes with.
    #[error("a ban does not go with {0}")]
    Unbannable(&'static str),
    /// The process has no room for one more list.
    #[error("this process has seen {LISTS_MAX} different lists of policies, the most: restart it")]
    Full,
}

impl PolicyList {
    /// Returns the list of these policies, one of at most `lists_max` in `lists`.
    fn of(
        policies: &[Policy],
        ban: Option<Ban>,
        lists: &Lists,
        lists_max: usize,
    ) -> Result<Self, PolicyListError> {
        let entry = ListEntry { policies: policies.into(), ban };
        if let Some(list) = lists.read().unwrap_or_else(PoisonError::into_inner).get(&entry) {
            return Ok(Self(list));
        }
        let mut lists = lists.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(list) = lists.get(&entry) {
            return Ok(Self(list));
        }
        if lists.len() >= lists_max {
            return Err(PolicyListError::Full);
        }
        // Never freed: policies are compared and copied as plain values.
        let list: &'static ListEntry = Box::leak(Box::new(entry));
        lists.insert(list);
        Ok(Self(list))
    }

    /// The policies in their order, without `over` and `shadow`, which are those of the whole.
    #[must_use]
    pub fn policies(self) -> &'static [Policy] {
        &self.0.policies
    }

    /// The ban, if there is one.
    #[must_use]
    pub fn ban(self) -> Option<&'static Ban> {
        self.0.ban.as_ref()
    }
}

impl PartialEq for PolicyList {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for PolicyList {}

impl Hash for PolicyList {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::hash(self.0, state);
    }
}

impl fmt::Debug for PolicyList {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Policy {
    /// Makes the policy of a limit that has all of `policies`: an attempt passes if each of them
    /// lets it pass. One policy is itself.
    ///
    /// # Errors
    ///
    /// The policies do not go together, or there is no room for one more list.
    pub fn several(policies: &[Self]) -> Result<Self, PolicyListError> {
        Self::whole(policies, None)
    }

    /// Makes the same policy with this ban, or with none.
    ///
    /// # Errors
    ///
    /// The policy is `unlimited`, `block` or `concurrency`, or there is no room for one more list.
    pub fn with_ban(&self, ban: Option<Ban>) -> Result<Self, PolicyListError> {
        // The case of every override of a limit without a ban.
        if ban.is_none() && !self.is_list() {
            return Ok(*self);
        }
        let policies: Vec<Self> = self.each().collect();
        Self::whole(&policies, ban)
    }

    /// Makes the policy of all of `policies` and a ban.
    fn whole(policies: &[Self], ban: Option<Ban>) -> Result<Self, PolicyListError> {
        let [first, ..] = policies else { return Err(PolicyListError::Count(0)) };
        if policies.len() == 1 {
            if ban.is_none() {
                return Ok(*first);
            }
            let name = match first.algorithm {
                Algorithm::Unlimited => Some("unlimited"),
                Algorithm::Block => Some("block"),
                Algorithm::Concurrency { .. } => Some("concurrency"),
                _ => None,
            };
            if let Some(name) = name {
                return Err(PolicyListError::Unbannable(name));
            }
        }
        if policies.len() > LIST_POLICIES_MAX {
            return Err(PolicyListError::Count(policies.len()));
        }
        let mut plain = Vec::with_capacity(policies.len());
        for (at, policy) in policies.iter().enumerate() {
            match policy.algorithm {
                Algorithm::Unlimited | Algorithm::Block | Algorithm::Several(_) => {
                    return Err(PolicyListError::Whole(at));
                }
                Algorithm::Concurrency { .. } => return Err(PolicyListError::Holders(at)),
                _ => {}
            }
            for (flag, of_first, name) in
                [(policy.over, first.over, "over"), (policy.shadow, first.shadow, "shadow")]
            {
                if flag != of_first {
                    return Err(PolicyListError::Mixed(at, name));
                }
            }
            let policy = Self { over: false, shadow: false, ..*policy };
            if let Some(before) = plain.iter().position(|other| *other == policy) {
                return Err(PolicyListError::Repeated(before, at));
            }
            plain.push(policy);
        }
        let algorithm = Algorithm::Several(PolicyList::of(&plain, ban, &LISTS, LISTS_MAX)?);
        Ok(Self { algorithm, ..*first })
    }

    /// Parses one policy or several and a ban, separated by `;`, as [`Display`] prints them. Only
    /// for texts of limits and of nodes: a client's policy is parsed by [`Policy::parse`].
    ///
    /// # Errors
    ///
    /// A policy is invalid, or the errors of [`Policy::several`].
    pub fn parse_list(text: &[u8]) -> Result<Self, PolicyListError> {
        let is_ban = |last: &&[u8]| last.starts_with(b"ban=");
        let (text, ban) = match text.rsplit(|byte| *byte == SEPARATOR).next().filter(is_ban) {
            Some(ban) => {
                let text = &text[..text.len().saturating_sub(ban.len() + 1)];
                let ban = str::from_utf8(&ban[4..]).map_err(|_| BanError::Form)?;
                (text, Some(Ban::parse(ban)?))
            }
            None => (text, None),
        };
        let count = text.split(|byte| *byte == SEPARATOR).count();
        if count > LIST_POLICIES_MAX {
            return Err(PolicyListError::Count(count));
        }
        let texts = text.split(|byte| *byte == SEPARATOR).enumerate();
        let policies: Result<Vec<Self>, _> = texts
            .map(|(at, text)| Self::parse(text).map_err(|why| PolicyListError::Policy(at, why)))
            .collect();
        Self::whole(&policies?, ban)
    }

    /// The policies of the whole, at least one, each with its `over` and `shadow`.
    #[must_use]
    pub fn each(&self) -> impl ExactSizeIterator<Item = Self> + Clone + '_ {
        let Self { over, shadow, .. } = *self;
        self.list().iter().map(move |policy| Self { algorithm: policy.algorithm, over, shadow })
    }

    /// The first policy: the one whose figures plain verbs report.
    #[must_use]
    pub fn first(&self) -> Self {
        let Self { over, shadow, .. } = *self;
        self.list().first().map_or(*self, |first| Self { over, shadow, ..*first })
    }

    /// The ban, if there is one.
    #[must_use]
    pub fn ban(&self) -> Option<&'static Ban> {
        match self.algorithm {
            Algorithm::Several(list) => list.ban(),
            _ => None,
        }
    }

    /// Whether there are several policies, or a ban.
    #[must_use]
    pub fn is_list(&self) -> bool {
        matches!(self.algorithm, Algorithm::Several(_))
    }

    /// Makes the policy with each of its policies changed by `change`.
    ///
    /// # Errors
    ///
    /// The errors of [`Policy::several`].
    pub fn map_each(&self, change: impl Fn(&Self) -> Self) -> Result<Self, PolicyListError> {
        let changed: Vec<Self> = self.each().map(|policy| change(&policy)).collect();
        Self::whole(&changed, self.ban().copied())
    }

    fn list(&self) -> &[Self] {
        match &self.algorithm {
            Algorithm::Several(list) => &list.0.policies,
            _ => std::slice::from_ref(self),
        }
    }
}

/// Prints the policies of a list and its ban, separated by `;`.
pub(super) fn print(policy: &Policy, f: &mut Formatter<'_>) -> fmt::Result {
    for (at, policy) in policy.each().enumerate() {
        if at > 0 {
            f.write_str(";")?;
        }
        Display::fmt(&policy, f)?;
    }
    match policy.ban() {
        Some(ban) => write!(f, ";{ban}"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Result<Policy, PolicyListError> {
        Policy::parse_list(text.as_bytes())
    }

    fn wrong(text: &str) -> String {
        list(text).expect_err(text).to_string()
    }

    #[test]
    fn list_is_printed_and_parsed_again() {
        for text in [
            "fixed:1/m",
            "fixed:1/m;fixed:10/d,align=calendar,tz=Asia/Shanghai;sliding:100/30d",
            "bucket:5/s,over,shadow;gcra:5/m,over,shadow",
            "leaky:1/s,wait=5s;log:9/m",
            "fixed:1/m;ban=20/10m,for=1h,max=1d",
            "fixed:1/m,shadow;log:9/m,shadow;ban=1/1m,for=1m,max=1m",
        ] {
            let policy = list(text).expect(text);
            assert_eq!(policy.to_string(), text);
            assert_eq!(list(&policy.to_string()), Ok(policy));
            assert_eq!(policy.is_list(), text.contains(';'));
            assert_eq!(policy.first().to_string(), text.split(';').next().unwrap_or_default());
            assert_eq!(policy.map_each(|one| *one), Ok(policy));
        }
        assert_eq!(list("bucket:60/60s;fixed:9/60s"), list("bucket:60/m;fixed:9/m"));
        assert_ne!(list("fixed:1/m;fixed:2/h"), list("fixed:2/h;fixed:1/m"));
    }

    #[test]
    fn ban_goes_with_policies_that_refuse() {
        let ban = Ban::new(3, "1m", "1h", None).expect("a ban");
        let plain = list("fixed:1/m").expect("a policy");
        let banned = plain.with_ban(Some(ban)).expect("they go together");
        assert_eq!(banned.to_string(), "fixed:1/m;ban=3/1m,for=1h,max=1h");
        assert_eq!((banned.ban(), banned.first()), (Some(&ban), plain));
        assert_eq!(banned.with_ban(None), Ok(plain));
        assert_eq!(banned.map_each(|one| *one), Ok(banned));
        assert_eq!(wrong("block;ban=3/1m,for=1h,max=1h"), "a ban does not go with block");
        assert_eq!(
            wrong("concurrency:3;ban=3/1m,for=1h,max=1h"),
            "a ban does not go with concurrency"
        );
        assert!(wrong("fixed:1/m;ban=3/1m,for=1h").starts_with("expected ban="));
        assert!(wrong("ban=3/1m,for=1h,max=1h").starts_with("policy 0: bad policy: "));
        assert!(wrong("ban=3/1m,for=1h,max=1h;fixed:1/m").starts_with("policy 0: bad policy: "));
    }

    #[test]
    fn client_cannot_write_a_list() {
        assert!(Policy::parse(b"fixed:1/m;ban=3/1m,for=1h,max=1h").is_err());
        assert!(Policy::parse(b"fixed:1/m;fixed:2/h").is_err());
    }

    #[test]
    fn policies_that_do_not_go_together_are_refused() {
        assert_eq!(
            wrong("fixed:1/m;block"),
            "policy 1: unlimited and block go with no other policy"
        );
        assert!(wrong("concurrency:5;fixed:1/m").starts_with("policy 0: concurrency goes with no"));
        assert_eq!(wrong("fixed:1/m;log:2/m;fixed:1/60s"), "policy 2 is policy 0 again");
        assert!(wrong("fixed:1/m;log:2/m,over").starts_with("policy 1: `over` holds for a whole"));
        assert!(wrong("fixed:1/m,shadow;log:2/m").starts_with("policy 1: `shadow` holds"));
        assert!(wrong("fixed:1/m;").starts_with("policy 1: bad policy: "));
        assert!(wrong("").starts_with("policy 0: bad policy: "));
        assert_eq!(Policy::several(&[]), Err(PolicyListError::Count(0)));
        let nine: Vec<String> = (1..=9).map(|count| format!("fixed:{count}/m")).collect();
        assert!(list(&nine[1..].join(";")).is_ok());
        assert_eq!(wrong(&nine.join(";")), "a limit has 1 to 8 policies, and this one 9");
        assert!(wrong(&";".repeat(1 << 20)).ends_with("this one 1048577"));
    }

    #[test]
    fn lists_of_a_process_are_bounded() {
        let lists = Lists::default();
        let policies: Vec<Policy> =
            (1..=4).map(|count| list(&format!("fixed:{count}/m")).expect("a policy")).collect();
        let of = |from: usize| PolicyList::of(&policies[from..], None, &lists, 2);
        let first = of(0).expect("room");
        assert_eq!(of(1).map(PolicyList::policies), Ok(&policies[1..]));
        assert_eq!(of(2), Err(PolicyListError::Full));
        assert_eq!(of(0), Ok(first));
    }

    #[test]
    fn longest_list_is_within_its_bound() {
        let zone = "America/Argentina/ComodRivadavia";
        let texts = (1..=8_u64).map(|count| {
            format!(
                "fixed:{}/8784h,align=calendar,tz={zone},phase=8783h,over,shadow",
                (1_u64 << 52) + count
            )
        });
        let text = texts.collect::<Vec<_>>().join(";");
        let policy = list(&text).expect("eight policies");
        assert!(policy.to_string().len() <= LIST_BYTES_MAX);
    }
}

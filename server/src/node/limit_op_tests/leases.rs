//! Leases of keys with parents: by several owners as by a lone server, and with operations that are
//! lost.
//!
//! The twin keeps a count for each key. Time stands still, so no lease ends and no window.

use protocol::Lease;

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate_limits::LimitMatch;

use super::*;
use crate::commands::context::ExecContext;
use crate::node::multi_owner::lease::{LeaseRequest, RoundResult};
use crate::node::pending::{NOT_APPLIED, UNKNOWN};

/// The end of an operation on its way to an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Done,
    NotApplied,
    /// Performed, and the response is lost.
    Unanswered,
    /// Lost, and the sender does not know it.
    Lost,
}

/// Makes a lease over several owners, or its refusal.
pub(super) fn begin(
    ctx: &mut ExecContext<'_>,
    raw: &[u8],
    found: &LimitMatch<'_>,
    lease: &Lease<'_>,
) -> Result<Box<LeaseRequest>, String> {
    if let Some(error) = ctx.list_for_lease(found) {
        return Err(error);
    }
    let charges = std::mem::take(&mut ctx.scratch.charges);
    let client = (Client::default(), 0);
    let of = |_| Partition::default();
    Ok(Box::new(LeaseRequest::new(client, (raw, false), lease, ctx, &charges, of)))
}

/// The reply to a lease over several owners, whose operations and refunds end as `fate` says.
pub(super) fn run(
    router_ctx: &mut RouterContext<'_>,
    mut request: Box<LeaseRequest>,
    mut fate: impl FnMut() -> Fate,
) -> String {
    loop {
        let ctx = router_ctx.exec_context();
        let perform = |bytes: &Bytes| {
            let sub_request = SubRequest::decode(&bytes[1..]).expect("it is one");
            let hash = ctx.service.shards().hash(sub_request.key);
            let mut response = Vec::new();
            ctx.sub_request(&sub_request, hash).encode(&mut response);
            Bytes::from(response)
        };
        for (part, (_, bytes)) in request.operations().iter().enumerate() {
            let fate = fate();
            let response = matches!(fate, Fate::Done | Fate::Unanswered).then(|| perform(bytes));
            let result = match (fate, response) {
                (Fate::Done, Some(response)) => Ok(response),
                (Fate::NotApplied, _) => Err(NOT_APPLIED),
                _ => Err(UNKNOWN),
            };
            request.note(part, result);
        }
        let (result, back) = request.finish(router_ctx);
        let ctx = router_ctx.exec_context();
        for (_, bytes) in back {
            if matches!(fate(), Fate::Done | Fate::Unanswered) {
                let sub_request = SubRequest::decode(&bytes[1..]).expect("it is one");
                let hash = ctx.service.shards().hash(sub_request.key);
                ctx.sub_request(&sub_request, hash);
            }
        }
        match result {
            RoundResult::Next(next) => request = next,
            RoundResult::Completed(completion) => {
                let OpResult::Done(text) = completion.result else { panic!("a text") };
                return String::from_utf8_lossy(&text).into_owned();
            }
        }
    }
}

/// The keys that clients lease, their parents, and the limit of each.
const KEYS: [&str; 4] = ["k:0", "k:1", "a", "b"];

#[derive(Debug, Clone)]
enum Step {
    Lease { key: usize, client: usize, want: u64, used: u64, unused: u64, weight: u32 },
    Take { key: usize, cost: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let lease = (0_usize..2, 0_usize..3, 0_u64..60, 0_u64..9, 0_u64..9, 1_u32..4);
    prop_oneof![
        3 => lease.prop_map(|(key, client, want, used, unused, weight)| {
            Step::Lease { key, client, want, used, unused, weight }
        }),
        1 => (0_usize..4, 0_u64..20).prop_map(|(key, cost)| Step::Take { key, cost }),
    ]
}

/// `k` has the parent `a`, which has the parent `b`.
fn file(maxima: [u64; 3], shadow: bool, kind: &str) -> Limits {
    let [k, a, b] = maxima;
    let text = format!(
        "[[limit]]\nname = 'k'\nmatch = 'k:{{n}}'\npolicy = '{kind}:{k}/1h'\nparents = ['a']\n\
         [[limit]]\nname = 'a'\nmatch = 'a'\npolicy = 'fixed:{a}/1h'\nparents = ['b']\n\
         shadow = {shadow}\n\
         [[limit]]\nname = 'b'\nmatch = 'b'\npolicy = 'fixed:{b}/1h'\n"
    );
    Limits::parse("l.toml", text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

impl Step {
    fn line(&self) -> String {
        match self {
            Self::Lease { key, client, want, used, unused, weight } => format!(
                "lease {} c{client} {want} - used={used} unused={unused} weight={weight} ttl=1h\r\n",
                KEYS[*key]
            ),
            Self::Take { key, cost } => format!("take {} {cost} -\r\n", KEYS[*key]),
        }
    }
}

/// The numbers of a lease line: granted, remaining and safe.
fn numbers(reply: &str) -> Option<[u64; 3]> {
    let words: Vec<&str> = reply.split_ascii_whitespace().collect();
    let safe = words.iter().find_map(|word| word.strip_prefix("safe="))?;
    let [granted, remaining, safe] = [words[1], words[4], safe].map(|word| word.parse().ok());
    Some([granted?, remaining?, safe?])
}

impl LoneNode {
    /// The reply to a lease whose operations end as `fate` says.
    fn lease_with(&mut self, raw: &[u8], fate: impl FnMut() -> Fate) -> String {
        self.with(|_, router_ctx| {
            let bounds = router_ctx.service.shards().bounds();
            let Ok(Decoded::Request { request: Request::Command { command, .. }, .. }) =
                decode(raw, 0, bounds)
            else {
                panic!("a command")
            };
            let mut ctx = router_ctx.exec_context();
            let mut counted = Vec::new();
            let lookup = look_up(&ctx, command.key.as_bytes(), &mut counted);
            let Ok(Some(found)) = &lookup.key_limit else { panic!("a limited key") };
            let client_lease = lease_of(found, &command.operation).expect("a lease");
            match begin(&mut ctx, raw, found, client_lease) {
                Ok(request) => run(router_ctx, request, fate),
                Err(error) => error,
            }
        })
    }

    /// Units that are used or out, of a limit whose parents have as many.
    fn used(&mut self, key: &str, max: u64) -> u64 {
        let reply = self.by_owners(format!("lease {key} probe 0 -\r\n").as_bytes());
        let Some([_, left, _]) = numbers(&reply) else { panic!("{reply}") };
        max.saturating_sub(left)
    }
}

proptest! {
    #[test]
    fn several_owners_lease_as_one_node(
        maxima in any::<[u8; 3]>(),
        shadow in any::<bool>(),
        is_bucket in any::<bool>(),
        steps in vec(step(), 1..30),
    ) {
        let maxima = maxima.map(|max| u64::from(max) + 4);
        let kind = if is_bucket { "bucket" } else { "fixed" };
        let limits = || file(maxima, shadow, kind);
        let mut one = lone_server(limits());
        let mut owners = LoneNode::new(limits());
        for step in &steps {
            let line = step.line();
            let (expected, reply) = (one(line.as_bytes()), owners.by_owners(line.as_bytes()));
            match step {
                Step::Lease { .. } => {
                    prop_assert!(numbers(&expected).is_some(), "{} → {}", line, expected);
                    prop_assert_eq!(numbers(&reply), numbers(&expected), "{} → {}", line, reply);
                }
                Step::Take { .. } => {
                    let [word, expected] =
                        [&reply, &expected].map(|reply| reply.split(' ').next().map(str::to_owned));
                    prop_assert_eq!(word, expected, "{}", line);
                }
            }
            let peek = b"take b 0 - peek\r\n";
            let remaining = |reply: String| reply.split(' ').nth(2).map(str::to_owned);
            prop_assert_eq!(remaining(one(peek)), remaining(owners.by_owners(peek)), "{}", line);
        }
    }

    /// Whatever is lost, the units that clients have or spent are charged to all parents.
    #[test]
    fn lost_operations_lend_no_unit_twice(
        maxima in any::<[u8; 3]>(),
        steps in vec(step(), 1..20),
        fates in vec(0..12, 1..60),
    ) {
        let maxima = maxima.map(|max| u64::from(max) + 4);
        let mut owners = LoneNode::new(file(maxima, false, "fixed"));
        let mut fates = fates.into_iter().cycle().map(|fate| match fate {
            0 => Fate::NotApplied,
            1 => Fate::Unanswered,
            2 => Fate::Lost,
            _ => Fate::Done,
        });
        let [k, a, b] = maxima;
        for step in steps.iter().filter(|step| matches!(step, Step::Lease { .. })) {
            let line = step.line();
            let reply = owners.lease_with(line.as_bytes(), || fates.next().expect("no end"));
            let is_error = reply.starts_with("SERVER_ERROR ");
            prop_assert!(is_error || numbers(&reply).is_some(), "{} → {}", line, reply);
            let leased = owners.used("k:0", k) + owners.used("k:1", k);
            for (key, max) in [("a", a), ("b", b)] {
                let charged = owners.used(key, max);
                prop_assert!(leased <= charged, "{} → {}: {} > {}", line, reply, leased, charged);
            }
        }
    }
}

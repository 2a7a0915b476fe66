//! The reply of each verb on a limit, by each way: one key, a key with parents, several owners, and
//! an owner out of reach.

use bytes::Bytes;
use cluster::id::{Incarnation, NodeId, Partition};
use cluster::replica::NodeTime;
use engine::Partitioner;
use protocol::{Decoded, Get, Keys, Operation, Request, decode};

use super::multi_owner::{
    MultiOwnerRequest, MultiOwnerResult, RecordedKeys, give_hold_name, limit_op_of, refuses_id,
};
use super::pending::{Client, OpResult, ReplyKind};
use super::replicas::Replicas;
use super::router::{Router, RouterContext, lease_of};
use super::state_machine::ORIGIN_NS;
use super::sub_request::SubRequest;
use super::{Keyspace, Node};
use crate::commands::companions::look_over_parents;
use crate::commands::context::ExecContext;
use crate::commands::limit_op::LimitOp;
use crate::commands::lookup::look_up;
use crate::commands::scratch::Scratch;
use crate::runtime::service::Service;
use crate::session::{Session, SessionContext};
use leases::Fate;
use tollgate_limits::Limits;

mod charges;
mod leases;

const BITS: u32 = 4;
const SECOND: u64 = 1_000_000_000;

/// The limits; `user` has a parent unless `parents` is empty.
fn limits(parents: &str) -> Limits {
    let text = format!(
        "[[limit]]\nname = 'user'\nmatch = 'user:{{user}}'\npolicy = 'fixed:4/60s'\n\
         companions = ['#limit', '#remaining', '#retry', '#reset', '#info']\n\
         on_unavailable = 'local'\n{parents}\n\
         [[limit]]\nname = 'all'\nmatch = 'all'\npolicy = 'fixed:6/60s'\n\
         [[limit]]\nname = 'queue'\nmatch = 'queue:{{q}}'\npolicy = 'leaky:2/1s,wait=2s'\n{parents}\n\
         [[limit]]\nname = 'slots'\nmatch = 'slots:{{s}}'\npolicy = 'concurrency:2,hold=60s'\n{parents}\n"
    );
    Limits::parse("l.toml", text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Requests of a conversation; each conversation has a server of its own.
const CONVERSATIONS: [&[&str]; 12] = [
    &["incr user:1 3", "incr user:1 0", "incr user:1 2", "decr user:1 1", "decr user:2 1"],
    &[
        "ma user:1 N60 J1 v",
        "ma user:1 D4 v t",
        "ma user:1 MD D1 v",
        "ma user:1 D9 Pbucket:3/s v",
        "ma user:1 MD C9007199254740991 v",
        "ma user:9 MD C9007199254740991 v",
        "incrx user:1 -9 60",
        "incrx user:1 -9 60",
    ],
    &["ma user:1 Pbucket:3/s D2 v", "ma user:1 Pbucket:3/s D2 v", "mg user:1 Pbucket:3/s v"],
    &[
        "add user:1 7 0 1\r\n3",
        "add user:1 7 0 1\r\n1",
        "add user:2 0 0 1\r\nx",
        "add user:3 0 0 1\r\n9",
    ],
    &[
        "set user:1 0 0 1\r\n2",
        "get user:1",
        "touch user:1 5",
        "delete user:1",
        "incr user:1#remaining 1",
    ],
    &[
        "take user:1 3 -",
        "take user:1 3 - part",
        "take user:1 1 -",
        "take user:1 1 - peek",
        "take user:2 1 - cas",
        "take user:2 1 - id=a",
        "take user:3 1 =user",
        "take user:3 1 =all",
        "take user:3 1 bucket:2/s",
        "take user:3 1 - wait=1s",
        "take user:5 3 - debit",
        "take user:5 3 - debit",
        "take user:5 1 -",
        "take user:4 1 =none",
        "refund user:1 2",
        "refund user:9 2",
    ],
    &[
        "take slots:1 1 -",
        "take slots:1 1 - hold=5s",
        "take slots:1 1 -",
        "renew slots:1 LEASE 9s",
        "settle slots:1 LEASE 0",
        "settle slots:1 LEASE 0",
        "take user:1 1 - hold=5s",
        "settle user:1 LEASE 3",
        "settle slots:1 77 0",
        "renew slots:1 77 9s",
    ],
    &["take queue:1 2 -", "take queue:1 1 - wait=1s", "incr queue:1 1", "take queue:1 5 - wait=0"],
    &[
        "takem 2 user:1 user:2",
        "takem 1 user:1 user:1",
        "takem 9 user:1",
        "takem 1 user:1 other",
        "takem 1 user:3 id=a",
        "takem 1,2 user:4 user:5",
        "takem 1,2 user:4 user:5",
        "takem 0,9 user:4 user:5 peek",
        "takem 9007199254740991,9007199254740991 user:6 user:7",
        "lease user:1 c 2 -",
        "lease user:1 c 2 bucket:3/s",
        "incrx user:1 1 60",
        "slide user:1 1 60s",
    ],
    &[
        "takem 1,9,2 user:1 other user:2 each",
        "takem 1 user:1 user:2 user:1 peek each",
        "takem 1,3,2 user:1 other user:2 each info",
        "takem 1 user:1 user:2 each info",
        "takem 1 other each",
        "takem 1 other user:9 info",
        "takem 9007199254740991,1 user:7 user:8 each",
        "takem 1 user:8 user:9 id=a each",
        "takem 2,1 queue:1 user:5 each info",
        "takem 1 queue:1 user:5 wait=1s each info",
        "takem 1 slots:1 user:6 each info",
    ],
    &[
        "take user:1 2 -",
        "take user:2 3 -",
        "get user:1#remaining",
        "get user:1#retry",
        "get user:1#retry:2",
        "get user:1#retry:9",
        "get user:1#reset",
        "get user:1#info",
        "gets user:9#info",
        "get user:1#limit",
        "mg user:1#info v t",
        "me user:1#remaining",
        "incr user:1#remaining 1",
        "get user:1#remaining user:2#remaining",
    ],
    &[
        "take user:1 1 - info",
        "take user:1 1 - info peek",
        "take user:1 9 - info",
        "take user:1 9 - part info",
        "take user:2 1 - cas=7 info",
        "take user:3 1 =all info",
        "take user:3 1 bucket:2/s info",
        "take user:3 1 =none info",
        "take queue:1 2 - info",
        "take queue:1 1 - wait=1s info",
        "take slots:1 1 - info",
        "take user:4 1 - id=a info",
        "take user:4 1 - id=a info",
    ],
];

struct FirstByte;

impl Partitioner for FirstByte {
    fn partition(&self, key: &[u8]) -> u64 {
        key[0].into()
    }
}

/// One way, with the id of the last hold that it granted.
struct Way<F> {
    name: &'static str,
    lease: String,
    reply: F,
}

impl<F: FnMut(&[u8]) -> String> Way<F> {
    fn new(name: &'static str, reply: F) -> Self {
        Self { name, lease: "1".to_owned(), reply }
    }

    /// The line of the reply to a request on the page. Ids of holds are random: they are left out.
    fn line(&mut self, request: &str) -> String {
        let request = format!("{}\r\n", request.replace("LEASE", &self.lease));
        let reply = (self.reply)(request.as_bytes());
        if let Some((_, rest)) = reply.split_once("lease=") {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            self.lease = rest[..end].to_owned();
        }
        let text = reply.replace(&format!("lease={}", self.lease), "lease=#");
        format!("    {}: {}", self.name, text.replace("\r\n", " ").trim_end())
    }
}

/// A server without a cluster.
fn lone_server(limits: Limits) -> impl FnMut(&[u8]) -> String {
    let service = Service::of_flags(&[], limits);
    let (active_limits, mut scratch) = (service.limits().load(), Scratch::default());
    let mut session = Session::default();
    let now = engine::Now::at_ms(10_000);
    move |raw| {
        let counters = service.counters(0);
        let mut ctx = SessionContext::new(&service, counters, now, &active_limits, &mut scratch);
        let mut out = Vec::new();
        session.run(&mut ctx, raw, &mut out);
        String::from_utf8(out).expect("it is text")
    }
}

/// The look of a retrieval at several owners, with the keys that it looks at listed.
fn look_of_owners(ctx: &mut ExecContext<'_>, keys: Keys<'_>) -> Result<LimitOp, &'static str> {
    let key = keys.only().ok_or("several keys")?;
    let mut counted = Vec::new();
    let lookup = look_up(ctx, key.as_bytes(), &mut counted);
    let Ok(Some(found)) = &lookup.key_limit else { return Err("no limit") };
    let get = Operation::Get(Get::default());
    let op = look_over_parents(found, key.as_bytes(), &get).ok_or("one owner")?;
    ctx.list_charges(found).map(|()| op).map_err(|_| "too many")
}

/// The keys on which owners record their decisions on a request.
fn recorded_keys(request: &Request<'_>) -> RecordedKeys {
    match request {
        Request::Command { command, form } => {
            RecordedKeys::of_command(&command.operation, form, command.key.as_bytes())
        }
        Request::TakeMany { many, .. } => RecordedKeys::of_many(many),
        _ => RecordedKeys::NONE,
    }
}

/// A node of a cluster without links.
struct LoneNode {
    service: Service,
    router: Router,
    scratch: Scratch,
    /// The name of the last hold over several owners.
    hold: u64,
}

/// The reply of a request that several owners answered.
fn text_of(result: MultiOwnerResult) -> String {
    match result {
        MultiOwnerResult::Completed(completion) => match completion.result {
            OpResult::Done(text) => String::from_utf8_lossy(&text).into_owned(),
            other => format!("{other:?}"),
        },
        MultiOwnerResult::Failed { error, .. } => format!("failed: {error}"),
    }
}

impl LoneNode {
    fn new(limits: Limits) -> Self {
        let service = Service::of_flags(&["--seeds=127.0.0.1:1", "--insecure"], limits);
        let node = Node::of(&service).expect("it has a cluster");
        node.partition_prefix.set(BITS, [1; 4], FirstByte);
        node.me.set((NodeId(1), Incarnation(1))).expect("it is new");
        let are_shared = service.shards().share_partitions(BITS);
        let replicas = Replicas::new(1 << BITS, node.options.replicas, are_shared);
        assert!(node.keyspace.set(Keyspace { bits: BITS, replicas }).is_ok());
        let router = Router::new(node, 0);
        Self { service, router, scratch: Scratch::default(), hold: 0 }
    }

    fn with<T>(&mut self, work: impl FnOnce(&mut Router, &mut RouterContext<'_>) -> T) -> T {
        let active_limits = self.service.limits().load();
        let mut ctx = RouterContext {
            service: &self.service,
            counters: self.service.counters(0),
            now: NodeTime { mono_ns: SECOND, wall_ns: ORIGIN_NS + SECOND },
            active_limits: &active_limits,
            worker: 0,
            scratch: &mut self.scratch,
        };
        work(&mut self.router, &mut ctx)
    }

    /// The reply that several owners make, or the reason why the request is none of theirs.
    fn by_owners(&mut self, raw: &[u8]) -> String {
        self.hold += 1;
        let hold = 1_000_000 + self.hold;
        self.with(|_, router_ctx| {
            let bounds = router_ctx.service.shards().bounds();
            let Ok(Decoded::Request { request, .. }) = decode(raw, 0, bounds) else {
                return "not decoded".to_owned();
            };
            let mut ctx = router_ctx.exec_context();
            let mut counted = Vec::new();
            let mut op = match &request {
                Request::Command { command, form } => {
                    let lookup = look_up(&ctx, command.key.as_bytes(), &mut counted);
                    let Ok(Some(found)) = &lookup.key_limit else { return "no limit".to_owned() };
                    if let Some(lease) = lease_of(found, &command.operation) {
                        return match leases::begin(&mut ctx, raw, found, lease) {
                            Ok(request) => leases::run(router_ctx, request, || Fate::Done),
                            Err(error) => error,
                        };
                    }
                    let look = look_over_parents(found, command.key.as_bytes(), &command.operation);
                    match look.map_or_else(|| limit_op_of(found, &command.operation, form), Ok) {
                        Ok(op) => ctx.list_charges(found).map(|()| op).expect("there are few"),
                        Err(why) => return format!("{why:?}"),
                    }
                }
                Request::TakeMany { many, .. } => {
                    if let Some(why) = refuses_id(many.id) {
                        return why.to_owned();
                    }
                    match ctx.list_all_charges(many, &mut counted) {
                        Ok(true) => LimitOp::of_many(many),
                        other => return format!("{other:?}"),
                    }
                }
                Request::Retrieve { keys, .. } => match look_of_owners(&mut ctx, *keys) {
                    Ok(op) => op,
                    Err(why) => return why.to_owned(),
                },
                Request::Admin { .. } => return "no command".to_owned(),
            };
            if let Some(error) = op.refusal(&ctx.scratch.charges) {
                return error.to_owned();
            }
            let charges = std::mem::take(&mut ctx.scratch.charges);
            give_hold_name(&mut op, &charges, || hold);
            let of = |_| Partition::default();
            let is_retrieval = matches!(request, Request::Retrieve { .. });
            let reply_kind =
                if is_retrieval { ReplyKind::Part } else { ReplyKind::Whole { quiet: false } };
            let (client, op) = (Client::default(), (op, recorded_keys(&request)));
            let mut owners =
                MultiOwnerRequest::new(client, 0, (raw, &reply_kind), op, &ctx, &charges, of);
            for (row, (_, bytes)) in owners.operations().into_iter().enumerate() {
                let sub_request = SubRequest::decode(&bytes[1..]).expect("it is one");
                let hash = ctx.service.shards().hash(sub_request.key);
                let mut response = Vec::new();
                ctx.sub_request(&sub_request, hash).encode(&mut response);
                owners.note(row, Ok(Bytes::from(response)));
            }
            let (result, back) = owners.finish(router_ctx);
            let ctx = router_ctx.exec_context();
            for (_, bytes) in &back {
                let sub_request = SubRequest::decode(&bytes[1..]).expect("it is one");
                let hash = ctx.service.shards().hash(sub_request.key);
                ctx.sub_request(&sub_request, hash);
            }
            text_of(result)
        })
    }

    /// The reply while the owner is out of reach; a request that needs the owner gets `away`.
    fn while_away(&mut self, raw: &[u8]) -> String {
        self.with(|router, ctx| {
            let bounds = ctx.service.shards().bounds();
            if let Ok(Decoded::Request { request: Request::Command { command, form }, .. }) =
                decode(raw, 0, bounds)
                && let Some(text) = router.change_own_hold(ctx, &command, &form)
            {
                return format!("own: {}", String::from_utf8_lossy(&text));
            }
            let text = router.answer_degraded(ctx, raw, "away");
            String::from_utf8_lossy(&text).into_owned()
        })
    }
}

#[test]
fn each_way_gives_the_reply_that_is_pinned() {
    let parents = "parents = ['all']";
    let mut page = String::new();
    for conversation in CONVERSATIONS {
        let mut owners = LoneNode::new(limits(parents));
        let mut away = LoneNode::new(limits(""));
        let mut away_parents = LoneNode::new(limits(parents));
        let mut one = Way::new("one", lone_server(limits("")));
        let mut several = Way::new("parents", lone_server(limits(parents)));
        let mut owners = Way::new("owners", |raw: &[u8]| owners.by_owners(raw));
        let mut away = Way::new("away", |raw: &[u8]| away.while_away(raw));
        let mut away_parents = Way::new("away, parents", |raw: &[u8]| away_parents.while_away(raw));
        for request in conversation {
            let lines = [
                request.replace("\r\n", " "),
                one.line(request),
                several.line(request),
                owners.line(request),
                away.line(request),
                away_parents.line(request),
            ];
            page.push_str(&lines.join("\n"));
            page.push('\n');
        }
        page.push('\n');
    }
    insta::assert_snapshot!(page);
}

/// A server whose limit `one` has the parent `all`, under these policies.
fn family(one: &str, all: &str) -> impl FnMut(&[u8]) -> String {
    let text = format!(
        "[[limit]]\nname = 'one'\nmatch = 'one'\npolicy = '{one}'\nparents = ['all']\n\
         [[limit]]\nname = 'all'\nmatch = 'all'\npolicy = '{all}'\n"
    );
    lone_server(Limits::parse("l.toml", text.as_bytes()).expect("they are right"))
}

#[test]
fn refused_part_counts_whole_at_an_over_parent() {
    for request in ["take one 10 -\r\n", "take one 10 - part\r\n"] {
        let mut reply = family("fixed:3/1h", "fixed:5/1h,over");
        reply(b"incr all 1\r\n");
        reply(b"take one 3 -\r\n");
        reply(request.as_bytes());
        let usage = reply(b"incrx all 0 60\r\n");
        assert!(usage.starts_with("14 0 "), "{request}: {usage}");
    }
}

#[test]
fn refused_request_lets_unfilled_buckets_begin() {
    for (one, all) in [("bucket:9/1s,init=0", "fixed:9/1s"), ("fixed:9/1s", "bucket:9/1s,init=0")] {
        let has_state = |reply: &mut dyn FnMut(&[u8]) -> String, key: &str| {
            !reply(format!("mg {key}\r\n").as_bytes()).starts_with("EN")
        };
        let mut reply = family(one, all);
        reply(b"take one 1 - peek\r\n");
        assert!(!has_state(&mut reply, "one") && !has_state(&mut reply, "all"), "{one}");
        assert!(reply(b"take one 1 -\r\n").starts_with("DENY 9 0 "), "{one}");
        let begun = [has_state(&mut reply, "one"), has_state(&mut reply, "all")];
        assert_eq!(begun, [one.contains("init"), all.contains("init")]);
    }
}

//! What a clustered node makes of requests: an operation for whoever owns the key.
//!
//! Here: which requests become which operations. Not here: how they are done (`machine`), where
//! they go (`front`).

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use cluster::id::Partition;
use engine::Take;
use protocol::{Admin, Command, Exptime, Form, Native, Operation, Request};

use super::degraded::is_taking;
use super::delivery::{Kind, NOT_APPLIED, Use};
use super::family::{Family, NoWish, Wish, refuses_id, wish_of};
use super::front::{Front, operation};
use super::front::{lent, node_now};
use super::machine::{Sort, partition_of};
use crate::bound::{tell, written_policy};
use crate::limiting::NEVER_WAITS;
use crate::session::{Answer, LookedUp, Retrieval, Round, Session, TakeMany, counted_key};

/// What is told instead when the item was too large.
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";

/// `flush_all` is tried for so long: all items of the cluster go, and on each of their copies.
const FLUSH_NS: u64 = 60_000_000_000;

/// Told before the node has a place in a cluster.
pub(super) const STARTING: &str = "SERVER_ERROR not applied: the node is starting\r\n";

impl Session {
    /// Puts what has come for this client into its places, and tells what can be told. True: so much is
    /// owed by other nodes that no more is to be asked of them now.
    pub(crate) fn is_held_up(&mut self, round: &mut Round<'_>, out: &mut Vec<u8>) -> bool {
        let Some(front) = &mut round.front else { return false };
        front.give_to(front.client, &mut self.replies);
        self.replies.collect(out);
        self.must_wait(front)
    }

    /// Whether so much is owed to this client, or by other nodes, that it is not to be read on.
    #[inline]
    pub(crate) fn must_wait(&self, front: &Front) -> bool {
        let is_behind = front.is_full() || front.is_held_back();
        self.replies.is_full() || (is_behind && !self.replies.is_empty())
    }

    /// As [`Session::refuse_value`]: the old value of `key` goes at its owner.
    pub(crate) fn refuse_clustered_value(
        &mut self,
        round: &mut Round<'_>,
        key: Option<&[u8]>,
        told: &'static str,
        out: &mut Vec<u8>,
    ) {
        let is_member = round.front.as_ref().is_some_and(|front| front.node().space().is_some());
        let Some(key) = key.filter(|_| is_member) else {
            return self.replies.say(told.as_bytes(), out);
        };
        let place = self.replies.wait();
        let hash = round.service.shards().hash(key);
        submit(round, hash, Kind::Write, &operation(Sort::Drop, key), place, Use::Instead(told));
    }

    /// As `answer`, on a node of a cluster: `words` is the request as the client wrote it.
    // On its own: a server by itself must not pay for what it needs.
    #[inline(never)]
    pub(crate) fn take(
        &mut self,
        round: &mut Round<'_>,
        request: &Request<'_>,
        words: &[u8],
        looked: &LookedUp<'_>,
        out: &mut Vec<u8>,
    ) -> Answer {
        if self.is_held_up(round, out) {
            return Answer::NotYet;
        }
        if !self.authenticated {
            return self.authenticate(round, request, out);
        }
        let is_on_keys = !matches!(request, Request::Admin { .. });
        if is_on_keys && round.front.as_ref().is_none_or(|front| front.node().space().is_none()) {
            return self.refuse_start(round, request, out);
        }
        self.waited_for_start = false;
        match request {
            Request::Command { command, form } => {
                self.take_command(round, command, form, words, looked, out);
                Answer::Given
            }
            Request::Retrieve { keys, with_cas, touch } => {
                let retrieval = Retrieval { keys: *keys, with_cas: *with_cas, touch: *touch };
                self.retrieve(round, retrieval, looked, out)
            }
            Request::TakeMany { cost, keys, peek, id, quiet } => {
                let many = TakeMany { cost: *cost, keys: *keys, peek: *peek, id: *id };
                self.take_many_keys(round, many, *quiet, words, out);
                Answer::Given
            }
            _ if !self.replies.is_empty() => Answer::NotYet,
            Request::Admin { admin: Admin::Quit, .. } => Answer::Close,
            Request::Admin { admin: Admin::FlushAll(delay), quiet }
                if round.service.config().flush_all =>
            {
                if delay.0 > 0 {
                    let told: &[u8] =
                        b"SERVER_ERROR a cluster does not flush later, only at once\r\n";
                    self.replies.say(if *quiet { b"" } else { told }, out);
                } else {
                    self.flush(round, *quiet, out);
                }
                Answer::Given
            }
            Request::Admin { admin: Admin::Cluster(verb), .. } => {
                self.command_cluster(round, *verb, out);
                Answer::Given
            }
            Request::Admin { admin, quiet } => round.admin(*admin, *quiet, out),
        }
    }

    /// A request that comes before the node has a place in a cluster: at the very start it waits for
    /// that, later it is refused.
    fn refuse_start(
        &mut self,
        round: &mut Round<'_>,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> Answer {
        let now = node_now(round.service.clock(), round.now);
        let Some(front) = &mut round.front else { return Answer::Close };
        if !self.waited_for_start && front.is_starting(now) {
            self.waited_for_start = true;
            let place = self.replies.wait();
            front.wait_for_start(now, place);
            return Answer::NotYet;
        }
        self.waited_for_start = false;
        let told = if is_silent(request) { String::new() } else { front.node().starting() };
        self.replies.say(told.as_bytes(), out);
        Answer::Given
    }

    fn take_command(
        &mut self,
        round: &mut Round<'_>,
        command: &Command<'_>,
        form: &Form<'_>,
        words: &[u8],
        looked: &LookedUp<'_>,
        out: &mut Vec<u8>,
    ) {
        match &looked.bound {
            Err(error) => self.say_error(&error.to_string(), form, out),
            Ok(_) => self.submit_command(round, command, form, words, looked, out),
        }
    }

    /// As [`tell`], in its turn.
    fn say_error(&mut self, why: &str, form: &Form<'_>, out: &mut Vec<u8>) {
        let mut text = Vec::new();
        tell(why, form, &mut text);
        self.replies.say(&text, out);
    }

    fn submit_command(
        &mut self,
        round: &mut Round<'_>,
        command: &Command<'_>,
        form: &Form<'_>,
        words: &[u8],
        looked: &LookedUp<'_>,
        out: &mut Vec<u8>,
    ) {
        let own = command.key.as_bytes();
        let shards = round.service.shards();
        let (_, hash) = counted_key(shards, own, Some(&command.operation), looked);
        let quiet = form.is_quiet() && !matches!(form, Form::Meta { .. });
        if let Operation::TooLarge { drop } = command.operation {
            if !drop {
                let told = if quiet { "" } else { TOO_LARGE };
                return self.replies.say(told.as_bytes(), out);
            }
            let place = self.replies.wait();
            let used = Use::Instead(if quiet { "" } else { TOO_LARGE });
            return submit(round, hash, Kind::Write, &operation(Sort::Drop, own), place, used);
        }
        if let Some(text) = change_own_hold(round, command, form) {
            return self.replies.say(if quiet { b"" } else { &text }, out);
        }
        if let Ok(Some(found)) = &looked.bound
            && found.has_parents()
            && written_policy(&command.operation, form).is_none()
        {
            match wish_of(found, &command.operation) {
                Ok(wish) => {
                    let listed = round.list(found);
                    return match listed {
                        Ok(()) if wish.waits_in_vain(&round.scratch.charges) => {
                            self.say_error(NEVER_WAITS, form, out);
                        }
                        Ok(()) => self.submit_family(round, (words, quiet), wish),
                        Err(error) => self.say_error(&error.to_string(), form, out),
                    };
                }
                Err(NoWish::OneKey) => {}
                Err(NoWish::Unsupported(why)) => return self.say_error(why, form, out),
            }
        }
        let kind = Kind::Write;
        if !is_taking(command, form, looked) {
            let (place, used) = (self.replies.wait(), Use::Whole { quiet });
            return submit(round, hash, kind, &operation(Sort::Plain, words), place, used);
        }
        let Some(front) = round.front.take() else { return };
        let now = node_now(round.service.clock(), round.now);
        let is_away = front.partition(hash).is_some_and(|partition| front.is_away(now, partition));
        if is_away {
            let text = front.answer_degraded(
                &mut lent(round),
                words,
                if quiet { "" } else { NOT_APPLIED },
            );
            round.front = Some(front);
            return self.replies.say(&text, out);
        }
        round.front = Some(front);
        let place = self.replies.wait();
        let op = operation(Sort::Plain, words);
        let used = Use::Limited { quiet, words: op.slice(1..) };
        submit(round, hash, kind, &op, place, used);
    }

    /// `takem`: each key and its parents, by their owners.
    fn take_many_keys(
        &mut self,
        round: &mut Round<'_>,
        many: TakeMany<'_>,
        quiet: bool,
        words: &[u8],
        out: &mut Vec<u8>,
    ) {
        let mut counted = Vec::new();
        let told = match (refuses_id(many.id), round.list_all(many.keys, &mut counted)) {
            (Some(why), _) => why.to_owned(),
            (None, Ok(true)) => {
                let units = Take { cost: many.cost, peek: many.peek, ..Take::default() };
                return self.submit_family(round, (words, quiet), Wish::Take(units));
            }
            (None, Ok(false)) => "NOT_FOUND".to_owned(),
            (None, Err(error)) => error.to_string(),
        };
        if !quiet {
            self.replies.say(format!("{told}\r\n").as_bytes(), out);
        }
    }

    /// The keys that are listed, each by its owner.
    fn submit_family(
        &mut self,
        round: &mut Round<'_>,
        (words, quiet): (&[u8], bool),
        mut wish: Wish,
    ) {
        let Some(front) = round.front.take() else { return };
        let node = Arc::clone(front.node());
        if let Some(space) = node.space() {
            let charges = std::mem::take(&mut round.scratch.charges);
            if let Wish::Take(take) = &mut wish
                && !take.peek
                && (take.hold.is_some() || charges.rows().any(|row| row.holds))
            {
                take.lease = Some(node.name_hold());
                // A part of a hold is not given back: all of it is held, or nothing.
                take.part = false;
            }
            let place = self.replies.wait();
            let of = |hash| partition_of(space, hash);
            let family =
                Family::new(front.client, place, (words, quiet), wish, round, &charges, of);
            round.scratch.charges = charges;
            front.submit_family(&mut lent(round), family);
        }
        round.front = Some(front);
    }

    /// One key of a retrieval.
    // On its own, as `take`.
    #[inline(never)]
    pub(crate) fn take_key(
        &mut self,
        round: &mut Round<'_>,
        command: &Command<'_>,
        looked: &LookedUp<'_>,
        (with_cas, touch): (bool, Option<Exptime>),
    ) {
        // A key that no limit can count under has no usage.
        if looked.bound.is_err() {
            return;
        }
        let own = command.key.as_bytes();
        let (_, hash) = counted_key(round.service.shards(), own, None, looked);
        let kind = if touch.is_some() { Kind::Write } else { Kind::Read };
        let mut op = BytesMut::with_capacity(own.len() + 32);
        op.put_u8(Sort::Plain as u8);
        op.put_slice(match (touch.is_some(), with_cas) {
            (false, false) => b"get ",
            (false, true) => b"gets ",
            (true, false) => b"gat ",
            (true, true) => b"gats ",
        });
        if let Some(exptime) = touch {
            op.put_slice(format!("{} ", exptime.0).as_bytes());
        }
        op.put_slice(own);
        op.put_slice(b"\r\n");
        let place = self.replies.wait();
        submit(round, hash, kind, &op.freeze(), place, Use::Part);
    }

    /// `flush_all`: every partition by an operation of its own.
    fn flush(&mut self, round: &mut Round<'_>, quiet: bool, out: &mut Vec<u8>) {
        round.counters.cmd_flush.add(1);
        let partitions = round
            .front
            .as_ref()
            .and_then(|front| Some(front.node().space()?.copies.len()))
            .unwrap_or(0);
        if partitions == 0 {
            self.replies.say(b"SERVER_ERROR not applied: no cluster yet\r\n", out);
            return;
        }
        let place = self.replies.gather(partitions, if quiet { "" } else { "OK\r\n" });
        for number in 0..partitions {
            let op = operation(Sort::Flush, b"");
            let partition = Partition(number as u16);
            submit_flush(round, partition, &op, place);
        }
    }
}

/// Sends an operation on the key of this hash.
fn submit(round: &mut Round<'_>, hash: u64, kind: Kind, op: &Bytes, place: u64, used: Use) {
    let Some(front) = round.front.take() else { return };
    let partition = front.partition(hash).unwrap_or_default();
    front.submit(&mut lent(round), partition, kind, op, place, used);
    round.front = Some(front);
}

/// Settles or renews a hold that this node gave by itself.
fn change_own_hold(round: &mut Round<'_>, command: &Command<'_>, form: &Form<'_>) -> Option<Bytes> {
    if !matches!(command.operation, Operation::Native(Native::Settle { .. } | Native::Renew { .. }))
    {
        return None;
    }
    let front = round.front.take()?;
    let text = front.change_own_hold(&mut lent(round), command, form);
    round.front = Some(front);
    text
}

/// As [`submit`], of a part of `flush_all`.
fn submit_flush(round: &mut Round<'_>, partition: Partition, op: &Bytes, place: u64) {
    let Some(front) = round.front.take() else { return };
    let (kind, used) = (Kind::Write, Use::Counted);
    front.submit_until(&mut lent(round), FLUSH_NS, partition, kind, op, place, used);
    round.front = Some(front);
}

/// Whether the client wants to hear nothing: `noreply`. `q` of a meta command does not hide errors.
pub(super) fn is_silent(request: &Request<'_>) -> bool {
    match request {
        Request::Command { form, .. } => form.is_quiet() && !matches!(form, Form::Meta { .. }),
        Request::TakeMany { quiet, .. } | Request::Admin { quiet, .. } => *quiet,
        Request::Retrieve { .. } => false,
    }
}

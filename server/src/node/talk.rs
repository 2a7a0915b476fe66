//! What a clustered node makes of requests: an operation for whoever owns the key.
//!
//! Here: which requests become which operations. Not here: how they are done (`machine`), where
//! they go (`front`).

use std::sync::Arc;

use bytes::Bytes;
use cluster::id::Partition;
use cluster::replica::Kind;
use engine::Take;
use protocol::{Admin, Command, Decoded, Form, Keys, Operation, ProtocolError, Request, decode};

use super::degraded::is_taking;
use super::family::{Family, NoWish, Wish, refuses_id, wish_of};
use super::front::{Lent, NOT_APPLIED, Use, node_now};
use super::machine::{Sort, operation, partition_of};
use crate::bound::{tell, written_policy};
use crate::session::{
    Answer, LookedUp, Pause, REPLY_BYTES_HIGH, Round, Session, TakeMany, counted_key, look_up,
    pause_before,
};

/// What is told instead when the item was too large.
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";

/// Told before the node has a place in a cluster.
pub(super) const STARTING: &str = "SERVER_ERROR not applied: the node is starting\r\n";

/// A request that waits for its turn.
enum Taken {
    /// It is under way, or answered.
    Done,
    /// Not before the answers that are owed are told.
    NotYet,
    Close,
}

impl Session {
    /// As `run_batch`, on a node of a cluster: one request, on its way to its owner.
    pub(crate) fn run_clustered(
        &mut self,
        round: &mut Round<'_>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Option<Pause>) {
        self.take_answers(round, out);
        let is_full = round.front.as_ref().is_some_and(|front| front.is_full());
        if self.replies.is_full() || (is_full && !self.replies.is_empty()) {
            return (0, Some(Pause::Peers));
        }
        match decode(input, self.scanned, round.service.shards().bounds()) {
            Ok(Decoded::Request { request, consumed }) => {
                if let Some(pause) = pause_before(round, out) {
                    return (0, Some(pause));
                }
                let words = &input[..consumed.min(input.len())];
                match self.take(round, &request, words, out) {
                    Taken::Done => {
                        round.requests -= 1;
                        self.scanned = 0;
                        (consumed, None)
                    }
                    Taken::NotYet => (0, Some(Pause::Peers)),
                    Taken::Close => (consumed, Some(Pause::Close)),
                }
            }
            Ok(Decoded::Incomplete { scanned, needed }) => {
                self.scanned = scanned;
                (0, Some(Pause::Input(needed)))
            }
            Err(refusal) => {
                if let Some(pause) = pause_before(round, out) {
                    return (0, Some(pause));
                }
                if !self.replies.is_empty() {
                    return (0, Some(Pause::Peers));
                }
                if refusal.error == ProtocolError::Close {
                    return (input.len(), Some(Pause::Close));
                }
                self.refuse(round, &refusal, out);
                round.requests -= 1;
                self.scanned = 0;
                (refusal.consumed, None)
            }
        }
    }

    /// Puts what has come for this client into its places, and tells what can be told.
    fn take_answers(&mut self, round: &mut Round<'_>, out: &mut Vec<u8>) {
        if let Some(front) = &mut round.front {
            front.give_to(front.client, &mut self.replies);
        }
        self.replies.collect(out);
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
        submit(round, hash, Kind::Write, operation(Sort::Drop, key), place, Use::Instead(told));
    }

    fn take(
        &mut self,
        round: &mut Round<'_>,
        request: &Request<'_>,
        words: &[u8],
        out: &mut Vec<u8>,
    ) -> Taken {
        if !self.authenticated {
            return match self.authenticate(round, request, out) {
                Answer::Close => Taken::Close,
                _ => Taken::Done,
            };
        }
        let is_on_keys = !matches!(request, Request::Admin { .. });
        if is_on_keys && round.front.as_ref().is_none_or(|front| front.node().space().is_none()) {
            let told = if is_silent(request) { "" } else { STARTING };
            self.replies.say(told.as_bytes(), out);
            return Taken::Done;
        }
        match request {
            Request::Command { command, form } => {
                self.take_command(round, command, form, words, out);
                Taken::Done
            }
            Request::Retrieve { keys, with_cas, touch } => {
                let mut verb = String::from(match (touch.is_some(), with_cas) {
                    (false, false) => "get ",
                    (false, true) => "gets ",
                    (true, false) => "gat ",
                    (true, true) => "gats ",
                });
                if let Some(exptime) = touch {
                    verb.push_str(&exptime.0.to_string());
                    verb.push(' ');
                }
                let kind = if touch.is_some() { Kind::Write } else { Kind::Read };
                self.take_keys(round, *keys, &verb, kind, out)
            }
            Request::TakeMany { cost, keys, peek, id, quiet } => {
                let many = TakeMany { cost: *cost, keys: *keys, peek: *peek, id: *id };
                self.take_many_keys(round, many, *quiet, words, out);
                Taken::Done
            }
            _ if !self.replies.is_empty() => Taken::NotYet,
            Request::Admin { admin: Admin::Quit, .. } => Taken::Close,
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
                Taken::Done
            }
            Request::Admin { admin: Admin::Cluster(verb), .. } => {
                self.command_cluster(round, *verb, out);
                Taken::Done
            }
            Request::Admin { admin, quiet } => match round.admin(*admin, *quiet, out) {
                Answer::Close => Taken::Close,
                _ => Taken::Done,
            },
        }
    }

    fn take_command(
        &mut self,
        round: &mut Round<'_>,
        command: &Command<'_>,
        form: &Form<'_>,
        words: &[u8],
        out: &mut Vec<u8>,
    ) {
        let mut counted = std::mem::take(&mut round.scratch.more_keys);
        counted.resize_with(1, Vec::new);
        let looked = look_up(round, command.key.as_bytes(), &mut counted[0]);
        match &looked.bound {
            Err(error) => self.say_error(&error.to_string(), form, out),
            Ok(_) => self.submit_command(round, command, form, words, &looked, out),
        }
        round.scratch.more_keys = counted;
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
            return submit(round, hash, Kind::Write, operation(Sort::Drop, own), place, used);
        }
        if let Ok(Some(found)) = &looked.bound
            && found.has_parents()
            && written_policy(&command.operation, form).is_none()
        {
            match wish_of(found, &command.operation) {
                Ok(wish) => {
                    let listed = round.list(found);
                    return match listed {
                        Ok(()) => self.submit_family(round, (words, quiet), wish),
                        Err(error) => self.say_error(&error.to_string(), form, out),
                    };
                }
                Err(NoWish::OneKey) => {}
                Err(NoWish::Unsupported(why)) => return self.say_error(why, form, out),
            }
        }
        let op = operation(Sort::Plain, words);
        if !is_taking(command, form, looked) {
            let place = self.replies.wait();
            return submit(round, hash, Kind::Write, op, place, Use::Whole { quiet });
        }
        let Some(front) = round.front.take() else { return };
        let is_away = front
            .node()
            .space()
            .is_some_and(|space| front.is_away(node_now(round.now), partition_of(space, hash)));
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
        let used = Use::Limited { quiet, words: op.slice(1..) };
        submit(round, hash, Kind::Write, op, place, used);
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

    /// One operation for each key, and then the end.
    fn take_keys(
        &mut self,
        round: &mut Round<'_>,
        keys: Keys<'_>,
        verb: &str,
        kind: Kind,
        out: &mut Vec<u8>,
    ) -> Taken {
        let start = self.answered;
        let mut last = start;
        let mut counted = std::mem::take(&mut round.scratch.more_keys);
        counted.resize_with(1, Vec::new);
        let mut words = Vec::new();
        for (key, offset) in keys.skip(start).iter() {
            self.take_answers(round, out);
            let is_full = round.front.as_ref().is_some_and(|front| front.is_full());
            if self.replies.is_full() || is_full || out.len() >= REPLY_BYTES_HIGH {
                // The same line again, from here on, when some answers are told.
                self.answered = last;
                round.scratch.more_keys = counted;
                return Taken::NotYet;
            }
            last = start + offset;
            let looked = look_up(round, key.as_bytes(), &mut counted[0]);
            // A key that no limit can count under has no usage.
            if looked.bound.is_err() {
                continue;
            }
            let hash = looked.hash;
            words.clear();
            words.extend_from_slice(verb.as_bytes());
            words.extend_from_slice(key.as_bytes());
            words.extend_from_slice(b"\r\n");
            let place = self.replies.wait();
            submit(round, hash, kind, operation(Sort::Plain, &words), place, Use::Part);
        }
        round.scratch.more_keys = counted;
        self.answered = 0;
        self.replies.end("END\r\n");
        Taken::Done
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
            submit_to(round, partition, Kind::Write, op, place, Use::Counted);
        }
    }
}

/// Sends an operation on the key of this hash.
fn submit(round: &mut Round<'_>, hash: u64, kind: Kind, op: Bytes, place: u64, used: Use) {
    let partition = round
        .front
        .as_ref()
        .and_then(|front| Some(partition_of(front.node().space()?, hash)))
        .unwrap_or_default();
    submit_to(round, partition, kind, op, place, used);
}

fn submit_to(
    round: &mut Round<'_>,
    partition: Partition,
    kind: Kind,
    op: Bytes,
    place: u64,
    used: Use,
) {
    let Some(front) = round.front.take() else { return };
    front.submit(&mut lent(round), partition, kind, op, place, used);
    round.front = Some(front);
}

fn lent<'r>(round: &'r mut Round<'_>) -> Lent<'r> {
    Lent {
        service: round.service,
        counters: round.counters,
        now: node_now(round.now),
        in_force: round.in_force,
        worker: round.worker,
        scratch: round.scratch,
    }
}

/// Whether the client wants to hear nothing: `noreply`. `q` of a meta command does not hide errors.
pub(super) fn is_silent(request: &Request<'_>) -> bool {
    match request {
        Request::Command { form, .. } => form.is_quiet() && !matches!(form, Form::Meta { .. }),
        Request::TakeMany { quiet, .. } | Request::Admin { quiet, .. } => *quiet,
        Request::Retrieve { .. } => false,
    }
}

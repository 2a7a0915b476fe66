//! A copy among others, step by step. What only shows in long runs is the model's (`tests/model`).

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::*;
use crate::map::command::Step;
use crate::partition_header::PartitionHeader;

const MS: u64 = 1_000_000;

/// Counters: an operation is the key, and adds one; with a `?` before it, it only looks.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Counters(BTreeMap<Bytes, u64>);

impl Machine for Counters {
    fn apply(&mut self, _: At, op: &[u8], effect: &mut Effect) {
        let (looks, key) = match op.strip_prefix(b"?") {
            Some(key) => (true, key),
            None => (false, op),
        };
        let mut count = self.0.get(key).copied().unwrap_or(0);
        if !looks {
            count += 1;
            self.0.insert(Bytes::copy_from_slice(key), count);
            effect.put(key, &count.to_be_bytes());
        }
        effect.answer(count.to_string().as_bytes());
    }

    fn install(&mut self, _: u64, key: &[u8], state: Option<&[u8]>) {
        match state {
            Some(state) => {
                let count = u64::from_be_bytes(state.try_into().expect("eight bytes"));
                self.0.insert(Bytes::copy_from_slice(key), count);
            }
            None => {
                self.0.remove(key);
            }
        }
    }

    fn export(
        &mut self,
        _: u64,
        cursor: Option<&[u8]>,
        _: usize,
        out: &mut Vec<(Bytes, Bytes)>,
    ) -> Option<Bytes> {
        // One key at a time.
        let from = Bytes::copy_from_slice(cursor.unwrap_or_default());
        let mut rest = self.0.range(from..);
        let (key, count) = rest.next()?;
        out.push((key.clone(), Bytes::copy_from_slice(&count.to_be_bytes())));
        rest.next().map(|(next, _)| next.clone())
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// Copies on nodes 1, 2, … and what is under way between them.
struct Cluster {
    now_ns: u64,
    entry: Entry,
    copies: Vec<(Replica, Counters)>,
    messages: VecDeque<(CopyId, CopyId, Term, Message)>,
    replies: Vec<(u64, Outcome)>,
    asks: Vec<Step>,
    /// Nodes that nothing reaches and that reach nobody.
    cut: Vec<u32>,
    seq: u64,
}

fn copy(node: u32, assignment: u32) -> CopyId {
    CopyId { node: NodeId(node), incarnation: Incarnation(1), assignment }
}

fn session() -> SessionId {
    SessionId { node: NodeId(9), incarnation: Incarnation(1), core: 0 }
}

impl Cluster {
    /// The first `in_sync` of `nodes` are in-sync copies, node 1 being primary.
    fn new(nodes: u32, in_sync: u32, options: Options) -> Self {
        let now = Now { mono_ns: 1000 * MS, wall_ns: 1_000_000 * MS };
        let place = |node| {
            let id = NodeId(node);
            (Replica::new(Partition(0), id, Incarnation(1), options, now), Counters::default())
        };
        let mut cluster = Self {
            now_ns: now.mono_ns,
            entry: Entry::default(),
            copies: (1..=nodes).map(place).collect(),
            messages: VecDeque::new(),
            replies: Vec::new(),
            asks: Vec::new(),
            cut: Vec::new(),
            seq: 0,
        };
        cluster.map(|entry| {
            entry.term = Term(1);
            entry.primary = Some(copy(1, 1));
            entry.in_sync = (1..=in_sync).map(|node| copy(node, node)).collect();
        });
        cluster.deliver();
        cluster
    }

    fn at(&mut self, node: u32, act: impl FnOnce(&mut Replica, &mut Turn<'_, Counters>)) {
        let now = Now { mono_ns: self.now_ns, wall_ns: self.now_ns + 999_000 * MS };
        let mut actions = Vec::new();
        let (replica, machine) = &mut self.copies[node as usize - 1];
        act(replica, &mut Turn { now, machine, actions: &mut actions });
        for action in actions {
            match action {
                Action::Send { to, from, term, message } => {
                    self.messages.push_back((from, to, term, message));
                }
                Action::Reply { reply, .. } => self.replies.push((reply.seq, reply.outcome)),
                Action::Ask(change) => self.asks.push(change.step),
            }
        }
    }

    /// Changes the map, and tells all that are not cut off.
    fn map(&mut self, change: impl FnOnce(&mut Entry)) {
        change(&mut self.entry);
        self.entry.ver += 1;
        let entry = self.entry.clone();
        for node in 1..=self.copies.len() as u32 {
            if !self.cut.contains(&node) {
                self.at(node, |replica, turn| replica.learn(turn, &entry));
            }
        }
    }

    fn deliver(&mut self) {
        while let Some((from, to, term, message)) = self.messages.pop_front() {
            if !self.cut.contains(&from.node.0) && !self.cut.contains(&to.node.0) {
                self.at(to.node.0, |replica, turn| replica.receive(turn, from, to, term, message));
            }
        }
    }

    fn wait(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(20) {
            self.now_ns += 20 * MS;
            for node in 1..=self.copies.len() as u32 {
                self.at(node, Replica::tick);
            }
            self.deliver();
        }
    }

    fn send(&mut self, node: u32, term: u32, seq: u64, ack: AckMode, op: &'static [u8]) {
        let kind = if op.starts_with(b"?") { Kind::Read } else { Kind::Write };
        let op = Op {
            term: Term(term),
            session: session(),
            seq,
            first_unacked: 1,
            kind,
            ack,
            deadline_ns: self.now_ns + 1000 * MS,
            op: Bytes::from_static(op),
        };
        self.at(node, |replica, turn| replica.operate(turn, op));
    }

    /// The next operation, to the primary.
    fn op(&mut self, op: &'static [u8]) {
        self.seq += 1;
        let primary = self.entry.primary.expect("there is one").node.0;
        self.send(primary, self.entry.term.0, self.seq, AckMode::Replica, op);
    }

    fn done(&self) -> Vec<(u64, &str)> {
        let done = self.replies.iter().filter_map(|(seq, outcome)| match outcome {
            Outcome::Done(result) => Some((*seq, std::str::from_utf8(result).expect("digits"))),
            _ => None,
        });
        done.collect()
    }

    /// Node 1 is dead, node 2 takes over.
    fn fail_over(&mut self) {
        self.cut.push(1);
        self.messages.clear();
        self.map(|entry| {
            entry.term = Term(2);
            entry.primary = Some(copy(2, 2));
            entry.in_sync.retain(|copy| copy.node != NodeId(1));
        });
    }
}

#[test]
fn an_operation_is_answered_when_every_backup_holds_it() {
    let mut cluster = Cluster::new(3, 3, Options::default());
    cluster.cut.push(3);
    cluster.op(b"a");
    cluster.deliver();
    assert_eq!(cluster.done(), []);
    cluster.cut.clear();
    cluster.wait(200);
    assert_eq!(cluster.done(), [(1, "1")]);
    assert_eq!(cluster.copies[0].1, cluster.copies[2].1);
}

#[test]
fn a_resend_is_answered_and_not_done_again() {
    let mut cluster = Cluster::new(2, 2, Options::default());
    cluster.op(b"a");
    cluster.send(1, 1, 1, AckMode::Replica, b"a");
    cluster.deliver();
    assert_eq!(cluster.done(), [(1, "1"), (1, "1")]);
    cluster.fail_over();
    cluster.send(2, 2, 1, AckMode::Replica, b"a");
    cluster.send(2, 2, 2, AckMode::Replica, b"a");
    assert_eq!(cluster.done()[2..], [(1, "1"), (2, "2")]);
}

#[test]
fn a_backup_refuses_a_term_that_is_over() {
    let mut cluster = Cluster::new(2, 2, Options::default());
    cluster.op(b"a");
    let late = cluster.messages.clone();
    cluster.deliver();
    cluster.fail_over();
    cluster.replies.clear();
    cluster.cut.clear();
    cluster.messages = late;
    cluster.deliver();
    assert_eq!(cluster.copies[0].0.part(), Part::Backup, "it has heard of the new term");
    cluster.send(1, 1, 2, AckMode::Owner, b"a");
    assert_eq!(cluster.done(), []);
    assert!(matches!(cluster.replies[..], [(2, Outcome::NotOwner(_))]));
}

#[test]
fn what_is_lost_on_the_way_is_sent_again() {
    let mut cluster = Cluster::new(2, 2, Options::default());
    cluster.op(b"a");
    cluster.messages.clear();
    cluster.op(b"b");
    cluster.deliver();
    assert_eq!(cluster.done(), [(1, "1"), (2, "1")], "the gap is seen at once");
    cluster.op(b"c");
    cluster.messages.clear();
    cluster.wait(200);
    assert_eq!(cluster.done().len(), 3, "and in time where nothing follows");
}

#[test]
fn a_learner_copies_piece_by_piece_and_is_needed_before_it_is_in_sync() {
    let mut cluster = Cluster::new(2, 1, Options::default());
    for op in [b"a", b"b", b"c"] {
        cluster.op(op);
    }
    cluster.map(|entry| entry.learner = Some(copy(2, 2)));
    // A record made while the pieces are under way.
    cluster.op(b"a");
    cluster.deliver();
    assert_eq!(cluster.asks, [Step::AddInSync(copy(2, 2))]);
    assert_eq!(cluster.copies[0].1, cluster.copies[1].1);
    cluster.replies.clear();
    cluster.cut.push(2);
    cluster.op(b"a");
    cluster.deliver();
    assert_eq!(cluster.done(), [], "nothing is answered without it, though it is not in-sync");
    cluster.cut.clear();
    cluster.map(|entry| {
        entry.in_sync.push(copy(2, 2));
        entry.learner = None;
    });
    cluster.wait(200);
    assert_eq!(cluster.done(), [(5, "3")]);
    assert_eq!(cluster.copies[1].0.part(), Part::Backup);
}

#[test]
fn a_copy_is_wiped_when_it_leaves_the_map() {
    let mut cluster = Cluster::new(2, 2, Options::default());
    cluster.op(b"a");
    cluster.deliver();
    cluster.map(|entry| entry.in_sync.truncate(1));
    assert_eq!(cluster.copies[1].0.part(), Part::None);
    assert_eq!(cluster.copies[1].1, Counters::default());
    // What was said to the old copy is nothing to the new one.
    let record = cluster.messages.clone();
    cluster.map(|entry| entry.learner = Some(copy(2, 3)));
    cluster.messages = record;
    cluster.deliver();
    assert_eq!(cluster.copies[1].0.position(&PartitionHeader::default()), Position::default());
}

#[test]
fn a_handover_holds_operations_and_refers_them() {
    let mut cluster = Cluster::new(2, 2, Options::default());
    cluster.op(b"a");
    cluster.map(|entry| entry.transfer_to = Some(copy(2, 2)));
    cluster.op(b"a");
    assert_eq!(cluster.asks, [], "a copy lacks a record");
    cluster.deliver();
    assert_eq!(cluster.asks, [Step::Transfer(copy(2, 2))]);
    assert_eq!(cluster.done(), [(1, "1")]);
    cluster.map(|entry| {
        entry.term = Term(2);
        entry.primary = Some(copy(2, 2));
        entry.transfer_to = None;
    });
    let route = cluster.entry.route();
    assert_eq!(cluster.replies[1], (2, Outcome::NotOwner(route)));
    cluster.send(2, 2, 2, AckMode::Replica, b"a");
    cluster.deliver();
    assert_eq!(cluster.done(), [(1, "1"), (2, "2")]);
    assert_eq!(cluster.copies[0].0.part(), Part::Backup);
}

#[test]
fn a_handover_that_takes_too_long_is_told() {
    let mut cluster = Cluster::new(2, 2, Options::default());
    cluster.map(|entry| entry.transfer_to = Some(copy(2, 2)));
    cluster.op(b"a");
    cluster.wait(300);
    assert_eq!(cluster.replies, [(1, Outcome::Refused(Refusal::Moving))]);
    cluster.map(|entry| entry.transfer_to = None);
    cluster.op(b"a");
    cluster.deliver();
    assert_eq!(cluster.done(), [(2, "1")]);
}

#[test]
fn a_copy_that_lacks_the_newest_records_joins_and_gets_them() {
    let mut cluster = Cluster::new(3, 3, Options::default());
    cluster.op(b"a");
    cluster.cut.push(3);
    cluster.op(b"a");
    cluster.deliver();
    cluster.cut.clear();
    cluster.fail_over();
    cluster.wait(40);
    assert_eq!(cluster.asks, []);
    assert_eq!(cluster.copies[1].1, cluster.copies[2].1);
    assert_eq!(
        cluster.copies[1].0.position(&PartitionHeader::default()),
        cluster.copies[2].0.position(&PartitionHeader::default())
    );
}

#[test]
fn a_copy_of_another_history_is_to_be_removed() {
    let mut cluster = Cluster::new(3, 3, Options::default());
    // Node 3 gets a record that node 2, who takes over, does not.
    cluster.cut.push(2);
    cluster.op(b"a");
    cluster.deliver();
    cluster.cut.clear();
    cluster.fail_over();
    cluster.send(2, 2, 2, AckMode::Replica, b"b");
    cluster.wait(20);
    assert_eq!(cluster.done(), []);
    assert_eq!(cluster.asks, [Step::RemoveInSync(copy(3, 3))]);
    cluster.map(|entry| entry.in_sync.truncate(1));
    assert_eq!(cluster.done(), [(2, "1")]);
}

#[test]
fn a_silent_backup_is_to_be_removed_and_not_done_without() {
    let mut cluster = Cluster::new(2, 2, Options::default());
    cluster.cut.push(2);
    cluster.op(b"a");
    cluster.wait(1000);
    assert_eq!(cluster.asks, []);
    cluster.wait(1000);
    assert_eq!(cluster.asks[0], Step::RemoveInSync(copy(2, 2)));
    assert_eq!(cluster.done(), []);
}

#[test]
fn a_read_long_after_contact_needs_a_round() {
    let mut cluster = Cluster::new(2, 2, Options::default());
    cluster.op(b"?a");
    assert_eq!(cluster.done(), [(1, "0")]);
    cluster.wait(2000);
    cluster.op(b"?a");
    assert_eq!(cluster.done().len(), 1);
    cluster.deliver();
    assert_eq!(cluster.done().len(), 2);
    let contact_ns = cluster.now_ns;
    cluster.at(1, |replica, _| replica.contact(contact_ns));
    cluster.op(b"?a");
    assert_eq!(cluster.done().len(), 3);
}

#[test]
fn a_read_does_not_wait_for_a_round_that_a_new_copy_missed() {
    let options = Options { read_lease_ns: 0, ..Options::default() };
    let mut cluster = Cluster::new(3, 2, options);
    cluster.op(b"a");
    cluster.op(b"?a");
    cluster.deliver();
    assert_eq!(cluster.done().len(), 2);
    cluster.map(|entry| entry.learner = Some(copy(3, 3)));
    cluster.deliver();
    assert_eq!(cluster.asks, [Step::AddInSync(copy(3, 3))], "it is mandatory now");
    cluster.op(b"?a");
    cluster.deliver();
    assert_eq!(cluster.done().len(), 3);
}

#[test]
fn what_is_held_of_a_forgotten_node_is_not_done() {
    let mut cluster = Cluster::new(2, 2, Options::default());
    cluster.map(|entry| entry.transfer_to = Some(copy(2, 2)));
    cluster.op(b"a");
    cluster.at(1, |replica, _| replica.retain_sessions(|_| false));
    cluster.map(|entry| entry.transfer_to = None);
    cluster.deliver();
    assert_eq!(cluster.copies[0].1, Counters::default());
}

#[test]
fn a_read_sees_nothing_that_could_still_be_lost() {
    let mut cluster = Cluster::new(2, 2, Options::default());
    cluster.op(b"a");
    cluster.op(b"?a");
    assert_eq!(cluster.done(), []);
    cluster.deliver();
    assert_eq!(cluster.done(), [(1, "1"), (2, "1")]);
}

#[test]
fn early_answers_run_ahead_of_the_backup_by_the_lag_at_most() {
    let mut cluster = Cluster::new(2, 2, Options::default());
    cluster.cut.push(2);
    for seq in 1..=5 {
        cluster.send(1, 1, seq, AckMode::Owner, b"a");
        cluster.now_ns += 4 * MS;
    }
    cluster.deliver();
    assert_eq!(cluster.done(), [(1, "1"), (2, "2"), (3, "3")]);
}

#[test]
fn a_primary_that_may_have_been_given_up_stops() {
    let options = Options { lost_after_ns: Some(5000 * MS), ..Options::default() };
    let mut cluster = Cluster::new(1, 1, options);
    cluster.now_ns += 3900 * MS;
    cluster.op(b"a");
    cluster.now_ns += 200 * MS;
    cluster.op(b"a");
    assert_eq!(cluster.replies[1], (2, Outcome::Refused(Refusal::Stopped)));
    let contact_ns = cluster.now_ns;
    cluster.at(1, |replica, _| replica.contact(contact_ns));
    cluster.op(b"a");
    assert_eq!(cluster.done(), [(1, "1"), (3, "2")]);
}

#[test]
fn an_operation_after_its_deadline_is_not_done() {
    let mut cluster = Cluster::new(1, 1, Options::default());
    let op = Op {
        term: Term(1),
        session: session(),
        seq: 1,
        first_unacked: 1,
        kind: Kind::Write,
        ack: AckMode::Replica,
        deadline_ns: cluster.now_ns - 1,
        op: Bytes::from_static(b"a"),
    };
    cluster.at(1, |replica, turn| replica.operate(turn, op));
    assert_eq!(cluster.replies, [(1, Outcome::Refused(Refusal::Expired))]);
}

#[test]
fn queues_and_results_are_bounded() {
    let options = Options { unacked_max: 4, results_max: 6, ..Options::default() };
    let mut cluster = Cluster::new(2, 2, options);
    cluster.cut.push(2);
    for _ in 0..6 {
        cluster.op(b"a");
    }
    assert_eq!(cluster.replies[..2], [5, 6].map(|seq| (seq, Outcome::Refused(Refusal::Busy))));
    cluster.cut.clear();
    cluster.wait(200);
    for _ in 0..4 {
        cluster.op(b"a");
        cluster.deliver();
    }
    assert_eq!(cluster.done().len(), 6, "no result is given up before its session says so");
    assert_eq!(cluster.copies[0].0.load().results, 6);
    cluster.at(1, |replica, turn| replica.settle(turn, Term(1), session(), 100));
    cluster.deliver();
    assert_eq!([0, 1].map(|at| cluster.copies[at].0.load().results), [0, 0]);
    cluster.send(1, 1, 3, AckMode::Replica, b"a");
    assert_eq!(cluster.replies.last(), Some(&(3, Outcome::Refused(Refusal::Stale))));
}

#[test]
fn a_session_knows_what_was_certainly_not_done() {
    let now = Now { mono_ns: 0, wall_ns: 0 };
    let (mut sends, mut endings) = (Vec::new(), Vec::new());
    let mut session = Session::new(session(), SessionOptions::default());
    let route = Route { term: Term(1), primary: copy(1, 1) };
    session.learn(now, Partition(0), route, &mut sends);
    for token in 1..=2 {
        let op = Bytes::from_static(b"a");
        let (kind, ack) = (Kind::Write, AckMode::Replica);
        assert!(session.submit(now, Partition(0), kind, ack, 900 * MS, op, token, &mut sends));
    }
    // The second is sent again before the refusal of its first attempt comes.
    let later = Now { mono_ns: 300 * MS, wall_ns: 0 };
    session.tick(later, &mut sends, &mut endings);
    let outcome = Outcome::Refused(Refusal::Busy);
    for seq in [1, 2, 1] {
        let reply = Reply { term: Term(1), seq, outcome: outcome.clone() };
        session.answered(later, Partition(0), reply, &mut sends, &mut endings);
    }
    assert_eq!(endings, [(1, Ending::NotApplied(Refusal::Busy))]);
    session.tick(Now { mono_ns: 901 * MS, wall_ns: 0 }, &mut sends, &mut endings);
    assert_eq!(endings[1], (2, Ending::Unknown));
}

#[test]
fn a_refused_operation_is_sent_again_soon() {
    let at = |ms: u64| Now { mono_ns: (1000 + ms) * MS, wall_ns: 0 };
    let (mut sends, mut endings) = (Vec::new(), Vec::new());
    let mut session = Session::new(session(), SessionOptions::default());
    let route = Route { term: Term(2), primary: copy(1, 1) };
    session.learn(at(0), Partition(0), route, &mut sends);
    let op = Bytes::from_static(b"a");
    session.submit(
        at(0),
        Partition(0),
        Kind::Write,
        AckMode::Replica,
        1900 * MS,
        op,
        1,
        &mut sends,
    );
    assert_eq!(sends.len(), 1);
    // The new primary has not heard of its term yet.
    let older = Route { term: Term(1), primary: copy(2, 1) };
    let outcome = Outcome::NotOwner(Some(older));
    let reply = Reply { term: Term(2), seq: 1, outcome };
    session.answered(at(1), Partition(0), reply, &mut sends, &mut endings);
    session.tick(at(5), &mut sends, &mut endings);
    assert_eq!(sends.len(), 1);
    session.tick(at(12), &mut sends, &mut endings);
    assert_eq!(sends.len(), 2, "not as late as what may still be answered");
    session.tick(at(30), &mut sends, &mut endings);
    assert_eq!(sends.len(), 2);
    assert_eq!(endings, []);
}

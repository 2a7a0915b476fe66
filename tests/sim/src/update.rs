//! An update of the cluster, one node after the other, while clients count.
//!
//! Here: nodes at the old and at the new peer protocol together, the changes that are refused and
//! those that work meanwhile, and an old node that comes back too late. Not here: the changes after
//! the update (`editors`), the properties of replies and changes (`invariants`).

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tollgate::simulation::{
    self, Actor, FEATURE_VERSION_MAX, LimitChange, LimitsEdit, MapAnswer, MapCommand, MapRefusal,
    PEER_VERSION_NEW, PEER_VERSION_OLD, Put, ServiceError, Via,
};

use crate::client::Line;
use crate::editors::{limit_text, policy};
use crate::nodes::Host;
use crate::records::{Thing, state_of};
use crate::world::{Report, Run};

/// The time in which the leader notices that the last node is updated.
const NOTICED: Duration = Duration::from_secs(10);
/// The time in which a node starts again, and has its copies.
const STARTED: Duration = Duration::from_secs(40);
/// The time for which an old node tries to come back.
const LATE: Duration = Duration::from_secs(8);
/// The time limit of a request.
const ANSWERED: Duration = Duration::from_secs(15);
/// The bytes of a body that only a map of the new feature version takes.
const LONG: usize = 40_000;

/// The reply to a refused change.
const UPDATED: &str = "the cluster is being updated";

/// A request whose reply the run waits for.
type Reply<T> = Rc<RefCell<Option<T>>>;

impl Run {
    /// Updates all nodes, and lets the editors work once the cluster takes their changes.
    pub(crate) fn update(&mut self, report: &mut Report) {
        self.changes.may_lack_history = true;
        let mut order: Vec<usize> = (0..self.hosts.len()).collect();
        for at in (1..order.len()).rev() {
            let other = usize::try_from(self.rng.below(at as u64 + 1)).unwrap_or(0);
            order.swap(at, other);
        }
        for number in order {
            if !self.try_changes() {
                return;
            }
            self.note(&format!("{} is updated", self.hosts[number].name));
            if !self.restart(number, PEER_VERSION_NEW) {
                return;
            }
        }
        let is_new = |run: &mut Self| {
            let sights = run.sights();
            sights.iter().all(|(_, sight)| sight.map.settings().version == FEATURE_VERSION_MAX)
        };
        if self.until(NOTICED, is_new).is_none() {
            return self.violation("all nodes are updated, and the map does not say so");
        }
        if !self.begin_editing() {
            return;
        }
        let pause = Duration::from_secs(self.rng.between(6, 9));
        self.until(pause, |_| false);
        if self.refuse_an_old_node() {
            self.end(report);
        }
    }

    /// Starts a node again, which speaks this version, and waits until the cluster is at rest.
    fn restart(&mut self, number: usize, version: u16) -> bool {
        self.faults.crash(&mut self.sim, number);
        self.hosts[number].peer_version.set(version);
        let pause = Duration::from_millis(self.rng.between(20, 900));
        self.until(pause, |_| false);
        self.faults.start(&mut self.sim, number);
        // The new process begins, and the view of the old one ends.
        self.until(Duration::from_millis(100), |_| false);
        let begun = self.until(STARTED, |run| run.is_at_rest());
        if begun.is_none() {
            let sights = self.sights();
            let what = crate::invariants::liveness::what_is_missing(&sights);
            self.violation(&format!("{} is not back: {what}", self.hosts[number].name));
        }
        begun.is_some()
    }

    /// Tries each kind of change on a random node: before the update is over those of the service
    /// are refused, and those of one limit work.
    fn try_changes(&mut self) -> bool {
        let number = usize::try_from(self.rng.below(self.hosts.len() as u64)).unwrap_or(0);
        let hosts = Rc::clone(&self.hosts);
        let Some(editors) = self.editors.clone() else { return false };
        let (edit, name) = (editors.number(), format!("l{}", self.rng.below(3)));
        self.refuse_service(&hosts[number], &name, edit)
            && self.refuse_bounds(&hosts[number])
            && self.put_one(&hosts[number], &name, edit)
    }

    fn refuse_service(&mut self, host: &Host, name: &str, edit: u64) -> bool {
        let change = LimitChange {
            name: name.to_owned(),
            toml: limit_text(name, edit),
            before: None,
            note: None,
            version: None,
            adopt: false,
            dry_run: false,
            actor: Actor { name: "-".to_owned(), via: Via::Api, address: None, is_admin: true },
        };
        let present = simulation::view(host.address);
        let thing = Thing { limit: name.to_owned(), key: None };
        let state = present.and_then(|sight| state_of(&sight.map, &thing));
        let change = LimitChange { version: state.map(|state| state.version), ..change };
        let started = simulation::start_edit(host.address, LimitsEdit::Put(change));
        let reply = self.reply(async move { started?.await.ok() });
        let expected = Err(ServiceError::Unavailable(UPDATED.to_owned()));
        let is_right = reply == Some(Some(expected));
        if !is_right {
            self.violation(&format!("{}: a change during the update: {reply:?}", host.name));
        }
        is_right
    }

    /// The map itself refuses the new command and the new bounds, whoever proposes them.
    fn refuse_bounds(&mut self, host: &Host) -> bool {
        let body = Some(vec![b'#'; LONG]);
        let put = Put { name: "@c/1".to_owned(), version: 0, body: Some(b"{}".to_vec()) };
        let long = MapCommand::PutLimit { name: "long".to_owned(), version: 0, body };
        let cases = [
            (MapCommand::Change(vec![put]), MapRefusal::BeingUpdated),
            (long, MapRefusal::OutOfBounds),
        ];
        for (command, refusal) in cases {
            let started = simulation::start_proposal(host.address, command);
            let reply = self.reply(async move { started?.await.ok()?.ok() }).flatten();
            let answer: Option<Result<MapAnswer, MapRefusal>> = reply.map(|done| done.answer);
            if answer != Some(Err(refusal)) {
                self.violation(&format!("{}: {answer:?}, not {refusal:?}", host.name));
                return false;
            }
        }
        true
    }

    /// Puts one limit as an operator of an older version does; then it is in force on all nodes.
    fn put_one(&mut self, host: &Host, name: &str, edit: u64) -> bool {
        let (address, text) = (host.address, limit_text(name, edit));
        let request = format!("cluster limit {name} {}\r\n{text}\r\n", text.len());
        let reply = self.reply(async move {
            let mut line = Line::open(address).await.ok()?;
            line.ask(&request).await.ok()
        });
        if reply != Some(Some("OK".to_owned())) {
            self.violation(&format!("{}: a limit put during the update: {reply:?}", host.name));
            return false;
        }
        let key = format!("{name}:some");
        let is_everywhere = |run: &mut Self| {
            run.hosts
                .iter()
                .all(|host| simulation::policy_in_force(host.address, &key) == Some(policy(edit)))
        };
        let seen = self.until(Duration::from_secs(2), is_everywhere);
        if seen.is_none() {
            self.violation(&format!("limit {name} of edit {edit} is not in force everywhere"));
        }
        seen.is_some()
    }

    /// A node that knows only the old protocol is refused, and says why; updated, it comes back.
    fn refuse_an_old_node(&mut self) -> bool {
        let number = usize::try_from(self.rng.below(self.hosts.len() as u64)).unwrap_or(0);
        let (address, name) = (self.hosts[number].address, self.hosts[number].name.clone());
        self.note(&format!("{name} comes back as an old node"));
        self.faults.crash(&mut self.sim, number);
        self.hosts[number].peer_version.set(PEER_VERSION_OLD);
        self.until(Duration::from_secs(1), |_| false);
        self.faults.start(&mut self.sim, number);
        self.until(LATE, |_| false);
        let refusal = simulation::view(address).and_then(|sight| sight.refusal);
        if !refusal.as_ref().is_some_and(|why| why.contains("no common version")) {
            self.violation(&format!("{name} is old, and says {refusal:?}"));
        }
        if self.is_at_rest() {
            self.violation(&format!("{name} is old, and serves"));
        }
        self.restart(number, PEER_VERSION_NEW)
    }

    /// Waits for the end of a request.
    fn reply<T: 'static>(&mut self, request: impl Future<Output = T> + 'static) -> Option<T> {
        let reply: Reply<T> = Rc::default();
        let shared = Rc::clone(&reply);
        let name = format!("asks{}", self.sim.elapsed().as_nanos());
        self.sim.client(name, async move {
            *shared.borrow_mut() = Some(request.await);
            Ok(())
        });
        self.until(ANSWERED, |_| reply.borrow().is_some());
        reply.take()
    }
}

//! Editors: they change limits and overrides through the service of any node, several at once, and
//! record the answers.
//!
//! Here: the loop of one editor, the edits, the answers. Not here: the properties of the history of
//! changes (`invariants::changes`).

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use model::rng::Rng;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tollgate::simulation::{
    self, Actor, ChangedLimit, LimitChange, LimitsEdit, Map, OverrideChange, ServiceError, Via,
};

use crate::history::History;
use crate::records::{Thing, ThingState, state_of};

/// The time limit for an answer: the service tries again for some seconds.
const PATIENCE: Duration = Duration::from_secs(12);
/// The limits that editors change.
pub(crate) const LIMITS: u64 = 4;
/// The keys with overrides, of each limit.
pub(crate) const KEYS: u64 = 6;
/// The limits of an import that fills the history, and the imports: together more changes than the
/// history keeps.
const FILLING_LIMITS: u64 = 60;
const FILLING_IMPORTS: u64 = 18;

/// The answer to an edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The change is made; with seq 0 nothing had to be changed.
    Done(ChangedLimit),
    /// Nothing was changed.
    Refused(String),
    /// The change may have been made.
    Unknown,
}

/// An edit with its answer.
#[derive(Debug, Clone)]
pub(crate) struct Edit {
    /// The number of the edit. Its note has it, and the policy that it puts.
    pub(crate) number: u64,
    pub(crate) thing: Thing,
    /// The version that the editor read; 0 if there was none.
    pub(crate) base: u64,
    /// The end of the override that it puts, in milliseconds since 1970.
    pub(crate) expires_ms: Option<u64>,
    /// Whether the note has the number: a change that takes another back has no note.
    pub(crate) is_noted: bool,
    pub(crate) outcome: Outcome,
}

/// The state that editors share.
pub(crate) struct Editors {
    pub(crate) edits: RefCell<Vec<Edit>>,
    history: Rc<RefCell<History>>,
    nodes: Vec<IpAddr>,
    next: Cell<u64>,
    pub(crate) begun: Notify,
    pub(crate) is_over: Cell<bool>,
    pub(crate) running: Cell<usize>,
    /// Whether the history is as full as it gets.
    pub(crate) is_filled: Cell<bool>,
}

/// The TOML of a limit whose policy has the number of the edit.
pub(crate) fn limit_text(name: &str, number: u64) -> String {
    format!(
        "[[limit]]\nname = \"{name}\"\nmatch = \"{name}:{{x}}\"\npolicy = \"{}\"\n",
        policy(number)
    )
}

pub(crate) fn policy(number: u64) -> String {
    format!("fixed:{number}/s")
}

fn now_ms() -> u64 {
    turmoil::since_epoch().map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(0))
}

impl Editors {
    pub(crate) fn new(history: &Rc<RefCell<History>>, nodes: Vec<IpAddr>) -> Self {
        Self {
            edits: RefCell::default(),
            history: Rc::clone(history),
            nodes,
            next: Cell::new(1),
            begun: Notify::new(),
            is_over: Cell::new(false),
            running: Cell::new(0),
            is_filled: Cell::new(false),
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    /// Fills the history by imports, so that it begins to lose its oldest changes. Makes only the
    /// last import if `is_short`.
    pub(crate) async fn fill(self: Rc<Self>, is_short: bool) {
        let imports = if is_short { 1 } else { FILLING_IMPORTS };
        for _ in 0..imports {
            let number = self.number();
            let text: String =
                (0..FILLING_LIMITS).map(|at| limit_text(&format!("f{at}"), number)).collect();
            loop {
                let wanted = change("", text.clone(), 0, "filler");
                let edit = LimitsEdit::Import(wanted);
                if let Some(started) = simulation::start_edit(self.nodes[0], edit)
                    && let Ok(Ok(_)) = started.await
                {
                    break;
                }
                sleep(Duration::from_millis(100)).await;
            }
        }
        self.is_filled.set(true);
    }

    /// Edits until the end of the run. The first editor renews overrides that are about to expire.
    pub(crate) async fn edit(self: Rc<Self>, editor: usize, mut rng: Rng) {
        self.running.set(self.running.get() + 1);
        while !self.is_over.get() {
            if editor == 0 {
                self.renew(&mut rng).await;
                continue;
            }
            let Some((node, map)) = self.a_node(&mut rng) else {
                sleep(Duration::from_millis(rng.between(1, 50))).await;
                continue;
            };
            let (thing, state) = wish(&map, &mut rng);
            // Others change the thing meanwhile.
            let pause = if rng.chance(1, 10) { rng.below(500) } else { rng.below(60) };
            sleep(Duration::from_millis(pause)).await;
            let ends = thing.key.is_some() && rng.chance(1, 3);
            let expires_ms = ends.then(|| now_ms() + rng.between(1_000, 3_000));
            self.edit_one((node, editor), thing, state, expires_ms, &mut rng).await;
            sleep(Duration::from_millis(rng.below(120))).await;
        }
        self.running.set(self.running.get() - 1);
    }

    fn a_node(&self, rng: &mut Rng) -> Option<(IpAddr, Arc<Map>)> {
        let node = rng.pick(&self.nodes)?;
        Some((node, simulation::view(node)?.map))
    }

    /// Gives all overrides one end, and renews them one after the other around it, while the
    /// leader removes those that have expired.
    async fn renew(&self, rng: &mut Rng) {
        let end_ms = now_ms() + 1_500;
        for (round, new_end_ms) in [(0, end_ms), (1, end_ms + 2_500)] {
            let wait = if round == 0 { 0 } else { end_ms.saturating_sub(now_ms()) };
            sleep(Duration::from_millis(wait)).await;
            for number in 0..LIMITS * KEYS {
                let most_ms = if round == 0 { 6 } else { 40 };
                sleep(Duration::from_millis(rng.between(1, most_ms))).await;
                let Some((node, map)) = self.a_node(rng) else { continue };
                let (limit, key) = (number % LIMITS, number / LIMITS);
                let thing =
                    Thing { limit: format!("l{limit}"), key: Some(format!("l{limit}:x{key}")) };
                let state = state_of(&map, &thing);
                self.edit_one((node, 0), thing, state, Some(new_end_ms), rng).await;
            }
        }
    }

    async fn edit_one(
        &self,
        (node, editor): (IpAddr, usize),
        thing: Thing,
        state: Option<ThingState>,
        expires_ms: Option<u64>,
        rng: &mut Rng,
    ) {
        let (number, base) = (self.number(), state.map_or(0, |state| state.version));
        let mut wanted = change(&thing.limit, limit_text(&thing.limit, number), base, "");
        wanted.note = Some(number.to_string());
        wanted.actor.name = format!("editor-{editor}");
        let is_removal = base > 0 && expires_ms.is_none() && rng.chance(1, 6);
        let old = self.edits.borrow().iter().rev().find_map(|edit| match &edit.outcome {
            Outcome::Done(done) if edit.thing == thing && done.seq > 0 => Some(done.seq),
            _ => None,
        });
        let old = old.filter(|_| base > 0 && rng.chance(1, 8));
        let mut is_noted = true;
        let request = match (&thing.key, old) {
            (Some(key), _) => LimitsEdit::Override(OverrideChange {
                limit: thing.limit.clone(),
                key: key.clone(),
                policy: (!is_removal).then(|| policy(number)),
                expires_ms,
                note: wanted.note.clone(),
                version: wanted.version,
                actor: wanted.actor,
            }),
            (None, Some(seq)) => {
                is_noted = false;
                LimitsEdit::Revert(wanted, seq)
            }
            (None, None) if is_removal => LimitsEdit::Remove(wanted),
            (None, None) => LimitsEdit::Put(wanted),
        };
        let outcome = match simulation::start_edit(node, request) {
            None => return,
            Some(started) => outcome_of(timeout(PATIENCE, started).await.ok()),
        };
        let line = format!("editor {editor}: {number} at {base} of {thing:?}: {outcome:?}");
        let now = turmoil::sim_elapsed().unwrap_or_default();
        self.history.borrow_mut().note(now, &line);
        let edit = Edit { number, thing, base, expires_ms, is_noted, outcome };
        self.edits.borrow_mut().push(edit);
    }
}

fn change(name: &str, toml: String, base: u64, by: &str) -> LimitChange {
    LimitChange {
        name: name.to_owned(),
        toml,
        before: None,
        note: None,
        version: (base > 0).then_some(base),
        adopt: false,
        dry_run: false,
        actor: Actor { name: by.to_owned(), via: Via::Api, address: None, is_admin: false },
    }
}

/// The answer of a started edit; `None`: it did not answer in time.
fn outcome_of<E>(ended: Option<Result<Result<ChangedLimit, ServiceError>, E>>) -> Outcome {
    match ended {
        Some(Ok(Ok(done))) => Outcome::Done(done),
        Some(Ok(Err(ServiceError::Unavailable(_))) | Err(_)) | None => Outcome::Unknown,
        Some(Ok(Err(error))) => Outcome::Refused(error.to_string()),
    }
}

/// A thing to change, and its state in this map.
fn wish(map: &Map, rng: &mut Rng) -> (Thing, Option<ThingState>) {
    let limit = format!("l{}", rng.below(LIMITS));
    let key = rng.chance(1, 4).then(|| format!("{limit}:x{}", rng.below(KEYS)));
    let thing = Thing { limit, key };
    let state = state_of(map, &thing);
    (thing, state)
}

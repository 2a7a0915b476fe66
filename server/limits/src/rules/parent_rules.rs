//! The parents of each limit, checked with the other limits.
//!
//! Not here: the templates of parents alone (`super::compile_one`), charging them (`charge_cost`).

use std::cell::LazyCell;

use hashbrown::HashSet;

use super::super::pattern::{Pattern, VARIABLES_MAX};
use super::super::shape::Shape;
use super::super::template::Template;
use super::super::{Limit, LimitedKeyError, LimitsError, PARENTS_MAX, Parents};
use super::{Checks, SAMPLES, fitting, sample};

impl Checks<'_> {
    /// Checks that every parent matches a limit, no limit is its own ancestor, and no key has too
    /// many ancestors.
    pub(super) fn parents(&self) -> Result<(), LimitsError> {
        let limits = &self.limits.limits;
        let mut edges = vec![Vec::new(); limits.len()];
        let shapes = LazyCell::new(|| -> Vec<_> {
            limits.iter().map(|limit| Shape::of(&limit.pattern)).collect()
        });
        for (index, limit) in limits.iter().enumerate() {
            for (parent, text) in limit.parents.iter().zip(&self.drafts[index].parents) {
                let at = &text.key;
                let wrong =
                    |reason: &str| self.file.refuse(at.line, format!("`{}`: {reason}", at.value));
                let mut targets = self.targets(limit, parent);
                if targets.is_empty() {
                    let shape = parent.shape(&limit.pattern);
                    if !shapes.iter().any(|other| other.meets(&shape)) {
                        self.refuse_or_leave_out(limit, at, "the parent matches no limit")?;
                    }
                }
                if targets.contains(&index) {
                    return Err(wrong("the parent is of this same limit"));
                }
                edges[index].append(&mut targets);
            }
        }
        for index in 0..limits.len() {
            if let Some(first) = self.drafts[index].parents.first() {
                if ancestors(&edges, index).contains(&index) {
                    let reason = format!("the parents of {} lead back to it", self.name(index));
                    return Err(self.file.refuse(first.key.line, reason));
                }
                self.few_ancestors(index, first.key.line)?;
            }
        }
        Ok(())
    }

    /// The limits that match a parent's keys, found with sample keys.
    fn targets(&self, limit: &Limit, parent: &Template) -> Vec<usize> {
        let mut targets: Vec<_> = SAMPLES
            .iter()
            .filter_map(|text| {
                let key = match &limit.pattern {
                    Pattern::Glob(glob) => {
                        let mut texts = [text.as_bytes(); VARIABLES_MAX];
                        for step in &glob.steps {
                            if let Some(slot) = texts.get_mut(usize::from(step.slot)) {
                                *slot = fitting(step.class, text).as_bytes();
                            }
                        }
                        parent.fill(&texts)
                    }
                    Pattern::Regex(_) => parent.fill(&[text.as_bytes(); VARIABLES_MAX]),
                };
                let (found, _) = self.limits.lookup(&key)?;
                Some(found.index as usize)
            })
            .collect();
        targets.sort_unstable();
        targets.dedup();
        targets
    }

    /// Checks the number of ancestors by collecting the parents of sample keys as a request does.
    fn few_ancestors(&self, index: usize, line: usize) -> Result<(), LimitsError> {
        let Pattern::Glob(glob) = &self.limits.limits[index].pattern else { return Ok(()) };
        let (mut scratch, mut parents) = (Vec::new(), Parents::default());
        for key in SAMPLES.iter().filter_map(|text| sample(glob, text)) {
            if let Ok(Some(found)) = self.limits.find(&key, &mut scratch)
                && found.limit().index as usize == index
                && let Err(LimitedKeyError::TooManyParents) =
                    self.limits.parents(&found, &mut parents)
            {
                let reason = format!("with its parents' parents it has more than {PARENTS_MAX}");
                return Err(self.file.refuse(line, reason));
            }
        }
        Ok(())
    }
}

/// All nodes reachable from `from`.
fn ancestors(edges: &[Vec<usize>], from: usize) -> HashSet<usize> {
    let mut seen = HashSet::new();
    let mut waiting = edges[from].clone();
    while let Some(next) = waiting.pop() {
        if seen.insert(next) {
            waiting.extend(&edges[next]);
        }
    }
    seen
}

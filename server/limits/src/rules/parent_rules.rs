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
    /// Checks that every parent matches a limit, and no limit is its own ancestor. Returns the
    /// parents that are left out because they lead back: the index of the limit, and the number
    /// of the parent in it.
    pub(super) fn parents(&self) -> Result<Vec<(usize, usize)>, LimitsError> {
        let limits = &self.limits.limits;
        let mut left_out = Vec::new();
        let mut targets = vec![Vec::new(); limits.len()];
        let shapes = LazyCell::new(|| -> Vec<_> {
            limits.iter().map(|limit| Shape::of(&limit.pattern)).collect()
        });
        for (index, limit) in limits.iter().enumerate() {
            for (parent, text) in limit.parents.iter().zip(&self.drafts[index].parents) {
                let at = &text.key;
                let mut of_parent = self.targets(limit, parent);
                if of_parent.is_empty() {
                    let shape = parent.shape(&limit.pattern);
                    if !shapes.iter().any(|other| other.meets(&shape)) {
                        self.refuse_or_leave_out(limit, at, "the parent matches no limit")?;
                    }
                }
                if of_parent.contains(&index) {
                    self.refuse_or_leave_out(limit, at, "the parent is of this same limit")?;
                    left_out.push((index, targets[index].len()));
                    of_parent.clear();
                }
                targets[index].push(of_parent);
            }
        }
        left_out.extend(self.circles(&targets)?);
        Ok(left_out)
    }

    /// Checks that no limit is its own ancestor, by the limits of each of its parents. Returns all
    /// parents that lead back to their limit: which of a circle has the mistake is unknown.
    fn circles(&self, targets: &[Vec<Vec<usize>>]) -> Result<Vec<(usize, usize)>, LimitsError> {
        let edges: Vec<Vec<usize>> = targets.iter().map(|parents| parents.concat()).collect();
        let mut left_out = Vec::new();
        for (index, limit) in self.limits.limits.iter().enumerate() {
            let parents = &self.drafts[index].parents;
            let Some(first) = parents.first() else { continue };
            if !ancestors(&edges, &edges[index]).contains(&index) {
                continue;
            }
            let reason = format!("the parents of {} lead back to it", self.name(index));
            for (number, (parent, of_parent)) in parents.iter().zip(&targets[index]).enumerate() {
                if !ancestors(&edges, of_parent).contains(&index) {
                    continue;
                }
                if !self.leaves_out(limit, &parent.key.value, &reason) {
                    return Err(self.file.refuse(first.key.line, reason));
                }
                left_out.push((index, number));
            }
        }
        Ok(left_out)
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

    /// Checks that no key has too many ancestors. Returns the parents that are left out: all of a
    /// limit that has such keys.
    pub(super) fn ancestors(&self) -> Result<Vec<(usize, usize)>, LimitsError> {
        let mut left_out = Vec::new();
        for (index, limit) in self.limits.limits.iter().enumerate() {
            if limit.parents.is_empty() || !self.has_too_many_ancestors(index) {
                continue;
            }
            let reason = format!("with its parents' parents it has more than {PARENTS_MAX}");
            if !self.leaves_out(limit, &"parents", &reason) {
                let first = self.drafts[index].parents.first();
                let line = first.map_or(self.drafts[index].line, |first| first.key.line);
                return Err(self.file.refuse(line, reason));
            }
            left_out.extend((0..limit.parents.len()).map(|number| (index, number)));
        }
        Ok(left_out)
    }

    /// Collects the parents of sample keys as a request does.
    fn has_too_many_ancestors(&self, index: usize) -> bool {
        let Pattern::Glob(glob) = &self.limits.limits[index].pattern else { return false };
        let (mut scratch, mut parents) = (Vec::new(), Parents::default());
        SAMPLES.iter().filter_map(|text| sample(glob, text)).any(|key| {
            let Ok(Some(found)) = self.limits.find(&key, &mut scratch) else { return false };
            found.limit().index as usize == index
                && self.limits.parents(&found, &mut parents) == Err(LimitedKeyError::TooManyParents)
        })
    }
}

/// Removes parents that are left out, each with its rule.
pub(super) fn leave_out(limits: &mut [Limit], mut parents: Vec<(usize, usize)>) {
    parents.sort_unstable();
    // From the last, so that the numbers of the others stay.
    for (index, number) in parents.into_iter().rev() {
        let limit = &mut limits[index];
        limit.parents.remove(number);
        limit.charging.rules.remove(number);
    }
}

/// The nodes of `from`, and all nodes reachable from them.
fn ancestors(edges: &[Vec<usize>], from: &[usize]) -> HashSet<usize> {
    let mut seen = HashSet::new();
    let mut waiting = from.to_vec();
    while let Some(next) = waiting.pop() {
        if seen.insert(next) {
            waiting.extend(&edges[next]);
        }
    }
    seen
}

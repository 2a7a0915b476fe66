//! The history of every key, kept outside of the states: each operation's effect and its
//! predecessor.
//!
//! A state carries the number of the step that made it, and a step names the one before. So the
//! surviving state determines its whole history, which reveals lost and repeated steps.

/// The effect of one operation on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Step {
    /// The operation.
    pub(crate) call: u32,
    /// The step before; 0 for the first.
    pub(crate) parent: u32,
    /// The first step of this history: a different one after counts were lost.
    pub(crate) root: u32,
    /// The number of steps in the history up to this one, from 1.
    pub(crate) depth: u32,
    /// The term.
    pub(crate) term: u32,
    /// The partition's time.
    pub(crate) pt_ns: u64,
    /// True time.
    pub(crate) true_ns: u64,
}

/// All steps of a run.
#[derive(Debug)]
pub(crate) struct Journal {
    steps: Vec<Step>,
    /// The true time.
    pub(crate) now_ns: u64,
}

impl Default for Journal {
    fn default() -> Self {
        Self { steps: vec![Step::default()], now_ns: 0 }
    }
}

impl Journal {
    /// Adds a step after `parent` and returns its number.
    pub(crate) fn add(&mut self, parent: u32, step: Step) -> u32 {
        let number = u32::try_from(self.steps.len()).expect("a run has fewer steps");
        let before = self.steps[parent as usize];
        let root = if parent == 0 { number } else { before.root };
        let depth = before.depth + 1;
        self.steps.push(Step { parent, root, depth, true_ns: self.now_ns, ..step });
        number
    }

    /// The step with this number.
    pub(crate) fn step(&self, number: u32) -> Step {
        self.steps[number as usize]
    }

    /// All steps up to `head`, the first one first.
    pub(crate) fn history(&self, head: u32) -> Vec<u32> {
        let mut history = Vec::new();
        let mut next = head;
        while next != 0 {
            history.push(next);
            next = self.steps[next as usize].parent;
        }
        history.reverse();
        history
    }
}

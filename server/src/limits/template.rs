//! Templates: keys that are built from the captures of a pattern.
//!
//! Here: `rack::attack:req/ip:{ip}`: literals, and captures by name; `\` makes the next byte a
//! literal. Not here: patterns (`pattern`).

use protocol::KEY_BYTES_MAX;

use super::LimitedKeyError;
use super::pattern::{CaptureClass, Captures, Glob, Pattern, braced, literal};
use super::shape::{Bytes, Shape};

/// A key with placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template {
    parts: Vec<TemplatePart>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePart {
    Text(Vec<u8>),
    /// The slot of a capture.
    Slot(u8),
}

impl Template {
    /// Parses a template; `names` are the captures of `pattern`, by slot.
    pub(super) fn parse(text: &str, names: &[String], pattern: &Pattern) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut plain = Vec::new();
        let mut least = 0;
        let mut rest = text.as_bytes();
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            match byte {
                b'{' => {
                    let (name, after) = braced(rest)?;
                    rest = after;
                    let Some(slot) = names.iter().position(|known| known == name) else {
                        return Err(format!("the pattern captures no `{{{name}}}`"));
                    };
                    if !plain.is_empty() {
                        parts.push(TemplatePart::Text(std::mem::take(&mut plain)));
                    }
                    parts.push(TemplatePart::Slot(slot as u8));
                    // A regex's group may be empty.
                    least += usize::from(matches!(pattern, Pattern::Glob(_)));
                }
                b'*' | b'?' => {
                    let byte = char::from(byte);
                    return Err(format!("a template has no globs; a literal one is `\\{byte}`"));
                }
                byte => {
                    plain.push(literal(byte, &mut rest)?);
                    least += 1;
                }
            }
        }
        if !plain.is_empty() {
            parts.push(TemplatePart::Text(plain));
        }
        if parts.is_empty() || least > KEY_BYTES_MAX {
            return Err(format!("it is never a key: a key has 1 to {KEY_BYTES_MAX} bytes"));
        }
        Ok(Self { parts })
    }

    /// Appends the key to `out`.
    pub(super) fn render(
        &self,
        key: &[u8],
        captures: &Captures,
        out: &mut Vec<u8>,
    ) -> Result<(), LimitedKeyError> {
        let start = out.len();
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => out.extend_from_slice(text),
                TemplatePart::Slot(slot) => out.extend_from_slice(captures.get(key, *slot)),
            }
        }
        match out.len() - start {
            0 => Err(LimitedKeyError::Empty),
            1..=KEY_BYTES_MAX => Ok(()),
            _ => Err(LimitedKeyError::TooLong),
        }
    }

    /// The key made of `texts`, one for each slot.
    pub(super) fn fill(&self, texts: &[&[u8]]) -> Vec<u8> {
        let part = |part: &TemplatePart| match part {
            TemplatePart::Text(text) => text.clone(),
            TemplatePart::Slot(slot) => texts[usize::from(*slot)].to_vec(),
        };
        self.parts.iter().flat_map(part).collect()
    }

    /// The keys that the template can make of the captures of `pattern`.
    pub(super) fn shape(&self, pattern: &Pattern) -> Shape {
        let mut shape = Shape::default();
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => shape.text(text),
                TemplatePart::Slot(slot) => match pattern {
                    Pattern::Glob(glob) => {
                        let (first, rest) = captured(glob, *slot);
                        shape.one(first);
                        shape.many(rest);
                    }
                    Pattern::Regex(_) => shape.many(Bytes::of(|_| true)),
                },
            }
        }
        shape
    }

    /// The template as a pattern. `None` if two captures are adjacent, or `pattern` is a regex.
    pub(super) fn glob(&self, pattern: &Pattern) -> Option<Glob> {
        let Pattern::Glob(of) = pattern else { return None };
        let mut parts = self.parts.iter().peekable();
        let mut glob = Glob::literal(match parts.peek() {
            Some(TemplatePart::Text(text)) => {
                parts.next();
                text
            }
            _ => &[],
        });
        let mut slot = 0;
        while let Some(TemplatePart::Slot(own)) = parts.next() {
            let class = of.steps.iter().find(|step| step.slot == *own)?.class;
            let then = match parts.next() {
                Some(TemplatePart::Text(text)) => text.as_slice(),
                Some(TemplatePart::Slot(_)) => return None,
                None => &[],
            };
            if usize::from(slot) == super::pattern::VARIABLES_MAX {
                return None;
            }
            glob.push(class, slot, then);
            slot += 1;
        }
        Some(glob)
    }
}

/// The byte sets of a capture's first byte and of its further bytes.
fn captured(glob: &Glob, slot: u8) -> (Bytes, Bytes) {
    let Some(index) = glob.steps.iter().position(|step| step.slot == slot) else {
        return (Bytes::of(|_| true), Bytes::of(|_| true));
    };
    let class = glob.steps[index].class;
    let first = Bytes::of(|byte| class.has(byte));
    let untyped = glob.steps[index + 1..].iter().all(|step| step.class == CaptureClass::Any);
    // The capture ends at the first place of the single byte `end`, so none of its further bytes is
    // `end`.
    let rest = match glob.steps[index].then.bytes[..] {
        [Some(end)] if untyped && index + 1 < glob.steps.len() => {
            Bytes::of(|byte| class.has(byte) && byte != end)
        }
        _ => first,
    };
    (first, rest)
}

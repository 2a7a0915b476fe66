//! Templates: keys that are built from the captures of a pattern.
//!
//! Here: `rack::attack:req/ip:{ip}`: literals, and captures by name; `\` makes the next byte a
//! literal. A capture of the class `ip/64` stands for its network. Not here: patterns (`pattern`).

use std::io::Write as _;

use protocol::KEY_BYTES_MAX;

use super::LimitedKeyError;
use super::capture::{CaptureClass, cut, ip};
use super::pattern::{Captures, Glob, Pattern, braced, literal};
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
    /// The slot of an address, and the bits of its network.
    Net(u8, u8),
    /// The whole key, with the network in place of each of these addresses, in the order of the
    /// key.
    Whole(Box<[(u8, u8)]>),
}

/// Appends the network of an address: the text of its first address, as RFC 5952 writes it.
fn push_network(address: &[u8], bits: u8, out: &mut Vec<u8>) {
    match ip(address) {
        Some(address) => {
            write!(out, "{}", cut(address, bits)).expect("a Vec takes every write");
        }
        // No pattern captures it.
        None => out.extend_from_slice(address),
    }
}

/// The bits by which the capture `slot` is counted, if it is.
fn bits_of(pattern: &Pattern, slot: u8) -> Option<u8> {
    let Pattern::Glob(glob) = pattern else { return None };
    match glob.steps.iter().find(|step| step.slot == slot)?.class {
        CaptureClass::Net(bits) => Some(bits),
        _ => None,
    }
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
                    let slot = slot as u8;
                    parts.push(match bits_of(pattern, slot) {
                        Some(bits) => TemplatePart::Net(slot, bits),
                        None => TemplatePart::Slot(slot),
                    });
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

    /// The bytes with which every key of the template `text` begins; empty if it has a mistake.
    pub(super) fn literal_front(text: &str) -> Vec<u8> {
        let mut front = Vec::new();
        let mut rest = text.as_bytes();
        while let Some((&byte, after)) = rest.split_first()
            && byte != b'{'
        {
            rest = after;
            match literal(byte, &mut rest) {
                Ok(byte) => front.push(byte),
                Err(_) => return Vec::new(),
            }
        }
        front
    }

    /// The template of the keys that a pattern counts by networks; `None`: it counts the keys
    /// themselves.
    pub(super) fn of_networks(pattern: &Pattern) -> Option<Self> {
        let Pattern::Glob(glob) = pattern else { return None };
        let nets =
            glob.steps.iter().filter_map(|step| Some((step.slot, bits_of(pattern, step.slot)?)));
        let nets: Box<[_]> = nets.collect();
        (!nets.is_empty()).then(|| Self { parts: vec![TemplatePart::Whole(nets)] })
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
                TemplatePart::Net(slot, bits) => {
                    push_network(captures.get(key, *slot), *bits, out);
                }
                TemplatePart::Whole(nets) => {
                    let mut at = 0;
                    for (slot, bits) in nets {
                        let (start, end) = captures.span(*slot);
                        out.extend_from_slice(key.get(at..start).unwrap_or_default());
                        push_network(captures.get(key, *slot), *bits, out);
                        at = end;
                    }
                    out.extend_from_slice(key.get(at..).unwrap_or_default());
                }
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
            TemplatePart::Net(slot, bits) => {
                let mut network = Vec::new();
                push_network(texts[usize::from(*slot)], *bits, &mut network);
                network
            }
            // No parent is written so.
            TemplatePart::Whole(_) => Vec::new(),
        };
        self.parts.iter().flat_map(part).collect()
    }

    /// The keys that the template can make of the captures of `pattern`.
    pub(super) fn shape(&self, pattern: &Pattern) -> Shape {
        let mut shape = Shape::default();
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => shape.text(text),
                TemplatePart::Whole(_) => return Shape::of(pattern),
                TemplatePart::Slot(slot) | TemplatePart::Net(slot, _) => match pattern {
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

    /// Whether the key tells the whole key that it was made of: it has each capture of the pattern
    /// as it was, and the pattern has no `*`.
    pub(super) fn tells_all(&self, pattern: &Pattern) -> bool {
        let Pattern::Glob(glob) = pattern else { return false };
        glob.steps.iter().all(|step| self.parts.contains(&TemplatePart::Slot(step.slot)))
    }

    /// Whether equal keys of this template have equal keys of `other`, too, a template of the same
    /// pattern.
    pub(super) fn tells(&self, other: &Self) -> bool {
        let tells = |part: &TemplatePart| match part {
            TemplatePart::Text(_) => true,
            TemplatePart::Net(slot, _) => {
                self.parts.contains(part) || self.parts.contains(&TemplatePart::Slot(*slot))
            }
            TemplatePart::Slot(_) | TemplatePart::Whole(_) => self.parts.contains(part),
        };
        other.parts.iter().all(tells)
    }

    /// The slots of its captures in their order; `None`: those of the pattern.
    pub(super) fn slots(&self) -> Option<Vec<u8>> {
        if let [TemplatePart::Whole(_)] = &self.parts[..] {
            return None;
        }
        let slots = self.parts.iter().filter_map(|part| match part {
            TemplatePart::Slot(slot) | TemplatePart::Net(slot, _) => Some(*slot),
            TemplatePart::Text(_) | TemplatePart::Whole(_) => None,
        });
        Some(slots.collect())
    }

    /// The template as written; `names` are the captures of its pattern. `None`: it was not
    /// written, but follows from the pattern.
    pub(super) fn text(&self, names: &[String]) -> Option<String> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                TemplatePart::Text(literal) => text.push_str(&String::from_utf8_lossy(literal)),
                TemplatePart::Slot(slot) | TemplatePart::Net(slot, _) => {
                    let name = names.get(usize::from(*slot)).map_or("", String::as_str);
                    text.extend(["{", name, "}"]);
                }
                TemplatePart::Whole(_) => return None,
            }
        }
        Some(text)
    }

    /// Whether its keys tell the text of each capture: no capture has the byte that follows it.
    pub(super) fn tells_captures(&self, pattern: &Pattern) -> bool {
        let Pattern::Glob(glob) = pattern else { return false };
        let last = self.parts.iter().rposition(|part| !matches!(part, TemplatePart::Text(_)));
        let last = last.unwrap_or(0);
        self.parts.windows(2).take(last).all(|pair| match pair {
            [TemplatePart::Slot(slot) | TemplatePart::Net(slot, _), TemplatePart::Text(text)] => {
                let (_, rest) = captured(glob, *slot);
                text.first().is_none_or(|byte| !rest.has(*byte))
            }
            [TemplatePart::Text(_), ..] => true,
            _ => false,
        })
    }

    /// Whether a literal of the template has `byte`.
    pub(super) fn has_byte(&self, byte: u8) -> bool {
        self.parts
            .iter()
            .any(|part| matches!(part, TemplatePart::Text(text) if text.contains(&byte)))
    }

    /// The template as a pattern. `None` if two captures are adjacent, or `pattern` is a regex.
    pub(super) fn glob(&self, pattern: &Pattern) -> Option<Glob> {
        let Pattern::Glob(of) = pattern else { return None };
        if let [TemplatePart::Whole(_)] = &self.parts[..] {
            return Some(of.clone());
        }
        let mut parts = self.parts.iter().peekable();
        let mut glob = Glob::literal(match parts.peek() {
            Some(TemplatePart::Text(text)) => {
                parts.next();
                text
            }
            _ => &[],
        });
        let mut slot = 0;
        while let Some(TemplatePart::Slot(own) | TemplatePart::Net(own, _)) = parts.next() {
            let class = of.steps.iter().find(|step| step.slot == *own)?.class;
            let then = match parts.next() {
                Some(TemplatePart::Text(text)) => text.as_slice(),
                Some(_) => return None,
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
pub(super) fn captured(glob: &Glob, slot: u8) -> (Bytes, Bytes) {
    let Some(index) = glob.steps.iter().position(|step| step.slot == slot) else {
        return (Bytes::of(|_| true), Bytes::of(|_| true));
    };
    let class = glob.steps[index].class;
    let first = Bytes::of(|byte| class.has(byte));
    let untyped = glob.steps[index + 1..].iter().all(|step| step.class == CaptureClass::Any);
    // The capture ends at the first place of the single byte `end`, so none of its further bytes is
    // `end`.
    let rest = match glob.steps[index].then.bytes[..] {
        [Some(end)] if untyped && !class.is_address() && index + 1 < glob.steps.len() => {
            Bytes::of(|byte| class.has(byte) && byte != end)
        }
        _ => first,
    };
    (first, rest)
}

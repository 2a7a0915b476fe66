//! A compact encoding of a reply that can be sent again.
//!
//! Here: the reply and its bytes. Not here: the cache (`idempotency`).
//!
//! ```text
//! head u8: bits 0-2 the word, 3 more follows, 4 shadow, 5 degraded, 6 a count
//! verdict: limit | remaining, folded | retry + 1, 0 for never | reset
//!          [| which u8 | cas | lease | granted | at | decided]
//! count:   value | applied | ttl + 1, 0 for none [| cas]
//! ```
//!
//! Numbers are varints; signed ones are folded so that small ones stay short.

use protocol::{CountLine, VerdictLine, VerdictWord};

/// A reply that can be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachedReply {
    /// The reply to `take` or `takem`, and a number by which the caller knows the charge that
    /// decided, if there were several.
    Verdict(VerdictLine, Option<usize>),
    /// The reply to `incrx`.
    Counted(CountLine),
}

const WORD: u8 = 0b111;
const MORE: u8 = 1 << 3;
const SHADOW: u8 = 1 << 4;
const DEGRADED: u8 = 1 << 5;
const COUNT: u8 = 1 << 6;
/// In the byte that says which numbers follow: a ban refused.
const BAN: u8 = 1 << 5;

const WORDS: [VerdictWord; 5] = [
    VerdictWord::Allow,
    VerdictWord::Deny,
    VerdictWord::Wait,
    VerdictWord::Part,
    VerdictWord::Exists,
];

/// Longest reply in bytes: ten numbers of up to ten bytes, and two bytes.
const BYTES_MAX: usize = 102;

/// A reply as bytes.
pub(super) struct EncodedReply {
    bytes: [u8; BYTES_MAX],
    used: usize,
}

impl EncodedReply {
    fn new(head: u8) -> Self {
        let mut encoded = Self { bytes: [0; BYTES_MAX], used: 0 };
        encoded.byte(head);
        encoded
    }

    fn byte(&mut self, byte: u8) {
        self.bytes[self.used] = byte;
        self.used += 1;
    }

    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.byte(number as u8 | 0x80);
            number >>= 7;
        }
        self.byte(number as u8);
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

impl std::ops::Deref for EncodedReply {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = byte(bytes)?;
        number |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn byte(bytes: &mut &[u8]) -> Option<u8> {
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*first)
}

/// Returns `bit` if the optional number is present.
fn bit<T: Copy>(number: Option<T>, bit: u8) -> u8 {
    if number.is_some() { bit } else { 0 }
}

/// Encodes an optional number of milliseconds as one number.
fn plus_one(ms: Option<u64>) -> u64 {
    ms.map_or(0, |ms| ms.saturating_add(1))
}

fn fold(number: i64) -> u64 {
    (number << 1 ^ number >> 63).cast_unsigned()
}

fn unfold(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

impl CachedReply {
    pub(super) fn encode(&self) -> EncodedReply {
        match self {
            Self::Verdict(line, decided) => encode_verdict(line, *decided),
            Self::Counted(line) => encode_count(line),
        }
    }

    /// Decodes the reply at the front of `bytes`; `None` if there is none.
    pub(super) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let head = byte(&mut bytes)?;
        if head & 1 << 7 != 0 {
            return None;
        }
        if head & COUNT != 0 {
            let value = unfold(number(&mut bytes)?);
            let applied = unfold(number(&mut bytes)?);
            let ttl_ms = number(&mut bytes)?.checked_sub(1);
            let cas = if head & MORE != 0 { Some(number(&mut bytes)?) } else { None };
            let exists = head & WORD != 0;
            return Some(Self::Counted(CountLine { exists, value, applied, ttl_ms, cas }));
        }
        let mut line = VerdictLine {
            word: *WORDS.get(usize::from(head & WORD))?,
            limit: number(&mut bytes)?,
            remaining: unfold(number(&mut bytes)?),
            retry_ms: number(&mut bytes)?.checked_sub(1),
            reset_ms: number(&mut bytes)?,
            cas: None,
            lease: None,
            granted: None,
            at: None,
            shadow: head & SHADOW != 0,
            degraded: head & DEGRADED != 0,
            ban: false,
        };
        let mut decided = None;
        if head & MORE != 0 {
            let which = byte(&mut bytes)?;
            let mut of = |bit: u8| {
                if which & bit == 0 { Some(None) } else { number(&mut bytes).map(Some) }
            };
            line.cas = of(1)?;
            line.lease = of(2)?;
            line.granted = of(4)?;
            line.at = of(8)?.map(usize::try_from).transpose().ok()?;
            decided = of(16)?.map(usize::try_from).transpose().ok()?;
            line.ban = which & BAN != 0;
        }
        Some(Self::Verdict(line, decided))
    }
}

fn encode_verdict(line: &VerdictLine, decided: Option<usize>) -> EncodedReply {
    let VerdictLine { cas, lease, granted, at, shadow, degraded, ban, .. } = *line;
    let which = bit(cas, 1) | bit(lease, 2) | bit(granted, 4) | bit(at, 8) | bit(decided, 16);
    let which = which | if ban { BAN } else { 0 };
    let word = WORDS.iter().position(|word| *word == line.word).unwrap_or(0) as u8;
    let of = |on: bool, bit: u8| if on { bit } else { 0 };
    let mut out = EncodedReply::new(
        word | of(which != 0, MORE) | of(shadow, SHADOW) | of(degraded, DEGRADED),
    );
    out.number(line.limit);
    out.number(fold(line.remaining));
    out.number(plus_one(line.retry_ms));
    out.number(line.reset_ms);
    if which != 0 {
        out.byte(which);
        let [at, decided] = [at, decided].map(|index| index.map(|index| index as u64));
        for number in [cas, lease, granted, at, decided].into_iter().flatten() {
            out.number(number);
        }
    }
    out
}

fn encode_count(line: &CountLine) -> EncodedReply {
    let head = COUNT | u8::from(line.exists) | bit(line.cas, MORE);
    let mut out = EncodedReply::new(head);
    out.number(fold(line.value));
    out.number(fold(line.applied));
    out.number(plus_one(line.ttl_ms));
    if let Some(cas) = line.cas {
        out.number(cas);
    }
    out
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Mostly small numbers, and the extremes.
    fn any_number() -> impl Strategy<Value = u64> {
        prop_oneof![0_u64..300, any::<u64>(), Just(u64::MAX - 1), Just(0)]
    }

    pub(in super::super) fn any_answer() -> impl Strategy<Value = CachedReply> {
        let maybe = || prop::option::of(any_number());
        let left = prop_oneof![-300_i64..300, any::<i64>()];
        let verdict = (
            (0..WORDS.len(), any_number(), left, maybe(), any_number()),
            (maybe(), maybe(), maybe(), any::<[bool; 3]>()),
            [prop::option::of(0_usize..99), prop::option::of(0_usize..99)],
        );
        let verdict = verdict.prop_map(|(numbers, more, [at, decided])| {
            let (word, limit, remaining, retry_ms, reset_ms) = numbers;
            let (cas, lease, granted, [shadow, degraded, ban]) = more;
            let word = WORDS[word];
            let line = VerdictLine {
                word,
                limit,
                remaining,
                retry_ms,
                reset_ms,
                cas,
                lease,
                granted,
                at,
                shadow,
                degraded,
                ban,
            };
            CachedReply::Verdict(line, decided)
        });
        let counted = (any::<bool>(), any::<i64>(), -99_i64..99, maybe(), maybe());
        let counted = counted.prop_map(|(exists, value, applied, ttl_ms, cas)| {
            CachedReply::Counted(CountLine { exists, value, applied, ttl_ms, cas })
        });
        prop_oneof![3 => verdict, 1 => counted]
    }

    proptest! {
        #[test]
        fn an_answer_comes_back_as_it_was(answer in any_answer(), behind in any::<[u8; 3]>()) {
            // `u64::MAX` milliseconds are encoded as one less, which is long enough.
            let mut bytes = answer.encode().to_vec();
            let whole = bytes.len();
            for cut in 0..whole {
                prop_assert_eq!(CachedReply::decode(&bytes[..cut]), None);
            }
            bytes.extend_from_slice(&behind);
            let back = CachedReply::decode(&bytes).expect("it is one");
            prop_assert_eq!(back.encode().to_vec(), answer.encode().to_vec());
            let is_exact = match answer {
                CachedReply::Verdict(line, _) => line.retry_ms != Some(u64::MAX),
                CachedReply::Counted(line) => line.ttl_ms != Some(u64::MAX),
            };
            prop_assert!(!is_exact || back == answer);
        }

        #[test]
        fn any_bytes_are_an_answer_or_none(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Some(answer) = CachedReply::decode(&bytes) {
                prop_assert!(CachedReply::decode(&answer.encode()) == Some(answer));
            }
        }
    }
}

//! Commands that tune slabs and LRU, which this server does not have. They are checked as memcached
//! checks them, so that a valid script continues and an invalid one gets its error.
//!
//! Here: the checks; bounds and texts are measured on memcached 1.6.18. Not here: the output of
//! `metadump`, which is only recognised here.

use crate::error::ProtocolError;
use crate::line::{DecodeError, Line};
use crate::number::{strict_i32, strict_u64};
use crate::request::{Admin, Words};

/// Most microseconds of `lru_crawler sleep`.
const SLEEP_US_MAX: u64 = 1_000_000;
/// The highest slab class.
const CLASS_MAX: u64 = 63;
/// Most percent of memory that the hot and warm queues may have together.
const PERCENT_MAX: u64 = 80;

/// Decodes the words behind `slabs`, `lru` or `lru_crawler`.
pub(crate) fn decode<'a>(
    line: Line<'a>,
    verb: &[u8],
    rest: &[u8],
) -> Result<Admin<'a>, DecodeError> {
    let mut words = Words(rest);
    let (what, argument) = (words.next().unwrap_or_default(), words.next());
    let checked = match (verb, what, argument) {
        (b"slabs", b"automove", Some(level)) => match strict_u64(level) {
            Some(0..=2) => Ok(()),
            Some(_) => Err(ProtocolError::UnknownCommand),
            None => Err(ProtocolError::BadFormat),
        },
        (b"slabs", b"reassign", Some(_)) => Err(ProtocolError::NoSlabs),
        (b"lru", b"tune", Some(hot)) => tune([Some(hot), words.next(), words.next(), words.next()]),
        (b"lru", b"temp_ttl", Some(seconds)) if strict_i32(seconds).is_some() => Ok(()),
        (b"lru", b"mode", Some(b"flat" | b"segmented"))
        | (b"lru_crawler", b"enable" | b"disable", None) => Ok(()),
        (b"lru_crawler", b"sleep", Some(pause)) => match strict_u64(pause) {
            Some(..=SLEEP_US_MAX) => Ok(()),
            Some(_) => Err(ProtocolError::LongSleep),
            None => Err(ProtocolError::BadFormat),
        },
        (b"lru_crawler", b"tocrawl", Some(count)) => {
            strict_u64(count).map(drop).ok_or(ProtocolError::BadFormat)
        }
        (b"lru_crawler", b"crawl", Some(classes)) => crawl(classes),
        (b"lru_crawler", b"metadump" | b"mgdump", Some(_)) => return Ok(Admin::Dump),
        _ => Err(ProtocolError::UnknownCommand),
    };
    checked.map(|()| Admin::Machinery).map_err(|error| line.refuse(error, false))
}

/// `lru tune <hot percent> <warm percent> <hot factor> <warm factor>`.
fn tune(words: [Option<&[u8]>; 4]) -> Result<(), ProtocolError> {
    let [Some(hot), Some(warm), Some(hot_factor), Some(warm_factor)] = words else {
        return Err(ProtocolError::UnknownCommand);
    };
    let (Some(hot), Some(warm)) = (strict_u64(hot), strict_u64(warm)) else {
        return Err(ProtocolError::UnknownCommand);
    };
    let factor = |word| std::str::from_utf8(word).ok().and_then(|text| text.parse::<f64>().ok());
    let (Some(hot_factor), Some(warm_factor)) = (factor(hot_factor), factor(warm_factor)) else {
        return Err(ProtocolError::UnknownCommand);
    };
    if hot.saturating_add(warm) > PERCENT_MAX {
        return Err(ProtocolError::BadPercents);
    }
    if hot_factor <= 0.0 || warm_factor <= 0.0 {
        return Err(ProtocolError::BadFactors);
    }
    Ok(())
}

/// Checks `lru_crawler crawl <classes by comma>|all`.
fn crawl(classes: &[u8]) -> Result<(), ProtocolError> {
    let is_class = |word| strict_u64(word).is_some_and(|class| (1..=CLASS_MAX).contains(&class));
    let is_good = classes == b"all" || classes.split(|byte| *byte == b',').all(is_class);
    if is_good { Ok(()) } else { Err(ProtocolError::BadClass) }
}

//! Pieces of a line: its words, and the last word `noreply`.
//!
//! Not here: the meaning of words (`line`, `number`, `key`).

use nom::IResult;
use nom::Parser as _;
use nom::bytes::complete::{take_while, take_while1};
use nom::sequence::preceded;

/// Parses the next word: leading blanks are skipped, any other byte belongs to the word.
pub(crate) fn word(input: &[u8]) -> IResult<&[u8], &[u8]> {
    preceded(take_while(|byte| byte == b' '), take_while1(|byte| byte != b' ')).parse(input)
}

/// The bytes before `noreply`, if that is the last word.
pub(crate) fn without_noreply(rest: &[u8]) -> Option<&[u8]> {
    let blanks = rest.iter().rev().take_while(|byte| **byte == b' ').count();
    rest[..rest.len() - blanks]
        .strip_suffix(b"noreply")
        .filter(|before| before.last().is_none_or(|byte| *byte == b' '))
}

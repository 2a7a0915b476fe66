//! The replies to classic and native verbs: outcomes to lines.
//!
//! Not here: the replies to meta verbs (`meta`), the lines of native verbs themselves (`native`).

use crate::decimal::write_number;
use crate::native::lines::{encode_count, encode_lease, encode_verdict, number};
use crate::reply::{Outcome, Value, encode_hit, encode_number};
use crate::request::Command;

/// Appends the reply to a command on one key, in the classic form.
pub(crate) fn encode_text(out: &mut Vec<u8>, command: &Command<'_>, outcome: &Outcome<'_>) {
    let line: &[u8] = match outcome {
        Outcome::Number(item) | Outcome::Refused(item) => match item.value {
            Value::Number(number) => return encode_number(out, number),
            Value::Bytes(_) => {
                item.value.write(out);
                b"\r\n"
            }
        },
        Outcome::Stored(_) => b"STORED\r\n",
        Outcome::NotStored => b"NOT_STORED\r\n",
        Outcome::Exists => b"EXISTS\r\n",
        Outcome::NotFound | Outcome::Miss => b"NOT_FOUND\r\n",
        Outcome::Deleted => b"DELETED\r\n",
        Outcome::Touched => b"TOUCHED\r\n",
        Outcome::NonNumeric => b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
        Outcome::NotAllowed => b"CLIENT_ERROR not allowed on a limit key\r\n",
        Outcome::TooLarge => b"SERVER_ERROR object too large for cache\r\n",
        Outcome::OutOfMemory => b"SERVER_ERROR out of memory storing object\r\n",
        Outcome::Hit(item) | Outcome::Vivified(item) => {
            encode_hit(out, command.key.as_bytes(), item, false);
            b"END\r\n"
        }
        Outcome::Verdict(_)
        | Outcome::Settled { .. }
        | Outcome::Renewed(_)
        | Outcome::Leased(_)
        | Outcome::Counted(_)
        | Outcome::Slid(_) => return encode_native(out, command, outcome),
    };
    out.extend_from_slice(line);
}

/// Appends the reply to a native verb.
pub(crate) fn encode_native(out: &mut Vec<u8>, command: &Command<'_>, outcome: &Outcome<'_>) {
    match outcome {
        Outcome::Verdict(line) => encode_verdict(out, line),
        Outcome::Settled { limit, remaining, reset_ms } => {
            out.extend_from_slice(b"SETTLED");
            number(out, *limit);
            out.push(b' ');
            out.extend_from_slice(itoa::Buffer::new().format(*remaining).as_bytes());
            number(out, 0);
            number(out, *reset_ms);
            out.extend_from_slice(b"\r\n");
        }
        Outcome::Renewed(ms) => {
            out.extend_from_slice(b"RENEWED");
            number(out, *ms);
            out.extend_from_slice(b"\r\n");
        }
        Outcome::Leased(line) => encode_lease(out, line),
        Outcome::Counted(line) => encode_count(out, line),
        Outcome::Slid(count) => {
            write_number(out, *count);
            out.extend_from_slice(b"\r\n");
        }
        _ => encode_text(out, command, outcome),
    }
}

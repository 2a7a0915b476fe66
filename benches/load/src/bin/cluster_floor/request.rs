//! The requests of `load` for counters: `incr <key> 1`, `get <key>`, `set` of a digit.
//!
//! Not here: performing them (`counts`). Keys have 20 bytes, so each request has a fixed length.

use load::keys::KEY_BYTES;

const INCR: &[u8] = b"incr ";
const INCR_END: &[u8] = b" 1\r\n";
const GET: &[u8] = b"get ";
const GET_END: &[u8] = b"\r\n";
const SET: &[u8] = b"set ";
const SET_END: &[u8] = b" 0 0 1\r\n";
/// The value that `set` writes, and the end of its line.
const BLOCK_BYTES: usize = 3;
const INCR_BYTES: usize = INCR.len() + KEY_BYTES + INCR_END.len();
const GET_BYTES: usize = GET.len() + KEY_BYTES + GET_END.len();
const SET_BYTES: usize = SET.len() + KEY_BYTES + SET_END.len() + BLOCK_BYTES;
/// The request for the sums that prove a run.
const STATS: &[u8] = b"stats cluster\r\n";

/// The verb of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Incr,
    /// Writes this digit.
    Set(u8),
    Get,
}

/// The front of a client's bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// A verb, its key, and the length of the request.
    Request(Verb, [u8; KEY_BYTES], usize),
    /// The request for the sums.
    Stats,
    /// More bytes are needed.
    Part,
    /// Another request.
    Unknown,
}

/// Decodes the first request.
pub(crate) fn decode(input: &[u8]) -> Decoded {
    if let Some(line) = input.first_chunk::<INCR_BYTES>()
        && line.starts_with(INCR)
        && line.ends_with(INCR_END)
    {
        return Decoded::Request(Verb::Incr, key_at(line, INCR.len()), INCR_BYTES);
    }
    if let Some(line) = input.first_chunk::<GET_BYTES>()
        && line.starts_with(GET)
        && line.ends_with(GET_END)
    {
        return Decoded::Request(Verb::Get, key_at(line, GET.len()), GET_BYTES);
    }
    if let Some(request) = input.first_chunk::<SET_BYTES>()
        && request.starts_with(SET)
        && request[SET.len() + KEY_BYTES..].starts_with(SET_END)
    {
        let digit = request[SET_BYTES - BLOCK_BYTES].wrapping_sub(b'0');
        return Decoded::Request(Verb::Set(digit), key_at(request, SET.len()), SET_BYTES);
    }
    if input.starts_with(STATS) {
        return Decoded::Stats;
    }
    if input.len() < SET_BYTES { Decoded::Part } else { Decoded::Unknown }
}

fn key_at(request: &[u8], at: usize) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key.copy_from_slice(&request[at..at + KEY_BYTES]);
    key
}

#[cfg(test)]
mod tests {
    use load::keys::{Space, key};
    use load::op::Op;

    use super::{Decoded, Verb, decode};

    #[test]
    fn requests_of_the_generator_are_decoded() {
        let space = Space::Counter;
        let cases = [
            (Op::Incr { space }, Verb::Incr),
            (Op::Get { space, keys: 1 }, Verb::Get),
            (Op::Fill { space, exptime: 0 }, Verb::Set(0)),
        ];
        for (op, verb) in cases {
            let mut request = Vec::new();
            op.write(&mut request, [7].into_iter(), 0);
            let length = request.len();
            assert_eq!(decode(&request), Decoded::Request(verb, key(space, 7), length));
            for cut in 0..length {
                assert_eq!(decode(&request[..cut]), Decoded::Part, "{verb:?}");
            }
            request.extend_from_slice(b"incr ");
            assert_eq!(decode(&request), Decoded::Request(verb, key(space, 7), length));
        }
        assert_eq!(decode(b"stats cluster\r\n"), Decoded::Stats);
        assert_eq!(decode(&[b'x'; 64]), Decoded::Unknown);
    }
}

//! The operator's commands to the whole cluster: `cluster drain`, `cluster forget`, `cluster set`,
//! `cluster limits`, `cluster unlimit`, and `cluster limit` with a block behind it.
//!
//! Here: the line parser. Not here: resolving a node's name and carrying out the command
//! (`server`), the read-only `config get cluster` and `stats cluster` (`classic`).

use crate::bounds::LIMIT_BYTES_MAX;
use crate::error::ProtocolError;
use crate::line::{Block, DecodeError, Decoded, Line, block_length};
use crate::request::{Admin, ClusterVerb, Request, Words};

/// Longest name of a setting in bytes; the cluster's map has the same bound.
const NAME_BYTES_MAX: usize = 250;

const USAGE: &str = "there are cluster drain <node>, cluster forget <node>, \
                     cluster set <name> <value>, cluster limits, \
                     cluster limit <name> <bytes> [before=<name>], cluster unlimit <name>";
const USAGE_DRAIN: &str = "the line is cluster drain <node>";
const USAGE_FORGET: &str = "the line is cluster forget <node>";
const USAGE_SET: &str = "the line is cluster set <name> <value>";
const USAGE_LIMITS: &str = "the line is cluster limits";
const USAGE_LIMIT: &str =
    "the line is cluster limit <name> <bytes> [before=<name>], and the limit behind it";
const USAGE_UNLIMIT: &str = "the line is cluster unlimit <name>";
const LONG_NAME: &str = "the name of a setting has at most 250 bytes";
const LONG_LIMIT: &str = "a limit has a name of at most 250 bytes, and at most 32768 bytes";

fn wrong(why: &'static str) -> ProtocolError {
    ProtocolError::Native { verb: "cluster", why }
}

/// Decodes the words behind `cluster`, and the block of `cluster limit`. The reply is never
/// suppressed: `noreply` counts as a surplus word.
pub(crate) fn decode<'a>(line: Line<'a>, rest: &'a [u8]) -> Result<Decoded<'a>, DecodeError> {
    let asked = |verb| Request::Admin { admin: Admin::Cluster(verb), quiet: false };
    let mut words = Words(rest);
    if words.next() != Some(b"limit") {
        return line.done(asked(verb(line, rest)?));
    }
    let (name, length) = (words.next().unwrap_or_default(), words.next());
    // A block of unknown length may contain commands, so the connection closes before the block is
    // read.
    let length = match length.map(block_length) {
        Some(Some(length)) => length,
        unread => {
            let closes = unread.is_some();
            return Err(DecodeError { closes, ..line.refuse(wrong(USAGE_LIMIT), false) });
        }
    };
    let refuse = |why| line.refuse_with(length, wrong(why), false);
    let before = match (words.next().map(|word| word.strip_prefix(b"before=")), words.next()) {
        (None, None) => None,
        (Some(Some(before)), None) if !before.is_empty() => Some(before),
        _ => return Err(refuse(USAGE_LIMIT)),
    };
    if name.len() > NAME_BYTES_MAX || length > LIMIT_BYTES_MAX {
        return Err(refuse(LONG_LIMIT));
    }
    match line.block(length) {
        Block::Whole(text) => {
            line.done_with(length, asked(ClusterVerb::Limit { name, before, text }))
        }
        Block::Incomplete(decoded) => Ok(decoded),
        Block::Bad => Err(line.refuse_with(length, ProtocolError::BadDataChunk, false)),
    }
}

fn verb<'a>(line: Line<'_>, rest: &'a [u8]) -> Result<ClusterVerb<'a>, DecodeError> {
    let refuse = |why| line.refuse(wrong(why), false);
    let mut words = Words(rest);
    let what = words.next().unwrap_or_default();
    match (what, words.next(), words.next(), words.next()) {
        (b"drain", Some(node), None, None) => Ok(ClusterVerb::Drain(node)),
        (b"drain", ..) => Err(refuse(USAGE_DRAIN)),
        (b"forget", Some(node), None, None) => Ok(ClusterVerb::Forget(node)),
        (b"forget", ..) => Err(refuse(USAGE_FORGET)),
        (b"set", Some(name), Some(_), None) if name.len() > NAME_BYTES_MAX => {
            Err(refuse(LONG_NAME))
        }
        (b"set", Some(name), Some(value), None) => Ok(ClusterVerb::Set { name, value }),
        (b"set", ..) => Err(refuse(USAGE_SET)),
        (b"limits", None, ..) => Ok(ClusterVerb::Limits),
        (b"limits", ..) => Err(refuse(USAGE_LIMITS)),
        (b"unlimit", Some(name), None, None) => Ok(ClusterVerb::Unlimit(name)),
        (b"unlimit", ..) => Err(refuse(USAGE_UNLIMIT)),
        _ => Err(refuse(USAGE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::Bounds;
    use crate::decode::decode;
    use crate::request::StatsTopic;

    fn admin(line: &str) -> Result<(Admin<'_>, bool), String> {
        match decode(line.as_bytes(), 0, Bounds::default()) {
            Ok(Decoded::Request { request: Request::Admin { admin, quiet }, consumed }) => {
                assert_eq!(consumed, line.len());
                Ok((admin, quiet))
            }
            Err(refusal) => Err(refusal.error.to_string()),
            other => panic!("{line:?} is no command on a key: {other:?}"),
        }
    }

    #[test]
    fn every_verb_takes_exactly_its_words() {
        let cluster = |verb| Ok((Admin::Cluster(verb), false));
        assert_eq!(admin("cluster drain n3\r\n"), cluster(ClusterVerb::Drain(b"n3")));
        assert_eq!(admin("cluster  drain 3 \n"), cluster(ClusterVerb::Drain(b"3")));
        // `noreply` is a valid node name, and the reply is sent all the same.
        assert_eq!(admin("cluster drain noreply\r\n"), cluster(ClusterVerb::Drain(b"noreply")));
        assert_eq!(
            admin("cluster forget [::1]:11300\r\n"),
            cluster(ClusterVerb::Forget(b"[::1]:11300"))
        );
        assert_eq!(
            admin("cluster set lost_after never\r\n"),
            cluster(ClusterVerb::Set { name: b"lost_after", value: b"never" })
        );
        assert_eq!(admin("cluster limits\r\n"), cluster(ClusterVerb::Limits));
        assert_eq!(admin("cluster unlimit api\r\n"), cluster(ClusterVerb::Unlimit(b"api")));
        let limit = |before| ClusterVerb::Limit { name: b"api", before, text: b"a\r\nb" };
        assert_eq!(admin("cluster limit api 4\r\na\r\nb\r\n"), cluster(limit(None)));
        assert_eq!(admin("cluster limit api 4 before=x\r\na\r\nb\r\n"), cluster(limit(Some(b"x"))));
    }

    #[test]
    fn a_limit_is_taken_or_refused_with_its_block() {
        let wire = b"cluster limit api 4\r\na\r\nb\r\n";
        for cut in 0..wire.len() {
            let decoded = decode(&wire[..cut], 0, Bounds::default());
            assert!(matches!(decoded, Ok(Decoded::Incomplete { .. })), "{cut}");
        }
        let check = |wire: &str, consumed: usize, message: &str| {
            let refusal = decode(wire.as_bytes(), 0, Bounds::default()).expect_err(wire);
            assert_eq!((refusal.error.to_string(), refusal.quiet), (message.to_owned(), false));
            assert_eq!(refusal.consumed, consumed, "{wire}");
        };
        let usage = format!("CLIENT_ERROR cluster: {USAGE_LIMIT}");
        let long = format!("CLIENT_ERROR cluster: {LONG_LIMIT}");
        for line in ["cluster limit\r\n", "cluster limit a\r\n", "cluster limit a x\r\n"] {
            check(line, line.len(), &usage);
        }
        check("cluster limit a 4294967296\r\n", 28, &usage);
        for line in [
            "cluster limit a 5 noreply\r\n",
            "cluster limit a 5 before=\r\n",
            "cluster limit a 5 before=b c\r\n",
        ] {
            check(line, line.len() + 7, &usage);
        }
        check("cluster limit a 32769\r\n", 23 + 32_771, &long);
        let name = "n".repeat(NAME_BYTES_MAX + 1);
        let line = format!("cluster limit {name} 1\r\n");
        check(&line, line.len() + 3, &long);
        check("cluster limit a 1\r\nabc", 19 + 3, "CLIENT_ERROR bad data chunk");
    }

    #[test]
    fn a_wrong_line_gets_its_usage() {
        let long = format!("cluster set {} 1\r\n", "n".repeat(NAME_BYTES_MAX + 1));
        for (line, why) in [
            ("cluster\r\n", USAGE),
            ("cluster status\r\n", USAGE),
            ("cluster DRAIN n3\r\n", USAGE),
            ("cluster drain\r\n", USAGE_DRAIN),
            ("cluster drain n3 n4\r\n", USAGE_DRAIN),
            ("cluster drain n3 noreply\r\n", USAGE_DRAIN),
            ("cluster forget\r\n", USAGE_FORGET),
            ("cluster set\r\n", USAGE_SET),
            ("cluster set replicas\r\n", USAGE_SET),
            ("cluster set replicas 3 4\r\n", USAGE_SET),
            (&long, LONG_NAME),
            ("cluster limits all\r\n", USAGE_LIMITS),
            ("cluster unlimit\r\n", USAGE_UNLIMIT),
            ("cluster unlimit a b\r\n", USAGE_UNLIMIT),
        ] {
            assert_eq!(admin(line), Err(format!("CLIENT_ERROR cluster: {why}")), "{line:?}");
        }
    }

    #[test]
    fn config_get_cluster_needs_exactly_its_words() {
        assert_eq!(admin("config get cluster\r\n"), Ok((Admin::ConfigGet, false)));
        assert_eq!(admin("config  get cluster \n"), Ok((Admin::ConfigGet, false)));
        for line in ["config", "config get", "config get x", "config get cluster x", "config set"] {
            assert_eq!(admin(&format!("{line}\r\n")), Err("ERROR".to_owned()), "{line}");
        }
    }

    #[test]
    fn a_topic_of_our_own_may_have_several_words() {
        let topic = |words| Ok((Admin::Stats(StatsTopic::Other(words)), false));
        assert_eq!(admin("stats cluster\r\n"), topic(b" cluster"));
        assert_eq!(admin("stats cluster nodes\r\n"), topic(b" cluster nodes"));
        assert_eq!(admin("stats cluster partitions all\n"), topic(b" cluster partitions all"));
    }
}

//! What an operator tells the whole cluster: `cluster drain`, `cluster forget`, `cluster set`.
//!
//! Here: the line parser. Not here: which node a word names and whether the cluster obeys (`server`),
//! `config get cluster` and `stats cluster`, which only ask (`text`).

use crate::decode::{Line, Refusal};
use crate::error::ProtocolError;
use crate::request::{ClusterVerb, Words};

/// Longest name of a setting, in bytes: as the cluster's map has it.
const NAME_BYTES_MAX: usize = 250;

const USAGE: &str =
    "there are cluster drain <node>, cluster forget <node>, cluster set <name> <value>";
const USAGE_DRAIN: &str = "the line is cluster drain <node>";
const USAGE_FORGET: &str = "the line is cluster forget <node>";
const USAGE_SET: &str = "the line is cluster set <name> <value>";
const LONG_NAME: &str = "the name of a setting has at most 250 bytes";

/// Reads the words behind `cluster`.
pub(crate) fn verb<'a>(line: Line<'_>, rest: &'a [u8]) -> Result<ClusterVerb<'a>, Refusal> {
    let refuse = |why| line.refuse(ProtocolError::Native { verb: "cluster", why }, false);
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
        _ => Err(refuse(USAGE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::Bounds;
    use crate::decode::{Decoded, decode};
    use crate::request::{Admin, Request, StatsTopic};

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
        // A node may be called so; the answer is given all the same.
        assert_eq!(admin("cluster drain noreply\r\n"), cluster(ClusterVerb::Drain(b"noreply")));
        assert_eq!(
            admin("cluster forget [::1]:11300\r\n"),
            cluster(ClusterVerb::Forget(b"[::1]:11300"))
        );
        assert_eq!(
            admin("cluster set lost_after never\r\n"),
            cluster(ClusterVerb::Set { name: b"lost_after", value: b"never" })
        );
    }

    #[test]
    fn a_line_that_is_wrong_hears_how_it_is_written() {
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
        ] {
            assert_eq!(admin(line), Err(format!("CLIENT_ERROR cluster: {why}")), "{line:?}");
        }
    }

    #[test]
    fn only_the_whole_question_for_nodes_is_one() {
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

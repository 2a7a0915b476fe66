//! The operator's words → the map's commands.
//!
//! Here: which node a word names, which setting. Not here: the line they stand on
//! (`protocol::ClusterVerb`), carrying the command out (`control`).

use std::time::Duration;

use cluster::id::NodeId;
use cluster::map::command::Setting;
use cluster::map::{Command, Map, NAME_BYTES_MAX};
use cluster::placement::COPIES_MAX;
use protocol::ClusterVerb;

/// Why the words mean nothing here. `Display` goes behind `CLIENT_ERROR cluster: `.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WordsError {
    /// No node has this id, name or address.
    #[error("there is no node {0}")]
    NoNode(String),
    /// A name of one node looks like the id of another, say.
    #[error("{0} may be {1} or {2}: name it by its address")]
    Ambiguous(String, NodeId, NodeId),
    /// The setting does not take this value.
    #[error("{0} is {1}")]
    BadValue(&'static str, &'static str),
    /// Nobody may set this.
    #[error("{0} is not set by hand")]
    NotSet(&'static str),
    /// Limits are changed by `node::limits`.
    #[error("limits are not changed so")]
    OfLimits,
    /// Too long, or not text.
    #[error("a setting has a name of at most {NAME_BYTES_MAX} bytes, and both are UTF-8")]
    NoText,
}

/// The command that does what an operator says, on nodes as this map has them.
///
/// # Errors
///
/// When a node cannot be told, or a setting does not take the value.
pub fn command_of(map: &Map, verb: ClusterVerb<'_>) -> Result<Command, WordsError> {
    let living = |word| {
        let id = node_of(map, word)?;
        let incarnation = map.nodes().get(&id).map(|node| node.incarnation).unwrap_or_default();
        Ok((id, incarnation))
    };
    Ok(match verb {
        ClusterVerb::Drain(word) => {
            let (id, incarnation) = living(word)?;
            Command::Drain(id, incarnation)
        }
        ClusterVerb::Forget(word) => {
            let (id, incarnation) = living(word)?;
            Command::Forget(id, incarnation)
        }
        ClusterVerb::Set { name, value } => Command::Set(setting(name, value)?),
        ClusterVerb::Limits | ClusterVerb::Limit { .. } | ClusterVerb::Unlimit(_) => {
            return Err(WordsError::OfLimits);
        }
    })
}

/// The node that a word names: its id (`n3` or `3`), its ring name, or where clients or peers reach
/// it.
///
/// # Errors
///
/// When it names none, or two: a ring name may look like an id.
pub fn node_of(map: &Map, word: &[u8]) -> Result<NodeId, WordsError> {
    let text = String::from_utf8_lossy(word);
    let number = text.strip_prefix('n').unwrap_or(&text).parse().ok().map(NodeId);
    let mut named = map.nodes().iter().filter(|(id, node)| {
        let told = &node.description;
        let names = [&told.ring_name, &told.client_address, &told.peer_address];
        Some(**id) == number || names.iter().any(|name| **name == *text)
    });
    match (named.next(), named.next()) {
        (Some((&id, _)), None) => Ok(id),
        (Some((&one, _)), Some((&other, _))) => {
            Err(WordsError::Ambiguous(text.into_owned(), one, other))
        }
        (None, _) => Err(WordsError::NoNode(text.into_owned())),
    }
}

fn setting(name: &[u8], value: &[u8]) -> Result<Setting, WordsError> {
    let (Ok(name), Ok(value)) = (std::str::from_utf8(name), std::str::from_utf8(value)) else {
        return Err(WordsError::NoText);
    };
    if name.len() > NAME_BYTES_MAX {
        return Err(WordsError::NoText);
    }
    match name {
        "replicas" => match value.parse::<u8>() {
            Ok(copies) if (1..=COPIES_MAX).contains(&usize::from(copies)) => {
                Ok(Setting::Replicas(copies))
            }
            _ => Err(WordsError::BadValue("replicas", "a number from 1 to 3")),
        },
        "lost_after" => match (value, value.parse::<u32>()) {
            ("never", _) => Ok(Setting::LostAfterMs(None)),
            (_, Ok(seconds @ 1..)) => {
                let after = Duration::from_secs(seconds.into());
                Ok(Setting::LostAfterMs(Some(super::millis(after))))
            }
            _ => Err(WordsError::BadValue("lost_after", "a number of seconds, or never")),
        },
        "version" => Err(WordsError::NotSet("version")),
        name => Ok(Setting::Other { name: name.to_owned(), value: Some(value.to_owned()) }),
    }
}

//! The words of operator commands → commands to the map.
//!
//! Here: which node or setting a word names. Not here: decoding the line (`protocol::ClusterVerb`),
//! executing the command (`control`).

use cluster::id::NodeId;
use cluster::map::command::{LOST_AFTER_MS_MAX, Setting};
use cluster::map::{Map, MapCommand};
use cluster::placement::COPIES_MAX;
use protocol::ClusterVerb;

/// The reason why the words of a command are refused. `Display` follows `CLIENT_ERROR cluster: `.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WordsError {
    /// No node has this id, name or address.
    #[error("there is no node {0}")]
    NoNode(String),
    /// The word names two nodes, for example one by ring name and one by id.
    #[error("{0} may be {1} or {2}: name it by its address")]
    Ambiguous(String, NodeId, NodeId),
    /// The setting does not take this value.
    #[error("{0} is {1}")]
    BadValue(&'static str, &'static str),
    /// No setting has this name.
    #[error("there is no setting {0}; {SETTINGS}")]
    NoSetting(String),
    /// `node::limits` changes limits.
    #[error("limits are not changed so")]
    OfLimits,
}

/// The settings of a cluster, for error messages.
pub const SETTINGS: &str = "there are replicas (copies of each key, 1 to 3) and lost_after (seconds \
                            from 1 to 4294967295, or never)";

/// Returns the map command for an operator's verb, on the nodes of `map`.
///
/// # Errors
///
/// A word names no single node, or a setting does not accept the value.
pub fn command_of(map: &Map, verb: ClusterVerb<'_>) -> Result<MapCommand, WordsError> {
    let living = |word| {
        let id = node_of(map, word)?;
        let incarnation = map.nodes().get(&id).map(|node| node.incarnation).unwrap_or_default();
        Ok((id, incarnation))
    };
    Ok(match verb {
        ClusterVerb::Drain(word) => {
            let (id, incarnation) = living(word)?;
            MapCommand::Drain(id, incarnation)
        }
        ClusterVerb::Forget(word) => {
            let (id, incarnation) = living(word)?;
            MapCommand::Forget(id, incarnation)
        }
        ClusterVerb::Set { name, value } => MapCommand::Set(setting(name, value)?),
        ClusterVerb::Limits | ClusterVerb::Limit { .. } | ClusterVerb::Unlimit(_) => {
            return Err(WordsError::OfLimits);
        }
    })
}

/// Returns the node that `word` names: by id (`n3` or `3`), ring name, client address or peer
/// address.
///
/// # Errors
///
/// The word names no node, or two: a ring name may look like an id.
pub fn node_of(map: &Map, word: &[u8]) -> Result<NodeId, WordsError> {
    let text = String::from_utf8_lossy(word);
    let number = text.strip_prefix('n').unwrap_or(&text).parse().ok().map(NodeId);
    let mut named = map.nodes().iter().filter(|(id, node)| {
        let description = &node.description;
        let names =
            [&description.ring_name, &description.client_address, &description.peer_address];
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

/// Returns the setting for a name and a value.
///
/// # Errors
///
/// There is no such setting, or it does not accept the value.
pub fn setting(name: &[u8], value: &[u8]) -> Result<Setting, WordsError> {
    let value = std::str::from_utf8(value).unwrap_or_default();
    match name {
        b"replicas" => match value.parse::<u8>() {
            Ok(copies) if (1..=COPIES_MAX).contains(&usize::from(copies)) => {
                Ok(Setting::Replicas(copies))
            }
            _ => Err(WordsError::BadValue("replicas", "a number from 1 to 3")),
        },
        b"lost_after" => match (value, value.parse::<u64>()) {
            ("never", _) => Ok(Setting::LostAfterMs(None)),
            (_, Ok(seconds)) if (1..=LOST_AFTER_MS_MAX / 1000).contains(&seconds) => {
                Ok(Setting::LostAfterMs(Some(seconds * 1000)))
            }
            _ => {
                let expected = "a number of seconds from 1 to 4294967295, or never";
                Err(WordsError::BadValue("lost_after", expected))
            }
        },
        other => Err(WordsError::NoSetting(String::from_utf8_lossy(other).into_owned())),
    }
}

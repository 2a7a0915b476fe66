//! The names of the sub-commands, and refusals of other words on the command line.
//!
//! Here: the text of a refusal, with the nearest command. Not here: when a word is refused
//! (`config`), the sub-commands (`server/cli`).

/// The first word of the command lines of `tollgate cluster`.
pub const CLUSTER: &str = "cluster";
/// The first word of a command line that requests a snapshot.
pub const SNAPSHOT: &str = "snapshot";
/// The first word of a command line that makes a token for the admin listener.
pub const TOKEN: &str = "token";
/// The first word of a command line that asks a server for its health.
pub const HEALTHCHECK: &str = "healthcheck";
/// The first word of a command line that shows the figures of a server.
pub const TOP: &str = "top";
/// The first word of a command line that finds mistakes of a server.
pub const DOCTOR: &str = "doctor";
/// The first word of the command lines of `tollgate limits`.
pub const LIMITS: &str = "limits";
/// The first word of a command line that asks for the reasons behind a verdict.
pub const EXPLAIN: &str = "explain";
/// The first word of a command line that prints the manual page or completions.
pub const GENERATE: &str = "generate";
/// The first word of a command line that only checks a limits file.
pub const CHECK_LIMITS: &str = "check-limits";

/// The environment variable with the token of `tollgate limits` and `tollgate explain`.
pub const TOKEN_VARIABLE: &str = "TOLLGATE_TOKEN";

/// Known words, and the command or flag that each probably means.
const MEANT: [(&str, &str); 16] = [
    (CHECK_LIMITS, "check-limits FILE"),
    (CLUSTER, "cluster, as the first word"),
    (SNAPSHOT, "snapshot, as the first word"),
    (TOKEN, "token NAME ROLE, as the first word"),
    (HEALTHCHECK, "healthcheck, as the first word"),
    (TOP, "top, as the first word"),
    (DOCTOR, "doctor, as the first word"),
    (LIMITS, "limits, as the first word"),
    (EXPLAIN, "explain KEY [COST], as the first word"),
    (GENERATE, "generate man|bash|zsh|fish, as the first word"),
    ("help", "--help"),
    ("version", "--version"),
    ("check-config", "--check-config"),
    ("start", "no word at all: tollgate serves without one"),
    ("serve", "no word at all: tollgate serves without one"),
    ("run", "no word at all: tollgate serves without one"),
];

/// Maximum edit distance at which a known word is suggested.
const DISTANCE_MAX: usize = 3;

/// The text that refuses `word`.
pub(super) fn refusal(word: &str) -> String {
    let near = MEANT.iter().map(|(known, meant)| (distance(word, known), known, meant));
    let near = near.min_by_key(|(distance, ..)| *distance);
    // Also require that less than half of the letters differ, or every short word would be near.
    let near = near.filter(|(distance, known, _)| {
        *distance <= DISTANCE_MAX && *distance * 2 <= known.len().min(word.chars().count())
    });
    let meant = near.map_or(String::new(), |(_, _, meant)| format!(" Perhaps you mean {meant}."));
    let word: String =
        word.chars().take(60).map(|c| if c.is_control() { '?' } else { c }).collect();
    format!(
        "there is no command `{word}`.{meant} The commands are {CLUSTER}, {CHECK_LIMITS}, \
         {DOCTOR}, {EXPLAIN}, {GENERATE}, {HEALTHCHECK}, {LIMITS}, {SNAPSHOT}, {TOKEN} and {TOP}; \
         without one the server starts (--help lists its flags)"
    )
}

/// Levenshtein distance: the number of letters to insert, delete or replace.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, letter) in one.chars().take(64).enumerate() {
        let mut corner = row[0];
        row[0] = line + 1;
        for (column, second) in other.iter().enumerate() {
            let change = corner + usize::from(letter != *second);
            corner = row[column + 1];
            row[column + 1] = change.min(corner + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_word_gets_the_nearest_command() {
        for (word, meant) in [
            ("check-limit", "check-limits FILE"),
            ("checklimits", "check-limits FILE"),
            ("clutser", "cluster, as the first word"),
            ("snapshots", "snapshot, as the first word"),
            ("limit", "limits, as the first word"),
            ("help", "--help"),
            ("hlep", "--help"),
            ("version", "--version"),
            ("start", "no word at all"),
            ("serve", "no word at all"),
        ] {
            let reply = refusal(word);
            assert!(reply.contains(&format!(" Perhaps you mean {meant}")), "{reply}");
        }
        for word in ["x", "64", "/etc/limits.toml", "", "a\nb"] {
            let reply = refusal(word);
            assert!(!reply.contains("Perhaps") && !reply.contains('\n'), "{reply}");
            assert!(reply.contains("The commands are cluster, check-limits, doctor, explain,"));
        }
    }

    #[test]
    fn distances_are_those_of_levenshtein() {
        for (one, other, expected) in
            [("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("help", "hlep", 2)]
        {
            assert_eq!(distance(one, other), expected);
            assert_eq!(distance(other, one), expected);
        }
    }
}

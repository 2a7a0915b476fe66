//! Files and functions are short enough to read in one go.
//!
//! Not here: the width of lines (rustfmt, and `super` for comments).

use std::collections::BTreeMap;

use super::{code, sources};

/// The most lines of a file before its tests; a longer file should be two.
const FILE_LINES_MAX: usize = 450;
/// The most lines of a function, from its name to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;

/// Functions that are longer, as file and name, with the lines that they may have. The list only
/// gets shorter.
const LONG_FUNCTIONS: [(&str, usize); 11] = [
    ("server/engine/src/algorithms/fixed/tests.rs decides_as_its_twin", 86),
    ("server/engine/src/algorithms/log/tests.rs decides_as_its_twin", 73),
    ("server/engine/src/algorithms/sliding/tests.rs decides_as_its_twin", 81),
    ("server/engine/src/idempotency/tests.rs ids_answer_as_the_exact_twin", 75),
    ("server/engine/src/item_codec/tests.rs an_export_includes_every_item_that_stays", 99),
    ("server/engine/src/item_codec/tests.rs perform_plain", 75),
    ("server/engine/src/commands/take/many/tests.rs chunks_and_changes_in_any_order_converge", 73),
    ("tests/cluster/promises.rs measure", 81),
    ("tests/cluster/shared.rs a_limit_put_at_one_node_holds_at_all", 83),
    ("tests/model/src/node.rs of_copy", 71),
    ("tests/sim/src/faults.rs strike", 118),
];

/// The lines of each file of production code before its tests.
fn file_lengths(files: &[(String, String)]) -> BTreeMap<String, usize> {
    let is_test = |name: &str| name.starts_with("tests/") || name.contains("/tests");
    let files = files.iter().filter(|(name, _)| !is_test(name));
    files.map(|(name, text)| (name.clone(), code(text).lines().count())).collect()
}

/// The name of the function that begins on a line.
fn function(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    loop {
        if let Some(name) = rest.strip_prefix("fn ") {
            return name.split(|c: char| !c.is_alphanumeric() && c != '_').next();
        }
        let (word, after) = rest.split_once(' ')?;
        let is_before_fn =
            word.starts_with("pub") || ["const", "async", "unsafe", "extern"].contains(&word);
        rest = is_before_fn.then_some(after)?;
    }
}

/// The lines of each function; of several with one name in a file, those of the longest.
fn function_lengths(files: &[(String, String)]) -> BTreeMap<String, usize> {
    let mut lengths: BTreeMap<String, usize> = BTreeMap::new();
    for (name, text) in files {
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(function) = function(line) else { continue };
            // rustfmt puts the closing brace below the first letter, or on the same line.
            let indent = &line[..line.len() - line.trim_start().len()];
            let is_end = |line: &&str| {
                line.strip_prefix(indent).is_some_and(|rest| {
                    rest == "}" || (!rest.starts_with(' ') && rest.ends_with(';'))
                })
            };
            let is_whole = line.ends_with('}') || line.ends_with(';');
            let length = match lines[at..].iter().position(is_end) {
                Some(end) if !is_whole => end + 1,
                _ => 1,
            };
            let longest = lengths.entry(format!("{name} {function}")).or_default();
            *longest = length.max(*longest);
        }
    }
    lengths
}

/// Everything longer than `max` that `known` does not allow, and entries of `known` that are not
/// longer any more.
fn faults(lengths: &BTreeMap<String, usize>, max: usize, known: &[(&str, usize)]) -> Vec<String> {
    let known: BTreeMap<&str, usize> = known.iter().copied().collect();
    let too_long = lengths.iter().filter_map(|(name, lines)| {
        let allowed = known.get(name.as_str()).copied().unwrap_or(max);
        (*lines > allowed).then(|| format!("{name} has {lines} lines, over {allowed}"))
    });
    let stale = known.keys().filter(|name| lengths.get(**name).is_none_or(|lines| *lines <= max));
    too_long
        .chain(stale.map(|name| format!("{name} is no longer long: take it off the list")))
        .collect()
}

#[test]
fn no_file_is_two_files() {
    let faults = faults(&file_lengths(&sources()), FILE_LINES_MAX, &[]);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn no_function_is_two_functions() {
    let faults = faults(&function_lengths(&sources()), FUNCTION_LINES_MAX, &LONG_FUNCTIONS);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_planted_long_file_is_found() {
    let text = "//! A line.\n".repeat(4) + "#[cfg(test)]\nmod tests {\n" + &"    f();\n".repeat(9);
    let file = |name: &str| (name.to_owned(), text.clone());
    let files = [file("own/src/a.rs"), file("own/src/a/tests.rs"), file("tests/a.rs")];
    let lengths = file_lengths(&files);
    assert_eq!(faults(&lengths, 4, &[]), [""; 0]);
    assert_eq!(faults(&lengths, 3, &[]), ["own/src/a.rs has 4 lines, over 3"]);
    assert_eq!(faults(&lengths, 3, &[("own/src/a.rs", 4)]), [""; 0]);
    // A list that should have become shorter.
    assert_eq!(faults(&lengths, 4, &[("own/src/a.rs", 5)]).len(), 1);
    assert_eq!(faults(&lengths, 4, &[("own/src/gone.rs", 5)]).len(), 1);
}

#[test]
fn a_planted_long_function_is_found() {
    let text = "trait T {\n    fn short(\n        &self,\n    );\n\n    pub(crate) const fn long(\n        \
                &self,\n    ) -> u8 {\n        if true {\n            1;\n        }\n        2\n    }\n\n    \
                fn line() {}\n}\n";
    let lengths = function_lengths(&[("a.rs".to_owned(), text.to_owned())]);
    let expected = [("a.rs line", 1), ("a.rs long", 8), ("a.rs short", 3)];
    assert_eq!(lengths, expected.map(|(name, lines)| (name.to_owned(), lines)).into());
    assert_eq!(faults(&lengths, 7, &[]), ["a.rs long has 8 lines, over 7"]);
    assert_eq!(faults(&lengths, 8, &[("a.rs long", 8)]).len(), 1);
}

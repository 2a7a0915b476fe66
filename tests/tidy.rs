//! The rules of this repository that a program can check.
//!
//! Here: the small rules, the names of types, the order of the server's rooms, prose. Beside it:
//! [`circles`] of imports, [`lengths`] of files and functions, and [`citations`] of documents. Not
//! here: the rules of rustfmt and clippy.

mod circles;
mod citations;
mod lengths;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root").to_owned()
}

/// All our Rust files, as paths from the root with their text.
fn sources() -> Vec<(String, String)> {
    let root = root();
    let mut folders: Vec<PathBuf> =
        ["protocol", "server", "cluster", "tests", "benches", "examples"]
            .map(|name| root.join(name))
            .into();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                if path.file_name().is_some_and(|name| name != "target" && name != "corpus") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("our sources are UTF-8");
                let name = path.strip_prefix(&root).expect("it lies in the root");
                files.push((name.display().to_string(), text));
            }
        }
    }
    assert!(files.len() > 50, "the sources are somewhere else");
    files
}

/// The part of a file before its unit tests.
fn code(text: &str) -> &str {
    let tests = ["#[cfg(test)]\nmod tests {", "#[cfg(test)]\npub(crate) mod tests {"];
    tests.iter().fold(text, |code, mark| code.split(mark).next().unwrap_or_default())
}

#[test]
fn every_file_says_what_lives_in_it() {
    for (name, text) in sources() {
        assert!(text.starts_with("//! "), "{name} does not open with a `//!` line");
    }
}

#[test]
fn every_example_says_how_to_run_it() {
    let folders = ["examples", "examples/limits"].map(|folder| root().join(folder));
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).expect("a folder"));
    let files = files.flatten().map(|entry| entry.path()).filter(|path| path.is_file());
    for path in files {
        let text = fs::read_to_string(&path).expect("our sources are UTF-8");
        let head: Vec<_> = text.lines().take(12).collect();
        let head = head.join("\n");
        assert!(head.contains("tollgate --limits examples/"), "{}", path.display());
        let name = path.file_stem().and_then(|name| name.to_str()).expect("names are text");
        let is_program =
            path.extension().is_some_and(|extension| extension != "toml" && extension != "md");
        assert!(!is_program || head.contains(name), "{}", path.display());
    }
}

#[test]
fn nothing_is_left_half_done() {
    // Written in two parts, so that this file does not find itself.
    let banned = [("todo", "!("), ("unimplemented", "!("), ("dbg", "!("), ("#[ign", "ore")];
    for (name, text) in sources() {
        for (first, second) in banned {
            assert!(!text.contains(&format!("{first}{second}")), "{name} has {first}{second}");
        }
    }
}

#[test]
fn clocks_and_sockets_have_one_home_each() {
    let clocks = ["net/clock.rs", "net/world.rs", "io/listener.rs", "server.rs"];
    let clocks = clocks.map(|name| format!("server/src/{name}"));
    let folders = ["server/src/", "server/cli/src/", "server/program/src/"];
    for (name, text) in sources() {
        let is_ours = folders.iter().any(|folder| name.starts_with(folder));
        if !is_ours || name.ends_with("/tests.rs") {
            continue;
        }
        let code = code(&text);
        let reads_clock = code.contains("Instant::now") || code.contains("SystemTime::now");
        assert!(!reads_clock || clocks.contains(&name), "{name} reads a clock");
        let names_socket = ["TcpStream", "TcpListener", "UnixStream", "UnixListener"]
            .iter()
            .any(|socket| code.contains(socket));
        assert!(!names_socket || name.starts_with("server/src/net"), "{name} names a socket type");
    }
}

/// A library of this workspace: its folder, and the folders of the workspace's libraries that it
/// imports.
struct Library {
    folder: String,
    imports: Vec<String>,
}

/// The dependencies in the section `[heading]` of a manifest: the name and the rest of the line.
fn section<'t>(manifest: &'t str, heading: &str) -> impl Iterator<Item = (&'t str, &'t str)> {
    let heading = format!("[{heading}]");
    let lines = manifest.lines().skip_while(move |line| *line != heading).skip(1);
    lines.take_while(|line| !line.starts_with('[')).filter_map(|line| {
        let (name, rest) = line.split_once('=')?;
        Some((name.trim().trim_end_matches(".workspace"), rest.trim()))
    })
}

/// The libraries that the workspace's manifest names, with their imports.
fn libraries() -> Vec<Library> {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("a manifest is text");
    let workspace = read("Cargo.toml");
    let folders: BTreeMap<&str, String> = section(&workspace, "workspace.dependencies")
        .filter_map(|(name, rest)| {
            let (_, path) = rest.split_once("path = \"")?;
            Some((name, path.split('"').next()?.to_owned()))
        })
        .collect();
    assert!(folders.len() > 3, "the workspace names its libraries in another way");
    let library = |folder: &String| {
        let manifest = read(&format!("{folder}/Cargo.toml"));
        let imports = section(&manifest, "dependencies");
        let imports = imports.filter_map(|(name, _)| folders.get(name).cloned()).collect();
        Library { folder: folder.clone(), imports }
    };
    folders.values().map(library).collect()
}

/// The modules that a file declares for tests alone, as paths without `.rs`.
fn test_modules<'t>(name: &str, text: &'t str) -> impl Iterator<Item = String> + use<'t> {
    let stem = name.trim_end_matches(".rs");
    let folder = ["/lib", "/main"].iter().find_map(|root| stem.strip_suffix(root)).unwrap_or(stem);
    let folder = folder.to_owned();
    text.split("#[cfg(test)]\nmod ").skip(1).filter_map(move |rest| {
        let (module, _) = rest.split_once(';')?;
        let is_name = module.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        is_name.then(|| format!("{folder}/{module}"))
    })
}

/// The names of the types that a file defines outside its tests.
fn types(text: &str) -> impl Iterator<Item = &str> {
    code(text).lines().filter_map(|line| {
        // A nested item is indented: a `type` there is an associated one.
        let is_within = line.starts_with(' ');
        let line = line.trim_start();
        let line = line.strip_prefix("pub").map_or(line, |rest| match rest.strip_prefix('(') {
            Some(scope) => scope.split_once(')').map_or(rest, |(_, rest)| rest),
            None => rest,
        });
        let mut words = line.split_whitespace();
        let name = match words.next()? {
            "struct" | "enum" | "trait" | "union" => words.next()?,
            "type" if !is_within => words.next()?,
            _ => return None,
        };
        let end = name.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
        Some(&name[..end.unwrap_or(name.len())]).filter(|name| !name.is_empty())
    })
}

/// The type names that are defined twice in a library together with all that it imports, with their
/// files.
fn types_defined_twice(libraries: &[Library], files: &[(String, String)]) -> Vec<String> {
    let is_for_tests: Vec<String> =
        files.iter().flat_map(|(name, text)| test_modules(name, text)).collect();
    let is_for_tests = |name: &str| {
        let stem = name.trim_end_matches(".rs");
        let is_below = |module: &String| {
            stem.strip_prefix(module.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        is_for_tests.iter().any(is_below)
    };
    let mut defined: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for library in libraries {
        let folder = format!("{}/src/", library.folder);
        for (name, text) in files {
            if name.starts_with(&folder) && !is_for_tests(name) {
                for of in types(text) {
                    defined.entry(of).or_default().push((&library.folder, name));
                }
            }
        }
    }
    let mut twice = BTreeSet::new();
    for library in libraries {
        let mut cone = BTreeSet::from([&library.folder]);
        let mut open = vec![library];
        while let Some(next) = open.pop() {
            for import in &next.imports {
                if cone.insert(import) {
                    open.extend(libraries.iter().find(|library| library.folder == *import));
                }
            }
        }
        for (of, places) in &defined {
            let in_cone = |(folder, _): &&(&str, &str)| cone.iter().any(|other| other == folder);
            let files: Vec<&str> = places.iter().filter(in_cone).map(|(_, name)| *name).collect();
            if files.len() > 1 {
                twice.insert(format!("{of}: {}", files.join(", ")));
            }
        }
    }
    twice.into_iter().collect()
}

#[test]
fn type_name_in_a_dependency_cone_is_unique() {
    let twice = types_defined_twice(&libraries(), &sources());
    assert!(twice.is_empty(), "defined twice:\n{}", twice.join("\n"));
}

#[test]
fn planted_type_name_in_a_cone_is_found() {
    let library = |folder: &str, imports: &[&str]| Library {
        folder: folder.to_owned(),
        imports: imports.iter().map(|&import| import.to_owned()).collect(),
    };
    let libraries = [
        library("low", &[]),
        library("mid", &["low"]),
        library("top", &["mid"]),
        library("by", &[]),
    ];
    let check = |files: &[(&str, &str)], expected: &[&str]| {
        let files = files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        assert_eq!(types_defined_twice(&libraries, &files.collect::<Vec<_>>()), expected);
    };
    let low = ("low/src/a.rs", "struct Place;\npub(crate) enum Other<'a> {}\n");
    check(&[low, ("low/src/b.rs", "trait Place {}")], &["Place: low/src/a.rs, low/src/b.rs"]);
    check(&[low, ("top/src/b.rs", "pub type Place = u8;")], &["Place: low/src/a.rs, top/src/b.rs"]);
    check(
        &[low, ("mid/src/b.rs", "    pub(in crate::a) enum Other {")],
        &["Other: low/src/a.rs, mid/src/b.rs"],
    );
    // Unrelated libraries, tests, associated types and prose.
    check(&[low, ("by/src/a.rs", "struct Place;")], &[]);
    check(&[low, ("low/src/b.rs", "#[cfg(test)]\nmod tests {\n    struct Place;\n}\n")], &[]);
    let parent = ("low/src/lib.rs", "#[cfg(test)]\nmod twin;\n");
    check(&[low, parent, ("low/src/twin.rs", "struct Place;")], &[]);
    check(&[low, parent, ("low/src/twin/deep.rs", "struct Place;")], &[]);
    check(&[low, ("low/src/b.rs", "    type Place = u8;\n/// struct Place\n// enum Place")], &[]);
}

/// The folders and files of `server/src`, each above all that it may use.
const FLOORS: [&str; 18] = [
    "simulation",
    "server",
    "admin",
    "io",
    "session",
    "node",
    "commands",
    "runtime",
    "observe",
    "shards",
    "cluster_stats",
    "config",
    "limits",
    "records",
    "transport",
    "net",
    "counters",
    "probe",
];

/// The imports of `sources`, all below `server/src`, that point up.
fn upward_imports(sources: &[(String, String)]) -> BTreeSet<(String, String)> {
    let floor = |room: &str| FLOORS.iter().position(|name| *name == room);
    let mut upward = BTreeSet::new();
    for (name, text) in sources {
        let Some(path) = name.strip_prefix("server/src/") else { continue };
        let room = path.split(['/', '.']).next().unwrap_or_default();
        if room == "lib" || path.ends_with("tests.rs") || path.contains("/tests/") {
            continue;
        }
        let own = floor(room).unwrap_or_else(|| panic!("{room} has no floor in FLOORS"));
        let code = code(text).lines().filter(|line| !line.trim_start().starts_with("//"));
        for rest in code.flat_map(|line| line.split("crate::").skip(1)) {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let other = &rest[..end];
            if floor(other).is_some_and(|other| other < own) {
                upward.insert((room.to_owned(), other.to_owned()));
            }
        }
    }
    upward
}

#[test]
fn imports_of_the_server_point_down() {
    assert_eq!(upward_imports(&sources()), BTreeSet::new());
}

#[test]
fn a_planted_upward_import_is_found() {
    let planted = |path: &str, text: &str| {
        upward_imports(&[(format!("server/src/{path}"), text.to_owned())]).len()
    };
    assert_eq!(planted("limits/active.rs", "use crate::session::Session;\n"), 1);
    assert_eq!(planted("limits/active.rs", "    // crate::session is above\n"), 0);
    assert_eq!(planted("session/login.rs", "use crate::limits::LimitsHandle;\n"), 0);
}

/// Most columns of a line with a comment.
const COMMENT_COLUMNS_MAX: usize = 100;
/// Openings of doc comments that make a riddle of the sentence.
const BANNED_OPENINGS: [&str; 7] = ["What", "Who", "How", "It", "So", "Of", "As"];

/// The comment on a line of a file, and whether it belongs to the documentation.
fn comment(line: &str) -> Option<(&str, bool)> {
    let line = line.trim_start();
    let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
    doc.map(|text| (text, true)).or_else(|| line.strip_prefix("//").map(|text| (text, false)))
}

/// Comments of a file against the rule of prose, each with its line.
fn poor_comments(name: &str, text: &str) -> Vec<String> {
    let mut poor = Vec::new();
    let mut was_doc = false;
    for (number, line) in (1..).zip(text.lines()) {
        let found = comment(line);
        if let Some((text, is_doc)) = found {
            if line.chars().count() > COMMENT_COLUMNS_MAX {
                poor.push(format!("{name}:{number}: over {COMMENT_COLUMNS_MAX} columns"));
            }
            let first = text.split_whitespace().next().unwrap_or_default();
            if is_doc && !was_doc && BANNED_OPENINGS.contains(&first) {
                poor.push(format!("{name}:{number}: begins with {first}"));
            }
        }
        was_doc = found.is_some_and(|(_, is_doc)| is_doc);
    }
    poor
}

#[test]
fn comments_are_plain_and_fit_100_columns() {
    let poor: Vec<String> =
        sources().iter().flat_map(|(name, text)| poor_comments(name, text)).collect();
    assert!(poor.is_empty(), "{}", poor.join("\n"));
}

#[test]
fn a_planted_poor_comment_is_found() {
    let count = |text: &str| poor_comments("planted.rs", text).len();
    assert_eq!(count("/// What is to leave for a partition.\nfn f() {}\n"), 1);
    assert_eq!(count("/// Removes the batch.\n/// What follows is fine.\nfn f() {}\n"), 0);
    assert_eq!(count(&format!("    // {}\n", "x".repeat(100))), 1);
}

/// The share of "what" among the words of comments, in 10,000.
fn whats(sources: &[(String, String)]) -> usize {
    let lines = sources.iter().flat_map(|(_, text)| text.lines());
    let words = lines.filter_map(comment).flat_map(|(text, _)| text.split_whitespace());
    let words: Vec<&str> =
        words.map(|word| word.trim_matches(|c: char| !c.is_alphabetic())).collect();
    let whats = words.iter().filter(|word| word.eq_ignore_ascii_case("what")).count();
    whats * 10_000 / words.len().max(1)
}

#[test]
fn comments_name_things_instead_of_what() {
    assert!(whats(&sources()) < 15, "{} in 10,000", whats(&sources()));
    let planted = [("planted.rs".to_owned(), "// what it does\n".to_owned())];
    assert!(whats(&planted) >= 15);
}

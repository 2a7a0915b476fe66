//! No circle of imports spans folders, in any crate of the workspace.
//!
//! A room is a folder of a crate's root, together with the file of its name; or a file of the root
//! by itself. The files of the root are one folder: circles among them are no concern of this rule.
//! Not here: the order of the rooms of `server` (`super`).

use std::collections::{BTreeMap, BTreeSet};

use super::{code, section, sources};

/// A crate: the folder of its root file, and its other files by their paths below that folder.
#[derive(Default)]
struct Crate<'t> {
    root: &'t str,
    files: Vec<(&'t str, &'t str)>,
}

/// Divides `files` into crates, by the folders of the workspace's `members`.
fn crates<'t>(
    members: &'t [String],
    files: &'t [(String, String)],
) -> BTreeMap<&'t str, Crate<'t>> {
    let mut crates: BTreeMap<&str, Crate> = BTreeMap::new();
    for (name, text) in files {
        let below = |member: &&String| name.strip_prefix(&***member).is_some_and(is_below);
        let Some(member) = members.iter().filter(below).max_by_key(|member| member.len()) else {
            continue;
        };
        let mut start = member.len() + 1;
        if name[start..].starts_with("src/") {
            start += "src/".len();
            // A program of several files is a crate of its own.
            if let Some((program, _)) =
                name[start..].strip_prefix("bin/").and_then(|rest| rest.split_once('/'))
            {
                start += "bin/".len() + program.len() + 1;
            }
        } else if name[start..].starts_with("tests/") || name[start..].starts_with("benches/") {
            continue;
        }
        let (folder, path) = name.split_at(start);
        let of = crates.entry(folder).or_default();
        match path {
            "lib.rs" => of.root = text,
            // The program beside a library is no room of it.
            "main.rs" => {}
            _ => of.files.push((path, text)),
        }
    }
    crates
}

fn is_below(rest: &str) -> bool {
    rest.starts_with('/')
}

fn is_test(path: &str) -> bool {
    path.ends_with("tests.rs") || path.contains("tests/")
}

/// The room of a path below a crate's root.
fn room(path: &str) -> &str {
    path.split(['/', '.']).next().unwrap_or_default()
}

fn ident(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// The first names of a use tree: one, or those of a group in braces.
fn first_names(tree: &str) -> Vec<&str> {
    let Some(group) = tree.strip_prefix('{') else { return vec![ident(tree)] };
    let (mut names, mut depth, mut is_start) = (Vec::new(), 0, true);
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => is_start = true,
            _ if is_start && !letter.is_whitespace() => {
                names.push(ident(&group[at..]));
                is_start = false;
            }
            _ => {}
        }
    }
    names
}

/// The names below a crate's root that a file at `path` imports.
fn imported<'t>(path: &str, code: &'t str) -> Vec<&'t str> {
    let mut names = Vec::new();
    for (at, start) in code.match_indices("crate::") {
        // Not a visibility.
        if !code[..at].ends_with("in ") {
            names.extend(first_names(&code[at + start.len()..]));
        }
    }
    // `super` of a file in the root is the root; each folder of the path is one more step.
    let depth = path.matches('/').count();
    let (mut rest, mut steps) = (code, 0);
    while let Some(at) = rest.find("super::") {
        steps = if at == 0 { steps + 1 } else { 1 };
        rest = &rest[at + "super::".len()..];
        if steps == depth + 1 {
            names.extend(first_names(rest));
        }
    }
    names
}

/// Names that a root file exports again, with their rooms.
fn exported<'t>(root: &'t str, rooms: &BTreeSet<&str>) -> BTreeMap<&'t str, &'t str> {
    let trees = root.split("use ").skip(1).filter_map(|rest| rest.split(';').next());
    trees
        .map(|tree| tree.trim_start_matches("crate::"))
        .filter(|tree| rooms.contains(ident(tree)))
        .flat_map(|tree| {
            let names = tree.split(|c: char| !c.is_alphanumeric() && c != '_').skip(1);
            names.map(move |name| (name, ident(tree)))
        })
        .collect()
}

/// The circles of `files` that span folders, each as its crate and rooms.
fn circles(members: &[String], files: &[(String, String)]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (folder, of) in crates(members, files) {
        let files = of.files.iter().filter(|(path, _)| !is_test(path));
        let files: Vec<_> = files.map(|(path, text)| (*path, bare(text))).collect();
        let rooms: BTreeSet<&str> = files.iter().map(|(path, _)| room(path)).collect();
        let is_folder =
            |of: &str| files.iter().any(|(path, _)| path.starts_with(&[of, "/"].concat()));
        let exported = exported(of.root, &rooms);
        let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (path, code) in &files {
            let names = imported(path, code).into_iter();
            let to =
                names.filter_map(|name| rooms.get(name).or_else(|| exported.get(name)).copied());
            reached.entry(room(path)).or_default().extend(to);
        }
        for by in &rooms {
            let further = reached.get(by).cloned().unwrap_or_default();
            for to in reached.values_mut().filter(|to| to.contains(by)) {
                to.extend(&further);
            }
        }
        for of in &rooms {
            let is_mutual = |other: &&str| reached[other].contains(of);
            let circle: Vec<&str> =
                reached[of].iter().copied().filter(|other| is_mutual(other)).collect();
            if circle.len() > 1 && circle.iter().any(|of| is_folder(of)) {
                found.insert(format!("{}: {}", folder.trim_end_matches('/'), circle.join(" ")));
            }
        }
    }
    found
}

/// The code of a file before its tests, without lines of comment.
fn bare(text: &str) -> String {
    let lines = code(text).lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The folders of the workspace's packages.
fn members() -> Vec<String> {
    let manifest = std::fs::read_to_string(super::root().join("Cargo.toml"));
    let manifest = manifest.expect("the manifest is text");
    let (_, list) =
        section(&manifest, "workspace").find(|(name, _)| *name == "members").expect("members");
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn imports_make_no_circle_over_folders() {
    let found = circles(&members(), &sources());
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn a_planted_circle_is_found() {
    let members = ["own".to_owned(), "own/inner".to_owned()];
    let check = |files: &[(&str, &str)], expected: &[&str]| {
        let files = files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        let found = circles(&members, &files.collect::<Vec<_>>());
        assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    };
    let low = ("own/src/low.rs", "use crate::{mid::{Inner, Other}, top};\n");
    let mid = ("own/src/mid/part.rs", "use super::super::low::Low;\n");
    check(&[low, mid, ("own/src/top.rs", "")], &["own/src: low mid"]);
    // Through a third room, and through the root file.
    let third = ("own/src/top.rs", "fn f() { crate::mid::f() }\n");
    check(&[("own/src/low.rs", "use super::top;\n"), mid, third], &["own/src: low mid top"]);
    let root = ("own/src/lib.rs", "pub use mid::{Inner, Other};\n");
    check(&[root, ("own/src/low.rs", "use crate::Other;\n"), mid], &["own/src: low mid"]);
    // One way, within a room, among files of the root, between crates, in tests and in comments.
    check(&[mid, ("own/src/low.rs", "")], &[]);
    check(
        &[("own/src/mid.rs", "use crate::mid::part;"), ("own/src/mid/part.rs", "use super::A;")],
        &[],
    );
    check(&[("own/src/low.rs", "use crate::top;"), ("own/src/top.rs", "use crate::low;")], &[]);
    check(&[("own/inner/src/low.rs", "use crate::mid;"), mid], &[]);
    let tests =
        ("own/src/low.rs", "// crate::mid\n#[cfg(test)]\nmod tests {\n    use crate::mid;\n}\n");
    check(&[tests, mid], &[]);
    check(&[("own/src/low/tests.rs", "use crate::mid;"), mid], &[]);
}

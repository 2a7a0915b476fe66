//! Comments cite only documents that a reader of the repository has.
//!
//! Not here: links in the documents themselves (`doc_links`).

use std::path::Path;

use super::{comment, root, sources};

/// The comments of a file: each line number with the text of the block that begins there.
fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    for (number, line) in (1..).zip(text.lines()) {
        let found = comment(line);
        match found {
            Some((text, _)) if is_open => {
                let (_, block) = blocks.last_mut().expect("one is open");
                *block += text;
            }
            Some((text, _)) => blocks.push((number, text.to_owned())),
            None => {}
        }
        is_open = found.is_some();
    }
    blocks
}

/// Citations of a file that lead nowhere; `is_there` knows the documents, as paths from the root.
fn dead_citations(name: &str, text: &str, is_there: &dyn Fn(&Path) -> bool) -> Vec<String> {
    // A name without a folder is beside the file, or above it.
    let finds = |cited: &str| {
        let mut folders = Path::new(name).ancestors().skip(1);
        cited.starts_with("target/") || folders.any(|folder| is_there(&folder.join(cited)))
    };
    let mut dead = Vec::new();
    for (number, block) in blocks(text) {
        let is_name = |c: char| c.is_alphanumeric() || "_-./".contains(c);
        let words = block.split(|c: char| !is_name(c)).map(|word| word.trim_matches('.'));
        let cited: Vec<&str> = words
            .filter(|word| {
                Path::new(word).extension().is_some_and(|end| end == "md") && *word != "md"
            })
            .collect();
        dead.extend(
            cited
                .iter()
                .filter(|cited| !finds(cited))
                .map(|cited| format!("{name}:{number}: {cited}")),
        );
        // A section belongs to a document: one of ours, a standard, or a book by its title.
        let has_source = !cited.is_empty() || block.contains("RFC ") || block.contains('"');
        let lower = block.to_lowercase();
        let is_numbered = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
        let cites_section = block.contains('§') || lower.split("section ").skip(1).any(is_numbered);
        if cites_section && !has_source {
            dead.push(format!("{name}:{number}: a section of no document"));
        }
    }
    dead
}

#[test]
fn comments_cite_documents_of_the_repository() {
    let root = root();
    let is_there = |path: &Path| root.join(path).is_file();
    let dead: Vec<String> =
        sources().iter().flat_map(|(name, text)| dead_citations(name, text, &is_there)).collect();
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

#[test]
fn a_planted_dead_citation_is_found() {
    let is_there =
        |path: &Path| [Path::new("docs/there.md"), Path::new("own/NEAR.md")].contains(&path);
    let count = |text: &str| dead_citations("own/src/a.rs", text, &is_there).len();
    assert_eq!(count("/// The rules, as `docs/gone.md` has them.\n"), 1);
    assert_eq!(count("//! The order of DESIGN.md.\n"), 1);
    assert_eq!(count("fn f() {\n    // See section 4.2,\n    // which says why.\n}\n"), 1);
    assert_eq!(count("// As §3 says.\n"), 1);
    assert_eq!(
        count("/// The rules of docs/there.md; NEAR.md, section 2 has the\n/// reasons.\n"),
        0
    );
    assert_eq!(
        count("// RFC 9110, section 5.6.\n// The section of a file.\nlet a = \"gone.md\";\n"),
        0
    );
    assert_eq!(count("/// In target/bench.md.\n"), 0);
}

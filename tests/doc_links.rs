//! The links of the documentation, checked offline.
//!
//! Here: every relative link of README, ARCHITECTURE, CONTRIBUTING, `docs/`, `deploy/` and
//! `examples/` leads to a file and to a heading in it; `docs/SUMMARY.md` names every page; the
//! trips name source files that exist. Not here: links to other sites.
//!
//! A page of the book may be an `{{#include FILE}}`: then it has the headings of that file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Folders whose Markdown files are checked, and files outside of them.
const FOLDERS: [&str; 3] = ["docs", "deploy", "examples"];
const PAGES: [&str; 3] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"];

/// The table of contents of the book.
const SUMMARY: &str = "docs/SUMMARY.md";

/// The depth to which nested includes are followed.
const INCLUDES_MAX: usize = 4;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root").to_owned()
}

fn has_extension(name: &str, extension: &str) -> bool {
    Path::new(name).extension().is_some_and(|found| found == extension)
}

/// The Markdown files below `folder`, as paths from the root.
fn markdown_files(folder: &str) -> Vec<String> {
    let (mut folders, mut files) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).expect("the folder is there").flatten() {
            let name = entry.file_name().into_string().expect("our file names are UTF-8");
            let path = format!("{folder}/{name}");
            if entry.path().is_dir() {
                folders.push(path);
            } else if has_extension(&name, "md") {
                files.push(path);
            }
        }
    }
    files
}

/// Reads a file by its path from the root. A folder reads as an empty file.
fn read(path: &str) -> Option<String> {
    let path = root().join(path);
    if path.is_dir() {
        return Some(String::new());
    }
    fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Resolves `target` from the folder of the file `from`; `None` above the root.
fn resolve(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The lines of a text outside of fences, without code spans.
fn prose(text: &str) -> Vec<String> {
    let (mut lines, mut is_fenced) = (Vec::new(), false);
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced {
            lines.push(line.split('`').step_by(2).collect::<Vec<_>>().join("``"));
        }
    }
    lines
}

/// The targets of all links and images of a text.
fn targets(text: &str) -> Vec<String> {
    let text = prose(text).join("\n");
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let mut targets: Vec<_> = inline.map(|(target, _)| target.to_owned()).collect();
    for line in text.lines().filter(|line| line.starts_with('[')) {
        targets.extend(line.split_once("]: ").map(|(_, target)| target.to_owned()));
    }
    let first_word = |target: String| target.split_whitespace().next().map(str::to_owned);
    targets.into_iter().filter_map(first_word).collect()
}

/// The anchor that GitHub and mdBook derive from a heading. A link counts as its text.
fn slug(heading: &str) -> String {
    let mut parts = heading.split("](");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        shown.push_str(part.split_once(')').map_or(part, |(_, rest)| rest));
    }
    let letters = shown.trim().to_lowercase();
    let letters = letters.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    letters.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

/// The anchors of the headings of a file, including those of included files.
fn anchors(path: &str, read: &dyn Fn(&str) -> Option<String>, depth: usize) -> BTreeSet<String> {
    let (mut anchors, mut counts) = (BTreeSet::new(), BTreeMap::new());
    let mut is_fenced = false;
    for line in read(path).unwrap_or_default().lines() {
        is_fenced ^= line.trim_start().starts_with("```");
        if is_fenced {
            continue;
        }
        let included = line.strip_prefix("{{#include ").and_then(|rest| rest.strip_suffix("}}"));
        if let Some(included) = included.filter(|_| depth < INCLUDES_MAX) {
            let included = resolve(path, included.trim()).unwrap_or_default();
            anchors.extend(self::anchors(&included, read, depth + 1));
        }
        let level = line.chars().take_while(|letter| *letter == '#').count();
        if (1..=6).contains(&level) && line[level..].starts_with(' ') {
            let slug = slug(&line[level..]);
            let count: &mut usize = counts.entry(slug.clone()).or_default();
            anchors.insert(if *count == 0 { slug } else { format!("{slug}-{count}") });
            *count += 1;
        }
    }
    anchors
}

/// The broken links of a file, one line each.
fn faults(path: &str, read: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let text = read(path).unwrap_or_default();
    let mut faults = Vec::new();
    for target in targets(&text) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
        let file = if file.is_empty() { Some(path.to_owned()) } else { resolve(path, file) };
        let fault = match file {
            Some(file) if read(&file).is_some() => {
                if path.starts_with("docs/") && !file.starts_with("docs/") {
                    Some("is outside of the book")
                } else if !anchor.is_empty() && !anchors(&file, read, 0).contains(anchor) {
                    Some("has no such heading")
                } else {
                    None
                }
            }
            _ => Some("does not exist"),
        };
        faults.extend(fault.map(|fault| format!("{path}: {target} {fault}")));
    }
    faults
}

#[test]
fn every_relative_link_leads_somewhere() {
    let pages = PAGES.map(str::to_owned).into_iter();
    let pages: Vec<_> = pages.chain(FOLDERS.into_iter().flat_map(markdown_files)).collect();
    let all: Vec<_> = pages.iter().flat_map(|page| faults(page, &read)).collect();
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn the_summary_names_every_page_once() {
    let named = targets(&read(SUMMARY).expect("the book has a summary"));
    let named: Vec<_> = named.iter().filter_map(|target| resolve(SUMMARY, target)).collect();
    let is_once = |page: &String| named.iter().filter(|name| *name == page).count() == 1;
    let pages = markdown_files("docs").into_iter().filter(|page| page != SUMMARY);
    let missing: Vec<_> = pages.filter(|page| !is_once(page)).collect();
    assert!(missing.is_empty(), "missing in {SUMMARY}, or twice: {missing:?}");
}

#[test]
fn the_trips_name_files_that_exist() {
    let text = read("docs/internals/trips.md").expect("the trips are written down");
    let spans = text.split('`').skip(1).step_by(2);
    let files: BTreeSet<_> = spans.filter(|span| has_extension(span, "rs")).collect();
    assert!(files.len() > 20, "{files:?}");
    let missing: Vec<_> = files.into_iter().filter(|file| read(file).is_none()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_first_pages_are_short() {
    for (page, lines_max) in [("README.md", 120), ("ARCHITECTURE.md", 150)] {
        let lines = read(page).map_or(usize::MAX, |text| text.lines().count());
        assert!(lines <= lines_max, "{page} has {lines} lines");
    }
}

/// The tables of the trips of an `incr` may name no more files than today.
#[test]
fn the_trips_of_an_incr_are_short() {
    let text = read("docs/internals/trips.md").expect("the trips are written down");
    for (title, files_max) in
        [("An incr on one node", 9), ("An incr forwarded with two copies", 18)]
    {
        let trip = text.split("\n## ").find_map(|trip| trip.strip_prefix(title)).expect(title);
        let rows = trip.lines().filter(|line| line.starts_with('|'));
        let spans = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
        let files: BTreeSet<_> = spans.filter(|span| has_extension(span, "rs")).collect();
        assert!((5..=files_max).contains(&files.len()), "{title}: {files:?}");
    }
}

#[test]
fn a_broken_link_is_found() {
    let page = "# A page\n\n[good](b.md#two-words), [here](#a-page), [site](https://example.com),\n\
        [gone](c.md), [no heading](b.md#three), ![picture](d.svg), [root](../README.md),\n\
        [above](../../../x.md), `[code](e.md)` and [included](inc.md#two-words).\n\n\
        ```\n[fenced](f.md)\n```\n";
    let read = |path: &str| {
        let text = match path {
            "docs/a.md" => page,
            "docs/b.md" => "# B\n\n## Two `words`\n\n```\n# Three\n```\n",
            "docs/inc.md" => "{{#include b.md}}\n",
            "README.md" => "",
            _ => return None,
        };
        Some(text.to_owned())
    };
    let expected = [
        "docs/a.md: c.md does not exist",
        "docs/a.md: b.md#three has no such heading",
        "docs/a.md: d.svg does not exist",
        "docs/a.md: ../README.md is outside of the book",
        "docs/a.md: ../../../x.md does not exist",
    ];
    assert_eq!(faults("docs/a.md", &read), expected);
}

#[test]
fn anchors_are_those_of_mdbook_and_github() {
    let text =
        "# What it costs, `a_b`\n## Time-outs, pools\n## Same\n## Same\n## A [link](x.md) here\n";
    let read = |_: &str| Some(text.to_owned());
    let expected = ["a-link-here", "same", "same-1", "time-outs-pools", "what-it-costs-a_b"]
        .map(str::to_owned);
    assert_eq!(anchors("x.md", &read, 0), BTreeSet::from(expected));
}

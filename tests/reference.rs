//! Whether docs/reference has an entry for every name that a user meets.
//!
//! Here: the names, each read from the built program or tried on the code, and the entries of a
//! folder of pages. An entry is a text in backticks in the first cell of a table row or in a
//! heading, or a word of a heading without backticks. Not here: whether the text of an entry is
//! true.
//!
//! Candidates for names are all quoted words in the sources. A word counts as a name if the
//! decoder, the parser or the server accepts it. Therefore the test finds a new name wherever its
//! code lives.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use nix::sys::signal::Signal;
use protocol::{Bounds, ProtocolError, decode};
use tollgate::config::Config;
use tollgate_limits::Limits;

use crate::live::{Client, Program, Server};
use crate::operators::NODE;

/// A name that the reference must have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    /// The kind of name, for the message.
    kind: &'static str,
    text: String,
    /// The text in backticks of the heading under which the entry must stand; `None` for any place.
    section: Option<&'static str>,
}

/// A text in backticks in the first cell of a row or in a heading, or a word of a heading.
#[derive(Debug)]
struct Entry {
    text: String,
    section: String,
}

/// Pages with names that look like verbs: a counter `version`, a setting `verbosity`.
const OTHER_NAMES: [&str; 4] =
    ["stats.md", "configuration.md", "limits-file.md", "cluster-commands.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root").to_owned()
}

fn reference() -> PathBuf {
    root().join("docs/reference")
}

// The pages.

/// The texts in backticks of a line.
fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The first cell of a table row. A `\|` ends no cell.
fn first_cell(row: &str) -> &str {
    let rest = row.trim_start().strip_prefix('|').unwrap_or_default();
    let mut ends = rest.match_indices('|').map(|(end, _)| end);
    let end = ends.find(|end| !rest[..*end].ends_with('\\'));
    &rest[..end.unwrap_or(rest.len())]
}

/// The entries of the pages in a folder, except the pages in `without`.
fn entries(folder: &Path, without: &[&str]) -> Vec<Entry> {
    let mut entries = Vec::new();
    let pages =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for page in pages.flatten().map(|page| page.path()) {
        let name = page.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if Path::new(name).extension().is_some_and(|end| end == "md") && !without.contains(&name) {
            let text = fs::read_to_string(&page).expect("a page is UTF-8");
            add_entries(&text, &mut entries);
        }
    }
    entries
}

fn add_entries(text: &str, entries: &mut Vec<Entry>) {
    let mut sections: Vec<(usize, String)> = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code && line.starts_with('#') {
            let level = line.bytes().take_while(|byte| *byte == b'#').count();
            sections.retain(|(other, _)| *other < level);
            sections.extend(spans(line).next().map(|section| (level, section.to_owned())));
            if line.contains('`') {
                add(spans(line), &sections, entries);
            } else {
                // `## get, gets` belongs to both.
                add(line[level..].trim().split(", "), &sections, entries);
            }
        } else if !is_code && line.trim_start().starts_with('|') {
            add(spans(first_cell(line)), &sections, entries);
        }
    }
}

fn add<'l>(
    texts: impl Iterator<Item = &'l str>,
    sections: &[(usize, String)],
    entries: &mut Vec<Entry>,
) {
    let section = sections.last().map_or("", |(_, section)| section);
    entries.extend(texts.map(|text| Entry { text: text.to_owned(), section: section.to_owned() }));
}

/// Whether an entry is for a name; arguments may follow the name.
fn is_for(entry: &Entry, name: &Name) -> bool {
    let rest = entry.text.strip_prefix(name.text.as_str());
    let is_name = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '=', '[']));
    is_name && name.section.is_none_or(|section| section == entry.section)
}

/// A line for each name without an entry in the folder, ignoring the pages in `without`.
fn missing(names: &BTreeSet<Name>, folder: &Path, without: &[&str]) -> Vec<String> {
    let entries = entries(folder, without);
    let missing = names.iter().filter(|name| !entries.iter().any(|entry| is_for(entry, name)));
    let line = |Name { kind, text, section }: &Name| match section {
        Some(section) => format!("{kind} `{text}` has no entry below the heading `{section}`"),
        None => format!("{kind} `{text}` has no entry"),
    };
    missing.map(line).collect()
}

/// Fails if a name has no entry, or if fewer than `at_least` names were found.
#[track_caller]
fn check(names: &BTreeSet<Name>, without: &[&str], at_least: usize) {
    println!("{} names", names.len());
    assert!(names.len() >= at_least, "only these names were found: {names:#?}");
    let missing = missing(names, &reference(), without);
    let count = missing.len();
    assert!(missing.is_empty(), "docs/reference lacks {count}:\n{}", missing.join("\n"));
}

// The names.

fn name(kind: &'static str, text: impl Into<String>) -> Name {
    Name { kind, text: text.into(), section: None }
}

/// All quoted words of such bytes in the sources below a folder, except in tests.
fn quoted(folder: &str, is_of_word: impl Fn(u8) -> bool) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).expect("the folder is there").flatten() {
            let path = path.path();
            let is_test = path.file_stem().is_some_and(|name| name == "tests");
            if is_test {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("our sources are UTF-8");
                let parts = text.split('"').filter(|part| part.len() > 1);
                words.extend(parts.filter(|part| part.bytes().all(&is_of_word)).map(str::to_owned));
            }
        }
    }
    words
}

fn is_small(byte: u8) -> bool {
    byte.is_ascii_lowercase() || matches!(byte, b'_' | b'-')
}

/// Whether the decoder has this verb. Some verbs are recognized only with the right arguments.
fn is_verb(word: &str) -> bool {
    let tails = [
        "",
        " k",
        " k 1",
        " k 1 1",
        " 100",
        " enable",
        " automove 1",
        " mode flat",
        " get cluster",
    ];
    tails.iter().any(|tail| {
        let line = format!("{word}{tail}\r\n");
        let decoded = decode(line.as_bytes(), 0, Bounds::default());
        !matches!(decoded, Err(refusal) if refusal.error == ProtocolError::UnknownCommand)
    })
}

fn verbs() -> BTreeSet<Name> {
    let metas = (b'a'..=b'z').map(|letter| format!("m{}", char::from(letter)));
    let words = quoted("protocol/src", is_small).into_iter().chain(metas);
    words.filter(|word| is_verb(word)).map(|word| name("the verb", word)).collect()
}

fn printed(args: &[&str]) -> String {
    let output = Command::new(Program::Tollgate.path()).args(args).output();
    let output = output.expect("the program runs");
    String::from_utf8([output.stdout, output.stderr].concat()).expect("it prints text")
}

/// Columns before a flag in a help text; deeper lines continue a text.
const FLAG_COLUMNS: usize = 6;

/// The flags that a help text lists: `-p, --port <NUM>`.
fn flags_of(help: &str) -> impl Iterator<Item = Name> {
    let lines = help.lines().filter_map(|line| {
        let flag = line.trim_start();
        (flag.starts_with('-') && line.len() - flag.len() <= FLAG_COLUMNS).then_some(flag)
    });
    let words = lines.flat_map(|line| {
        let words =
            line.split([' ', ',']).take_while(|word| word.is_empty() || word.starts_with('-'));
        words.filter(|word| !word.is_empty())
    });
    words.map(|word| name("the flag", word.split(['=', '[']).next().unwrap_or(word)))
}

/// The commands that a help text lists, each after `before`, their subcommands, and all their
/// flags.
fn add_commands(before: &str, names: &mut BTreeSet<Name>) {
    let args: Vec<&str> = before.split(' ').chain(["--help"]).collect();
    let help = printed(&args);
    names.extend(flags_of(&help));
    let commands = help.split("Commands:\n").nth(1).unwrap_or_default();
    // A line indented by two columns is a command, a deeper one continues its text.
    let lines = commands.lines().take_while(|line| line.starts_with("  "));
    let lines = lines.filter_map(|line| line.strip_prefix("  "));
    for word in lines.filter_map(|line| line.split(' ').next()).filter(|word| !word.is_empty()) {
        let command = format!("{before} {word}");
        add_commands(&command, names);
        names.insert(name("the command", command));
    }
}

/// The options of `-o`.
fn extended_options() -> BTreeSet<Name> {
    let is_option = |word: &String| {
        let args = ["tollgate", "-o", word.as_str()].map(OsString::from);
        match Config::from_sources(args, []) {
            Ok(_) => true,
            Err(error) => !error.to_string().contains("Illegal suboption"),
        }
    };
    let words = quoted("server/src", |byte| byte != b'-' && is_small(byte));
    words.into_iter().filter(is_option).map(|word| name("the option of -o", word)).collect()
}

fn variables() -> BTreeSet<Name> {
    let is_of_word = |byte: u8| byte.is_ascii_uppercase() || byte == b'_';
    let mut words = quoted("server/src", is_of_word);
    words.extend(quoted("server/cli/src", is_of_word));
    let is_own = |word: &String| word.starts_with("TOLLGATE_") || word.starts_with("MEMCACHED_");
    let is_whole = |word: &String| !word.ends_with('_');
    let words = words.into_iter().filter(is_own).filter(is_whole);
    words.map(|word| name("the variable", word)).collect()
}

/// The error of a refused limits file.
fn refusal(text: &str) -> String {
    Limits::parse("limits.toml", text.as_bytes())
        .map_or_else(|error| error.to_string(), |_| String::new())
}

/// The values that a refusal lists after `of`.
fn values_in(refusal: &str, of: &str) -> Vec<String> {
    let (_, list) = refusal.split_once(of).unwrap_or_else(|| panic!("no {of:?} in {refusal}"));
    list.split(", ").map(str::to_owned).collect()
}

/// The fields of a limits file, and the values of fields with few values.
fn limits_file() -> BTreeSet<Name> {
    let mut names = BTreeSet::new();
    for word in quoted("server/limits/src", is_small) {
        for (head, before, tail) in [
            ("", "", ""),
            ("[[limit]]\n", "", ""),
            ("[[limit]]\noverrides = [{ ", "overrides.", " }]"),
        ] {
            let field = if before.is_empty() { "" } else { "key = \"k\", " };
            let field = if word == "key" { "" } else { field };
            let text = format!("{head}{field}{word} = 1{tail}\n");
            let refusal = refusal(&text);
            if !refusal.contains("unknown field") {
                names.insert(name("the field of the limits file", format!("{before}{word}")));
            }
        }
    }
    for (line, of) in [
        ("companions = [\"x\"]", "a companion is one of "),
        ("on_unavailable = \"x\"", "`on_unavailable` is one of "),
        ("deny = \"x\"", "`deny` is one of "),
    ] {
        let values = values_in(&refusal(&format!("[[limit]]\n{line}\n")), of);
        names.extend(values.into_iter().map(|value| name("the value of the limits file", value)));
    }
    let limit = "[[limit]]\nname = \"x\"\nmatch = \"{x:x}\"\npolicy = \"block\"\n";
    let classes = values_in(&refusal(limit), "a capture is one of ");
    let classes = classes.into_iter().filter(|class| !class.contains(' '));
    names.extend(classes.map(|class| name("the capture", format!("{{name:{class}}}"))));
    names
}

/// The words after `stats` to which a node has a reply.
fn topics(client: &mut Client) -> BTreeSet<Name> {
    let mut words = quoted("protocol/src", is_small);
    words.extend(quoted("server/src", is_small));
    let below = words.iter().map(|word| format!("cluster {word}"));
    let mut topics: Vec<String> = below.collect();
    topics.extend(words);
    let is_topic = |topic: &String| {
        let reply = client.ask_until(format!("stats {topic}\r\nmn\r\n"), "MN\r\n");
        !reply.starts_with("ERROR\r\n")
    };
    topics.retain(is_topic);
    topics.into_iter().map(|topic| name("the topic", format!("stats {topic}"))).collect()
}

/// Adds the names in the reply to a request, which belong under a heading; `rename` normalizes
/// names that differ between servers.
fn add_stats(
    client: &mut Client,
    (request, section): (&str, &'static str),
    rename: impl Fn(&str) -> String,
    names: &mut BTreeSet<Name>,
) {
    let answer = client.ask_until(format!("{request}\r\n"), "END\r\n");
    for line in answer.lines().filter_map(|line| line.strip_prefix("STAT ")) {
        let (text, _) = line.split_once(' ').expect("a line has a value");
        names.insert(Name { kind: "the figure", text: rename(text), section: Some(section) });
    }
}

/// Replaces the number of `3:name` by the given word.
fn behind(what: &'static str) -> impl Fn(&str) -> String {
    move |text| text.split_once(':').map_or(text.to_owned(), |(_, name)| format!("{what}:{name}"))
}

const LIMIT: &str = "[[limit]]\nname = \"x\"\nmatch = \"x:{id}\"\npolicy = \"fixed:5/m\"\n";

/// The names of a lone server's statistics.
fn add_lone_stats(names: &mut BTreeSet<Name>) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let limits = folder.path().join("limits.toml");
    let overrides_file = "overrides_file = \"overrides.txt\"\n";
    fs::write(&limits, format!("{LIMIT}{overrides_file}")).expect("the folder is ours");
    fs::write(folder.path().join("overrides.txt"), "").expect("the folder is ours");
    let limits_flag = limits.to_str().expect("the path is text");
    let flags = ["-e", "{folder}/snapshot", "--limits", limits_flag];
    let mut server = Server::start_as(Program::Tollgate, &flags);
    let mut client = server.connect();
    client.ask("set k 0 0 1\r\n1\r\n", "STORED\r\n");
    fs::write(&limits, "x").expect("the folder is ours");
    server.signal(Signal::SIGHUP);
    server.until("the limits are refused", |_| {
        client.ask_until("stats limits\r\n", "END\r\n").contains("limits_fault")
    });
    let same = str::to_owned;
    for topic in ["stats", "stats settings", "stats items", "stats slabs", "stats sizes"] {
        add_stats(&mut client, (topic, topic), same, names);
    }
    for (topic, what) in [("stats conns", "FD"), ("stats limits", "NAME")] {
        add_stats(&mut client, (topic, topic), behind(what), names);
    }
}

/// The names of a node's statistics, with all topics of `stats` and all operator commands.
fn add_node_stats(names: &mut BTreeSet<Name>) {
    let mut server = Server::start_as(Program::Tollgate, &[&NODE[..], &["-A"]].concat());
    let mut client = server.connect();
    server.until("the node is ready", |_| {
        let reply = client.ask_until("stats cluster\r\nmn\r\n", "MN\r\n");
        reply.contains("STAT ready yes")
    });
    let limit = format!("cluster limit x {}\r\n{LIMIT}\r\n", LIMIT.len());
    client.ask(limit, "OK\r\n");
    let setting = |text: &str| match text.strip_prefix("setting:") {
        Some(_) => "setting:NAME".to_owned(),
        None => text.to_owned(),
    };
    add_stats(&mut client, ("stats cluster", "stats cluster"), setting, names);
    for (topic, what) in [("stats cluster nodes", "NODE"), ("stats cluster limits", "NAME")] {
        add_stats(&mut client, (topic, topic), behind(what), names);
    }
    let partition = |text: &str| {
        let number = text.strip_prefix('p').and_then(|number| number.parse::<u32>().ok());
        number.map_or(text.to_owned(), |_| "PARTITION".to_owned())
    };
    for topic in ["stats cluster partitions", "stats cluster partitions all"] {
        add_stats(&mut client, (topic, "stats cluster partitions"), partition, names);
    }
    names.extend(topics(&mut client));
    // The refusals list the accepted words.
    let reply = client.ask_until("cluster x\r\n", "\r\n");
    let verbs =
        reply.split([':', ',']).filter_map(|part| part.split_once("cluster ")?.1.split(' ').next());
    names.extend(verbs.map(|verb| name("the line", format!("cluster {verb}"))));
    let reply = client.ask_until("cluster set x 1\r\n", "\r\n");
    let settings = reply.split("; there are ").nth(1).unwrap_or_default().split(" and ");
    let settings = settings.filter_map(|part| part.split(' ').next());
    names.extend(settings.map(|setting| name("the setting of a cluster", setting)));
}

#[test]
fn every_verb_has_an_entry() {
    check(&verbs(), &OTHER_NAMES, 40);
}

#[test]
fn every_flag_and_command_has_an_entry() {
    let mut names: BTreeSet<Name> = flags_of(&printed(&["--help"])).collect();
    for command in ["cluster", "snapshot", "limits", "explain", "generate"] {
        add_commands(command, &mut names);
    }
    let reply = printed(&["bogus-word"]);
    let commands = reply.split("The commands are ").nth(1).and_then(|rest| rest.split(';').next());
    let commands = commands.expect("a word that is none hears the commands").replace(" and ", ", ");
    names.extend(commands.split(", ").map(|word| name("the command", format!("tollgate {word}"))));
    names.extend(extended_options());
    names.extend(variables());
    check(&names, &[], 190);
}

#[test]
fn every_field_of_the_limits_file_has_an_entry() {
    check(&limits_file(), &[], 30);
}

#[test]
fn every_name_of_stats_has_an_entry() {
    let mut names = BTreeSet::new();
    add_lone_stats(&mut names);
    add_node_stats(&mut names);
    check(&names, &[], 290);
}

#[test]
fn a_missing_entry_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let page = "# Page\n\n## `stats`\n\n| `-p`, `--port NUM` | text `--listen` |\n|---|---|\n\
                | [`pid`](x.md) \\| `uptime` | |\n\n```\n| `time` |\n```\n\n## `stats limits`\n\n\
                ### More\n\n| `NAME:policy` | |\n| `limits` | |\n\n### take, refund\n";
    fs::write(folder.path().join("page.md"), page).expect("the folder is ours");
    fs::write(folder.path().join("other.md"), "## `tak`\n").expect("the folder is ours");
    let figure = |text: &str, section| Name { section: Some(section), ..name("the figure", text) };
    let there = [
        name("the flag", "-p"),
        name("the flag", "--port"),
        name("the verb", "take"),
        name("the verb", "refund"),
        figure("pid", "stats"),
        figure("uptime", "stats"),
        figure("NAME:policy", "stats limits"),
    ];
    let not_there = [
        name("the flag", "--listen"),
        name("the flag", "--por"),
        name("the verb", "tak"),
        figure("limits", "stats"),
        figure("time", "stats"),
    ];
    let names: BTreeSet<Name> = there.into_iter().chain(not_there).collect();
    assert_eq!(
        missing(&names, folder.path(), &["other.md"]),
        [
            "the figure `limits` has no entry below the heading `stats`",
            "the figure `time` has no entry below the heading `stats`",
            "the flag `--listen` has no entry",
            "the flag `--por` has no entry",
            "the verb `tak` has no entry",
        ]
    );
}

#[test]
fn names_are_found_where_they_are_listed() {
    let verbs = verbs();
    for verb in
        ["get", "incr", "cas", "config", "cluster", "slabs", "lru", "mg", "mn", "take", "slide"]
    {
        assert!(verbs.contains(&name("the verb", verb)), "{verb} in {verbs:?}");
    }
    for word in ["noreply", "peek", "hold", "mz"] {
        assert!(!is_verb(word), "{word}");
    }
    let help = "  -v, --verbose[=<LEVEL>]  Log more: -vv\n      --json   Print\n          --a]\n";
    let flags: Vec<Name> = flags_of(help).collect();
    assert_eq!(flags, ["-v", "--verbose", "--json"].map(|flag| name("the flag", flag)));
}

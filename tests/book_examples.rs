//! The examples of the book: every `tollgate` block of `docs/`, each played to its own server.
//!
//! Here: the format of a block, its player, and the check that the pages and the code agree. Not
//! here: the meaning of each command (the transcripts), server processes (`live`).
//!
//! ```text
//! # limits | [[limit]]      a line of the limits file of the server
//! # flags | -A              flags of the server; `{folder}` is its folder, `{auth}` a file,
//!                           `{examples}` the folder `examples`
//! # why                     any other comment
//! > incr hits 1             a line that the client sends; consecutive ones go in one write
//! < 1                       a line of the reply, exactly
//! <~ ALLOW 5 4 0 [0-9]+     a line that varies: a regular expression of the whole line
//! <| name = "api"           a line of a data block that ends with a bare LF
//! <close>                   the server closes the connection
//! ```
//!
//! A named group of a `<~` line, `lease=(?<lease>[0-9]+)`, is `$lease` in the lines below it. No
//! output may follow the last line.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Read, Write},
    path::{Path, PathBuf},
};

use regex_automata::meta::Regex;

use crate::live::{Program, Server};

/// A block of a page.
#[derive(Debug, Default)]
struct Example {
    /// File and line of its opening fence.
    place: String,
    limits: String,
    flags: Vec<String>,
    steps: Vec<Step>,
}

/// A line of a block, with its place.
#[derive(Debug)]
struct Step {
    place: String,
    action: Action,
}

#[derive(Debug)]
enum Action {
    Send(String),
    Expect(String),
    Match(Box<Regex>),
    Close,
}

/// Marks a line that ended without CR.
const BARE_END: &str = " (LF alone)";

/// The values of named groups.
type Names = BTreeMap<String, String>;

impl Example {
    /// The blocks of a page.
    ///
    /// # Errors
    ///
    /// `file:line: reason` for a line without meaning, and for a block without a request or a
    /// reply.
    fn all_of(file: &str, text: &str) -> Result<Vec<Self>, String> {
        let mut examples = Vec::new();
        let mut lines = text.lines().zip(1..);
        while let Some((line, number)) = lines.next() {
            if line.trim_start() != "```tollgate" {
                continue;
            }
            let place = format!("{file}:{number}");
            let mut example = Self { place, ..Self::default() };
            loop {
                let Some((line, number)) = lines.next() else {
                    return Err(format!("{}: the block does not end", example.place));
                };
                if line.trim_start() == "```" {
                    break;
                }
                let place = format!("{file}:{number}");
                example.read(&place, line).map_err(|why| format!("{place}: {why}"))?;
            }
            let asks = |step: &Step| matches!(step.action, Action::Send(_));
            if example.steps.iter().all(asks) || !example.steps.iter().any(asks) {
                return Err(format!("{}: an example has a question and an answer", example.place));
            }
            examples.push(example);
        }
        Ok(examples)
    }

    fn read(&mut self, place: &str, line: &str) -> Result<(), String> {
        if let Some(rest) = line.strip_prefix("# limits |") {
            self.limits.push_str(rest.strip_prefix(' ').unwrap_or(rest));
            self.limits.push('\n');
            return Ok(());
        }
        if let Some(rest) = line.strip_prefix("# flags |") {
            self.flags.extend(rest.split_whitespace().map(str::to_owned));
            return Ok(());
        }
        let action = match line.split_once(' ').unwrap_or((line, "")) {
            ("" | "#", _) => return Ok(()),
            (">", text) => Action::Send(text.to_owned()),
            ("<", text) => Action::Expect(text.to_owned()),
            ("<|", text) => Action::Expect(format!("{text}{BARE_END}")),
            ("<~", text) => {
                let regex = Regex::new(&format!("^(?:{text})$")).map_err(|why| why.to_string())?;
                Action::Match(Box::new(regex))
            }
            ("<close>", "") => Action::Close,
            _ => return Err(format!("a line of an example that means nothing: {line}")),
        };
        self.steps.push(Step { place: place.to_owned(), action });
        Ok(())
    }

    /// Plays the block over a connection.
    ///
    /// # Errors
    ///
    /// `file:line: expected and received text`, for the first reply that is wrong.
    fn play(&self, connection: impl Read + Write) -> Result<(), String> {
        let mut connection = BufReader::new(connection);
        let mut names = Names::new();
        let mut unsent = Vec::new();
        for Step { place, action } in &self.steps {
            if let Action::Send(text) = action {
                unsent.extend_from_slice(fill(text, &names).as_bytes());
                unsent.extend_from_slice(b"\r\n");
                continue;
            }
            send(&mut connection, &mut unsent).map_err(|why| format!("{place}: {why}"))?;
            let answer = receive(&mut connection).map_err(|why| format!("{place}: {why}"))?;
            let expected = match (action, &answer) {
                (Action::Expect(text), Some(line)) if *line == fill(text, &names) => continue,
                (Action::Match(regex), Some(line)) if note(regex, line, &mut names) => continue,
                (Action::Close, None) => return Ok(()),
                (Action::Expect(text), _) => fill(text, &names),
                (Action::Match(regex), _) => format!("{regex:?}"),
                _ => "<close>".to_owned(),
            };
            let answer = answer.as_deref().unwrap_or("<close>");
            return Err(format!("{place}\n  not  {expected}\n  but  {answer}"));
        }
        // All other outstanding output precedes the reply to this request.
        unsent.extend_from_slice(b"mn\r\n");
        let place = &self.place;
        send(&mut connection, &mut unsent).map_err(|why| format!("{place}: {why}"))?;
        match receive(&mut connection).map_err(|why| format!("{place}: {why}"))?.as_deref() {
            Some("MN" | "CLIENT_ERROR unauthenticated") => Ok(()),
            surplus => Err(format!("{place}\n  nothing more was expected\n  but  {surplus:?}")),
        }
    }

    /// Plays the block to a server of its own.
    ///
    /// # Errors
    ///
    /// The errors of [`Example::play`].
    fn play_live(&self) -> Result<(), String> {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let examples = root().join("examples").display().to_string();
        let own: Vec<String> =
            self.flags.iter().map(|flag| flag.replace("{examples}", &examples)).collect();
        let mut flags: Vec<&str> = own.iter().map(String::as_str).collect();
        if !self.limits.is_empty() {
            fs::write(folder.path().join("limits.toml"), &self.limits).expect("the folder is ours");
            flags.extend(["--limits", "{folder}/limits.toml"]);
        }
        let server = Server::start_in(Program::Tollgate, &flags, folder);
        self.play(&server.connect().stream)
    }
}

/// Replaces each `$name` by the text that its pattern matched; other dollars stay.
fn fill(text: &str, names: &Names) -> String {
    let mut filled = text.to_owned();
    for (name, value) in names.iter().rev() {
        filled = filled.replace(&format!("${name}"), value);
    }
    filled
}

fn send(connection: &mut BufReader<impl Read + Write>, unsent: &mut Vec<u8>) -> Result<(), String> {
    let written = connection.get_mut().write_all(unsent);
    unsent.clear();
    written.map_err(|why| format!("cannot send: {why}"))
}

/// The next line without its end; `None` if the connection is closed.
fn receive(connection: &mut BufReader<impl Read + Write>) -> Result<Option<String>, String> {
    let mut line = Vec::new();
    connection.read_until(b'\n', &mut line).map_err(|why| format!("no answer: {why}"))?;
    let line = String::from_utf8(line).map_err(|why| why.to_string())?;
    match (line.strip_suffix("\r\n"), line.strip_suffix('\n')) {
        (Some(text), _) => Ok(Some(text.to_owned())),
        (None, Some(text)) => Ok(Some(format!("{text}{BARE_END}"))),
        _ if line.is_empty() => Ok(None),
        _ => Err(format!("a line without its end: {line:?}")),
    }
}

/// Whether the line matches the pattern; stores the values of its named groups.
fn note(regex: &Regex, line: &str, names: &mut Names) -> bool {
    let mut captures = regex.create_captures();
    regex.captures(line, &mut captures);
    for name in regex.group_info().pattern_names(captures.pattern().unwrap_or_default()).flatten() {
        if let Some(span) = captures.get_group_by_name(name) {
            names.insert(name.to_owned(), line[span.range()].to_owned());
        }
    }
    captures.is_match()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root").to_owned()
}

/// All files below a folder with this extension, as paths from the root with their text.
fn files(folder: &str, extension: &str) -> Vec<(String, String)> {
    let (root, mut found) = (root(), Vec::new());
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|own| own == extension) {
                let text = fs::read_to_string(&path).expect("our files are UTF-8");
                let name = path.strip_prefix(&root).expect("it lies in the root");
                found.push((name.display().to_string(), text));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn every_example_of_the_book_is_true() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for (file, text) in files("docs", "md") {
        match Example::all_of(&file, &text) {
            Err(why) => wrong.push(why),
            Ok(examples) => {
                count += examples.len();
                wrong.extend(examples.iter().filter_map(|example| example.play_live().err()));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {count} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count > 50, "only {count} examples: the pages are somewhere else");
}

/// The string literals of the code before its tests, each up to its first placeholder or escape.
fn literals(code: &str) -> Vec<String> {
    let code = code.split("#[cfg(test)]").next().unwrap_or_default();
    let is_code = |line: &&str| {
        let line = line.trim_start();
        !line.starts_with("//") && !line.contains("reason = ")
    };
    let code = code.lines().filter(is_code).collect::<Vec<_>>().join("\n");
    // A character literal of a quote begins no string, and a string continues after a backslash at
    // the end of a line.
    let code = code.replace("'\"'", "");
    let mut pieces = code.split("\\\n");
    let first = pieces.next().unwrap_or_default().to_owned();
    let code = pieces.fold(first, |code, piece| code + piece.trim_start());
    let mut found = Vec::new();
    let mut rest = code.as_str();
    while let Some((_, text)) = rest.split_once('"') {
        let mut is_escaped = false;
        let end = text.find(|letter: char| {
            let ends = letter == '"' && !is_escaped;
            is_escaped = letter == '\\' && !is_escaped;
            ends
        });
        let (literal, more) = text.split_at(end.unwrap_or(text.len()));
        rest = more.strip_prefix('"').unwrap_or(more);
        let whole = literal.split(['\\', '{']).next().unwrap_or_default();
        found.push(whole.trim_end().to_owned());
    }
    found
}

#[test]
fn every_error_of_the_code_is_in_the_book() {
    let page =
        fs::read_to_string(root().join("docs/reference/errors.md")).expect("the page exists");
    // Every literal of these files goes to a client, after a verb or before an offset.
    let sources = ["native.rs", "operator.rs", "policy/parse.rs", "policy/token.rs"];
    let sources = sources.map(|name| format!("protocol/src/{name}"));
    let mut missing = Vec::new();
    for folder in ["protocol/src", "server/src"] {
        for (file, text) in files(folder, "rs") {
            if file.ends_with("/tests.rs") {
                continue;
            }
            let is_source = sources.contains(&file);
            let is_error = |text: &String| {
                let (word, rest) = text.split_once(' ').unwrap_or((text.as_str(), ""));
                let is_sentence = !word.is_empty() && !rest.is_empty();
                is_sentence && (is_source || word.ends_with("_ERROR") || word == "ERROR")
            };
            let texts = literals(&text).into_iter().filter(is_error);
            let lacking = texts.filter(|text| !page.replace("\\|", "|").contains(text));
            missing.extend(lacking.map(|text| format!("{file}: {text}")));
        }
    }
    assert!(missing.is_empty(), "errors.md lacks:\n{}", missing.join("\n"));
}

#[test]
fn literals_of_code_are_read_whole() {
    let code =
        "// \"no\"\nconst A: &str = \"one \\\n    two\"; f(b\"a\\r\\n\", \"{why} b\", '\"');\n";
    assert_eq!(literals(code), ["one two", "a", ""]);
}

/// A server that returns fixed bytes.
struct Scripted(&'static [u8]);

impl Read for Scripted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Scripted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn played(block: &str, answers: &'static str) -> Result<(), String> {
    let page = format!("# Page\n\n```tollgate\n{block}```\n");
    let examples = Example::all_of("page.md", &page)?;
    let [example] = &examples[..] else { panic!("{examples:?}") };
    example.play(Scripted(answers.as_bytes()))
}

#[test]
fn a_right_example_is_played_to_its_end() {
    let block = "# why\n> take a 1 x\n<~ ALLOW lease=(?<lease>[0-9]+)\n\n> settle a $lease 0\n\
                 < SETTLED $lease\n";
    assert_eq!(played(block, "ALLOW lease=17\r\nSETTLED 17\r\nMN\r\n"), Ok(()));
    assert_eq!(played("> quit\n<close>\n", ""), Ok(()));
    assert_eq!(played("> get a\n<| 1\n<\n", "1\n\r\nMN\r\n"), Ok(()));
}

#[test]
fn a_wrong_example_is_told_with_its_place() {
    for (block, answers) in [
        ("> incr a 1\n< 2\n", "1\r\nMN\r\n"),
        ("> incr a 1\n< 1\n", "1\n"),
        ("> incr a 1\n<~ [a-z]\n", "ab\r\nMN\r\n"),
        ("> incr a 1\n< 1\n", ""),
        ("> quit\n<close>\n", "1\r\nMN\r\n"),
    ] {
        let error = played(block, answers).expect_err(block);
        assert!(error.starts_with("page.md:5"), "{error}");
    }
    let error = played("> incr a 1\n< 1\n", "1\r\n2\r\nMN\r\n").expect_err("more comes");
    assert!(error.starts_with("page.md:3"), "{error}");
}

#[test]
fn a_line_that_means_nothing_is_refused() {
    for block in ["> a\n? b\n", "> a\n", "< b\n", "> a\n<~ (\n", "> a\n<close> b\n"] {
        played(block, "").expect_err(block);
    }
    Example::all_of("page.md", "```tollgate\n> a\n< b\n").expect_err("no end");
}

#[test]
fn a_wrong_example_fails_on_a_real_server() {
    let page = "```tollgate\n# limits | [[limit]]\n# limits | name = \"a\"\n# limits | match = \"a:{x}\"\n\
                # limits | policy = \"fixed:1/h\"\n> incr a:b 1\n< 1\n> incr a:b 1\n< 1\n```\n";
    let examples = Example::all_of("page.md", page).expect("it is well written");
    let error = examples[0].play_live().expect_err("a limit of one refuses the second");
    assert_eq!(error, "page.md:9\n  not  1\n  but  2");
}

//! The transcript format: wire conversations as text, parsed into steps.
//!
//! Here: the meaning of a line of `transcripts/*.txt`. Not here: the players of the steps
//! (`players.rs`).
//!
//! ```text
//! # why                   a comment; the first one of a conversation is its name
//! > set k 0 0 1           a line sent, CRLF added; lines that follow each other go in one write
//! >| raw\r\n              bytes sent as they are
//! < STORED                a line expected
//! <| raw\r\n              bytes expected as they are
//! <18 ERROR               the reply of 1.6.18 instead of the `<` lines that follow (or `<18|`)
//! <close>                 the server closes; a later `>` comes over a new connection, same items
//! @ 31s                   the clock moves (`us`, `ms`, `s`, `m`, `h` or `d`)
//! --                      ends the conversation; the next one starts without items
//! ! flags: -A             flags the server needs, `{auth}` stands for a file with `user:pass`
//! ! alone: reason         needs a server of its own, though it needs no flags
//! ! not oracle: reason    not played to a real memcached
//! ! not live: reason      played to the core alone: its replies depend on the clock
//! ! only whole: reason    not fed byte by byte
//! ! no fence: reason      the connection is unusable at the end
//! ```
//!
//! Escapes, in sent and expected text: `\r \n \t \0 \xNN \\ \$`, `\{a*1048000}` repeats,
//! `\{now+60}` is the unix time. `$name` in expected text is a decimal number: the first use binds
//! it, later ones, also in sent text, mean the same number; different names are different numbers,
//! and `$_` is any number.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

/// One conversation: from an empty store to its last expected byte.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) name: String,
    pub(crate) flags: Vec<String>,
    pub(crate) alone: bool,
    pub(crate) not_oracle: bool,
    pub(crate) not_live: bool,
    pub(crate) only_whole: bool,
    pub(crate) no_fence: bool,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) line: usize,
    pub(crate) action: Action,
}

#[derive(Debug)]
pub(crate) enum Action {
    Send(Text),
    /// `before` is the reply of 1.6.18, where it differs.
    Expect {
        text: Text,
        before: Option<Text>,
    },
    Close,
    Advance(Duration),
}

/// Bytes with placeholders.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Text(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Bytes(Vec<u8>),
    Number(String),
    /// The unix time, with this offset in seconds.
    Now(i64),
}

/// The numbers that names stand for in one conversation.
pub(crate) type Names = BTreeMap<String, String>;

/// The result of comparing received bytes with an expected text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// The text matches this number of leading bytes.
    Whole(usize),
    /// The bytes match a beginning of the text.
    Part,
    /// The bytes differ from the text.
    Not,
}

impl Conversation {
    /// Parses a transcript file's text.
    ///
    /// # Errors
    ///
    /// `file:line: reason` for the first line without meaning.
    pub(crate) fn parse(file: &str, text: &str) -> Result<Vec<Self>, String> {
        let mut done = Vec::new();
        let mut current = Self { file: file.to_owned(), ..Self::default() };
        let mut fresh = true;
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            if line == "--" {
                let next = Self { file: file.to_owned(), ..Self::default() };
                done.push(std::mem::replace(&mut current, next));
                fresh = true;
                continue;
            }
            if current.line == 0 && !line.is_empty() {
                current.line = number;
            }
            current.read(number, line, fresh).map_err(|why| format!("{file}:{number}: {why}"))?;
            fresh = line.is_empty() || line.starts_with(['#', '!', '@']);
        }
        done.push(current);
        done.retain(|conversation| !conversation.steps.is_empty());
        Ok(done)
    }

    /// The time that this conversation takes on a real clock.
    pub(crate) fn waits(&self) -> Duration {
        let wait = |step: &Step| match step.action {
            Action::Advance(by) => by,
            _ => Duration::ZERO,
        };
        self.steps.iter().map(wait).sum()
    }

    /// Parses one line. `fresh`: it does not continue the line before it.
    fn read(&mut self, number: usize, line: &str, fresh: bool) -> Result<(), String> {
        if line.is_empty() {
            return Ok(());
        }
        if let Some(comment) = line.strip_prefix('#') {
            if self.name.is_empty() {
                comment.trim().clone_into(&mut self.name);
            }
            return Ok(());
        }
        if line == "<close>" {
            self.steps.push(Step { line: number, action: Action::Close });
            return Ok(());
        }
        let (mark, rest) = line.split_once(' ').unwrap_or((line, ""));
        let text = match mark {
            ">" | "<" | "<18" => Text::parse(&format!("{rest}\\r\\n"))?,
            ">|" | "<|" | "<18|" => Text::parse(rest)?,
            "@" => {
                let action = Action::Advance(duration(rest)?);
                self.steps.push(Step { line: number, action });
                return Ok(());
            }
            "!" => return self.mark(rest),
            _ => return Err(format!("no such mark: {mark}")),
        };
        let old = mark.starts_with("<18");
        match self.steps.last_mut().map(|step| &mut step.action) {
            Some(Action::Send(sent)) if mark.starts_with('>') && !fresh => sent.extend(text),
            Some(Action::Expect { text: expected, before: None })
                if !mark.starts_with('>') && !old && !fresh =>
            {
                expected.extend(text);
            }
            Some(Action::Expect { text: expected, before: Some(before) })
                if !mark.starts_with('>') && !fresh && (!old || expected.0.is_empty()) =>
            {
                if old { before } else { expected }.extend(text);
            }
            _ => {
                let action = match mark {
                    ">" | ">|" => Action::Send(text),
                    "<" | "<|" => Action::Expect { text, before: None },
                    _ => Action::Expect { text: Text::default(), before: Some(text) },
                };
                self.steps.push(Step { line: number, action });
            }
        }
        Ok(())
    }

    fn mark(&mut self, rest: &str) -> Result<(), String> {
        let (name, value) = rest.split_once(": ").ok_or("a mark reads `! name: reason`")?;
        match name {
            "flags" => self.flags = value.split_whitespace().map(str::to_owned).collect(),
            "alone" => self.alone = true,
            "not oracle" => self.not_oracle = true,
            "not live" => self.not_live = true,
            "only whole" => self.only_whole = true,
            "no fence" => self.no_fence = true,
            _ => return Err(format!("no such mark: ! {name}")),
        }
        Ok(())
    }
}

impl Text {
    fn parse(line: &str) -> Result<Self, String> {
        let mut text = Self::default();
        let mut rest = line;
        while let Some(found) = rest.find(['\\', '$']) {
            text.push(&rest.as_bytes()[..found]);
            let after = &rest[found + 1..];
            rest = if rest[found..].starts_with('$') {
                let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                let (name, tail) = after.split_at(end.unwrap_or(after.len()));
                if name.is_empty() {
                    return Err("a `$` names nothing".to_owned());
                }
                text.0.push(Piece::Number(name.to_owned()));
                tail
            } else {
                text.escape(after)?
            };
        }
        text.push(rest.as_bytes());
        Ok(text)
    }

    /// Parses the escape after a backslash; returns the text after it.
    fn escape<'a>(&mut self, after: &'a str) -> Result<&'a str, String> {
        let first = after.chars().next().ok_or("a backslash ends the line")?;
        let tail = &after[first.len_utf8()..];
        match first {
            'r' => self.push(b"\r"),
            'n' => self.push(b"\n"),
            't' => self.push(b"\t"),
            '0' => self.push(b"\0"),
            '\\' | '$' => self.push(&[first as u8]),
            'x' => {
                let digits = tail.get(..2).ok_or("\\x wants two digits")?;
                let byte = u8::from_str_radix(digits, 16).map_err(|e| format!("\\x: {e}"))?;
                self.push(&[byte]);
                return Ok(&tail[2..]);
            }
            '{' => {
                let (inner, tail) = tail.split_once('}').ok_or("\\{ is not closed")?;
                if let Some(by) = inner.strip_prefix("now") {
                    let by = by.parse().map_err(|e| format!("\\{{now}}: {e}"))?;
                    self.0.push(Piece::Now(by));
                } else {
                    let (what, times) = inner.split_once('*').ok_or("\\{text*times}")?;
                    let times = times.parse().map_err(|e| format!("\\{{text*times}}: {e}"))?;
                    self.push(&what.as_bytes().repeat(times));
                }
                return Ok(tail);
            }
            other => return Err(format!("no such escape: \\{other}")),
        }
        Ok(tail)
    }

    fn push(&mut self, bytes: &[u8]) {
        match self.0.last_mut() {
            Some(Piece::Bytes(last)) => last.extend_from_slice(bytes),
            _ if bytes.is_empty() => {}
            _ => self.0.push(Piece::Bytes(bytes.to_vec())),
        }
    }

    fn extend(&mut self, other: Self) {
        for piece in other.0 {
            match piece {
                Piece::Bytes(bytes) => self.push(&bytes),
                hole => self.0.push(hole),
            }
        }
    }

    /// The bytes to send at this unix time; a name without a number is an error in the transcript.
    pub(crate) fn fill(&self, names: &Names, unix: i64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in &self.0 {
            match piece {
                Piece::Bytes(literal) => bytes.extend_from_slice(literal),
                Piece::Now(by) => bytes.extend_from_slice((unix + by).to_string().as_bytes()),
                Piece::Number(name) => {
                    let number = names.get(name).unwrap_or_else(|| panic!("${name} is not bound"));
                    bytes.extend_from_slice(number.as_bytes());
                }
            }
        }
        bytes
    }

    /// Compares received bytes with this text; binds names if the whole text matches.
    pub(crate) fn compare(&self, received: &[u8], names: &mut Names) -> Match {
        let mut bound = names.clone();
        let mut at = 0;
        for piece in &self.0 {
            let rest = &received[at..];
            match piece {
                Piece::Bytes(literal) if rest.starts_with(literal) => at += literal.len(),
                Piece::Bytes(literal) if literal.starts_with(rest) => return Match::Part,
                Piece::Bytes(_) | Piece::Now(_) => return Match::Not,
                Piece::Number(name) => {
                    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
                    if digits == rest.len() {
                        return Match::Part;
                    }
                    let number = String::from_utf8_lossy(&rest[..digits]).into_owned();
                    if digits == 0 || !bind(&mut bound, name, number) {
                        return Match::Not;
                    }
                    at += digits;
                }
            }
        }
        *names = bound;
        Match::Whole(at)
    }
}

/// Whether `name` can stand for `number`: it already did, or both are new.
fn bind(names: &mut Names, name: &str, number: String) -> bool {
    if name == "_" {
        return true;
    }
    if let Some(known) = names.get(name) {
        return *known == number;
    }
    if names.values().any(|other| *other == number) {
        return false;
    }
    names.insert(name.to_owned(), number);
    true
}

fn duration(text: &str) -> Result<Duration, String> {
    let unit = text.find(|c: char| !c.is_ascii_digit()).ok_or("a duration wants a unit")?;
    let count: u64 = text[..unit].parse().map_err(|e| format!("{text}: {e}"))?;
    let micros = match &text[unit..] {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        other => return Err(format!("no such unit: {other}")),
    };
    Ok(Duration::from_micros(count * micros))
}

/// Shows bytes in the notation of a transcript, long runs shortened.
pub(crate) fn show(bytes: &[u8]) -> String {
    let mut shown = String::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let run = bytes[at..].iter().take_while(|next| **next == byte).count();
        let one = byte.escape_ascii().to_string();
        if run > 16 {
            write!(shown, "\\{{{one}*{run}}}").expect("a String takes everything");
            at += run;
        } else {
            shown.push_str(&one);
            at += 1;
        }
        if shown.len() > 2_000 {
            shown.push('…');
            break;
        }
    }
    shown
}

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for piece in &self.0 {
            match piece {
                Piece::Bytes(bytes) => f.write_str(&show(bytes))?,
                Piece::Number(name) => write!(f, "${name}")?,
                Piece::Now(by) => write!(f, "\\{{now{by:+}}}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(line: &str) -> Text {
        Text::parse(line).expect("the test writes it well")
    }

    #[test]
    fn a_name_bound_once_stands_for_its_number() {
        let mut names = Names::new();
        let line = text("V $a $a $_ $b;");
        assert_eq!(line.compare(b"V 7 7 7 8;", &mut names), Match::Whole(10));
        assert_eq!(names.len(), 2);
        assert_eq!(text("cas $b").fill(&names, 0), b"cas 8");
        assert_eq!(text("$a;").compare(b"9;", &mut names), Match::Not);
        assert_eq!(text("$c;").compare(b"7;", &mut names), Match::Not, "that is already $a");
    }

    #[test]
    fn a_cut_reply_is_a_part_of_the_expected_one() {
        let line = text("VALUE $n\\r\\n");
        for cut in 0..b"VALUE 12\r\n".len() {
            let received = &b"VALUE 12\r\n"[..cut];
            assert_eq!(line.compare(received, &mut Names::new()), Match::Part, "{cut}");
        }
        assert_eq!(line.compare(b"VALUES", &mut Names::new()), Match::Not);
    }

    #[test]
    fn escapes_and_repeats_are_bytes() {
        let bytes = text("a\\{bc*3}\\x00\\t\\$\\\\\\{now-5}").fill(&Names::new(), 15);
        assert_eq!(bytes, b"abcbcbc\0\t$\\10");
    }

    #[test]
    fn lines_for_1_6_18_replace_the_run_after_them() {
        let parsed = Conversation::parse("f", "> a\n> b\n<18 X\n< Y\n< Z\n\n< W\n--\n> c\n<|\n");
        let parsed = parsed.expect("the test writes it well");
        let [first, second] = &parsed[..] else { panic!("{parsed:?}") };
        assert_eq!((first.steps.len(), second.line), (3, 9));
        let Action::Expect { text, before: Some(before) } = &first.steps[1].action else {
            panic!("{first:?}")
        };
        assert_eq!(
            (text.to_string(), before.to_string()),
            ("Y\\r\\nZ\\r\\n".into(), "X\\r\\n".into())
        );
    }

    #[test]
    fn a_line_that_means_nothing_is_named() {
        for line in ["? x", "@ 5", "! flag -A", "> \\q", "< $", "> \\{a*b}"] {
            let error = Conversation::parse("f", &format!("> a\n{line}\n")).expect_err(line);
            assert!(error.starts_with("f:2: "), "{error}");
        }
    }
}

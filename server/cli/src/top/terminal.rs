//! The terminal of `tollgate top`: raw input, ANSI output, and its restoration on every way out.
//!
//! Here: the modes of the terminal, keys, and drawing only the lines that have changed. Not here:
//! the content of the lines (`screens`), which are plain ASCII.

use std::io::{self, Read as _, Write, stdin, stdout};
use std::panic;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use rustix::termios::{
    OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::signal::unix::{SignalKind, signal};
use tollgate::net::clock::Clock;

/// Size where the terminal tells none.
const SIZE: (usize, usize) = (80, 24);
/// Largest size that is drawn.
const SIZE_MAX: (usize, usize) = (400, 200);

/// The alternate screen, without a cursor and line wrap.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
const LEAVE: &[u8] = b"\x1b[?7h\x1b[?25h\x1b[?1049l";

/// Exit code after a signal, as of a shell: 128 and the number of SIGTERM.
const SIGNALLED: i32 = 143;

/// The mode of the terminal before this program; none while it is not changed.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// A terminal in raw mode. Dropping it restores the terminal.
pub(super) struct Terminal {
    /// The lines on the screen.
    drawn: Vec<String>,
    size: (usize, usize),
}

/// A key that `tollgate top` reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyPress {
    Char(char),
    Enter,
    Backspace,
    Escape,
    Quit,
}

/// Restores the terminal if it was changed. May be called on any thread, and more than once.
fn restore() {
    let before = match BEFORE.lock() {
        Ok(mut before) => before.take(),
        Err(poisoned) => poisoned.into_inner().take(),
    };
    if let Some(before) = before {
        let _ = stdout().write_all(LEAVE);
        let _ = stdout().flush();
        let _ = tcsetattr(stdin(), OptionalActions::Flush, &before);
    }
}

/// Ends the process after SIGINT, SIGTERM or SIGHUP, with the terminal restored.
fn restore_on_signals() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let context = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(context);
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
        });
        restore();
        std::process::exit(SIGNALLED);
    })?;
    Ok(())
}

impl Terminal {
    /// Takes over the terminal of standard input and output.
    ///
    /// # Errors
    ///
    /// Standard input or output is no terminal, or the system refuses.
    pub(super) fn open() -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        // A read waits a tenth of a second for a key.
        raw.special_codes[SpecialCodeIndex::VMIN] = 0;
        raw.special_codes[SpecialCodeIndex::VTIME] = 1;
        restore_on_signals()?;
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |cause| {
            restore();
            hook(cause);
        }));
        if let Ok(mut saved) = BEFORE.lock() {
            *saved = Some(before);
        }
        let terminal = Self { drawn: Vec::new(), size: (0, 0) };
        tcsetattr(stdin(), OptionalActions::Flush, &raw)?;
        stdout().write_all(ENTER)?;
        Ok(terminal)
    }

    /// The size in columns and lines.
    pub(super) fn size() -> (usize, usize) {
        let size = tcgetwinsize(stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        size.map_or(SIZE, |size| {
            (usize::from(size.ws_col).min(SIZE_MAX.0), usize::from(size.ws_row).min(SIZE_MAX.1))
        })
    }

    /// Waits up to a tenth of a second for keys.
    ///
    /// # Errors
    ///
    /// The terminal is gone.
    pub(super) fn keys(clock: &Clock) -> io::Result<Vec<KeyPress>> {
        let mut bytes = [0; 64];
        let started = clock.now().mono.0;
        let count = match stdin().read(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            read => read?,
        };
        if count == 0 && clock.now().mono.0.saturating_sub(started) < 50_000_000 {
            // An input that is at its end does not wait.
            thread::sleep(Duration::from_millis(100));
        }
        Ok(keys_of(&bytes[..count]))
    }

    /// Draws the lines that differ from those on the screen.
    ///
    /// # Errors
    ///
    /// The terminal is gone.
    pub(super) fn draw(&mut self, lines: Vec<String>, size: (usize, usize)) -> io::Result<()> {
        let mut out = String::new();
        if size != self.size {
            out.push_str("\x1b[2J");
            self.drawn.clear();
            self.size = size;
        }
        changes(&self.drawn, &lines, &mut out);
        self.drawn = lines;
        if out.is_empty() {
            return Ok(());
        }
        let mut stdout = stdout();
        stdout.write_all(out.as_bytes())?;
        stdout.flush()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Writes the sequences that turn the lines `before` into `after`.
fn changes(before: &[String], after: &[String], out: &mut String) {
    use std::fmt::Write as _;

    for at in 0..before.len().max(after.len()) {
        let line = after.get(at).map_or("", String::as_str);
        if before.get(at).map_or("", String::as_str) != line {
            let _ = write!(out, "\x1b[{};1H{line}\x1b[K", at + 1);
        }
    }
}

fn keys_of(bytes: &[u8]) -> Vec<KeyPress> {
    let mut keys = Vec::new();
    let mut rest = bytes;
    while let [first, others @ ..] = rest {
        rest = others;
        keys.push(match first {
            3 | 4 => KeyPress::Quit,
            b'\r' | b'\n' => KeyPress::Enter,
            8 | 127 => KeyPress::Backspace,
            0x1b => match others {
                // The sequence of an arrow or function key: skip it to its last letter.
                [b'[' | b'O', sequence @ ..] => {
                    let is_last = |byte: &u8| matches!(byte, b'@'..=b'~');
                    let end = sequence.iter().position(is_last).map_or(sequence.len(), |at| at + 1);
                    rest = &sequence[end..];
                    continue;
                }
                _ => KeyPress::Escape,
            },
            byte @ b' '..=b'~' => KeyPress::Char(char::from(*byte)),
            _ => continue,
        });
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changed_lines_are_drawn() {
        let lines = |text: &str| text.split('|').map(str::to_owned).collect::<Vec<_>>();
        let drawn = |before: &str, after: &str| {
            let mut out = String::new();
            changes(&lines(before), &lines(after), &mut out);
            out
        };
        assert_eq!(drawn("a|b|c", "a|b|c"), "");
        assert_eq!(drawn("a|b|c", "a|x|c"), "\x1b[2;1Hx\x1b[K");
        assert_eq!(drawn("a|b|c", "a"), "\x1b[2;1H\x1b[K\x1b[3;1H\x1b[K");
        assert_eq!(drawn("a", "a||c"), "\x1b[3;1Hc\x1b[K");
    }

    #[test]
    fn keys_are_read_and_sequences_skipped() {
        let up_then_q = b"\x1b[A\x1b[5~\x1bOPq";
        assert_eq!(keys_of(up_then_q), [KeyPress::Char('q')]);
        let all = [
            KeyPress::Char('/'),
            KeyPress::Backspace,
            KeyPress::Enter,
            KeyPress::Quit,
            KeyPress::Escape,
        ];
        assert_eq!(keys_of(b"/\x7f\r\x03\x1b"), all);
        assert_eq!(keys_of(b"\xff\x00\x1b["), []);
    }
}

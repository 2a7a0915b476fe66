//! `tollgate top`: the figures of a running server, once a second, over its client port.
//!
//! Here: the command line, the state of the display, the loop. Not here: reading figures
//! (`figures`), the lines of a screen (`screens`), the terminal (`terminal`).

mod figures;
mod screens;
mod terminal;

use std::ffi::OsString;
use std::io::Write;
use std::thread::sleep;
use std::time::Duration;

use clap::ValueEnum;
use tollgate::config::ConfigError;
use tollgate::net::clock::Clock;

use super::client::ServerClient;
use super::{CliError, Parsed, help_of, login, parse_words, server_address};
use figures::TopFigures;
use terminal::{KeyPress, Terminal};

/// The period between two readings.
const PERIOD: Duration = Duration::from_secs(1);
/// The size of the frame of `--once`.
const ONCE_SIZE: (usize, usize) = (80, 24);
/// Longest filter, in characters.
const FILTER_MAX: usize = 40;

/// Show the figures of a running server, once a second
#[derive(Debug, Clone, PartialEq, Eq, clap::Parser)]
#[command(
    name = "tollgate top",
    term_width = 100,
    after_help = "Keys: 1 to 5 choose a screen, s sorts by the next column, / filters, p pauses, \
                  q quits"
)]
pub struct TopRequest {
    #[arg(
        long,
        value_name = "ADDR",
        value_parser = super::server,
        help = "Address of the server: host, host:port, or the path of its socket, which contains \
                a slash [default: TOLLGATE_ADMIN_SOCKET, or 127.0.0.1:11211]"
    )]
    server: Option<String>,
    #[command(flatten)]
    login: login::LoginFlags,
    /// Screen to begin with
    #[arg(long, value_enum, default_value_t = Screen::Overview)]
    screen: Screen,
    /// Print one frame of 80 columns and 24 lines, and exit
    #[arg(long)]
    once: bool,
    /// Print the figures of all screens as one JSON object, and exit
    #[arg(long)]
    json: bool,
}

/// A screen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Screen {
    /// The server as a whole
    #[default]
    Overview,
    /// Decisions of each limit
    Limits,
    /// Keys with the most requests
    Hot,
    /// Keys with the most denials
    Denied,
    /// Nodes of the cluster
    Nodes,
}

impl Screen {
    const ALL: [Self; 5] = [Self::Overview, Self::Limits, Self::Hot, Self::Denied, Self::Nodes];

    fn name(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Limits => "limits",
            Self::Hot => "hot",
            Self::Denied => "denied",
            Self::Nodes => "nodes",
        }
    }
}

/// The state of the display.
#[derive(Debug, Default)]
struct View {
    screen: Screen,
    server: String,
    /// The sorting column of each screen; none: its default.
    sorts: [Option<usize>; 5],
    filter: String,
    /// The filter is being typed.
    is_typing: bool,
    is_paused: bool,
    /// The reason why there are no new figures.
    fault: Option<String>,
}

/// Parses the words after `top`.
pub(super) fn parse(words: &[OsString]) -> Result<Parsed, ConfigError> {
    match parse_words::<TopRequest>(words) {
        Ok(request) => {
            request.login.check()?;
            Ok(Parsed::Top(request))
        }
        Err(error) => help_of(error),
    }
}

impl View {
    /// Applies a key. Returns true if the program is to end.
    fn key(&mut self, key: KeyPress) -> bool {
        if self.is_typing {
            match key {
                KeyPress::Char(letter) if self.filter.len() < FILTER_MAX => {
                    self.filter.push(letter);
                }
                KeyPress::Backspace => drop(self.filter.pop()),
                KeyPress::Enter => self.is_typing = false,
                KeyPress::Escape => {
                    self.filter.clear();
                    self.is_typing = false;
                }
                KeyPress::Quit => return true,
                KeyPress::Char(_) => {}
            }
            return false;
        }
        match key {
            KeyPress::Char('q') | KeyPress::Quit => return true,
            KeyPress::Char('p') => self.is_paused = !self.is_paused,
            KeyPress::Char('/') => self.is_typing = true,
            KeyPress::Escape => self.filter.clear(),
            KeyPress::Char('s') => {
                let column = self.sorts[self.screen as usize];
                let column = column.unwrap_or_else(|| screens::default_sort(self.screen));
                self.sorts[self.screen as usize] =
                    Some((column + 1) % screens::columns(self.screen));
            }
            KeyPress::Char(digit @ '1'..='5') => {
                let index = digit as usize - '1' as usize;
                self.screen = Screen::ALL[index];
            }
            KeyPress::Char(_) | KeyPress::Enter | KeyPress::Backspace => {}
        }
        false
    }
}

impl TopRequest {
    /// Shows the figures until a key ends the program, or prints them once to `out`.
    ///
    /// # Errors
    ///
    /// The server does not answer at the start or refuses the login, or there is no terminal.
    pub fn run(&self, out: &mut impl Write) -> Result<(), CliError> {
        let credentials = self.login.credentials()?;
        let address = server_address(self.server.as_ref());
        let mut server = ServerClient::connect(&address, credentials)?;
        let view = View { screen: self.screen, server: address, ..View::default() };
        if !self.once && !self.json {
            return watch(server, view);
        }
        let needed = if self.json { None } else { Some(self.screen) };
        let clock = Clock::new();
        let before = TopFigures::read(&mut server, needed, &clock)?;
        sleep(PERIOD);
        let now = TopFigures::read(&mut server, needed, &clock)?;
        if self.json {
            writeln!(out, "{:#}", now.json(&before, &view.server))?;
            return Ok(());
        }
        for line in screens::frame(&view, &now, &before, ONCE_SIZE) {
            writeln!(out, "{line}")?;
        }
        Ok(())
    }
}

/// Shows figures until a key ends the program.
fn watch(server: ServerClient, mut view: View) -> Result<(), CliError> {
    let mut terminal = Terminal::open().map_err(CliError::Terminal)?;
    let mut server = Some(server);
    let mut again: Option<ServerClient> = None;
    let (mut before, mut now) = (TopFigures::default(), TopFigures::default());
    let clock = Clock::new();
    let elapsed = |at| Duration::from_nanos(clock.now().mono.0.saturating_sub(at));
    let mut last: Option<(u64, Screen)> = None;
    loop {
        let is_due = last.is_none_or(|(at, screen)| elapsed(at) >= PERIOD || screen != view.screen);
        if is_due && !view.is_paused {
            // A new screen needs other topics: its rates begin with the next reading.
            match refresh(&mut server, &mut again, view.screen, &clock) {
                Ok(figures) => {
                    before = std::mem::replace(&mut now, figures);
                    view.fault = None;
                }
                Err(error) => view.fault = Some(error.to_string()),
            }
            last = Some((clock.now().mono.0, view.screen));
        }
        let size = Terminal::size();
        let mut lines = screens::frame(&view, &now, &before, size);
        help(&mut lines, size);
        terminal.draw(lines, size)?;
        for key in Terminal::keys(&clock)? {
            if view.key(key) {
                return Ok(());
            }
        }
    }
}

/// Puts the keys on the last line if it is free.
fn help(lines: &mut Vec<String>, (width, height): (usize, usize)) {
    const KEYS: &str = "1-5 screen  s sort  / filter  p pause  q quit";
    if lines.len() < height && width > KEYS.len() {
        lines.resize(height - 1, String::new());
        lines.push(KEYS.to_owned());
    }
}

/// Reads the figures, and connects again after a failure.
fn refresh(
    server: &mut Option<ServerClient>,
    lost: &mut Option<ServerClient>,
    screen: Screen,
    clock: &Clock,
) -> Result<TopFigures, CliError> {
    let mut current = match (server.take(), &lost) {
        (Some(current), _) => current,
        (None, Some(lost)) => lost.another(lost.name())?,
        (None, None) => return Err(std::io::Error::other("no connection").into()),
    };
    let figures = TopFigures::read(&mut current, Some(screen), clock);
    if figures.is_ok() {
        *server = Some(current);
    } else {
        // The rest of a reply may follow: this connection is of no more use.
        *lost = Some(current);
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_change_the_view() {
        let mut view = View::default();
        let mut press = |keys: &str| {
            let is_end = keys.chars().any(|key| view.key(KeyPress::Char(key)));
            let sort = view.sorts[view.screen as usize];
            (is_end, view.screen, sort, view.filter.clone(), view.is_paused)
        };
        assert_eq!(press("3"), (false, Screen::Hot, None, String::new(), false));
        assert_eq!(press("s").2, Some(1));
        assert_eq!(press("sss").2, Some(0), "it goes round");
        assert_eq!(press("2s").2, Some(3), "from the default column");
        assert!(press("p").4);
        assert!(!press("p").4);
        assert_eq!(press("/q1s"), (false, Screen::Limits, Some(3), "q1s".to_owned(), false));
        assert!(!view.key(KeyPress::Backspace) && view.filter == "q1");
        assert!(!view.key(KeyPress::Enter) && !view.is_typing);
        assert!(view.key(KeyPress::Char('q')) && view.key(KeyPress::Quit));
        view.key(KeyPress::Escape);
        assert_eq!(view.filter, "");
    }

    #[test]
    fn filter_is_bounded() {
        let mut view = View { is_typing: true, ..View::default() };
        for _ in 0..2 * FILTER_MAX {
            view.key(KeyPress::Char('x'));
        }
        assert_eq!(view.filter.len(), FILTER_MAX);
        assert!(view.key(KeyPress::Quit));
    }

    #[test]
    fn keys_stand_on_the_last_line() {
        let mut lines = vec!["a".to_owned()];
        help(&mut lines, (80, 24));
        assert_eq!((lines.len(), lines[23].starts_with("1-5 screen")), (24, true));
        let mut full = vec![String::new(); 24];
        help(&mut full, (80, 24));
        assert!(full.iter().all(String::is_empty));
    }
}

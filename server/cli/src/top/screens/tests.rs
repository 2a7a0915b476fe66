//! Frames of `tollgate top` from written figures.

use std::time::Duration;

use super::super::figures::figures_of;
use super::*;

const GENERAL: &str = "uptime 93784\nversion 1.6.45\nthreads 2\ncurr_connections 3\n\
    max_connections 1024\nrejected_connections 0\ncmd_get 0\nbytes 1048576\n\
    limit_maxbytes 67108864\ncurr_items 1234\nevictions 0\nbytes_read 0";
const LIMITS_TEXT: &str = "limits 2\nlimits_generation 1\napi:policy 10/s\napi:allowed 100\n\
    api:denied 5\napi:shadow_denied 0\napi:active_keys 7\nlogin:policy 3/m\nlogin:allowed 1\n\
    login:denied 50\nlogin:shadow_denied 0\nlogin:active_keys 2";
const HOT: &str = "hot:1 1234.5 1200 api user:1\nhot:2 30 12.5 - \u{1b}[2J\u{1b}]0;x\u{7}\n\
    hot:3 3 0 login m\u{fc}ller\u{202e}\u{9b}31m";
const CLUSTER: &str = "node n1\nplace active\nleader n2\nnodes 2\nnodes_dead 0\npartitions 16\n\
    partitions_served 16\nsafe_to_proceed no\nnot_safe n2 is joining";
const NODES_TEXT: &str = "n1:state active\nn1:ready yes\nn1:self yes\nn1:primaries 8\n\
    n1:backups 8\nn1:learners 0\nn1:ring_name a\nn2:state joining\nn2:self no\nn2:link up\n\
    n2:primaries 8\nn2:backups 8\nn2:ops_per_second 55\nn2:clock_offset_ms -3\nn2:ring_name b";

fn all(count: u64, seconds: u64) -> TopFigures {
    let general = GENERAL.replace("cmd_get 0", &format!("cmd_get {count}"));
    let limits = LIMITS_TEXT.replace("denied 5\n", &format!("denied {}\n", 5 + count));
    let latency = "latency_count 9\nlatency_p50_us 20\nlatency_p99_us 90\nlatency_p999_us 200\n\
                   latency_max_us 900";
    figures_of(
        &[
            ("", &general),
            ("limits", &limits),
            ("hotkeys", HOT),
            ("latency", latency),
            ("cluster", CLUSTER),
            ("nodes", NODES_TEXT),
        ],
        Duration::from_secs(seconds),
    )
}

fn shown(view: &View) -> String {
    frame(view, &all(2000, 1), &all(0, 0), (80, 24)).join("\n")
}

fn view(screen: Screen) -> View {
    View { screen, server: "127.0.0.1:11211".to_owned(), ..View::default() }
}

#[test]
fn each_screen_fits_a_terminal() {
    let pages: Vec<String> = Screen::ALL.iter().map(|screen| shown(&view(*screen))).collect();
    insta::assert_snapshot!(pages.join("\n\n"));
}

#[test]
fn hostile_names_are_shown_as_plain_text() {
    let mut view = view(Screen::Hot);
    view.server = "a\u{1b}[2Jb".to_owned();
    view.filter = "\u{1b}\u{7}".to_owned();
    view.fault = Some("\u{9b}1m".to_owned());
    view.is_typing = true;
    for screen in Screen::ALL {
        view.screen = screen;
        let page = shown(&view);
        assert!(page.chars().all(|c| matches!(c, ' '..='~' | '\n')), "{page:?}");
    }
}

#[test]
fn frame_keeps_to_any_size() {
    let rows = (0..500).map(|at| format!("hot:{at} {at} 0 - {}\n", "k".repeat(90)));
    let many = figures_of(&[("hotkeys", &rows.collect::<String>())], Duration::ZERO);
    for (width, height) in [(80, 24), (20, 5), (1, 1), (0, 0), (200, 60)] {
        for screen in Screen::ALL {
            for figures in [&many, &all(1, 0), &TopFigures::default()] {
                let lines = frame(&view(screen), figures, &many, (width, height));
                assert!(lines.len() <= height, "{width} {height} {lines:?}");
                assert!(lines.iter().all(|line| line.len() <= width.max(1)), "{width} {lines:?}");
            }
        }
    }
    let lines = frame(&view(Screen::Hot), &many, &many, (80, 24));
    assert_eq!((lines.len(), lines[23].as_str()), (24, "and 80 more"));
}

#[test]
fn rows_are_filtered_and_sorted() {
    let mut view = view(Screen::Limits);
    let first = |view: &View| shown(view).lines().nth(3).unwrap_or_default().to_owned();
    assert!(first(&view).starts_with("api"), "the most denials a second: {}", first(&view));
    view.sorts[Screen::Limits as usize] = Some(5);
    assert!(first(&view).starts_with("api"), "by policy: {}", first(&view));
    view.sorts[Screen::Limits as usize] = Some(4);
    assert!(first(&view).starts_with("api") && shown(&view).contains("KEYS*"));
    view.filter = "LOG".to_owned();
    assert!(first(&view).starts_with("login"), "{}", shown(&view));
    view.filter = "x".to_owned();
    assert_eq!(first(&view), "none that the filter passes");
}

#[test]
fn older_server_has_no_hot_keys() {
    let old = figures_of(&[("", GENERAL)], Duration::ZERO);
    for screen in [Screen::Hot, Screen::Denied, Screen::Limits, Screen::Overview] {
        let page = frame(&view(screen), &old, &old, (80, 24)).join("\n");
        assert!(page.contains("not available"), "{page}");
    }
    let nothing = figures_of(&[("", GENERAL), ("hotkeys", "")], Duration::ZERO);
    let page = frame(&view(Screen::Hot), &nothing, &nothing, (80, 24)).join("\n");
    assert!(page.contains("not available"), "{page}");
    let page = frame(&view(Screen::Nodes), &old, &old, (80, 24)).join("\n");
    assert!(page.contains("the server is in no cluster"), "{page}");
}

#[test]
fn numbers_have_about_three_digits() {
    for (number, text) in [
        (0.0, "0"),
        (7.0, "7"),
        (0.26, "0.3"),
        (99.9, "99.9"),
        (99.96, "100"),
        (999.4, "999"),
        (999.5, "1.0k"),
        (1234.0, "1.2k"),
        (67_108_864.0, "67.1M"),
        (-5.0, "0"),
        (1e30, "1000000000000000P"),
    ] {
        assert_eq!(short(number), text);
    }
}

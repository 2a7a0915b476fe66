//! The data block of a refused storage command is data: no line of it is ever executed.
//!
//! Here: every storage verb with every fault that leaves its length readable; the replies are byte
//! by byte those of memcached 1.6.45. Not here: the same lines when they are right (the
//! transcripts). memcached 1.6.18 executes some of these blocks, so it is not tested.

use tests::{Core, CoreClient};
use tollgate::config::Config;

use crate::live::Server;

/// The content of each block: a command whose reply, `OK`, must never occur.
const BLOCK: &str = "flush_all";
const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format\r\n";
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";

/// A refused line, the block after it, and the reply.
struct Refused {
    line: String,
    block: String,
    reply: String,
}

fn refused(line: impl Into<String>, reply: impl Into<String>) -> Refused {
    Refused { line: line.into(), block: BLOCK.to_owned(), reply: reply.into() }
}

/// The classic storage lines in which only the length is readable.
fn classic() -> Vec<Refused> {
    let long = "k".repeat(251);
    let mut all = Vec::new();
    for verb in ["set", "add", "replace", "append", "prepend", "cas"] {
        let unique = if verb == "cas" { " 1" } else { "" };
        let mut lines: Vec<String> = ["x", "-1", "1.5", "0x1", "noreply"]
            .iter()
            .flat_map(|word| [format!("k {word} 0 9{unique}"), format!("k 0 {word} 9{unique}")])
            // A negative exptime is valid: the item expires at once.
            .filter(|line| !line.starts_with("k 0 -1 "))
            .collect();
        lines.push(format!("{long} 0 0 9{unique}"));
        lines.push(format!("k x x +9{unique}"));
        lines.push(format!("k x 0 9{unique} more words than there are arguments"));
        if verb == "cas" {
            for word in ["", "x", "-1", "1.5", "18446744073709551616"] {
                lines.push(format!("k 0 0 9 {word}"));
            }
        }
        for line in lines {
            all.push(refused(format!("{verb} {line}"), BAD_FORMAT));
            all.push(refused(format!("{verb} {line} noreply"), ""));
        }
        let large = format!("{BLOCK}\r\n").repeat(100_000);
        for (end, reply) in [("", TOO_LARGE), (" noreply", "")] {
            let line = format!("{verb} k 0 0 {}{unique}{end}", large.len());
            all.push(Refused { line, block: large.clone(), reply: reply.to_owned() });
        }
    }
    all
}

/// The same for `ms`, whose errors `q` does not suppress.
fn meta() -> Vec<Refused> {
    let long = "k".repeat(251);
    let opaque = format!("k 9 O{}", "o".repeat(32));
    let mut all = Vec::new();
    for (line, why) in [
        ("k 9 !", "invalid flag"),
        ("k 9 y", "invalid flag"),
        ("k 9 q1 y", "invalid flag"),
        ("k 9 c c", "duplicate flag"),
        ("k 9 T", "bad token in command line format"),
        ("k 9 Tx", "bad token in command line format"),
        ("k 9 Cx", "bad token in command line format"),
        ("k 9 C18446744073709551616", "bad token in command line format"),
        ("k 9 Ex", "bad token in command line format"),
        ("k 9 Nx", "bad token in command line format"),
        ("k 9 D", "invalid numeric delta value"),
        ("k 9 J", "invalid numeric initial value"),
        ("k 9 Fx", "bad command line format"),
        ("k 9 F4294967296", "bad command line format"),
        ("k 9 Mx", "invalid mode for ms M token"),
        ("k 9 M", "invalid mode for ms M token"),
        ("k 9 Me", "invalid mode for ms M token"),
        ("*** 9 b", "error decoding key"),
        (&opaque, "opaque token too long"),
        (&format!("{long} 9"), "bad command line format"),
        (&format!("{long} 9 b"), "bad command line format"),
    ] {
        all.push(refused(format!("ms {line}"), format!("CLIENT_ERROR {why}\r\n")));
        all.push(refused(format!("ms {line} O1"), format!("CLIENT_ERROR {why}\r\n")));
    }
    // Two opaques would be a duplicate flag.
    all.retain(|refused| refused.line.matches(" O").count() < 2);
    all
}

/// The one native verb with a block.
fn native() -> Vec<Refused> {
    let usage = "CLIENT_ERROR cluster: the line is cluster limit <name> <bytes> [before=<name>], \
                 and the limit behind it\r\n";
    ["a 9 noreply", "a 9 before=", "a 9 before=b c", "a 9 x", "a 9 9"]
        .map(|line| refused(format!("cluster limit {line}"), usage))
        .into()
}

fn all() -> Vec<Refused> {
    classic().into_iter().chain(meta()).chain(native()).collect()
}

/// Sends to a client of the core, in pieces of `piece` bytes.
fn ask_core(core: &Core, client: &mut CoreClient, wire: &str, piece: usize) -> String {
    let mut out = Vec::new();
    for bytes in wire.as_bytes().chunks(piece) {
        client.send(core, bytes, &mut out);
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[test]
fn a_refused_block_is_never_run_by_the_core() {
    let core = Core::new(Config::default());
    let mut client = CoreClient::default();
    for piece in [usize::MAX, 4096, 7, 1] {
        for Refused { line, block, reply } in all() {
            // A megabyte byte by byte shows nothing more than its first lines.
            if block.len() > BLOCK.len() && piece < 4096 {
                continue;
            }
            assert_eq!(ask_core(&core, &mut client, "set n 0 0 1\r\n7\r\n", 99), "STORED\r\n");
            let wire = format!("{line}\r\n{block}\r\nmn\r\n");
            let received = ask_core(&core, &mut client, &wire, piece);
            assert_eq!(received, format!("{reply}MN\r\n"), "{line:?} in pieces of {piece}");
            let kept = ask_core(&core, &mut client, "get n\r\n", 99);
            assert_eq!(kept, "VALUE n 0 1\r\n7\r\nEND\r\n", "{line:?} ran its block");
        }
    }
}

#[test]
fn a_refused_block_is_never_run_by_a_server() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    client.ask("set n 0 0 1\r\n7\r\n", "STORED\r\n");
    for Refused { line, block, reply } in all() {
        client.ask(format!("{line}\r\n{block}\r\nmn\r\n"), &format!("{reply}MN\r\n"));
    }
    client.ask("get n\r\n", "VALUE n 0 1\r\n7\r\nEND\r\n");
}

#[test]
fn a_length_that_cannot_be_read_announces_no_block() {
    // The next line is read as a command, as memcached's own tests expect. The refusal is never
    // silent.
    let core = Core::new(Config::default());
    let mut client = CoreClient::default();
    for verb in ["set", "add", "replace", "append", "prepend", "cas"] {
        for length in ["-1", "-9", "x", "1.5", "2147483646", "4294967296", "18446744073709551616"] {
            for end in ["", " 1", " noreply"] {
                let wire = format!("{verb} k 0 0 {length}{end}\r\nmn\r\n");
                let received = ask_core(&core, &mut client, &wire, 1);
                assert_eq!(received, format!("{BAD_FORMAT}MN\r\n"), "{wire:?}");
            }
        }
    }
    for line in ["ms k -1", "ms k x q", "ms k 2147483646", "ms k"] {
        let received = ask_core(&core, &mut client, &format!("{line}\r\nmn\r\n"), 1);
        assert_eq!(received, format!("{BAD_FORMAT}MN\r\n"), "{line:?}");
    }
}

#[test]
fn a_limit_of_unknown_length_ends_the_connection() {
    let core = Core::new(Config::default());
    for length in ["x", "-1", "4294967296", "limit"] {
        let mut client = CoreClient::default();
        let wire = format!("cluster limit a {length}\r\nflush_all\r\n");
        let received = ask_core(&core, &mut client, &wire, 1);
        assert!(received.starts_with("CLIENT_ERROR cluster: the line is"), "{received}");
        assert!(received.ends_with("behind it\r\n"), "{received} was followed by an answer");
        assert!(client.is_closed, "{length}");
    }
}

//! Tests of the check of named files. The texts are those of the start.

use tollgate::config::Startup;

use super::*;

fn checked_beside(flags: &[&str], is_running: bool) -> Result<(), String> {
    let args = ["tollgate"].iter().chain(flags).map(OsString::from);
    match Config::from_sources(args, []) {
        Ok(Startup::Serve(config)) => {
            check_start(&config, is_running).map_err(|error| error.to_string())
        }
        other => panic!("{other:?}"),
    }
}

fn checked(flags: &[&str]) -> Result<(), String> {
    checked_beside(flags, false)
}

const GONE: &str = "No such file or directory (os error 2)";

#[test]
fn missing_places_are_refused_as_by_the_start() {
    let http = ["--http", "127.0.0.1:0", "--http-tls", "-o", "ssl_chain_cert=/gone/c,ssl_key=/k"];
    let alone = ["--insecure", "--data-dir"];
    for (flags, expected) in [
        (&["--tokens", "/gone/t"][..], format!("--tokens: /gone/t: {GONE}")),
        (&["-Y", "/gone/y"], format!("cannot read auth file /gone/y: {GONE}")),
        (&["-e", "/gone/x"], format!("-e /gone/x: no snapshot can be written there: {GONE}")),
        (&["--limits-store", "/gone/x"], format!("--limits-store /gone/x: {GONE}")),
        (&http, format!("--http-tls: /gone/c: I/O error: {GONE}")),
        (&[alone[0], alone[1], "/proc/nope"], format!("data directory: /proc/nope: {GONE}")),
        (&["-P", "/gone/p"], format!("cannot write pidfile /gone/p: {GONE}")),
        (&["--admin-socket", "/gone/s"], format!("cannot listen on /gone/s: {GONE}")),
        (&["-s", "/gone/s"], format!("cannot listen on /gone/s: {GONE}")),
    ] {
        assert_eq!(checked(flags), Err(expected.clone()), "{flags:?}");
        assert_eq!(checked_beside(flags, true), Err(expected), "{flags:?} of a running server");
    }
    let user = checked(&["-u", "no-such-user"]);
    let refused = Err("can't find the user no-such-user to switch to".to_owned());
    assert_eq!(user, if geteuid().is_root() { refused } else { Ok(()) });
    assert_eq!(checked(&["-u", "11211"]), Ok(()));
}

#[test]
fn bad_content_is_refused_as_by_the_start() {
    let folder = tempfile::tempdir().expect("a directory for a few files");
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::write(at("bad"), "no colon and no role\n").expect("the directory is ours");
    fs::write(at("good"), "me:secret\n").expect("the directory is ours");
    let (bad, good) = (at("bad"), at("good"));
    let inside = at("bad/x");
    for (flags, part) in [
        (["-Y", &bad], "bad:1: "),
        (["--tokens", &bad], "--tokens: "),
        (["--limits", &bad], "bad:1: "),
        (["-e", &inside], "Not a directory"),
        (["-s", &bad], "Address already in use"),
        (["-e", folder.path().to_str().expect("it is text")], "is a directory"),
    ] {
        let error = checked(&flags).expect_err(part);
        assert!(error.contains(part) && !error.contains("colon and"), "{flags:?}: {error}");
    }
    let error = checked(&["--insecure", "--data-dir", &bad]).expect_err("a file");
    assert!(error.contains("File exists"), "{error}");
    assert_eq!(checked(&["-Y", &good]), Ok(()));
}

#[test]
fn usable_places_stay_as_they_were() {
    let folder = tempfile::tempdir().expect("a directory for a few files");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let [snapshot, pidfile, socket, store] = ["e", "p", "s", "store"].map(at);
    let flags = ["-e", &snapshot, "-P", &pidfile, "--admin-socket", &socket];
    let flags = [&flags[..], &["--limits-store", &store]].concat();
    assert_eq!(checked(&flags), Ok(()));
    assert_eq!(checked(&["--insecure", "--data-dir", &at("a/b/c")]), Ok(()));
    assert_eq!(checked(&["--insecure", "--data-dir", &at("")]), Ok(()));
    assert_eq!(checked(&["-e", "relative"]), Ok(()));
    assert_eq!(checked(&["--insecure", "--data-dir", "data/new"]), Ok(()));
    assert_eq!(fs::read_dir(folder.path()).expect("it is there").count(), 0);
    // The store of a running server is locked; the check takes no lock.
    let file = fs::File::create(&store).expect("the directory is ours");
    file.lock().expect("nobody has it");
    assert_eq!(checked(&["--limits-store", &store]), Ok(()));
}

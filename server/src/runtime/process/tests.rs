//! Tests of `process` without side effects on the test process: no fork, no change of user.

use super::*;

#[test]
fn a_pidfile_holds_our_id_and_goes_with_its_owner() {
    let dir = tempfile::tempdir().expect("a directory for one file");
    let path = dir.path().join("pid");
    // The temporary file of a crashed process does no harm.
    fs::write(dir.path().join("pid.tmp"), "half").expect("the directory is ours");
    fs::write(&path, "not a number\n").expect("the directory is ours");

    let pidfile = Pidfile::create(&path).expect("the directory is ours");
    assert_eq!(fs::read_to_string(&path).expect("just written"), format!("{}\n", getpid()));
    assert!(!dir.path().join("pid.tmp").exists());
    drop(pidfile);
    assert!(!path.exists());
}

#[test]
fn a_pidfile_of_a_successor_stays() {
    let dir = tempfile::tempdir().expect("a directory for one file");
    let path = dir.path().join("pid");
    let pidfile = Pidfile::create(&path).expect("the directory is ours");
    fs::write(&path, "1\n").expect("the directory is ours");
    drop(pidfile);
    assert_eq!(fs::read_to_string(&path).expect("not ours to remove"), "1\n");
}

#[test]
fn a_pidfile_without_a_directory_is_an_error() {
    let dir = tempfile::tempdir().expect("a directory to miss one in");
    let path = dir.path().join("missing").join("pid");
    let error = Pidfile::create(&path).expect_err("no directory");
    assert!(error.to_string().contains("missing/pid"), "{error}");
}

#[test]
fn only_a_positive_number_is_a_process_id() {
    let dir = tempfile::tempdir().expect("a directory for one file");
    let path = dir.path().join("pid");
    for (text, expected) in
        [("7\n", Some(7)), (" 7 ", Some(7)), ("0", None), ("-1", None), ("", None), ("x", None)]
    {
        fs::write(&path, text).expect("the directory is ours");
        assert_eq!(read_pid(&path).map(Pid::as_raw), expected, "{text:?}");
    }
}

#[test]
fn a_sufficient_descriptor_limit_is_unchanged() {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).expect("every process has one");
    assert_eq!(raise_descriptor_limit(1).expect("one is little"), soft);
}

#[test]
fn a_limit_beyond_the_kernels_is_refused_and_named() {
    // Above fs.nr_open, which limits root too.
    let error = raise_descriptor_limit(usize::MAX).expect_err("nobody may have that many");
    assert!(matches!(error, ProcessError::Descriptors { .. }), "{error}");
    assert!(error.to_string().starts_with("-c 18446744073709551615 needs"), "{error}");
}

#[test]
fn a_user_is_found_by_name_or_number() {
    let ids = |name| find_user(name).map(|(uid, gid)| (uid.as_raw(), gid.as_raw()));
    assert_eq!(ids("root").expect("everywhere"), (0, 0));
    assert_eq!(ids("0").expect("everywhere"), (0, 0));
    assert_eq!(ids("4123456").expect("a number is enough"), (4_123_456, 4_123_456));
    for unknown in ["no-such-user-here", "", "-1", "4294967295", "4294967296", "11211x"] {
        let error = find_user(unknown).expect_err(unknown);
        assert!(matches!(error, ProcessError::UnknownUser(_)), "{unknown}: {error}");
    }
}

//! Tests of the store in a file: what it keeps, and what it refuses.

use super::*;

fn put(name: &str, version: u64, body: Option<&str>) -> Put {
    Put { name: name.to_owned(), version, body: body.map(Into::into) }
}

fn all(records: &FileRecords) -> Vec<(String, u64, String)> {
    let mut all = Vec::new();
    records.scan("", &mut |name, record| {
        let body = String::from_utf8_lossy(&record.body).into_owned();
        all.push((name.to_owned(), record.version, body));
    });
    all
}

fn row(name: &str, version: u64, body: &str) -> (String, u64, String) {
    (name.to_owned(), version, body.to_owned())
}

#[tokio::test]
async fn a_change_is_whole_and_survives() {
    let folder = tempfile::tempdir().expect("a directory for one file");
    let path = folder.path().join("limits.redb");
    let records = FileRecords::open(&path).expect("a new file");
    assert_eq!(records.change(vec![put("a", 0, Some("1")), put("b", 0, Some("2"))]).await, Ok(1));
    // One wrong version refuses all.
    let half = vec![put("a", 1, Some("3")), put("b", 7, Some("4"))];
    assert_eq!(records.change(half).await, Err(RecordsError::OtherVersion));
    let whole = vec![put("a", 1, None), put("b", 1, Some("4")), put("@c/1", 0, Some("5"))];
    assert_eq!(records.change(whole).await, Ok(2));
    let expected = [row("@c/1", 2, "5"), row("b", 2, "4")];
    assert_eq!(all(&records), expected);
    assert!(matches!(FileRecords::open(&path), Err(RecordsFileError::InUse(_))));
    drop(records);
    let records = FileRecords::open(&path).expect("its own file");
    assert_eq!(all(&records), expected);
    // A name that is put again gets a version that it never had.
    assert_eq!(records.change(vec![put("a", 0, Some("6"))]).await, Ok(3));
    assert_eq!(records.get("a").map(|record| record.version), Some(3));
    let mut names = Vec::new();
    records.scan("@c/", &mut |name, _| names.push(name.to_owned()));
    assert_eq!(names, ["@c/1"]);
}

#[tokio::test]
async fn each_bound_refuses_one_more() {
    let folder = tempfile::tempdir().expect("a directory for one file");
    let records = FileRecords::open(&folder.path().join("limits.redb")).expect("a new file");
    let is_full = |result| matches!(result, Err(RecordsError::Full(_)));
    let long = "x".repeat(RECORD_BYTES_MAX);
    assert_eq!(records.change(vec![put("a", 0, Some(&long))]).await, Ok(1));
    let longer = format!("{long}x");
    assert!(is_full(records.change(vec![put("b", 0, Some(&longer))]).await));
    let many = |count: usize| (0..count).map(|n| put(&format!("n{n}"), 0, Some(""))).collect();
    assert!(is_full(records.change(many(PUTS_MAX + 1)).await));
    assert_eq!(records.change(many(PUTS_MAX)).await, Ok(2));
    let heavy = (0..13).map(|n| put(&format!("h{n}"), 0, Some(&long))).collect();
    assert!(is_full(records.change(heavy).await));
    {
        // In memory only: a sync for each of them would take long.
        let mut contents = records.shared.contents.write();
        for number in contents.records.len()..RECORDS_MAX {
            let record = MapLimit { version: 2, body: Vec::new() };
            contents.records.insert(format!("m{number}"), record);
        }
    }
    assert!(is_full(records.change(vec![put("z", 0, Some(""))]).await));
    assert!(records.change(vec![put("a", 1, None)]).await.is_ok());
    assert!(records.change(vec![put("z", 0, Some(""))]).await.is_ok());
}

#[test]
fn a_foreign_file_is_refused() {
    let folder = tempfile::tempdir().expect("a directory for a few files");
    let path = folder.path().join("limits.redb");
    std::fs::write(&path, "no database at all").expect("the directory is ours");
    assert!(matches!(FileRecords::open(&path), Err(RecordsFileError::Damaged { .. })));
    let missing = folder.path().join("missing/limits.redb");
    assert!(matches!(FileRecords::open(&missing), Err(RecordsFileError::System { .. })));
    assert!(matches!(FileRecords::open(folder.path()), Err(RecordsFileError::System { .. })));
}

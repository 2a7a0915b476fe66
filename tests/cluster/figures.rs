//! Figures that need several owners: companions of a key with parents, `info` and `each`.
//!
//! Not here: the decisions themselves (`several`, `policies`).

use super::nodes::{Line, ask, start_limited};
use super::overload::owned;

/// A key whose parent has less left.
const LIMITS: &str = r##"
[[limit]]
name       = "api"
match      = "api:{tenant}:{user}"
policy     = "log:10/1h"
parents    = ["tenant:{tenant}"]
companions = ["#remaining", "#retry"]

[[limit]]
name   = "tenant"
match  = "tenant:{tenant}"
policy = "log:4/1h"
"##;

/// The number that `get` on a companion of a key returns.
fn companion(line: &mut Line, key: &str) -> i64 {
    let lines = line.lines(&format!("get {key}\r\n")).expect("it answers");
    let [_, value] = &lines[..] else { panic!("{key}: {lines:?}") };
    value.trim().parse().expect("a number")
}

#[test]
fn figures_include_parents_at_other_owners() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let mut cluster = start_limited(folder.path(), LIMITS);
    let parent = owned(&cluster, 2, "tenant:", 1).remove(0);
    let tenant = parent.strip_prefix("tenant:").expect("it begins so");
    let key = owned(&cluster, 1, &format!("api:{tenant}:"), 1).remove(0);
    let mut lines: Vec<Line> = (0..3).map(|number| cluster.line(number)).collect();
    for (used, line) in lines.iter_mut().enumerate() {
        let left = 4 - i64::try_from(used).expect("few lines");
        assert_eq!(companion(line, &format!("{key}#remaining")), left);
        assert_eq!(companion(line, &format!("{key}#retry:{left}")), 0);
        let retry = companion(line, &format!("{key}#retry:{}", left + 1));
        // The parent never lets more than 4 pass.
        assert!(if left == 4 { retry == -1 } else { retry > 0 }, "{retry}");
        let reply = ask(line, &format!("take {key} 1 - info\r\n"));
        assert!(reply.starts_with(&format!("ALLOW 4 {} ", left - 1)), "{reply}");
        assert!(reply.ends_with(" by=tenant period=3600000"), "{reply}");
    }
    let reply = ask(&mut lines[0], &format!("takem 1 {key} plain each info\r\n"));
    assert!(reply.starts_with("ALLOW 4 0 ") && reply.contains(" by=tenant period="), "{reply}");
    let groups = reply.rsplit_once(" each=").expect("groups").1;
    assert!(groups.starts_with("4:0:0:") && groups.ends_with(":3600000:tenant;-"), "{reply}");
    let is_full = |line: &mut Line| {
        let reply = ask(line, &format!("take {key} 1 - info\r\n"));
        assert!(reply.starts_with("DENY 4 0 ") && reply.contains(" by=tenant "), "{reply}");
        assert_eq!(companion(line, &format!("{key}#remaining")), 0);
        assert!(companion(line, &format!("{key}#retry")) > 0);
    };
    lines.iter_mut().for_each(is_full);
    // The owner of the parent dies.
    drop(lines);
    cluster.kill(2);
    cluster.until_at_rest(2);
    for number in [0, 1] {
        is_full(&mut cluster.line(number));
    }
}

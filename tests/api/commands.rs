//! `tollgate limits`, `tollgate explain` and `tollgate generate` beside a real server.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::{Operated, limit_text, make_token};
use crate::live::Program;

/// The command line of an operator at one server.
struct Shell {
    admin: String,
    token: String,
    folder: PathBuf,
}

impl Shell {
    fn run(&self, words: &str) -> Output {
        Command::new(Program::Tollgate.path())
            .args(words.split(' '))
            .args(["--admin", &self.admin])
            .env_clear()
            .env("TOLLGATE_TOKEN", &self.token)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .output()
            .expect("the program is built")
    }

    /// The output of a command that succeeds.
    #[track_caller]
    fn ok(&self, words: &str) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words}: {output:?}");
        assert!(output.stderr.is_empty(), "{words}: {output:?}");
        String::from_utf8(output.stdout).expect("output is UTF-8")
    }

    /// The JSON of a command that succeeds.
    #[track_caller]
    fn json(&self, words: &str) -> Value {
        let text = self.ok(&format!("{words} --json"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words}: {error}: {text}"))
    }

    /// Runs a command that is refused for this reason.
    #[track_caller]
    fn refused(&self, words: &str, reason: &str) {
        let output = self.run(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words}: {output:?}");
        assert!(said.contains(reason) && output.stdout.is_empty(), "{words}: {output:?}");
    }

    /// Writes a file into the folder of the commands.
    fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.join(name), text).expect("the folder is ours");
    }
}

/// A server with tokens, and the command line of an admin.
fn shell() -> (Operated, Shell) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let (token, line) = make_token("ada", "admin");
    let path = folder.path().join("tokens");
    fs::write(&path, line).expect("the folder is ours");
    let path = path.to_string_lossy().into_owned();
    let flags = ["--limits-store", "{folder}/store", "--tokens", &path];
    let mut operated = Operated::start_in(&flags, folder);
    operated.api.token = Some(token.clone());
    let folder = operated.server.folder().to_owned();
    let admin = format!("http://{}", operated.api.address);
    (operated, Shell { admin, token, folder })
}

#[test]
fn limits_are_changed_on_the_command_line() {
    let (operated, shell) = shell();
    let login = |count: u64| limit_text("login", "login:{ip}", &format!("fixed:{count}/d"), "");
    shell.write("login", &login(2));
    assert_eq!(shell.ok("limits put login --dry-run"), "ok\n");
    shell.refused("limits get login", "there is no limit login");
    assert_eq!(shell.ok("limits put login --if-version 0 --note first"), "ok\n");
    shell.refused("limits put login --if-version 0", "read it again");
    assert_eq!(shell.ok("limits get login").trim(), login(2).trim());
    shell.write("wrong", &login(2).replace("fixed:2/d", "fixed:0/d"));
    shell.refused("limits put wrong", "bad policy");
    let table = shell.ok("limits list");
    assert!(table.starts_with("NAME ") && table.contains("\nlogin  fixed:2/d  api"), "{table}");

    shell.write("login", &login(5));
    shell.ok("limits put login");
    let history = shell.ok("limits history login");
    assert!(history.contains(" by ada (cli): first\n"), "{history}");
    assert!(history.contains("    -policy = \"fixed:2/d\"\n"), "{history}");
    let changes = shell.json("limits history login");
    let first = changes["changes"][1]["seq"].as_u64().expect("a number");
    let second = changes["changes"][0]["to"].as_u64().expect("a number");
    shell.refused(&format!("limits revert login {first} --if-version 1000000"), "read it again");
    shell.ok(&format!("limits revert login {first} --if-version {second}"));
    assert!(shell.ok("limits get login").contains("fixed:2/d"));

    // A file of several limits.
    let api = limit_text("api", "api:{user}", "bucket:5/m", "parents = [\"all:api\"]\n");
    let all = limit_text("all", "all:{x}", "fixed:3/d", "");
    shell.write("limits.toml", &[login(2), api, all].join("\n"));
    let plan = shell.ok("limits import limits.toml --dry-run");
    assert_eq!(plan, "put      api all\nmoved    -\nremoved  -\nsame     login\n");
    assert_eq!(shell.ok("limits import limits.toml"), plan);
    shell.refused("limits put limits.toml", "use tollgate limits import");
    shell.write("exported", &shell.ok("limits export"));
    let plan = shell.json("limits import exported --replace");
    assert_eq!(plan["same"], json!(["login", "api", "all"]), "{plan}");
    assert_eq!(shell.json("limits list api").as_array().map(Vec::len), Some(1));

    shell.refused("limits remove login --if-version 1000000", "read it again");
    assert_eq!(shell.ok("limits remove login --note over"), "ok\n");
    shell.refused("limits remove login", "there is no limit login");
    drop(operated);
}

#[test]
fn exempt_and_banned_keys_are_explained() {
    let (operated, shell) = shell();
    let ban = "ban = { refusals = 1, within = \"10m\", for = \"1h\" }\n";
    let door = limit_text("door", "door:{user}", "sliding:1/10s", ban);
    shell.write("limits.toml", &format!("exempt = [\"door:root\"]\n{door}"));
    shell.ok("limits import limits.toml");
    assert!(shell.ok("limits export").starts_with("exempt = [\"door:root\"]\n\n[[limit]]\n"));
    let explained = shell.ok("explain door:root");
    assert!(explained.contains("exempt           door:root\n"), "{explained}");
    let matched = shell.json("limits match door:root");
    assert_eq!((&matched["limit"], &matched["exempt"]), (&json!(null), &json!("door:root")));
    assert_eq!(shell.json("explain door:a")["ban"], json!(null));

    let mut client = operated.server.connect();
    for word in ["ALLOW ", "DENY "] {
        let taken = client.ask_until("take door:a 1 -\r\n", "\r\n");
        assert!(taken.starts_with(word), "{taken}");
    }
    let explained = shell.json("explain door:a");
    let ends_ms = explained["ban"]["ends_ms"].as_u64().expect("a ban that ends");
    assert!((3_400_000..=3_600_000).contains(&ends_ms), "{explained}");
    assert_eq!(explained["ban"]["limit"], json!("door"));
    assert_eq!(explained["refused_by"], json!(["door"]));
    assert!(shell.ok("explain door:a").contains("\nbanned      by door for "));
    client.ask("delete door:a\r\n", "DELETED\r\n");
    assert_eq!(shell.json("explain door:a")["ban"], json!(null));
}

#[test]
fn a_shadow_limit_is_explained_as_one_that_allows() {
    let (operated, shell) = shell();
    shell.write("limits.toml", &limit_text("x1", "x1:{user}", "fixed:1/h", "shadow = true\n"));
    shell.ok("limits import limits.toml");
    shell.ok("limits block x1 x1:b");
    let mut client = operated.server.connect();
    let mut take = |key: &str| client.ask_until(format!("take {key} 1 -\r\n"), "\r\n");
    assert!(shell.json("explain x1:a")["shadow_refused_by"] == json!([]));
    assert!(!take("x1:a").contains("shadow=1"));
    for key in ["x1:a", "x1:b"] {
        let taken = take(key);
        assert!(taken.starts_with("ALLOW ") && taken.contains(" shadow=1"), "{taken}");
        let explained = shell.json(&format!("explain {key}"));
        let verdict = &explained["standings"][0]["verdict"];
        assert_eq!(explained["standings"][0]["shadow"], json!(true), "{explained}");
        assert_eq!((&verdict["allowed"], &verdict["would_refuse"]), (&json!(true), &json!(true)));
        assert_eq!((&explained["allowed"], &explained["refused_by"]), (&json!(true), &json!([])));
        assert_eq!(explained["shadow_refused_by"], json!(["x1"]), "{explained}");
        let text = shell.ok(&format!("explain {key}"));
        assert!(text.contains("\nin shadow   x1 would refuse it\n"), "{text}");
    }
}

#[test]
fn keys_are_explained_on_the_command_line() {
    let (operated, shell) = shell();
    let api = limit_text("api", "api:{user}", "fixed:9/d", "parents = [\"all:api\"]\n");
    let all = limit_text("all", "all:{x}", "fixed:3/d", "");
    shell.write("limits.toml", &[api.clone(), all].join("\n"));
    shell.ok("limits import limits.toml");
    let mut client = operated.server.connect();
    for _ in 0..3 {
        let taken = client.ask_until("take api:a 1 -\r\n", "\r\n");
        assert!(taken.starts_with("ALLOW"), "{taken}");
    }
    let denied = client.ask_until("take api:a 1 -\r\n", "\r\n");
    assert!(denied.starts_with("DENY") && denied.contains(" by=all"), "{denied}");

    let matched = shell.ok("limits match api:a");
    assert!(matched.contains("capture  user=a\n"), "{matched}");
    assert!(matched.contains("\nLIMIT  KEY      POLICY\nall    all:api  fixed:3/d\n"), "{matched}");
    let explained = shell.ok("explain api:a");
    for line in ["allowed     no\n", "refused_by  all\n", "VERDICT REMAINING"] {
        assert!(explained.contains(line), "{explained}");
    }
    let explained = shell.json("explain api:a 2");
    assert_eq!((&explained["cost"], &explained["allowed"]), (&json!(2), &json!(false)));
    let left = |place: usize| &explained["standings"][place]["verdict"]["remaining"];
    assert_eq!((left(0), left(1)), (&json!(6), &json!(0)), "{explained}");

    // Overrides: each way in, and out again.
    let policy = |key: &str| shell.json(&format!("limits match {key}"))["policy"].clone();
    shell.ok("limits block api api:a --for 1h --note abuse");
    assert_eq!(policy("api:a"), json!("block"));
    shell.ok("limits allow api api:a");
    assert_eq!(policy("api:a"), json!("unlimited"));
    shell.ok("limits override api api:a fixed:1/h");
    assert_eq!(policy("api:a"), json!("fixed:1/h"));
    shell.ok("limits override api api:a --remove");
    assert_eq!(policy("api:a"), json!("fixed:9/d"));
    shell.refused("limits override api api:a --remove", "has no override");
    shell.refused("limits block none api:a", "there is no limit none");
    shell.refused("limits allow api other:a", "other:a");

    // The report counts at once; what is tried needs recorded keys.
    let until = Duration::from_secs(10);
    operated.api.until("limits/all/report", until, |report| report["denied"] == json!(1));
    let report = shell.ok("limits report all --minutes 5");
    assert!(report.contains("denied         1\n") && report.contains("limit          all\n"));
    shell.write("api", &api);
    let tried = shell.json("limits try api --minutes 5");
    assert_eq!(tried["too_few"], json!(true), "{tried}");
    assert!(shell.ok("limits try api").contains("LIMIT  DENIED  ERROR\nnow"));
}

#[test]
fn server_and_token_of_a_command_are_checked() {
    let (operated, mut shell) = shell();
    let right = std::mem::replace(&mut shell.token, "tg_wrong".to_owned());
    shell.refused("limits list", "the token is not in the tokens file");
    shell.token.clear();
    shell.refused("explain a", "send a token");
    shell.token = right;
    let admin = std::mem::replace(&mut shell.admin, "http://127.0.0.1:1".to_owned());
    let output = shell.run("limits list");
    assert!(!output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("127.0.0.1:1"), "{output:?}");
    shell.admin = admin;
    assert_eq!(shell.json("limits list"), json!([]));
    drop(operated);
}

#[test]
fn generated_texts_are_complete() {
    let generate = |kind: &str| {
        let output = Command::new(Program::Tollgate.path()).args(["generate", kind]).output();
        let output = output.expect("the program is built");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("output is UTF-8")
    };
    for (kind, marks) in [
        ("man", ["--limits-store", "tollgate limits", "tollgate explain"]),
        ("bash", ["--limits-store", "limits", "explain"]),
        ("zsh", ["--limits-store", "limits", "explain"]),
        ("fish", ["limits-store", "limits", "explain"]),
    ] {
        let text = generate(kind);
        // The manual page writes every hyphen of a flag with a backslash.
        let plain = text.replace('\\', "");
        for mark in marks {
            assert!(plain.contains(mark), "{kind} lacks {mark}");
        }
    }
    // The shell of the tests reads its completions.
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("tollgate.bash");
    fs::write(&path, generate("bash")).expect("the folder is ours");
    let script = "source \"$1\"; COMP_WORDS=(tollgate limits re); COMP_CWORD=2; \
                  _tollgate tollgate re limits; echo \"${COMPREPLY[@]}\"";
    let output = Command::new("bash").args(["-c", script, "bash"]).arg(&path).output();
    let output = output.expect("bash runs");
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    for word in ["remove", "revert", "report"] {
        assert!(words.contains(word), "{words:?} {output:?}");
    }
}

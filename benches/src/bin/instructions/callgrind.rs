//! Starts this program again under callgrind and reads the counts.
//!
//! Not here: the counted work (`run`).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs, io};

use anyhow::{Context, bail, ensure};

use crate::baseline::Counts;

/// The function that callgrind counts, by its symbol.
const MEASURED: &str = "instructions::run::measured";

/// Counts every case whose name contains `only`. The returned folder keeps one profile per case,
/// for `callgrind_annotate`.
pub(crate) fn count(only: &str) -> anyhow::Result<(Counts, PathBuf)> {
    let program = env::current_exe().context("this program")?;
    let folder = program.with_file_name("callgrind");
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).context(folder.display().to_string());
        }
        _ => fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?,
    }
    let out = folder.join("out");
    let ran = Command::new("valgrind")
        .args(["--quiet", "--tool=callgrind"])
        .arg(format!("--zero-before={MEASURED}"))
        .arg(format!("--dump-after={MEASURED}"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args(["--here", "--only", only])
        .stderr(Stdio::inherit())
        .output()
        .context("valgrind (Debian: apt-get install valgrind)")?;
    ensure!(ran.status.success(), "valgrind: {}", ran.status);
    let output = String::from_utf8(ran.stdout).context("what the cases told")?;
    let mut lines = output.lines();
    let cpu = lines.next().context("no case told anything")?.to_owned();
    let mut counts = Counts { rustc: rustc(), cpu, ..Counts::default() };
    for (number, line) in lines.enumerate() {
        let (name, operations) = line.split_once(' ').context("a name and a number")?;
        let operations: u64 = operations.parse().context("operations")?;
        let profile = folder.join(name);
        fs::rename(folder.join(format!("out.{}", number + 1)), &profile)
            .with_context(|| format!("callgrind counted nothing for {name}"))?;
        let each = (instructions(&profile)? + operations / 2) / operations;
        counts.of.insert(name.to_owned(), each);
    }
    Ok((counts, folder))
}

/// The total instruction count of a profile.
fn instructions(profile: &Path) -> anyhow::Result<u64> {
    let text = fs::read_to_string(profile).with_context(|| profile.display().to_string())?;
    let Some(sum) = text.lines().find_map(|line| line.strip_prefix("summary: ")) else {
        bail!("{} has no summary", profile.display());
    };
    sum.trim().parse().with_context(|| profile.display().to_string())
}

/// The output of `rustc --version`; empty if there is no compiler.
fn rustc() -> String {
    let output = Command::new("rustc").arg("--version").output();
    output.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).trim().into(),
    )
}

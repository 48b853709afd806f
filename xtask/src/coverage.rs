//! How much of a crate its unit tests reach: the share of its lines, by file, as rustc's instrumentation and the toolchain's own
//! LLVM tools count them.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use serde_json::Value;

use crate::cargo;

const DEFAULT: &str = "overfly-sockets";

/// Runs the unit tests of the crates that are named, and prints a table for each.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<ExitCode, String> {
    let mut packages: Vec<String> = words.collect();
    if let Some(option) = packages.iter().find(|word| word.starts_with('-')) {
        return Err(format!("{option} is not known: `cargo xtask coverage [CRATE…]`"));
    }
    if packages.is_empty() {
        packages.push(DEFAULT.to_owned());
    }
    let tools = tools()?;
    for package in &packages {
        measure(package, &tools)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(package: &str, tools: &Path) -> Result<(), String> {
    let root = crate::root()?;
    let folder = root.join("target/coverage");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let merged = folder.join(format!("{package}.profdata"));
    // Some tests start others in processes of their own: a file for each, which those that fork share.
    let raw = folder.join(format!("{package}.raw"));
    let _ = std::fs::remove_dir_all(&raw);
    // Only the crate itself is instrumented: what it stands on is as `cargo test` builds it. Of lines that are inlined, or are moved
    // together, some would not count.
    let mut build = Command::new(cargo());
    build.args(["rustc", "--locked", "--lib", "--profile", "test", "--package", package]);
    build
        .args(["--message-format", "json", "--", "-Cinstrument-coverage", "-Copt-level=0"])
        .current_dir(root);
    let messages = output(build.stderr(Stdio::inherit()))?;
    let program = executable(&messages).ok_or_else(|| format!("{package} has no unit tests"))?;
    let ran = Command::new(&program).env("LLVM_PROFILE_FILE", raw.join("%p-%m")).current_dir(root).status();
    if !ran.map_err(|error| format!("{}: {error}", program.display()))?.success() {
        return Err(format!("the unit tests of {package} fail"));
    }
    // A folder stands for all files in it.
    output(
        Command::new(tools.join("llvm-profdata")).args(["merge", "-sparse", "-o"]).arg(&merged).arg(&raw),
    )?;
    let mut export = Command::new(tools.join("llvm-cov"));
    export.args(["export", "-summary-only", "-instr-profile"]).arg(&merged).arg(&program);
    let rows = rows(&output(&mut export)?, package.trim_start_matches("overfly-"))?;
    let (reached, all) = rows.iter().fold((0, 0), |sum, row| (sum.0 + row.reached, sum.1 + row.all));
    for row in &rows {
        println!(
            "{:>6} of {:>6}  {:>5.1} %  {}",
            row.reached,
            row.all,
            share(row.reached, row.all),
            row.file
        );
    }
    println!("{reached:>6} of {all:>6}  {:>5.1} %  {package}", share(reached, all));
    Ok(())
}

/// One file's lines with code.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    file: String,
    reached: u64,
    all: u64,
}

fn share(reached: u64, all: u64) -> f64 {
    100.0 * reached as f64 / all.max(1) as f64
}

/// What `llvm-cov export` says of the files of a crate, those of its tests aside.
fn rows(export: &str, folder: &str) -> Result<Vec<Row>, String> {
    let export: Value =
        serde_json::from_str(export).map_err(|error| format!("llvm-cov's answer: {error}"))?;
    let begin = format!("/crates/{folder}/src/");
    let files = export["data"][0]["files"].as_array().ok_or("llvm-cov names no files")?;
    let of = |file: &Value| {
        let (_, name) = file["filename"].as_str()?.rsplit_once(&begin)?;
        let is_test = name.split('/').any(|part| part.trim_end_matches(".rs") == "tests");
        let lines = &file["summary"]["lines"];
        let row =
            Row { file: name.to_owned(), reached: lines["covered"].as_u64()?, all: lines["count"].as_u64()? };
        (!is_test).then_some(row)
    };
    Ok(files.iter().filter_map(of).collect())
}

/// The test program that cargo has built.
fn executable(messages: &str) -> Option<PathBuf> {
    let parsed = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    parsed.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back()
}

/// Where the LLVM tools of this toolchain are: others may not know its format.
fn tools() -> Result<PathBuf, String> {
    let library = output(Command::new("rustc").args(["--print", "target-libdir"]))?;
    let tools = Path::new(library.trim()).with_file_name("bin");
    if tools.join("llvm-cov").exists() {
        return Ok(tools);
    }
    println!("coverage: rustup component add llvm-tools");
    output(Command::new("rustup").args(["component", "add", "llvm-tools"]))?;
    Ok(tools)
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_tests_and_of_other_crates_do_not_count() {
        let file = |name: &str| {
            format!(r#"{{"filename":"{name}","summary":{{"lines":{{"count":4,"covered":3}}}}}}"#)
        };
        let names = [
            "/w/crates/sockets/src/face.rs",
            "/w/crates/sockets/src/tests/ends.rs",
            "/w/crates/link/src/lib.rs",
        ];
        let export = format!(r#"{{"data":[{{"files":[{}]}}]}}"#, names.map(file).join(","));
        let expected = Row { file: "face.rs".to_owned(), reached: 3, all: 4 };
        assert_eq!(rows(&export, "sockets"), Ok(vec![expected]));
    }
}

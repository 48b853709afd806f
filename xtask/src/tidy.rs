//! `cargo xtask tidy`: habits of this code base that a program can see. What breaks one has an exception in `xtask/tidy.toml`,
//! by name, or is an error; that list only shrinks.

mod document;
mod duplicates;
mod exceptions;
mod rust;

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use self::exceptions::Exceptions;

/// Lines of a Rust file at most.
const FILE_LINES_MAX: usize = 700;
/// The same where one room holds most of the product.
const SOCKETS_FILE_LINES_MAX: usize = 500;
/// That room.
const SOCKETS: &str = "crates/sockets/src/";
/// Lines of a function at most, from its name to its last brace.
const FUNCTION_LINES_MAX: usize = 80;
/// Lines with code in a row that may be the same in two places, at most.
const DUPLICATE_LINES_MAX: usize = 11;
/// Where the exceptions are.
const EXCEPTIONS: &str = "xtask/tidy.toml";
/// What marks unfinished work. Written so that this file does not have it.
const MARKS: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];

/// What is judged. The names are those of the tables in `xtask/tidy.toml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rule {
    /// A Rust file has [`FILE_LINES_MAX`] lines at most, or [`SOCKETS_FILE_LINES_MAX`] below [`SOCKETS`].
    FileLines,
    /// A function has [`FUNCTION_LINES_MAX`] lines at most.
    FunctionLines,
    /// More than [`DUPLICATE_LINES_MAX`] lines with code are in one place only.
    Duplicates,
    /// A module is where its name says: no `#[path]`.
    PathAttributes,
    /// The file of a module is `name.rs` beside its folder, not `name/mod.rs`; below `tests` cargo asks for the other.
    ModuleFiles,
    /// A test's file beside `tests/main.rs` is a module of it, or a target of its own: else nobody runs it.
    LeftOut,
    /// What is included at compile time lies in the crate, which could be packaged.
    Includes,
    /// A name of a time that is a bare number ends in its unit.
    Units,
    /// Nothing is marked as unfinished.
    Marks,
    /// A link in a document leads to a file, and to a heading in it; the book has every page.
    Links,
}

impl Rule {
    const ALL: [Self; 10] = [
        Self::FileLines,
        Self::FunctionLines,
        Self::Duplicates,
        Self::PathAttributes,
        Self::ModuleFiles,
        Self::LeftOut,
        Self::Includes,
        Self::Units,
        Self::Marks,
        Self::Links,
    ];

    /// The name of its table of exceptions.
    const fn name(self) -> &'static str {
        match self {
            Self::FileLines => "file-lines",
            Self::FunctionLines => "function-lines",
            Self::Duplicates => "duplicates",
            Self::PathAttributes => "path-attributes",
            Self::ModuleFiles => "module-files",
            Self::LeftOut => "left-out",
            Self::Includes => "includes",
            Self::Units => "units",
            Self::Marks => "marks",
            Self::Links => "links",
        }
    }

    /// Whether its exceptions are numbers of lines; the others are reasons.
    const fn counts(self) -> bool {
        matches!(self, Self::FileLines | Self::FunctionLines | Self::Duplicates)
    }
}

/// Something that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    rule: Rule,
    /// What an exception for it is called.
    key: String,
    /// Lines, where the rule counts them.
    lines: usize,
    /// Where it is and what is wrong.
    message: String,
}

/// A file of the workspace.
#[derive(Debug)]
struct File {
    /// From the workspace's folder, with `/`.
    path: String,
    text: String,
}

/// The workspace as it is judged.
#[derive(Debug, Default)]
struct Tree {
    /// Texts that somebody writes by hand, by path.
    files: Vec<File>,
    /// Every file and folder, by path from the workspace's folder; the folder itself is empty.
    places: std::collections::BTreeSet<String>,
}

impl Tree {
    fn read(root: &Path) -> Result<Self, String> {
        let mut tree = Self::default();
        tree.add(root, root)?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    fn add(&mut self, root: &Path, folder: &Path) -> Result<(), String> {
        let failed = |path: &Path, error: &std::io::Error| format!("{}: {error}", path.display());
        let own = folder.strip_prefix(root).unwrap_or(folder).display().to_string();
        self.places.insert(own);
        let entries = std::fs::read_dir(folder).map_err(|error| failed(folder, &error))?;
        for entry in entries {
            let entry = entry.map_err(|error| failed(folder, &error))?;
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let built = folder == root && (name == "target" || name == "results");
            if built || name == "__pycache__" || name == ".git" {
                continue;
            }
            let kind = entry.file_type().map_err(|error| failed(&path, &error))?;
            if kind.is_dir() {
                self.add(root, &path)?;
                continue;
            }
            let place = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            if kind.is_file() && is_ours(&place) {
                let text = std::fs::read_to_string(&path).map_err(|error| failed(&path, &error))?;
                self.files.push(File { path: place.clone(), text });
            }
            self.places.insert(place);
        }
        Ok(())
    }

    /// The folder of the crate that a file belongs to.
    fn crate_of<'a>(&self, path: &'a str) -> &'a str {
        let mut folder = path;
        while let Some((above, _)) = folder.rsplit_once('/') {
            folder = above;
            if self.places.contains(&format!("{folder}/Cargo.toml")) {
                return folder;
            }
        }
        ""
    }

    fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }

    /// All that breaks a rule.
    fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for file in self.rust() {
            rust::judge(self, file, &mut findings);
            module_file(file, &mut findings);
            left_out(self, file, &mut findings);
        }
        for file in &self.files {
            marks(file, &mut findings);
        }
        for file in self.files.iter().filter(|file| file.path.ends_with(".md")) {
            document::judge(self, file, &mut findings);
        }
        document::judge_book(self, &mut findings);
        duplicates::judge(&self.rust().collect::<Vec<_>>(), &mut findings);
        findings
    }
}

/// Whether somebody of ours writes a file by hand.
fn is_ours(path: &str) -> bool {
    let ends = [".rs", ".md", ".toml", ".py", ".sh", ".c", ".h", ".lua", ".yml", ".yaml", "Makefile"];
    ends.iter().any(|end| path.ends_with(end)) && !path.contains("/vendor/")
}

/// Follows `..` in a path from a folder; `None` if it leaves the workspace.
fn resolve(folder: &str, path: &str) -> Option<String> {
    let mut place = PathBuf::from(folder);
    for component in Path::new(path).components() {
        match component {
            Component::ParentDir => {
                if !place.pop() {
                    return None;
                }
            }
            Component::Normal(name) => place.push(name),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(place.display().to_string())
}

/// The folder of a file.
fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// One style for the files of modules.
fn module_file(file: &File, findings: &mut Vec<Finding>) {
    let Some(module) = file.path.strip_suffix("/mod.rs") else { return };
    if !file.path.split('/').any(|folder| folder == "tests") {
        findings.push(Finding {
            rule: Rule::ModuleFiles,
            key: file.path.clone(),
            lines: 0,
            message: format!("{}: name it {module}.rs", file.path),
        });
    }
}

/// Tests that are one binary, whose root names each file.
fn left_out(tree: &Tree, file: &File, findings: &mut Vec<Finding>) {
    let Some(folder) = file.path.strip_suffix("main.rs").filter(|folder| folder.ends_with("/tests/")) else {
        return;
    };
    let manifest = format!("{}/Cargo.toml", tree.crate_of(&file.path));
    let manifest = tree.files.iter().find(|file| file.path == manifest).map_or("", |file| &file.text);
    for place in &tree.places {
        let name = place.strip_prefix(folder).and_then(|name| name.strip_suffix(".rs"));
        let Some(name) = name.filter(|name| *name != "main" && !name.contains('/')) else { continue };
        let module = format!("mod {name};");
        let target = format!("name = \"{name}\"");
        if !file.text.lines().any(|line| line == module) && !manifest.lines().any(|line| line == target) {
            findings.push(Finding {
                rule: Rule::LeftOut,
                key: place.clone(),
                lines: 0,
                message: format!("{place}: no test runs it: say `{module}` in {}", file.path),
            });
        }
    }
}

fn marks(file: &File, findings: &mut Vec<Finding>) {
    for (number, line) in (1..).zip(file.text.lines()) {
        let words = line.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
        for word in words.filter(|word| MARKS.contains(word)) {
            findings.push(Finding {
                rule: Rule::Marks,
                key: format!("{}: {word}", file.path),
                lines: 0,
                message: format!("{}:{number}: {word}: finish it, or file an issue", file.path),
            });
        }
    }
}

/// What is wrong with these findings and exceptions, in lines that say what to do.
fn judge(findings: &[Finding], exceptions: &Exceptions) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut found: BTreeMap<(Rule, &str), usize> = BTreeMap::new();
    for finding in findings {
        let allowed = exceptions.lines(finding.rule, &finding.key);
        if allowed.is_none_or(|allowed| finding.lines > allowed) {
            let before = allowed.filter(|_| finding.rule.counts());
            let before = before.map_or(String::new(), |lines| format!(" (the exception is for {lines})"));
            complaints.push(format!("{}{before}", finding.message));
        }
        found.insert((finding.rule, finding.key.as_str()), finding.lines);
    }
    for (rule, key, allowed) in exceptions.all() {
        let table = rule.name();
        match found.get(&(rule, key)) {
            None => complaints.push(format!(
                "{EXCEPTIONS}: [{table}] \"{key}\" is needed no more: take it out (`cargo xtask tidy --write`)"
            )),
            Some(&lines) if lines < allowed => complaints.push(format!(
                "{EXCEPTIONS}: [{table}] \"{key}\" has {lines} lines now: lower it (`cargo xtask tidy --write`)"
            )),
            Some(_) => {}
        }
    }
    complaints
}

/// `cargo xtask tidy [--write]`.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<ExitCode, String> {
    let words: Vec<String> = words.collect();
    let write = match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => false,
        ["--write"] => true,
        _ => return Err("usage: cargo xtask tidy [--write]".to_owned()),
    };
    let root = crate::root()?;
    let path = root.join(EXCEPTIONS);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{EXCEPTIONS}: {error}"))?;
    let findings = Tree::read(root)?.findings();
    let text = if write {
        let shrunk = exceptions::shrunk(&text, &findings);
        std::fs::write(&path, &shrunk).map_err(|error| format!("{EXCEPTIONS}: {error}"))?;
        shrunk
    } else {
        text
    };
    let exceptions = Exceptions::parse(&text)?;
    let complaints = judge(&findings, &exceptions);
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    let count = exceptions.all().count();
    if complaints.is_empty() {
        println!("tidy, with {count} exceptions");
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("{} of these are to be mended; {EXCEPTIONS} says what is excepted", complaints.len());
    Ok(ExitCode::FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workspace of these files.
    pub(super) fn tree(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        for (path, text) in files {
            let mut folder = *path;
            tree.places.insert(folder.to_owned());
            while let Some((above, _)) = folder.rsplit_once('/') {
                folder = above;
                tree.places.insert(folder.to_owned());
            }
            tree.places.insert(String::new());
            tree.files.push(File { path: (*path).to_owned(), text: (*text).to_owned() });
        }
        tree
    }

    /// Keys of what breaks a rule in such a workspace.
    pub(super) fn found(files: &[(&str, &str)], rule: Rule) -> Vec<String> {
        let findings = tree(files).findings();
        findings.into_iter().filter(|finding| finding.rule == rule).map(|finding| finding.key).collect()
    }

    fn complaints(findings: &[(Rule, &str, usize)], exceptions: &str) -> Vec<String> {
        let findings: Vec<Finding> = findings
            .iter()
            .map(|&(rule, key, lines)| Finding {
                rule,
                key: key.to_owned(),
                lines,
                message: format!("{key} is bad"),
            })
            .collect();
        judge(&findings, &Exceptions::parse(exceptions).unwrap())
    }

    #[test]
    fn a_file_is_too_long_from_701_lines_on() {
        let lines = |count: usize| "//\n".repeat(count);
        assert_eq!(found(&[("a.rs", &lines(701))], Rule::FileLines), ["a.rs"]);
        assert_eq!(found(&[("a.rs", &lines(700)), ("a.md", &lines(701))], Rule::FileLines), [""; 0]);
        let (whole, more) = ("crates/sockets/src/a.rs", "crates/sockets/src/b/c.rs");
        assert_eq!(found(&[(whole, &lines(500)), (more, &lines(501))], Rule::FileLines), [more]);
    }

    #[test]
    fn marks_of_unfinished_work_are_found_as_words() {
        let bad = format!("// {} later\n", MARKS[0]);
        assert_eq!(found(&[("a.py", &bad)], Rule::Marks).len(), 1);
        let word = format!("x{}x = 1\n", MARKS[1]);
        assert_eq!(found(&[("a.py", &word)], Rule::Marks), [""; 0]);
    }

    #[test]
    fn the_file_of_a_module_has_its_name() {
        let files = [("a/src/b/mod.rs", ""), ("a/src/c.rs", ""), ("a/tests/lab/mod.rs", "")];
        assert_eq!(found(&files, Rule::ModuleFiles), ["a/src/b/mod.rs"]);
    }

    #[test]
    fn a_file_that_the_root_of_the_tests_does_not_name_is_run_by_nobody() {
        let files = [
            ("a/Cargo.toml", "[[test]]\nname = \"c\"\n"),
            ("a/tests/main.rs", "mod b;\n// mod d;\n"),
            ("a/tests/b.rs", ""),
            ("a/tests/c.rs", ""),
            ("a/tests/d.rs", ""),
            ("a/tests/b/e.rs", ""),
            ("f/tests/g.rs", ""),
        ];
        assert_eq!(found(&files, Rule::LeftOut), ["a/tests/d.rs"]);
    }

    #[test]
    fn what_others_wrote_is_not_judged() {
        assert!(is_ours("crates/a/src/b.rs") && is_ours("Makefile"));
        assert!(!is_ours("crates/a/vendor/b.lua") && !is_ours("a.json"));
    }

    #[test]
    fn what_breaks_a_rule_is_an_error_unless_it_is_excepted_exactly() {
        let long = (Rule::FileLines, "a.rs", 900);
        assert_eq!(complaints(&[long], ""), ["a.rs is bad"]);
        assert_eq!(complaints(&[long], "[file-lines]\n\"a.rs\" = 900\n"), [""; 0]);
        let grown = complaints(&[long], "[file-lines]\n\"a.rs\" = 899\n");
        assert_eq!(grown, ["a.rs is bad (the exception is for 899)"]);
        let less = complaints(&[long], "[file-lines]\n\"a.rs\" = 901\n");
        assert!(less.len() == 1 && less[0].contains("900 lines now: lower it"), "{less:?}");
        let other = complaints(&[long], "[function-lines]\n\"a.rs\" = 900\n");
        assert!(other.len() == 2 && other[1].contains("needed no more"), "{other:?}");
        assert_eq!(
            complaints(&[(Rule::Links, "a.md: b.md", 0)], "[links]\n\"a.md: b.md\" = \"made later\"\n"),
            [""; 0]
        );
    }

    #[test]
    fn an_exception_that_nothing_needs_is_an_error() {
        let left = complaints(&[], "[units]\n\"a.rs: delay\" = \"ticks\"\n");
        assert!(left.len() == 1 && left[0].contains("needed no more"), "{left:?}");
    }

    #[test]
    fn paths_are_followed_within_the_workspace() {
        assert_eq!(resolve("a/b", "../c/./d.md").as_deref(), Some("a/c/d.md"));
        assert_eq!(resolve("a", "..").as_deref(), Some(""));
        assert_eq!(resolve("a", "../../b"), None);
        assert_eq!(resolve("a", "/b"), None);
    }

    #[test]
    fn a_file_belongs_to_the_nearest_crate() {
        let tree = tree(&[
            ("Cargo.toml", ""),
            ("crates/a/Cargo.toml", ""),
            ("crates/a/src/b/c.rs", ""),
            ("d/e.rs", ""),
        ]);
        assert_eq!(tree.crate_of("crates/a/src/b/c.rs"), "crates/a");
        assert_eq!(tree.crate_of("d/e.rs"), "");
    }
}

//! Profiles: `.opf` files of `onload_set NAME VALUE` lines, and the options they may set.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::options::DEFINITIONS;

/// The profiles that come with Overfly, for where its folder of profiles is not installed.
const BUILT_IN: [(&str, &str); 2] = [
    ("balanced", include_str!("../../../profiles/balanced.opf")),
    ("performance", include_str!("../../../profiles/performance.opf")),
];

/// Who wrote something wrong in a profile or in the environment, and what.
#[derive(Debug)]
pub(crate) struct ProfileError(String);

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Name and value of each option that a profile sets, in the order of the file; the last counts.
pub(crate) type Values = Vec<(&'static str, u64)>;

/// Reads the profile `name`: a path, the name of a file `NAME.opf` in one of `folders`, or one
/// that is built in.
pub(crate) fn load(name: &str, folders: &[PathBuf]) -> Result<Values, ProfileError> {
    let mut values = Values::new();
    Source::locate(name, folders)?.read(folders, 0, &mut values)?;
    Ok(values)
}

/// The text of a profile, and how to speak of it.
struct Source {
    shown: String,
    folder: PathBuf,
    text: String,
}

impl Source {
    fn locate(name: &str, folders: &[PathBuf]) -> Result<Source, ProfileError> {
        if name.contains('/') || name.ends_with(".opf") {
            return Source::open(Path::new(name)).map_err(|error| {
                ProfileError(format!("profile {name}: {error}; expected the path of an .opf file"))
            });
        }
        let file =
            folders.iter().map(|folder| folder.join(format!("{name}.opf"))).find(|path| path.is_file());
        if let Some(path) = file {
            return Source::open(&path).map_err(|error| ProfileError(format!("{}: {error}", path.display())));
        }
        if let Some((name, text)) = BUILT_IN.iter().find(|(its, _)| *its == name) {
            return Ok(Source {
                shown: format!("{name}.opf"),
                folder: PathBuf::from("."),
                text: (*text).to_owned(),
            });
        }
        Err(ProfileError(format!("no such profile: {name}; expected {}", known(folders))))
    }

    fn open(path: &Path) -> std::io::Result<Source> {
        Ok(Source {
            shown: path.display().to_string(),
            folder: path.parent().unwrap_or(Path::new(".")).to_owned(),
            text: fs::read_to_string(path)?,
        })
    }

    fn read(&self, folders: &[PathBuf], depth: u32, values: &mut Values) -> Result<(), ProfileError> {
        if depth > 8 {
            return Err(ProfileError(format!("{}: profiles import each other in a circle", self.shown)));
        }
        for (number, line) in self.text.lines().enumerate() {
            let at = |message: String| ProfileError(format!("{}:{}: {message}", self.shown, number + 1));
            let line = line.split('#').next().unwrap_or(line);
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            match words.as_slice() {
                [] => {}
                ["onload_set", name, value] => values.push(check(name, value).map_err(at)?),
                ["onload_import", other] => {
                    let beside = self.folder.join(other);
                    let imported = if beside.is_file() {
                        Source::open(&beside).map_err(|error| at(format!("{}: {error}", beside.display())))?
                    } else {
                        Source::locate(other, folders).map_err(|error| at(error.0))?
                    };
                    imported.read(folders, depth + 1, values)?;
                }
                _ => {
                    return Err(at(format!(
                        "`{}` is not understood; expected `onload_set NAME VALUE` or `onload_import PROFILE`",
                        words.join(" ")
                    )));
                }
            }
        }
        Ok(())
    }
}

/// The names that would have been right.
fn known(folders: &[PathBuf]) -> String {
    let mut names: Vec<String> = folders
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".opf")?.to_owned()))
        .chain(BUILT_IN.iter().map(|(name, _)| (*name).to_owned()))
        .collect();
    names.sort();
    names.dedup();
    format!("{} or the path of an .opf file", names.join(", "))
}

/// The option and its value, if both are right.
fn check(name: &str, value: &str) -> Result<(&'static str, u64), String> {
    let Some(definition) = DEFINITIONS.iter().find(|definition| definition.name == name) else {
        let names: Vec<_> = DEFINITIONS.iter().map(|definition| definition.name).collect();
        return Err(format!("{name} {value}: no such option here; expected one of {}", names.join(", ")));
    };
    match definition.parse(value) {
        Ok(number) => Ok((definition.name, number)),
        Err(_) => {
            Err(format!("{name} {value}: expected a number from {} to {}", definition.low, definition.high))
        }
    }
}

/// The options as the program is to see them: the profile's, and over them the environment's.
/// The second list names EF_ variables of the environment that nothing here reads.
pub(crate) fn over_environment(
    profile: Values,
    environment: impl Iterator<Item = (String, String)>,
) -> Result<(Values, Vec<String>), ProfileError> {
    let mut values = profile;
    let mut unread = Vec::new();
    for (name, value) in environment.filter(|(name, _)| name.starts_with("EF_")) {
        if DEFINITIONS.iter().any(|definition| definition.name == name) {
            let checked =
                check(&name, &value).map_err(|message| ProfileError(format!("environment: {message}")))?;
            values.push(checked);
        } else {
            unread.push(name);
        }
    }
    unread.sort();
    Ok((values, unread))
}

/// The last value given for `name`.
pub(crate) fn value(values: &Values, name: &str) -> Option<u64> {
    values.iter().rev().find(|(its, _)| *its == name).map(|&(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    fn complaint(text: &str) -> String {
        let folder = folder(&[("one.opf", text)]);
        load("one", &[folder.path().to_owned()]).unwrap_err().to_string()
    }

    #[test]
    fn settings_comments_and_imports_are_read_and_the_last_value_counts() {
        let folder = folder(&[
            ("base.opf", "# what all share\nonload_set EF_POLL_USEC 20\n"),
            (
                "mine.opf",
                "onload_import base\n\nonload_set EF_POLL_USEC 50 # more\nonload_set EF_NO_FAIL 0\n",
            ),
        ]);
        let values = load("mine", &[folder.path().to_owned()]).unwrap();
        assert_eq!(value(&values, "EF_POLL_USEC"), Some(50));
        assert_eq!(value(&values, "EF_NO_FAIL"), Some(0));
        assert_eq!(value(&values, "EF_SOCKET_CACHE_MAX"), None);
    }

    #[test]
    fn errors_name_the_line_the_option_the_value_and_the_range() {
        let line = complaint("\nonload_set EF_TCP_TCONST_MSL 256\n");
        assert!(
            line.contains("one.opf:2: EF_TCP_TCONST_MSL 256") && line.contains("from 1 to 255"),
            "{line}"
        );
        let line = complaint("onload_set EF_POLL_USEC -1\n");
        assert!(line.contains("EF_POLL_USEC -1") && line.contains("from 0 to 4294967295"), "{line}");
        let line = complaint("onload_set EF_WARP 9\n");
        assert!(line.contains("EF_WARP 9") && line.contains("EF_POLL_USEC"), "{line}");
        let line = complaint("set EF_POLL_USEC 1\n");
        assert!(line.contains("`set EF_POLL_USEC 1`") && line.contains("onload_set NAME VALUE"), "{line}");
        let line = complaint("onload_import one\n");
        assert!(line.contains("circle"), "{line}");
        let line = complaint("onload_import other\n");
        assert!(line.contains("one.opf:1") && line.contains("other"), "{line}");
    }

    #[test]
    fn an_unknown_profile_is_answered_with_the_known_ones() {
        let folder = folder(&[("mine.opf", "")]);
        let line = load("fast", &[folder.path().to_owned()]).unwrap_err().to_string();
        assert!(line.contains("fast") && line.contains("balanced, mine, performance"), "{line}");
    }

    #[test]
    fn the_environment_wins_and_is_checked_too() {
        let environment = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect::<Vec<_>>()
                .into_iter()
        };
        let profile = vec![("EF_POLL_USEC", 20)];
        let (values, unread) = over_environment(
            profile.clone(),
            environment(&[("EF_POLL_USEC", "7"), ("EF_PIO", "1"), ("HOME", "/")]),
        )
        .unwrap();
        assert_eq!(value(&values, "EF_POLL_USEC"), Some(7));
        assert_eq!(unread, ["EF_PIO"]);
        let error = over_environment(profile, environment(&[("EF_NO_FAIL", "2")])).unwrap_err().to_string();
        assert!(error.contains("EF_NO_FAIL 2") && error.contains("from 0 to 1"), "{error}");
    }
}

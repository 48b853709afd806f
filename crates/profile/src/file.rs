//! Profiles: `.opf` files that set options and choose what is accelerated, and what is in force with one.

mod words;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::options::{Definition, Options, definition};
use crate::rules::{self, Rule};

/// The profiles that come with Overfly, for where its folder of profiles is not installed.
const BUILT_IN: [(&str, &str); 4] = [
    ("balanced", include_str!("../profiles/balanced.opf")),
    ("latency", include_str!("../profiles/latency.opf")),
    ("load", include_str!("../profiles/load.opf")),
    ("performance", include_str!("../profiles/performance.opf")),
];

/// Profiles that import each other, at most.
const DEPTH_MAX: u32 = 8;

/// Who wrote something wrong in a profile or in the environment, and what.
#[derive(Debug)]
pub struct ProfileError(String);

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ProfileError {}

/// Who set an option, or made a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A line of a profile.
    File {
        /// How to speak of the file.
        shown: String,
        /// From 1.
        line: usize,
    },
    /// A variable.
    Environment,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { shown, line } => write!(f, "{shown}:{line}"),
            Origin::Environment => f.write_str("environment"),
        }
    }
}

/// An option with a checked value, in its plain form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The option.
    pub definition: &'static Definition,
    /// What it is set to.
    pub value: String,
    /// Who set it.
    pub origin: Origin,
}

/// What profiles say, in the order of their lines: of settings the last counts, of rules the first that matches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    settings: Vec<Setting>,
    rules: Vec<(Rule, Origin)>,
}

impl Profile {
    /// Reads the profiles `names`, with commas between them: each a path, the name of a file `NAME.opf` in one of
    /// `folders`, or one that is built in.
    pub fn load(names: &str, folders: &[PathBuf]) -> Result<Profile, ProfileError> {
        let mut profile = Profile::default();
        for name in names.split(',') {
            profile.read(&Source::locate(name, folders)?, folders, 0)?;
        }
        Ok(profile)
    }

    fn read(&mut self, source: &Source, folders: &[PathBuf], depth: u32) -> Result<(), ProfileError> {
        if depth > DEPTH_MAX {
            return Err(ProfileError(format!("{}: profiles import each other in a circle", source.shown)));
        }
        for (number, words) in words::lines(&source.text) {
            let at = |message: String| ProfileError(format!("{}:{number}: {message}", source.shown));
            let origin = Origin::File { shown: source.shown.clone(), line: number };
            let words = words.map_err(at)?;
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            match words.as_slice() {
                ["onload_set", name, value] => {
                    self.settings.push(Setting::check(name, value, origin).map_err(at)?);
                }
                ["onload_set", assignment] if assignment.contains('=') => {
                    let (name, value) = assignment.split_once('=').unwrap_or_default();
                    self.settings.push(Setting::check(name, value, origin).map_err(at)?);
                }
                ["onload_import", other] => {
                    self.read(&source.import(other, folders).map_err(at)?, folders, depth + 1)?;
                }
                ["overfly_rule", rule @ ..] => self.rules.push((Rule::parse(rule).map_err(at)?, origin)),
                _ => {
                    return Err(at(format!(
                        "`{}` is not understood; expected `onload_set NAME VALUE`, `onload_import PROFILE` or `overfly_rule …`",
                        words.join(" ")
                    )));
                }
            }
        }
        Ok(())
    }

    /// What is in force with this profile in an environment: the environment wins, unless `force`.
    pub fn in_environment(
        self,
        environment: &[(String, String)],
        force: bool,
    ) -> Result<InForce, ProfileError> {
        let Profile { settings: profile, rules: mut chosen } = self;
        let wrong = |message: String| ProfileError(format!("environment: {message}"));
        let mut given = Vec::new();
        let mut unread = Vec::new();
        for (name, value) in environment.iter().filter(|(name, _)| name.starts_with("EF_")) {
            if definition(name).is_some() {
                given.push(Setting::check(name, value, Origin::Environment).map_err(wrong)?);
            } else {
                unread.push(name.clone());
            }
        }
        unread.sort();
        let decide = |given: &[Setting]| {
            let (below, above) = if force { (given, &profile[..]) } else { (&profile[..], given) };
            [below, above].concat()
        };
        let mut settings = decide(&given);
        let listens = options(&settings).load_env != 0;
        if !listens {
            settings = decide(&[]);
        }
        let own_rules = environment.iter().find(|(name, _)| name == rules::ENVIRONMENT);
        if let Some((_, text)) = own_rules
            && listens
            && (!force || chosen.is_empty())
        {
            let words = |rule: &str| {
                Rule::parse(&rule.split_ascii_whitespace().collect::<Vec<_>>())
                    .map(|rule| (rule, Origin::Environment))
                    .map_err(|error| wrong(format!("{}: {error}", rules::ENVIRONMENT)))
            };
            let named = text.split(';').filter(|rule| !rule.trim().is_empty());
            chosen = named.map(words).collect::<Result<_, _>>()?;
        }
        Ok(InForce { options: options(&settings), settings, rules: chosen, unread })
    }
}

/// The options with these settings, which were checked.
fn options(settings: &[Setting]) -> Options {
    let last = |name: &str| {
        let setting = settings.iter().rev().find(|setting| setting.definition.name == name)?;
        Some(setting.value.clone())
    };
    Options::read(last).unwrap_or(Options::DEFAULT)
}

impl Setting {
    fn check(name: &str, value: &str, origin: Origin) -> Result<Setting, String> {
        let definition = definition(name).ok_or_else(|| {
            format!("{name} {value}: there is no such option; `overfly profile options` lists them")
        })?;
        let value =
            definition.check(value).map_err(|_| format!("{name} {value}: expected {}", definition.shape))?;
        Ok(Setting { definition, value, origin })
    }
}

/// What a program is run with.
#[derive(Debug)]
pub struct InForce {
    /// The values.
    pub options: Options,
    settings: Vec<Setting>,
    /// The rules, the first first, and who made each.
    pub rules: Vec<(Rule, Origin)>,
    /// Variables of the environment that begin with EF_ and are no options.
    unread: Vec<String>,
}

impl InForce {
    /// The setting of an option that counts.
    pub fn setting(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().rev().find(|setting| setting.definition.name == name)
    }

    /// The program's environment: each option, and the rules, with its value, or `None` where it is not to be there.
    pub fn environment(&self) -> impl Iterator<Item = (&'static str, Option<String>)> {
        let rules: Vec<Rule> = self.rules.iter().map(|(rule, _)| rule.clone()).collect();
        let rules = (!rules.is_empty()).then(|| rules::environment(&rules));
        crate::options::DEFINITIONS
            .iter()
            .map(|definition| (definition.name, self.setting(definition.name).map(|its| its.value.clone())))
            .chain([(rules::ENVIRONMENT, rules)])
    }

    /// What was set and does nothing, and why, in words.
    pub fn without_effect(&self) -> Vec<String> {
        let accepted = crate::options::DEFINITIONS.iter().filter_map(|definition| {
            let reason = definition.accepted?;
            let setting = self.setting(definition.name)?;
            (setting.value != definition.default_text())
                .then(|| format!("{} {} has no effect: {reason}", definition.name, setting.value))
        });
        let unread = self.unread.iter().map(|name| format!("{name} has no effect: there is no such option"));
        accepted.chain(unread).collect()
    }
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
        let known = known(folders).into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(", ");
        Err(ProfileError(format!("no such profile: {name}; expected {known} or the path of an .opf file")))
    }

    fn open(path: &Path) -> std::io::Result<Source> {
        Ok(Source {
            shown: path.display().to_string(),
            folder: path.parent().unwrap_or(Path::new(".")).to_owned(),
            text: fs::read_to_string(path)?,
        })
    }

    /// A profile that this one names: a file beside it, or as [`Source::locate`] finds it.
    fn import(&self, name: &str, folders: &[PathBuf]) -> Result<Source, String> {
        let beside = [name.to_owned(), format!("{name}.opf")].map(|name| self.folder.join(name));
        match beside.iter().find(|path| path.is_file() && path.display().to_string() != self.shown) {
            Some(path) => Source::open(path).map_err(|error| format!("{}: {error}", path.display())),
            None => Source::locate(name, folders).map_err(|error| error.0),
        }
    }
}

/// The profiles that have a name, and where each is found.
pub fn known(folders: &[PathBuf]) -> Vec<(String, String)> {
    let mut profiles: Vec<(String, String)> = Vec::new();
    for folder in folders {
        let mut files: Vec<PathBuf> = fs::read_dir(folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "opf"))
            .collect();
        files.sort();
        for file in files {
            let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if !profiles.iter().any(|(its, _)| *its == name) {
                profiles.push((name, file.display().to_string()));
            }
        }
    }
    for (name, _) in BUILT_IN {
        if !profiles.iter().any(|(its, _)| its == name) {
            profiles.push((name.to_owned(), "built in".to_owned()));
        }
    }
    profiles.sort();
    profiles
}

/// Where named profiles are looked for, in this order.
pub fn folders() -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".config/overfly/profiles"));
    let executable = std::env::current_exe().ok().and_then(|path| Some(path.parent()?.to_owned()));
    let installed =
        executable.as_ref().and_then(|folder| Some(folder.parent()?.join("share/overfly/profiles")));
    let beside = [executable.map(|folder| folder.join("profiles")), installed];
    home.into_iter()
        .chain(beside.into_iter().flatten())
        .chain([PathBuf::from("/usr/share/overfly/profiles")])
        .collect()
}

/// The environment, of which only text can mean something here.
pub fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
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

    fn read(text: &str) -> Result<Profile, ProfileError> {
        let folder = folder(&[("one.opf", text)]);
        Profile::load("one", &[folder.path().to_owned()])
    }

    fn complaint(text: &str) -> String {
        read(text).unwrap_err().to_string()
    }

    fn with(text: &str, environment: &[(&str, &str)], force: bool) -> Result<InForce, ProfileError> {
        let environment: Vec<(String, String)> =
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        read(text).unwrap().in_environment(&environment, force)
    }

    #[test]
    fn settings_comments_quotes_and_imports_are_read_and_the_last_value_counts() {
        let folder = folder(&[
            ("base.opf", "# what all share\nonload_set EF_POLL_USEC 20\n"),
            (
                "mine.opf",
                "onload_import base\n\nonload_set EF_POLL_USEC '50' # more\nonload_set \"EF_NO_FAIL=0\"\n",
            ),
            ("late.opf", "onload_set EF_POLL_USEC 0x46\n"),
        ]);
        let folders = [folder.path().to_owned()];
        let mine = Profile::load("mine", &folders).unwrap().in_environment(&[], false).unwrap();
        assert_eq!((mine.options.poll_usec, mine.options.no_fail), (50, 0));
        let origin = mine.setting("EF_POLL_USEC").unwrap().origin.to_string();
        assert!(origin.ends_with("mine.opf:3"), "{origin}");
        assert_eq!(mine.setting("EF_SOCKET_CACHE_MAX"), None);
        let both = Profile::load("mine,late", &folders).unwrap().in_environment(&[], false).unwrap();
        assert_eq!(both.options.poll_usec, 70);
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
        let line = complaint("onload_set EF_RXQ_SIZE 1000\n");
        assert!(line.contains("EF_RXQ_SIZE 1000") && line.contains("power of two from 64"), "{line}");
        let line = complaint("onload_set EF_WARP 9\n");
        assert!(line.contains("EF_WARP 9") && line.contains("overfly profile options"), "{line}");
        let line = complaint("set EF_POLL_USEC 1\n");
        assert!(line.contains("`set EF_POLL_USEC 1`") && line.contains("onload_set NAME VALUE"), "{line}");
        let line = complaint("onload_import one\n");
        assert!(line.contains("circle"), "{line}");
        let line = complaint("onload_import other\n");
        assert!(line.contains("one.opf:1") && line.contains("other"), "{line}");
        let line = complaint("onload_set EF_POLL_USEC $TIME\n");
        assert!(line.contains("one.opf:1") && line.contains('$'), "{line}");
        let line = complaint("overfly_rule kernel listen port ssh\n");
        assert!(line.contains("one.opf:1") && line.contains("`ssh`"), "{line}");
    }

    #[test]
    fn an_unknown_profile_is_answered_with_the_known_ones() {
        let folder = folder(&[("mine.opf", "")]);
        let line = Profile::load("fast", &[folder.path().to_owned()]).unwrap_err().to_string();
        assert!(
            line.contains("fast") && line.contains("balanced, latency, load, mine, performance"),
            "{line}"
        );
    }

    #[test]
    fn the_environment_wins_unless_profiles_are_forced_and_is_checked_too() {
        let given = [("EF_POLL_USEC", "7"), ("EF_UDP", "0"), ("EF_WARP", "1"), ("HOME", "/")];
        let text = "onload_set EF_POLL_USEC 20\n";
        let usual = with(text, &given, false).unwrap();
        assert_eq!((usual.options.poll_usec, usual.options.udp), (7, 0));
        assert_eq!(usual.unread, ["EF_WARP"]);
        assert_eq!(usual.setting("EF_POLL_USEC").unwrap().origin, Origin::Environment);
        let forced = with(text, &given, true).unwrap();
        assert_eq!((forced.options.poll_usec, forced.options.udp), (20, 0));
        let error = with(text, &[("EF_NO_FAIL", "2")], false).unwrap_err().to_string();
        assert!(error.contains("EF_NO_FAIL 2") && error.contains("from 0 to 1"), "{error}");
    }

    #[test]
    fn the_environment_can_be_shut_out() {
        let text = "onload_set EF_POLL_USEC 20\n";
        let alone =
            with(text, &[("EF_POLL_USEC", "7"), ("EF_UDP", "0"), ("EF_LOAD_ENV", "0")], false).unwrap();
        assert_eq!((alone.options.poll_usec, alone.options.udp), (20, 1));
        let environment: Vec<_> = alone.environment().collect();
        assert!(environment.contains(&("EF_POLL_USEC", Some("20".to_owned()))));
        assert!(environment.contains(&("EF_UDP", None)), "the program must not see it either");
    }

    #[test]
    fn what_has_no_effect_is_said_where_it_was_changed() {
        let quiet = with("onload_set EF_PIO 1\n", &[], false).unwrap();
        assert!(quiet.without_effect().is_empty());
        let said = with("onload_set EF_PIO 0\n", &[("EF_WARP", "1")], false).unwrap().without_effect();
        assert!(
            said[0].starts_with("EF_PIO 0 has no effect: ") && said[1].starts_with("EF_WARP"),
            "{said:?}"
        );
    }

    #[test]
    fn rules_of_the_environment_take_the_place_of_a_profiles() {
        let text = "overfly_rule kernel listen port 22\noverfly_rule accelerate any\n";
        let rules = |in_force: &InForce| in_force.environment().find(|(name, _)| *name == rules::ENVIRONMENT);
        let own = with(text, &[], false).unwrap();
        assert_eq!(rules(&own).unwrap().1.as_deref(), Some("kernel listen port 22-22;accelerate any"));
        let given = [(rules::ENVIRONMENT, "kernel any")];
        assert_eq!(rules(&with(text, &given, false).unwrap()).unwrap().1.as_deref(), Some("kernel any"));
        assert_eq!(rules(&with(text, &given, true).unwrap()).unwrap().1, rules(&own).unwrap().1);
        let error = with(text, &[(rules::ENVIRONMENT, "kernel none")], false).unwrap_err().to_string();
        assert!(error.contains("OVERFLY_RULES") && error.contains("`none`"), "{error}");
    }

    #[test]
    fn the_shipped_profiles_are_sound_and_explain_each_option() {
        for (name, text) in BUILT_IN {
            let profile = Profile::load(name, &[]).unwrap();
            assert!(!profile.settings.is_empty(), "{name}");
            let lines: Vec<&str> = text.lines().collect();
            for (number, line) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("onload_")) {
                let before = if number == 0 { "" } else { lines[number - 1] };
                assert!(before.starts_with('#'), "{name}.opf:{}: {line} is not explained", number + 1);
            }
        }
    }
}

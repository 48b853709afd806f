//! The list of exceptions: a table for each rule, an entry for each exception, with its number of lines or its reason.

use std::collections::BTreeMap;

use super::{EXCEPTIONS, Finding, Rule};

/// What is excepted.
#[derive(Debug)]
pub(super) struct Exceptions(BTreeMap<(Rule, String), usize>);

impl Exceptions {
    /// Reads the list.
    ///
    /// # Errors
    /// Says which entry is wrong.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let tables: toml::Table = toml::from_str(text).map_err(|error| format!("{EXCEPTIONS}: {error}"))?;
        let mut all = BTreeMap::new();
        for (name, table) in tables {
            let rule = rule(&name).ok_or_else(|| format!("{EXCEPTIONS}: there is no rule [{name}]"))?;
            let entries = table.as_table().ok_or_else(|| format!("{EXCEPTIONS}: {name} is no table"))?;
            for (key, value) in entries {
                let lines = match value {
                    toml::Value::Integer(lines) if rule.counts() => usize::try_from(*lines).ok(),
                    toml::Value::String(reason) if !rule.counts() && !reason.is_empty() => Some(0),
                    _ => None,
                };
                let expected = if rule.counts() { "a number of lines" } else { "a reason" };
                let lines =
                    lines.ok_or_else(|| format!("{EXCEPTIONS}: [{name}] \"{key}\": expected {expected}"))?;
                all.insert((rule, key.clone()), lines);
            }
        }
        Ok(Self(all))
    }

    /// Lines that are allowed to what is called `key`, if it is excepted; 0 where the rule counts none.
    pub(super) fn lines(&self, rule: Rule, key: &str) -> Option<usize> {
        self.0.get(&(rule, key.to_owned())).copied()
    }

    /// Every exception, with its lines.
    pub(super) fn all(&self) -> impl Iterator<Item = (Rule, &str, usize)> {
        self.0.iter().map(|((rule, key), &lines)| (*rule, key.as_str(), lines))
    }
}

fn rule(name: &str) -> Option<Rule> {
    Rule::ALL.into_iter().find(|rule| rule.name() == name)
}

/// The list without the entries that nothing needs, and with the numbers that are lower now. Nothing is added and no number rises:
/// who wants that writes it himself.
pub(super) fn shrunk(text: &str, findings: &[Finding]) -> String {
    let mut table = None;
    let mut shrunk = String::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            table = rule(name);
        }
        let entry = line.strip_prefix('"').and_then(|line| line.split_once("\" = "));
        let kept = match (table, entry) {
            (Some(rule), Some((key, value))) => findings
                .iter()
                .find(|finding| finding.rule == rule && finding.key == key)
                .map(|finding| match value.parse::<usize>() {
                    Ok(allowed) => format!("\"{key}\" = {}", allowed.min(finding.lines)),
                    Err(_) => line.to_owned(),
                }),
            _ => Some(line.to_owned()),
        };
        if let Some(line) = kept {
            shrunk.push_str(&line);
            shrunk.push('\n');
        }
    }
    shrunk
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_reasons_stand_where_they_belong() {
        let wrong = |text: &str| Exceptions::parse(text).unwrap_err();
        assert!(wrong("[lines]\n").contains("no rule [lines]"));
        assert!(wrong("[file-lines]\n\"a.rs\" = \"long\"\n").contains("expected a number of lines"));
        assert!(wrong("[units]\n\"a.rs: delay\" = 3\n").contains("expected a reason"));
        assert!(wrong("[units]\n\"a.rs: delay\" = \"\"\n").contains("expected a reason"));
        assert!(wrong("file-lines = 3\n").contains("no table"));
        let right = Exceptions::parse("[file-lines]\n\"a.rs\" = 800\n[units]\n\"a.rs: delay\" = \"ticks\"\n")
            .unwrap();
        assert_eq!(right.all().count(), 2);
        assert_eq!(right.lines(Rule::FileLines, "a.rs"), Some(800));
        assert_eq!(right.lines(Rule::FileLines, "b.rs"), None);
    }

    #[test]
    fn the_list_only_shrinks() {
        let finding =
            |rule, key: &str, lines| Finding { rule, key: key.to_owned(), lines, message: String::new() };
        let findings = [
            finding(Rule::FileLines, "a.rs", 800),
            finding(Rule::FileLines, "b.rs", 900),
            finding(Rule::FileLines, "new.rs", 900),
            finding(Rule::Units, "a.rs: delay", 0),
        ];
        let text = "# Why.\n[file-lines]\n\"a.rs\" = 850\n\"b.rs\" = 850\n\"gone.rs\" = 850\n\n\
                    [units]\n\"a.rs: delay\" = \"ticks\"\n\"a.rs: gone\" = \"ticks\"\n";
        let after =
            "# Why.\n[file-lines]\n\"a.rs\" = 800\n\"b.rs\" = 850\n\n[units]\n\"a.rs: delay\" = \"ticks\"\n";
        assert_eq!(shrunk(text, &findings), after);
    }
}

//! Lines that stand in two places.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{DUPLICATE_LINES_MAX, File, Finding, Rule};

/// Lines with code of a file: the number of each, and a hash of it without what it begins and ends with of blanks.
struct Lines<'a> {
    path: &'a str,
    numbers: Vec<usize>,
    hashes: Vec<u64>,
}

impl<'a> Lines<'a> {
    fn of(file: &'a File) -> Self {
        let code = (1..).zip(file.text.lines()).map(|(number, line)| (number, line.trim()));
        // Two files that use the same things have the same first lines.
        let code =
            code.filter(|(_, line)| !line.is_empty() && !line.starts_with("//") && !line.starts_with("use "));
        let hash = |line: &str| {
            let mut hasher = DefaultHasher::new();
            line.hash(&mut hasher);
            hasher.finish()
        };
        let (numbers, hashes) = code.map(|(number, line)| (number, hash(line))).unzip();
        Self { path: &file.path, numbers, hashes }
    }
}

/// Where [`DUPLICATE_LINES_MAX`] lines and one more begin: a file, and a line of its lines with code.
type Place = (usize, usize);

/// Finds what is in two places.
pub(super) fn judge(files: &[&File], findings: &mut Vec<Finding>) {
    let files: Vec<Lines> = files.iter().map(|file| Lines::of(file)).collect();
    let mut seen: HashMap<&[u64], Vec<Place>> = HashMap::new();
    for (index, file) in files.iter().enumerate() {
        for (at, window) in file.hashes.windows(DUPLICATE_LINES_MAX + 1).enumerate() {
            seen.entry(window).or_default().push((index, at));
        }
    }
    // By how far apart they are, the places of two files that are the same belong together where they follow one another.
    let mut same: BTreeMap<(usize, usize, isize), Vec<usize>> = BTreeMap::new();
    for places in seen.values().filter(|places| places.len() > 1) {
        for (nth, &(a, at)) in places.iter().enumerate() {
            for &(b, other) in &places[nth + 1..] {
                let apart = other.wrapping_sub(at).cast_signed();
                // Lines that repeat themselves overlap with themselves.
                if a != b || apart.unsigned_abs() > DUPLICATE_LINES_MAX {
                    same.entry((a, b, apart)).or_default().push(at);
                }
            }
        }
    }
    let mut pairs: BTreeMap<(usize, usize), (usize, usize, usize)> = BTreeMap::new();
    for ((a, b, apart), mut places) in same {
        places.sort_unstable();
        let runs = places.chunk_by(|one, next| one + 1 == *next);
        for run in runs {
            let pair = pairs.entry((a, b)).or_default();
            pair.0 += run.len() + DUPLICATE_LINES_MAX;
            (pair.1, pair.2) = (run[0], run[0].wrapping_add_signed(apart));
        }
    }
    for ((a, b), (lines, at, other)) in pairs {
        let (a, b) = (&files[a], &files[b]);
        findings.push(Finding {
            rule: Rule::Duplicates,
            key: format!("{}, {}", a.path, b.path),
            lines,
            message: format!(
                "{}:{}: {lines} lines with code are in {}:{} too: write them once",
                a.path, a.numbers[at], b.path, b.numbers[other]
            ),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let findings = tree(files).findings();
        let of_this = findings.into_iter().filter(|finding| finding.rule == Rule::Duplicates);
        of_this.map(|finding| (finding.key, finding.lines)).collect()
    }

    fn lines(range: std::ops::Range<u32>) -> String {
        range.map(|number| format!("    step({number});\n")).collect()
    }

    #[test]
    fn what_is_in_two_files_is_found_with_its_length() {
        let one = format!("use a;\n{}", lines(0..20));
        let other = format!("// Other.\n{}\n{}", lines(30..40), lines(5..18).replace("    ", "\t"));
        assert_eq!(found(&[("a.rs", &one), ("b.rs", &other)]), [("a.rs, b.rs".to_owned(), 13)]);
    }

    #[test]
    fn what_is_twice_in_one_file_is_found() {
        let twice = format!("{}between\n{}", lines(0..12), lines(0..12));
        assert_eq!(found(&[("a.rs", &twice)]), [("a.rs, a.rs".to_owned(), 12)]);
    }

    #[test]
    fn eleven_lines_and_lines_that_repeat_themselves_are_none() {
        let none = found(&[("a.rs", &lines(0..11)), ("b.rs", &lines(0..11)), ("c.rs", &"0,\n".repeat(20))]);
        assert!(none.is_empty(), "{none:?}");
    }
}

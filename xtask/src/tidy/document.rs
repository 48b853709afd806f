//! Where the links of documents lead, and whether the book has every page.

use std::collections::HashMap;

use super::{File, Finding, Rule, Tree, folder_of, resolve};

/// The table of contents of the book that the documents make.
const SUMMARY: &str = "docs/SUMMARY.md";
/// Reports of the bench: their links lead into the folder of a session, of which only the report is kept.
const REPORTS: &str = "docs/results";

/// Judges one document.
pub(super) fn judge(tree: &Tree, file: &File, findings: &mut Vec<Finding>) {
    let File { path, text } = file;
    for (number, target) in links(text) {
        let missing = match leads(tree, path, target) {
            Leads::Somewhere => continue,
            Leads::ToNoFile if folder_of(path) == REPORTS => continue,
            Leads::ToNoFile => "there is no such file",
            Leads::ToNoHeading => "there is no such heading",
        };
        findings.push(finding(path, target, format!("{path}:{number}: {target}: {missing}")));
    }
}

/// Judges the book: each page of the documents' folder is in it.
pub(super) fn judge_book(tree: &Tree, findings: &mut Vec<Finding>) {
    let Some(summary) = tree.files.iter().find(|file| file.path == SUMMARY) else { return };
    let folder = folder_of(SUMMARY);
    let pages: Vec<String> =
        links(&summary.text).into_iter().filter_map(|(_, target)| resolve(folder, target)).collect();
    let documents = tree.files.iter().filter(|file| file.path.ends_with(".md"));
    for file in documents.filter(|file| file.path.starts_with(&format!("{folder}/")) && file.path != SUMMARY)
    {
        if !pages.contains(&file.path) {
            findings.push(finding(SUMMARY, &file.path, format!("{} is not in {SUMMARY}", file.path)));
        }
    }
}

fn finding(path: &str, target: &str, message: String) -> Finding {
    Finding { rule: Rule::Links, key: format!("{path}: {target}"), lines: 0, message }
}

enum Leads {
    Somewhere,
    ToNoFile,
    ToNoHeading,
}

/// Where a link of a document leads. What is on other hosts is not looked at.
fn leads(tree: &Tree, path: &str, target: &str) -> Leads {
    if target.contains("://") || target.starts_with("mailto:") {
        return Leads::Somewhere;
    }
    let (place, heading) =
        target.split_once('#').map_or((target, None), |(place, heading)| (place, Some(heading)));
    let place = if place.is_empty() { Some(path.to_owned()) } else { resolve(folder_of(path), place) };
    let Some(place) = place.filter(|place| tree.places.contains(place)) else { return Leads::ToNoFile };
    let other = tree.files.iter().find(|file| file.path == place && place.ends_with(".md"));
    match (heading, other) {
        (Some(heading), Some(file)) if !anchors(&file.text).iter().any(|its| its == heading) => {
            Leads::ToNoHeading
        }
        _ => Leads::Somewhere,
    }
}

/// A document with blanks in place of its blocks of code.
fn without_blocks(text: &str) -> String {
    let mut fence: Option<&str> = None;
    let mut prose = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let begin = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| begin.starts_with(mark));
        let is_code = fence.is_some() || mark.is_some();
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            _ => {}
        }
        if is_code { prose.push_str(&blank(line)) } else { prose.push_str(line) }
    }
    prose
}

/// As long as the text, with its ends of lines.
fn blank(text: &str) -> String {
    text.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }).collect()
}

/// A document with blanks in place of all of its code. A span of code ends where as many marks stand as at its beginning, in the
/// same paragraph.
fn without_code(text: &str) -> String {
    let mut rest: &str = &without_blocks(text);
    let mut prose = String::with_capacity(rest.len());
    while let Some(at) = rest.find('`') {
        let marks = rest[at..].bytes().take_while(|&byte| byte == b'`').count();
        prose.push_str(&rest[..at]);
        let after = &rest[at + marks..];
        let paragraph = &after[..after.find("\n\n").unwrap_or(after.len())];
        let end = span_end(paragraph, marks);
        let length = marks + end.map_or(0, |end| end + marks);
        prose.push_str(&blank(&rest[at..at + length]));
        rest = &rest[at + length..];
    }
    prose.push_str(rest);
    prose
}

/// Where exactly so many marks stand.
fn span_end(text: &str, marks: usize) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = text[from..].find('`') {
        let place = from + at;
        let count = text[place..].bytes().take_while(|&byte| byte == b'`').count();
        if count == marks {
            return Some(place);
        }
        from = place + count;
    }
    None
}

/// Links of a document, as they are written, with their lines.
fn links(text: &str) -> Vec<(usize, &str)> {
    let prose = without_code(text);
    let line_of = |at: usize| 1 + prose[..at].matches('\n').count();
    let mut links = Vec::new();
    for (at, _) in prose.match_indices("](") {
        let begin = at + 2;
        if let Some(length) = prose[begin..].find(')') {
            links.push((line_of(at), target(&text[begin..begin + length])));
        }
    }
    // `[name]: target`, to which `[text][name]` leads.
    let mut at = 0;
    for line in prose.split_inclusive('\n') {
        if line.starts_with('[')
            && let Some(place) = line.find("]: ")
        {
            links.push((line_of(at), target(&text[at + place + 3..at + line.len()])));
        }
        at += line.len();
    }
    links
}

/// A link's target without its title, and without the brackets around it.
fn target(said: &str) -> &str {
    let said = said.trim();
    let said = said.split_once(" \"").map_or(said, |(target, _)| target);
    said.trim_start_matches('<').trim_end_matches('>')
}

/// What links call the headings of a document: as GitHub makes them, and what `<a id="…">` says.
fn anchors(text: &str) -> Vec<String> {
    let mut anchors = Vec::new();
    let mut counts: HashMap<String, usize> = HashMap::new();
    for line in without_blocks(text).lines() {
        if let Some(title) = line.strip_prefix('#').map(|line| line.trim_start_matches('#'))
            && title.starts_with(' ')
        {
            let name = slug(title);
            let count = counts.entry(name.clone()).or_default();
            anchors.push(if *count == 0 { name } else { format!("{name}-{count}") });
            *count += 1;
        }
        for said in line.split("<a id=\"").skip(1) {
            anchors.extend(said.split_once('"').map(|(name, _)| name.to_owned()));
        }
    }
    anchors
}

/// A heading as an anchor: small letters, digits, `_` and `-`, and `-` for each blank.
fn slug(title: &str) -> String {
    let mut words = String::new();
    let mut rest = title.trim();
    // Of a link in it only its text.
    while let Some((before, after)) = rest.split_once("](") {
        words.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    words.push_str(rest);
    let kept = words.chars().filter(|&kept| kept.is_alphanumeric() || matches!(kept, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|kept| if kept == ' ' { '-' } else { kept }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::found;
    use super::*;

    #[test]
    fn anchors_are_as_github_makes_them() {
        let text = "# Two words\n## `make test`, and 10,000 B\n# Two words\n```\n# no heading\n```\n#none\n\
                    <a id=\"here\"></a>\n### See [this one](a.md) too\n";
        let expected = ["two-words", "make-test-and-10000-b", "two-words-1", "here", "see-this-one-too"];
        assert_eq!(anchors(text), expected);
    }

    #[test]
    fn links_lead_to_files_and_headings() {
        let other =
            ("docs/b.md", "# Good: *one*\n\n[up](#good-one), [folder](../src), [code](../src/c.rs#L3)\n");
        let bad = "[a](b.md#bad-one) and [b](c.md), [c](#nothing), [f](../../x.md)\n\n[d]: e.md\n";
        let keys = found(&[other, ("src/c.rs", ""), ("docs/a.md", bad)], Rule::Links);
        let broken = ["b.md#bad-one", "c.md", "#nothing", "../../x.md", "e.md"];
        assert_eq!(keys, broken.map(|target| format!("docs/a.md: {target}")));
        let good = "[a](b.md#good-one) [b](<b.md> \"title\") [c](https://example.com/#x) `[d](e.md)` [f][g]\n\n\
                    [g]: b.md\n```\n[h](i.md)\n```\n``[j](`k.md)``, `[l\n](m.md)`\n";
        assert_eq!(found(&[other, ("src/c.rs", ""), ("docs/a.md", good)], Rule::Links), [""; 0]);
    }

    #[test]
    fn a_mark_alone_begins_no_code() {
        assert_eq!(links("one ` mark\n\n[a](b) and ` another"), [(3, "b")]);
        assert_eq!(without_code("ä `b` c ``d`e`` f"), "ä     c         f");
    }

    #[test]
    fn a_reports_links_may_lead_into_its_session() {
        assert_eq!(found(&[("docs/results/a.md", "[raw](raw/1.json)\n")], Rule::Links), [""; 0]);
    }

    #[test]
    fn every_page_is_in_the_book() {
        let files = [("docs/SUMMARY.md", "- [One](one.md)\n"), ("docs/one.md", ""), ("README.md", "")];
        assert_eq!(found(&files, Rule::Links), [""; 0]);
        let more = [files[0], files[1], ("docs/two.md", "")];
        assert_eq!(found(&more, Rule::Links), ["docs/SUMMARY.md: docs/two.md"]);
    }
}

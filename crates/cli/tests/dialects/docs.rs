//! The examples of docs/load.md, as they stand there.

use super::server::Server;
use super::{overfly, page};

#[test]
fn every_example_runs() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/load.md")).unwrap();
    let server = Server::start();
    let mut examples = 0;
    for line in text.lines() {
        let words = line.strip_prefix("overfly load ").map(words).unwrap_or_default();
        let Some((dialect, words)) =
            words.split_first().filter(|(first, _)| ["wrk", "wrk2", "ab"].contains(&first.as_str()))
        else {
            continue;
        };
        let here = |word: &String| word.replace("http://10.77.0.1", &server.url(""));
        let words: Vec<String> = words.iter().map(here).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert!(!page(&overfly(dialect, &words)).is_empty(), "{line}");
        examples += 1;
    }
    assert!(examples > 8, "{examples}");
}

/// A shell's words: split at spaces, but for those in single quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for (index, part) in line.split('\'').enumerate() {
        if index % 2 == 1 {
            words.last_mut().unwrap().push_str(part);
            continue;
        }
        for (gap, word) in part.split(' ').enumerate() {
            if gap > 0 {
                words.push(String::new());
            }
            words.last_mut().unwrap().push_str(word);
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

//! The examples of docs/load.md, as they stand there.

use overfly_testing::manual::words;

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

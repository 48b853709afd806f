//! The shape of a page: its text with every number replaced.

/// Units that follow a number without a space.
const UNITS: [&str; 17] =
    ["us", "ms", "s", "m", "h", "k", "M", "G", "B", "KB", "MB", "GB", "kb", "K", "T", "TB", "%"];

/// Line by line: numbers with their units become `#`, runs of spaces become one.
pub(crate) fn shape(page: &str) -> Vec<String> {
    page.lines().map(line_shape).collect()
}

fn line_shape(line: &str) -> String {
    let mut shape = String::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let boundary = shape
            .chars()
            .next_back()
            .is_none_or(|last| !last.is_alphanumeric() && last != '/' && last != '.');
        if first.is_ascii_digit() && boundary {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
            let number = rest[..digits].trim_end_matches('.').len();
            rest = &rest[number..];
            let unit = rest.find(|c: char| !c.is_ascii_alphabetic() && c != '%').unwrap_or(rest.len());
            if UNITS.contains(&&rest[..unit]) {
                // A percent sign is the same on every page; other units come and go with the number.
                rest = if rest.starts_with('%') { rest } else { &rest[unit..] };
            }
            shape.push('#');
        } else {
            if first != ' ' || !shape.ends_with(' ') {
                shape.push(first);
            }
            rest = &rest[first.len_utf8()..];
        }
    }
    shape
}

#[test]
fn numbers_go_and_words_stay() {
    assert_eq!(line_shape("    Latency   552.75us    1.05ms  14.40ms   88.48%"), " Latency # # # #%");
    assert_eq!(line_shape("    Req/Sec    31.28k     9.47k   50.95k    60.00%"), " Req/Sec # # # #%");
    assert_eq!(line_shape("  124539 requests in 2.01s, 29.34MB read"), " # requests in #, # read");
    assert_eq!(line_shape("Server Software:        nginx/1.22.1"), "Server Software: nginx/1.22.1");
    assert_eq!(line_shape("Non-2xx responses:      20"), "Non-#xx responses: #");
}

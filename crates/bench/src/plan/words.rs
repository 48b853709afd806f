//! What is wrong with a plan, in words, and where.

/// What a reader of TOML says, for people who know no Rust.
pub(super) fn plain(message: &str) -> String {
    let message = message.replace('\n', ", ");
    if let Some(rest) = message.strip_prefix("missing field ") {
        return format!("the key {rest} is missing");
    }
    if let Some(rest) = message.strip_prefix("unknown field ") {
        return format!("there is no key {}", rest.replacen(", expected", "; expected", 1));
    }
    if let Some(rest) = message.strip_prefix("unknown variant ") {
        return format!("{} is not known; {}", until_comma(rest), after_comma(rest));
    }
    for said in ["invalid type: ", "invalid value: "] {
        let Some(rest) = message.strip_prefix(said) else { continue };
        let Some((given, expected)) = rest.rsplit_once(", expected ") else { continue };
        return format!("expected {}, not {}", kind(expected), value(given));
    }
    message
}

fn until_comma(text: &str) -> &str {
    text.split_once(", ").map_or(text, |(before, _)| before)
}

fn after_comma(text: &str) -> &str {
    text.split_once(", ").map_or("", |(_, after)| after)
}

/// What a type of ours is to a person.
fn kind(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "f64" => "a number",
        "a boolean" => "true or false",
        "a string" | "a borrowed string" | "path string" => "text in quotes",
        "a sequence" => "a list in brackets, [ ]",
        "struct Host" => "a table, [hosts.NAME]",
        "struct Server" => "a table, [server]",
        "struct Client" => "a table, [client]",
        "struct Astf" => "a table, [client.astf]",
        "struct FindMax" => "a table, [client.find_max]",
        other => other,
    }
}

/// What stands there instead.
fn value(given: &str) -> String {
    for (said, word) in [
        ("string ", "the text "),
        ("integer ", ""),
        ("floating point ", ""),
        ("boolean ", ""),
        ("sequence", "a list"),
        ("map", "a table"),
    ] {
        if let Some(rest) = given.strip_prefix(said) {
            return format!("{word}{}", rest.trim_matches('`'));
        }
    }
    given.to_owned()
}

/// The line, from 1, on which a key is set: `repeats`, `server.cpu`. `None` if the plan leaves it out.
pub(super) fn line_of(text: &str, key: &str) -> Option<usize> {
    let (wanted_table, wanted) = key.rsplit_once('.').unwrap_or(("", key));
    let mut table = "";
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.split(']').next()) {
            // Within a list that goes over several lines this is no table, but neither a key's line.
            table = name.trim();
            continue;
        }
        let Some((name, _)) = line.split_once('=') else { continue };
        let name = name.trim();
        let whole = if table.is_empty() { name.to_owned() } else { format!("{table}.{name}") };
        if whole == key || table == wanted_table && name == wanted {
            return Some(number);
        }
    }
    None
}

/// The first `@WORD@` in a text that is none of the known ones.
pub(super) fn unknown_place<'a>(text: &'a str, known: &[&str]) -> Option<&'a str> {
    let mut rest = text;
    while let Some(begin) = rest.find('@') {
        let after = &rest[begin + 1..];
        let length = after.find(|character: char| !character.is_ascii_uppercase()).unwrap_or(after.len());
        if length > 0 && after[length..].starts_with('@') {
            let place = &rest[begin..begin + length + 2];
            if !known.contains(&place) {
                return Some(place);
            }
            rest = &after[length + 1..];
        } else {
            rest = after;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_their_tables() {
        let text = "title = \"a = b\"\ncpu = 7\n[server]\n# cpu = 1\ncpu = 0\n\n[ client ]\nconnections = 3\ncpu=1\n";
        for (key, line) in [
            ("title", Some(1)),
            ("cpu", Some(2)),
            ("server.cpu", Some(5)),
            ("client.cpu", Some(9)),
            ("client.connections", Some(8)),
            ("server.workers", None),
        ] {
            assert_eq!(line_of(text, key), line, "{key}");
        }
    }

    #[test]
    fn places_that_nothing_replaces_are_found() {
        let known = ["@ROOT@", "@PORT@"];
        assert_eq!(unknown_place("a@b.c @ROOT@@PORT@ @ @@ @1@", &known), None);
        assert_eq!(unknown_place("@ROOT@/@WWW@", &known), Some("@WWW@"));
    }
}

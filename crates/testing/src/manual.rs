//! How the examples of the manual are read.

/// Words as a shell splits them; quotes are the single kind.
#[must_use]
pub fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for (index, part) in line.split('\'').enumerate() {
        if index % 2 == 1 {
            push(&mut words, part);
            continue;
        }
        for (index, word) in part.split(' ').enumerate() {
            if index > 0 {
                words.push(String::new());
            }
            push(&mut words, word);
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

fn push(words: &mut [String], part: &str) {
    if let Some(last) = words.last_mut() {
        last.push_str(part);
    }
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn quotes_hold_blanks_together() {
        assert_eq!(words("a  'b c'd e"), ["a", "b cd", "e"]);
    }
}

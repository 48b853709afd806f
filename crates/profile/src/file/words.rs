//! The words of a profile's lines, quoted as in a shell: profiles for Onload are read by one.

/// One line with anything on it: the number of its first line, from 1, and its words or what is wrong with them.
pub(super) type Line = (usize, Result<Vec<String>, String>);

/// Splits a profile. `'…'` and `"…"` hold blanks together, `\` takes the next character as it is and joins lines at their
/// end, `#` begins a comment where a word could begin, `;` ends a line.
pub(super) fn lines(text: &str) -> Vec<Line> {
    let mut splitter = Splitter { characters: text.chars().peekable(), number: 1 };
    let mut lines = Vec::new();
    while let Some(line) = splitter.line() {
        if line.1.as_ref().is_ok_and(Vec::is_empty) {
            continue;
        }
        lines.push(line);
    }
    lines
}

struct Splitter<'a> {
    characters: std::iter::Peekable<std::str::Chars<'a>>,
    number: usize,
}

impl Splitter<'_> {
    fn next(&mut self) -> Option<char> {
        let next = self.characters.next();
        self.number += usize::from(next == Some('\n'));
        next
    }

    fn line(&mut self) -> Option<Line> {
        self.characters.peek()?;
        let first = self.number;
        let words = self.words();
        if words.is_err() {
            // The rest of the line says nothing.
            while self.next().is_some_and(|character| character != '\n') {}
        }
        Some((first, words))
    }

    fn words(&mut self) -> Result<Vec<String>, String> {
        let mut words = Vec::new();
        let mut word: Option<String> = None;
        while let Some(&upcoming) = self.characters.peek() {
            if matches!(upcoming, '$' | '`') {
                return Err(format!("`{upcoming}`: variables and commands have no meaning here"));
            }
            self.next();
            match upcoming {
                '\n' | ';' => break,
                '#' if word.is_none() => {
                    while self.characters.next_if(|&character| character != '\n').is_some() {}
                }
                '\\' => match self.next() {
                    Some('\n') | None => {}
                    Some(character) => word.get_or_insert_default().push(character),
                },
                '\'' | '"' => {
                    let quoted = self.quoted(upcoming)?;
                    word.get_or_insert_default().push_str(&quoted);
                }
                blank if blank.is_ascii_whitespace() => words.extend(word.take()),
                character => word.get_or_insert_default().push(character),
            }
        }
        words.extend(word);
        Ok(words)
    }

    fn quoted(&mut self, quote: char) -> Result<String, String> {
        let mut text = String::new();
        while let Some(&upcoming) = self.characters.peek() {
            if upcoming == '\n' {
                break;
            }
            self.next();
            match upcoming {
                character if character == quote => return Ok(text),
                '\\' if quote == '"' => text.extend(self.next()),
                '$' | '`' if quote == '"' => {
                    return Err(format!("`{upcoming}`: variables and commands have no meaning here"));
                }
                character => text.push(character),
            }
        }
        Err(format!("the quote {quote} is not closed"))
    }
}

#[cfg(test)]
mod tests {
    use super::lines;

    fn words(text: &str) -> Vec<(usize, Vec<String>)> {
        lines(text).into_iter().map(|(number, words)| (number, words.unwrap())).collect()
    }

    #[test]
    fn words_are_split_and_quoted_as_in_a_shell() {
        let text = "# first\n\none two# 'three  four'\t\"five \\\" #\" # rest 'of it\nsix\\\n seven;eight\\ nine\n''\n";
        let expected: Vec<(usize, Vec<String>)> = [
            (3, vec!["one", "two#", "three  four", "five \" #"]),
            (4, vec!["six", "seven"]),
            (5, vec!["eight nine"]),
            (6, vec![""]),
        ]
        .into_iter()
        .map(|(number, words)| (number, words.into_iter().map(str::to_owned).collect()))
        .collect();
        assert_eq!(words(text), expected);
    }

    #[test]
    fn what_cannot_be_understood_is_said_and_the_next_line_is_read() {
        let read = lines("one 'two\nthree $FOUR\nfive\n");
        let said: Vec<_> = read.iter().map(|(number, words)| (*number, words.is_ok())).collect();
        assert_eq!(said, [(1, false), (2, false), (3, true)]);
    }
}

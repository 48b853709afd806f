//! Which columns of a table fit on a screen.

/// The columns that are shown in `room` cells, in their order: as many as fit, the most important first. A column is shown whole
/// or not at all, since half a number is a wrong one.
///
/// `widths`: of each column, in cells; between two there is one more. `importance`: every column, the most important first.
/// The first of them is shown even where it does not fit.
#[must_use]
pub fn columns(widths: &[usize], importance: &[usize], room: usize) -> Vec<usize> {
    let mut shown = Vec::new();
    let mut used = 0;
    for &column in importance {
        let more = widths[column] + usize::from(!shown.is_empty());
        if shown.is_empty() || used + more <= room {
            used += more;
            shown.push(column);
        }
    }
    shown.sort_unstable();
    shown
}

/// As many of `parts` as fit in `room` cells, in their order, with `between` between two. The first is there in any case.
#[must_use]
pub fn parts(parts: &[String], between: &str, room: usize) -> String {
    let mut text = String::new();
    for part in parts {
        if text.is_empty() {
            text.push_str(part);
        } else if text.chars().count() + between.chars().count() + part.chars().count() <= room {
            text.push_str(between);
            text.push_str(part);
        } else {
            break;
        }
    }
    text
}

/// A text whose lines end at spaces where they are longer than `room` cells, and go on in the next line below their column `hang`. A word
/// that is longer than a line stays whole.
#[must_use]
pub fn folded(text: &str, room: usize, hang: usize) -> String {
    let mut folded = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let mut rest = line.strip_suffix('\n').unwrap_or(line);
        let mut begins_at = 0;
        while let Some((head, tail)) = split(rest, room.saturating_sub(begins_at)) {
            folded.push_str(head);
            folded.push('\n');
            folded.extend(std::iter::repeat_n(' ', hang));
            (rest, begins_at) = (tail, hang);
        }
        folded.push_str(rest);
        folded.push_str(if line.ends_with('\n') { "\n" } else { "" });
    }
    folded
}

/// The words of a line that fit, and the others; nothing if all fit, or there is no place to end it. What it is indented by is none.
fn split(line: &str, room: usize) -> Option<(&str, &str)> {
    let (end, next) = line.char_indices().nth(room)?;
    let text = line.len() - line.trim_start().len();
    // A space right behind what fits is a place, too.
    let place = line[..end + next.len_utf8()].rfind(' ').filter(|&place| place > text);
    let place =
        place.or_else(|| line[end..].find(' ').map(|place| end + place).filter(|&place| place > text))?;
    let (head, tail) = (line[..place].trim_end(), line[place..].trim_start());
    (!tail.is_empty()).then_some((head, tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_whole_and_in_their_order() {
        let widths = [5, 10, 3, 4];
        assert_eq!(columns(&widths, &[3, 0, 1, 2], 25), [0, 1, 2, 3]);
        assert_eq!(columns(&widths, &[3, 0, 1, 2], 24), [0, 1, 3]);
        assert_eq!(columns(&widths, &[3, 0, 1, 2], 14), [0, 2, 3], "a narrow one may still fit");
        assert_eq!(columns(&widths, &[3, 0, 1, 2], 0), [3]);
    }

    #[test]
    fn lines_end_at_spaces() {
        let text = "  yes  eth0  1,234 packets of 56 bytes\nshort\n";
        assert_eq!(folded(text, 20, 7), "  yes  eth0  1,234\n       packets of 56\n       bytes\nshort\n");
        assert_eq!(folded(text, 80, 7), text);
        assert_eq!(folded("12345 67890", 5, 2), "12345\n  67890");
        assert_eq!(folded("/a/path/that/is/long and more", 5, 2), "/a/path/that/is/long\n  and\n  more");
        assert_eq!(folded("ä ö ü", 3, 0), "ä ö\nü", "cells are no bytes");
        for room in 0..40 {
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            for text in [text, "über größe, ↑↓ wählt"] {
                assert_eq!(words(&folded(text, room, 4)), words(text), "{room}");
            }
        }
    }

    #[test]
    fn parts_are_whole() {
        let all = ["123/s".to_string(), "45 open".to_string(), "6 MB".to_string()];
        assert_eq!(parts(&all, ", ", 20), "123/s, 45 open, 6 MB");
        assert_eq!(parts(&all, ", ", 19), "123/s, 45 open");
        assert_eq!(parts(&all, ", ", 1), "123/s");
    }
}

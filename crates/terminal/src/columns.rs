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
    fn parts_are_whole() {
        let all = ["123/s".to_string(), "45 open".to_string(), "6 MB".to_string()];
        assert_eq!(parts(&all, ", ", 20), "123/s, 45 open, 6 MB");
        assert_eq!(parts(&all, ", ", 19), "123/s, 45 open");
        assert_eq!(parts(&all, ", ", 1), "123/s");
    }
}

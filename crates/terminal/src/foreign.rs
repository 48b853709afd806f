//! Text that somebody else chose: a program's name, a counter's, a file's.
//!
//! A terminal obeys what it is sent: ESC sequences change its title, its colours, what is on it, and on some what is typed into
//! it; C1 controls do the same with one character; bidirectional controls turn a line round (Unicode TR 36, section 3.1.1).

use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// Characters of a foreign text that are shown.
pub const FOREIGN_CHARS_MAX: usize = 108;

/// A text from another process. Its `Display` is one that may stand in a line on a terminal: what is printable stays,
/// everything else is escaped, and of a long one the beginning is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Foreign(String);

impl Foreign {
    /// Bytes that should be UTF-8.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Foreign {
        Foreign(String::from_utf8_lossy(bytes).into_owned())
    }

    /// As it came: to compare, or to put into JSON. Not for a terminal.
    #[must_use]
    pub fn raw(&self) -> &str {
        &self.0
    }
}

impl From<String> for Foreign {
    fn from(text: String) -> Foreign {
        Foreign(text)
    }
}

impl From<&str> for Foreign {
    fn from(text: &str) -> Foreign {
        Foreign(text.to_owned())
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        for (index, character) in self.0.chars().enumerate() {
            if index == FOREIGN_CHARS_MAX {
                text.push('…');
                break;
            }
            push(&mut text, character);
        }
        f.pad(&text)
    }
}

/// Whether a character is only itself on a terminal: no control, none that turns or joins others, none that is invisible.
fn is_plain(character: char) -> bool {
    // The standard library's table of what is printable decides; it also escapes what has a meaning in Rust.
    matches!(character, ' '..='~') || character.escape_debug().len() == 1
}

fn push(text: &mut String, character: char) {
    // Writing to a String cannot fail.
    let _ = match character {
        '\n' => write!(text, "\\n"),
        '\r' => write!(text, "\\r"),
        '\t' => write!(text, "\\t"),
        _ if is_plain(character) => write!(text, "{character}"),
        '\0'..='\u{ff}' => write!(text, "\\x{:02x}", u32::from(character)),
        _ => write!(text, "\\u{{{:x}}}", u32::from(character)),
    };
}

/// A page or a message that may hold foreign text, as it may go to a terminal: lines and tabs stay, all other characters that are
/// not printable are escaped.
#[must_use]
pub fn shown(text: &str) -> Cow<'_, str> {
    let is_layout = |character| matches!(character, '\n' | '\t');
    if text.chars().all(|character| is_layout(character) || is_plain(character)) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        let ends_line = character == '\r' && rest.peek() == Some(&'\n');
        if is_layout(character) || ends_line { safe.push(character) } else { push(&mut safe, character) }
    }
    Cow::Owned(safe)
}

/// JSON (RFC 8259) that means the same and may go to a terminal. Writers of JSON escape C0 controls; the others of
/// [`shown`] can only stand within strings, where `\uXXXX` means them too.
#[must_use]
pub fn json(text: &str) -> Cow<'_, str> {
    let stays = |character: char| character == '\n' || is_plain(character);
    if text.chars().all(stays) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if stays(character) {
            safe.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            let _ = write!(safe, "\\u{unit:04x}");
        }
    }
    Cow::Owned(safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTACKS: [&str; 10] = [
        "\x1b]0;owned\x07",
        "\x1b[2J",
        "\u{9b}31m",
        "\u{90}q",
        "a\rb",
        "a\nb",
        "\u{202e}gpj.exe",
        "\u{2066}x\u{2069}",
        "\u{200b}\u{feff}\u{e0041}",
        "\x7f\x08\0",
    ];

    fn is_harmless(text: &str) -> bool {
        text.chars().all(|character| {
            !character.is_control()
                && !matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
                && !matches!(character, '\u{feff}' | '\u{61c}' | '\u{e0000}'..='\u{e007f}')
        })
    }

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        for attack in ATTACKS {
            let text = Foreign::from(attack).to_string();
            assert!(is_harmless(&text), "{text:?}");
            assert!(is_harmless(&shown(attack).replace('\n', "")), "{attack:?}");
            let quoted = format!("{attack:?}");
            assert!(is_harmless(&json(&quoted)), "{quoted}");
        }
        assert_eq!(Foreign::from("\x1b[2J").to_string(), "\\x1b[2J");
        assert_eq!(Foreign::from("a\n\u{202e}").to_string(), "a\\n\\u{202e}");
        assert_eq!(Foreign::new(b"\xff\x1b").to_string(), "\u{fffd}\\x1b");
    }

    #[test]
    fn what_is_printable_stays_and_widths_are_kept() {
        for text in ["nginx", "worker: -/+ \"x\" 'y' \\", "naïve Straße", "日本語", "€"] {
            assert_eq!(Foreign::from(text).to_string(), text);
            assert_eq!(shown(text), text);
            assert_eq!(json(text), text);
        }
        assert_eq!(format!("[{:<6}]", Foreign::from("ab")), "[ab    ]");
        assert_eq!(shown("a\tb\r\nc\n"), "a\tb\r\nc\n");
    }

    #[test]
    fn a_long_text_is_cut() {
        let text = Foreign::from("\x1b".repeat(1 << 20)).to_string();
        assert_eq!(text.chars().count(), 4 * FOREIGN_CHARS_MAX + 1);
    }

    #[test]
    fn json_means_the_same() {
        // U+1D173 is invisible and beyond 16 bits: a pair of surrogates.
        assert_eq!(json("{\"a\u{9b}\u{1d173}\": 1}\n"), "{\"a\\u009b\\ud834\\udd73\": 1}\n");
    }
}

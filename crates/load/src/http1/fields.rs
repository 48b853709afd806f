//! Field lines, up to the empty line that ends a head (RFC 9112 section 5).

use memchr::memchr3;

use super::words::{Word, Words};
use super::{Coding, Malformed, Message, Part, Rules};

/// The field whose line is being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    /// No line has begun.
    BeforeFirst,
    /// One whose value says nothing here.
    Other,
    Host,
    ContentLength,
    TransferEncoding,
    Connection,
    Expect,
}

static NAMES: Words<Field, 5> = Words::new([
    (b"host", Field::Host),
    (b"content-length", Field::ContentLength),
    (b"transfer-encoding", Field::TransferEncoding),
    (b"connection", Field::Connection),
    (b"expect", Field::Expect),
]);

/// A word of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Close,
    KeepAlive,
    Chunked,
    Continue,
}

static TOKENS: Words<Token, 4> = Words::new([
    (b"close", Token::Close),
    (b"keep-alive", Token::KeepAlive),
    (b"chunked", Token::Chunked),
    (b"100-continue", Token::Continue),
]);

/// Which bytes a token may have (RFC 9110 section 5.6.2).
static IN_TOKEN: [bool; 256] = {
    let (mut table, mut byte) = ([false; 256], 0_u8);
    while byte < 0x80 {
        table[byte as usize] = byte.is_ascii_alphanumeric();
        byte += 1;
    }
    let (marks, mut at) = (b"!#$%&'*+-.^_`|~", 0);
    while at < marks.len() {
        table[marks[at] as usize] = true;
        at += 1;
    }
    table
};

#[inline]
pub(crate) fn is_in_token(byte: u8) -> bool {
    IN_TOKEN[usize::from(byte)]
}

impl<R: Rules> Message<R> {
    /// Reads on in the field lines. Returns the bytes used, and whether the head is complete.
    pub(crate) fn fields(&mut self, data: &[u8]) -> Result<(usize, bool), Malformed> {
        let mut at = 0;
        while at < data.len() {
            if self.part == Part::Value && self.field == Field::Other {
                // Nothing to learn before the end of the line.
                let skipped = memchr3(b'\r', b'\n', 0, &data[at..]).unwrap_or(data.len() - at);
                self.count(skipped)?;
                at += skipped;
                if at == data.len() {
                    break;
                }
            }
            let byte = data[at];
            at += 1;
            self.count(1)?;
            match self.part {
                Part::LineEnd if byte == b'\n' => self.end_line()?,
                Part::LineEnd => return Err(Malformed::HeaderValue),
                Part::LineStart if byte == b'\n' => {
                    self.end_value()?;
                    return Ok((at, true));
                }
                Part::LineStart => self.line_start(byte)?,
                Part::Name => self.name_byte(byte)?,
                Part::Value => self.value_byte(byte)?,
                Part::HeadEnd if byte == b'\n' => return Ok((at, true)),
                _ => return Err(Malformed::HeaderName),
            }
        }
        Ok((at, false))
    }

    fn end_line(&mut self) -> Result<(), Malformed> {
        self.part = Part::LineStart;
        if R::STRICT { self.end_value() } else { Ok(()) }
    }

    fn line_start(&mut self, byte: u8) -> Result<(), Malformed> {
        let is_folded = matches!(byte, b' ' | b'\t') && self.field != Field::BeforeFirst;
        if is_folded && !R::STRICT {
            // RFC 9112 section 5.2: the line goes on with the value before it.
            self.part = Part::Value;
            return self.value_byte(byte);
        }
        self.end_value()?;
        if byte == b'\r' {
            self.part = Part::HeadEnd;
            return Ok(());
        }
        self.word = Word::NEW;
        self.part = Part::Name;
        self.name_byte(byte)
    }

    #[inline]
    fn name_byte(&mut self, byte: u8) -> Result<(), Malformed> {
        if is_in_token(byte) {
            self.word.byte(&NAMES, byte);
            return Ok(());
        }
        if byte != b':' || self.word.len == 0 {
            return Err(Malformed::HeaderName);
        }
        self.field = match self.word.end(&NAMES) {
            Some(Field::Host) => {
                self.host = true;
                Field::Other
            }
            // Twice is a list, and a list ends with chunked only once.
            Some(Field::TransferEncoding) if R::STRICT && self.coding != Coding::Absent => {
                return Err(Malformed::TransferEncoding);
            }
            field => field.unwrap_or(Field::Other),
        };
        self.word = Word::NEW;
        self.number = 0;
        self.part = Part::Value;
        Ok(())
    }

    fn value_byte(&mut self, byte: u8) -> Result<(), Malformed> {
        match byte {
            b'\r' => self.part = Part::LineEnd,
            b'\n' => return self.end_line(),
            0 => return Err(Malformed::HeaderValue),
            b' ' | b'\t' => self.word.blank(),
            _ => match self.field {
                Field::BeforeFirst | Field::Other | Field::Host => {}
                Field::ContentLength => return self.length_byte(byte),
                Field::Connection if byte == b',' => self.end_element(),
                Field::TransferEncoding if byte == b',' && !R::STRICT => self.end_element(),
                Field::TransferEncoding | Field::Connection | Field::Expect => self.word.byte(&TOKENS, byte),
            },
        }
        Ok(())
    }

    /// RFC 9110 section 8.6.
    fn length_byte(&mut self, byte: u8) -> Result<(), Malformed> {
        if !byte.is_ascii_digit() || self.word.is_over {
            return Err(Malformed::ContentLength);
        }
        self.word.len = 1;
        let more = u64::from(byte - b'0');
        let number = self.number.checked_mul(10).and_then(|number| number.checked_add(more));
        self.number = number.ok_or(Malformed::ContentLength)?;
        Ok(())
    }

    /// An element of a list is over (RFC 9110 section 5.6.1).
    fn end_element(&mut self) {
        let token = self.word.end(&TOKENS);
        match self.field {
            Field::TransferEncoding if token == Some(Token::Chunked) => self.coding = Coding::Chunked,
            Field::TransferEncoding if self.word.len > 0 => self.coding = Coding::Other,
            Field::Connection if token == Some(Token::Close) => self.close = true,
            Field::Connection if token == Some(Token::KeepAlive) => self.keep_alive = true,
            Field::Expect if token == Some(Token::Continue) => self.expects = true,
            _ => {}
        }
        self.word = Word::NEW;
    }

    /// The value of the last line is over: it is not folded.
    fn end_value(&mut self) -> Result<(), Malformed> {
        match self.field {
            Field::ContentLength => {
                if self.word.len == 0 || self.has_length && self.length != self.number {
                    return Err(Malformed::ContentLength);
                }
                self.has_length = true;
                self.length = self.number;
            }
            Field::TransferEncoding | Field::Connection | Field::Expect => {
                self.end_element();
                if R::STRICT && self.field == Field::TransferEncoding && self.coding != Coding::Chunked {
                    return Err(Malformed::TransferEncoding);
                }
            }
            Field::BeforeFirst | Field::Other | Field::Host => {}
        }
        self.field = Field::Other;
        Ok(())
    }
}

//! Messages that say nothing but what they are.

/// What a broker says unasked, without another word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// To a client: the interface was gone and is there again, and its stack has new sockets.
    Renewed = 9,
    /// To a client: the broker is about to end. Whoever has connections hands them over, and closes the conversation.
    Farewell = 12,
    /// To `overfly run`: one of its program's processes has a leash, whose other end comes beside this.
    Leash = 13,
}

impl Word {
    /// How to say it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 2] {
        (self as u16).to_le_bytes()
    }

    /// `None` if this is another message.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Word> {
        let words = [Word::Renewed, Word::Farewell, Word::Leash];
        words.into_iter().find(|word| word.to_bytes() == bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_understood_and_nothing_else() {
        for word in [Word::Renewed, Word::Farewell, Word::Leash] {
            assert_eq!(Word::parse(&word.to_bytes()), Some(word));
        }
        assert_eq!(Word::parse(&[1, 0]), None);
        assert_eq!(Word::parse(&[9, 0, 0]), None);
        assert_eq!(Word::parse(&[9]), None);
    }
}

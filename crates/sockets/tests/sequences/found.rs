//! Sequences that differed once, and must not again.

pub(crate) const FOUND: [(&str, &str); 0] = [];

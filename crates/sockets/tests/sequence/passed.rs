//! Sequences about exec and about descriptors that are passed on, which differed once and must not again, as in [`super::found`].

pub(crate) const PASSED: [(&str, &str); 3] = [
    (
        "seed 80001145: what is refused is so for the next image, too",
        "v4\n\
         L socket a n\n\
         L connect a 5\n\
         L exec\n\
         L poll a R 0\n\
         L readv a 1 3\n\
         L connect a 6",
    ),
    (
        "seed 80003983: what is about to connect can be passed on",
        "v6\n\
         L socket a n\n\
         L connect a 5\n\
         L give a\n\
         L take b\n\
         L connect b 6\n\
         L connect b 6",
    ),
    (
        "seed 80002178: and what was reset",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L send b 10 d\n\
         R close a\n\
         L give b\n\
         L take c\n\
         L close b\n\
         L get c state",
    ),
];

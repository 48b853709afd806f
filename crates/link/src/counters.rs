//! Counters: each stands once, with its name and what it counts.

/// Makes a structure of `u64` counters, which knows their names and can be added to another. A counter is called as its field is, unless
/// another name stands behind it.
macro_rules! counters {
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:literal) => { $name };
    ($(#[$about:meta])* $structure:ident { $($(#[$what:meta])* $field:ident $(as $name:literal)?,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $structure {
            $($(#[$what])* pub $field: u64,)*
        }

        impl $structure {
            /// Each counter with its name.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($crate::counters::counters!(@name $field $($name)?), self.$field)),*].into_iter()
            }
        }

        impl core::ops::AddAssign for $structure {
            fn add_assign(&mut self, other: $structure) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

pub(crate) use counters;

#[cfg(test)]
#[allow(unreachable_pub, reason = "what the macro makes is public")]
mod tests {
    counters! {
        /// For this test.
        Two {
            /// One.
            first,
            /// Another.
            second as "2nd",
        }
    }

    #[test]
    fn counters_have_names_and_sums() {
        let mut sum = Two { first: 1, second: 2 };
        sum += Two { first: 10, second: 20 };
        assert_eq!(sum.named().collect::<Vec<_>>(), [("first", 11), ("2nd", 22)]);
    }
}

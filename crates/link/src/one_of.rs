//! Links that are one of several.

/// Implements [`Link`](crate::Link) and `overfly_wire::FrameSink` for an enum whose variants each hold a link:
/// `one_of!(AnyLink { Xdp, Tap });`. What is generic over links is compiled once for all of them, and a frame costs a few jumps more.
/// The crates `overfly_wire` and `rustix` are to be there.
#[macro_export]
macro_rules! one_of {
    ($name:ident $variants:tt) => {
        impl $crate::Link for $name {
            $crate::each_is_the_links! { $variants, &mut self:
                receive(budget: usize, each: impl FnMut(&[u8])) -> usize;
                flush();
                redeem(promises: &impl overfly_wire::Promises);
                post(underway: bool) -> Option<std::os::fd::BorrowedFd<'_>>;
                kick_failed(errno: rustix::io::Errno);
                retry();
                arm() -> bool;
                rang();
                rest(longest: std::time::Duration);
                take_gone() -> Option<$crate::Gone>;
                set_accepting(accepting: bool);
                look_unseen(unseen: bool);
                wait_to_accept();
            }

            $crate::each_is_the_links! { $variants, &self:
                is_busy() -> bool;
                room() -> Option<u32>;
                segment_offload() -> u32;
                checksum_offload() -> bool;
                others_wait() -> usize;
                hold(bytes: u64) -> u64;
                changes() -> Option<u64>;
                each_counter(each: $crate::Each<'_>);
                each_kernel_counter(each: $crate::Each<'_>);
            }

            fn descriptors(&self) -> impl Iterator<Item = std::os::fd::BorrowedFd<'_>> {
                let all: Vec<_> =
                    $crate::with_the_link!($variants, self, link => link.descriptors().collect());
                all.into_iter()
            }
        }

        impl overfly_wire::FrameSink for $name {
            $crate::each_is_the_links! { $variants, &mut self:
                frame() -> Option<&mut [u8]>;
                long_frame(length: usize) -> Option<&mut [u8]>;
                commit(length: usize);
                commit_unfinished(length: usize, left: overfly_wire::Unfinished);
                commit_promised(left: overfly_wire::Unfinished, payload: overfly_wire::Promised);
            }

            $crate::each_is_the_links! { $variants, &self:
                takes_promises() -> bool;
            }
        }
    };
}

/// Does the same with the link of an enum, whichever it is: a jump, and no call.
#[doc(hidden)]
#[macro_export]
macro_rules! with_the_link {
    ({ $($(#[$attribute:meta])* $variant:ident),+ $(,)? }, $one:expr, $link:ident => $call:expr) => {
        match $one {
            $($(#[$attribute])* Self::$variant($link) => $call,)+
        }
    };
}

/// Methods of a trait that are the link's.
#[doc(hidden)]
#[macro_export]
macro_rules! each_is_the_links {
    ($variants:tt, &mut $self:ident: $($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(
            #[inline]
            fn $name(&mut $self, $($argument: $type),*) $(-> $result)? {
                $crate::with_the_link!($variants, $self, link => link.$name($($argument),*))
            }
        )*
    };
    ($variants:tt, &$self:ident: $($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(
            #[inline]
            fn $name(&$self, $($argument: $type),*) $(-> $result)? {
                $crate::with_the_link!($variants, $self, link => link.$name($($argument),*))
            }
        )*
    };
}

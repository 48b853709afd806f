//! Rows of the table that several options share.

/// An option by its names in C, or by its number where libc has none (include/uapi/asm-generic/socket.h, include/uapi/linux/tcp.h).
macro_rules! option {
    ($level:ident $name:ident) => {
        SocketOption::new(libc::$level, libc::$name, stringify!($name))
    };
    ($level:ident $name:ident = $number:literal) => {
        SocketOption::new(libc::$level, $number, stringify!($name))
    };
}

/// 0 or 1, by the name of its field, and what is said of it.
macro_rules! switch {
    ($level:ident $name:ident $(= $number:literal)?, $field:ident, $says:literal) => {
        option!($level $name $(= $number)?).kept(
            $says,
            Number(
                |of| flag(of.settings().$field),
                |of, on| change_within(of, on, 0..=1, |settings| settings.$field = on != 0),
            ),
            Carried::Both(|from, to| to.$field = from.is_on(), |to, settings| to.set_flag(settings.$field)),
        )
    };
}

/// A hop limit, by the name of its field, and its least.
macro_rules! hops {
    ($level:ident $name:ident $field:ident $least:literal) => {
        option!($level $name).kept(
            HOPS,
            Number(
                |of| match of.settings().$field {
                    -1 => of.backing().number(libc::$level, libc::$name),
                    hops => Ok(hops.into()),
                },
                |of, hops| match hops {
                    -1 => reset_hops(of, libc::$level, libc::$name, |settings| settings.$field = -1),
                    _ => change_within(of, hops, $least..=255, |settings| settings.$field = hops as i16),
                },
            ),
            Carried::Both(
                |from, to| {
                    to.$field = from.number().filter(|&hops| hops != from.fresh.$field).unwrap_or(-1) as i16;
                },
                |to, settings| match settings.$field {
                    same if same == to.fresh.settings.$field => {}
                    hops => to.set_number(hops.into()),
                },
            ),
        )
        .datagram(MARKS, Datagram::Marks)
    };
}

/// A time between keep-alives, by the name of its field: 1 to 32767 seconds (tcp(7)).
macro_rules! keep_time {
    ($name:ident $field:ident) => {
        option!(IPPROTO_TCP $name).kept(
            YES,
            Number(
                |of| seconds(of.settings().$field),
                |of, number| {
                    let time = Duration::from_secs(number.unsigned_abs().into());
                    change_within(of, number, 1..=32_767, |settings| settings.$field = time)
                },
            ),
            Carried::Both(
                |from, to| to.$field = from.seconds().unwrap_or(to.$field),
                |to, settings| to.set_seconds(settings.$field),
            ),
        )
    };
}

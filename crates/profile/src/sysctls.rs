//! net.ipv4's settings of TCP: an engine obeys them, or whoever starts a program is told that it does not. docs/tcp.md has the
//! table; defaults are Linux's (Documentation/networking/ip-sysctl.rst).

use core::time::Duration;

use overfly_engine::{Algorithm, Config, Ecn, SynCookies};

use crate::options::Options;

/// The keys of Fast Open cookies: that of new ones, and that of those given before.
pub type FastOpenKeys = ([u8; 16], Option<[u8; 16]>);

/// What an engine cannot follow, and the value with which nothing is to be followed.
const NOT_OBEYED: [(&str, u64); 25] = [
    ("tcp_abort_on_overflow", 0),
    ("tcp_base_mss", 1024),
    ("tcp_comp_sack_delay_ns", 1_000_000),
    ("tcp_ecn_fallback", 1),
    ("tcp_fastopen_blackhole_timeout_sec", 0),
    ("tcp_frto", 2),
    ("tcp_fwmark_accept", 0),
    ("tcp_invalid_ratelimit", 500),
    ("tcp_l3mdev_accept", 0),
    ("tcp_migrate_req", 0),
    ("tcp_min_snd_mss", 48),
    ("tcp_mtu_probe_floor", 48),
    ("tcp_pingpong_thresh", 1),
    ("tcp_plb_enabled", 0),
    ("tcp_probe_interval", 600),
    ("tcp_recovery", 1),
    ("tcp_reflect_tos", 0),
    ("tcp_reordering", 3),
    ("tcp_rto_max_ms", 120_000),
    ("tcp_rto_min_us", 200_000),
    ("tcp_shrink_window", 0),
    ("tcp_stdurg", 0),
    ("tcp_thin_linear_timeouts", 0),
    ("tcp_tw_reuse_delay", 1000),
    ("tcp_workaround_signed_windows", 0),
];

/// The files of net.ipv4, and of net.ipv6 where the name begins with `../ipv6`: what stands in the one of that name, empty if
/// there is none.
pub struct Sysctls<R>(pub R);

impl<R: Fn(&str) -> String> Sysctls<R> {
    fn numbers(&self, name: &str) -> Vec<u64> {
        (self.0)(name).split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.numbers(name).first().copied()
    }

    fn small(&self, name: &str) -> Option<u8> {
        self.number(name).map(|number| u8::try_from(number).unwrap_or(u8::MAX))
    }

    fn flag(&self, name: &str) -> Option<bool> {
        self.number(name).map(|number| number != 0)
    }

    /// Has `config` follow what the administrator set, but where an option of the program's says otherwise.
    pub fn apply(&self, config: &mut Config, options: &Options) {
        let given = |option: u64, sysctl: &str| match option {
            0 => self.small(sysctl),
            number => Some(number as u8),
        };
        take(&mut config.data_retries, given(options.retransmit_threshold, "tcp_retries2"));
        take(&mut config.syn_retries, given(options.retransmit_threshold_syn, "tcp_syn_retries"));
        if options.retransmit_threshold_syn == 0 {
            take(&mut config.syn_linear_timeouts, self.small("tcp_syn_linear_timeouts"));
        }
        take(&mut config.syn_ack_retries, self.small("tcp_synack_retries"));
        // 0 stands for 3 (tcp_model_timeout() in net/ipv4/tcp_timer.c knows none), and for 8.
        take(&mut config.black_hole_timeouts, self.small("tcp_retries1").map(|retries| retries.max(1)));
        take(&mut config.orphan_probes, self.small("tcp_orphan_retries").filter(|&retries| retries > 0));
        let fin_timeout = match options.tcp_fin_timeout {
            0 => self.number("tcp_fin_timeout"),
            seconds => Some(seconds),
        };
        take(&mut config.fin_timeout, fin_timeout.map(|seconds| Duration::from_secs(seconds.min(86_400))));
        let cookies = match options.tcp_syncookies {
            GIVEN_BY_SYSCTL => self.number("tcp_syncookies"),
            given => Some(given),
        };
        config.syn_cookies = match cookies {
            Some(0) => SynCookies::Off,
            Some(2..) => SynCookies::Always,
            Some(1) | None => SynCookies::WhenFull,
        };
        take(&mut config.timestamps, self.flag("tcp_timestamps"));
        take(&mut config.sack, self.flag("tcp_sack"));
        take(&mut config.duplicate_sack, self.flag("tcp_dsack"));
        take(&mut config.window_scaling, self.flag("tcp_window_scaling"));
        take(&mut config.slow_start_after_idle, self.flag("tcp_slow_start_after_idle"));
        take(&mut config.mtu_probing, self.flag("tcp_mtu_probing"));
        config.ecn = match self.number("tcp_ecn") {
            Some(0) => Ecn::Off,
            Some(1 | 3 | 4) => Ecn::Ask,
            _ => Ecn::Accept,
        };
        config.loss_probes = options.tail_drop_probe != 0 && self.flag("tcp_early_retrans").unwrap_or(true);
        if let Some(limit) = self.number("tcp_challenge_ack_limit") {
            config.challenge_acks_per_s =
                config.challenge_acks_per_s.min(u32::try_from(limit).unwrap_or(u32::MAX));
        }
        if let Some(most) = self.number("tcp_max_tw_buckets") {
            config.max_time_wait = config.max_time_wait.min(u32::try_from(most).unwrap_or(u32::MAX));
        }
        take(&mut config.hop_limit, self.small("ip_default_ttl").filter(|&hops| hops > 0));
        let hops6 = self.small("../ipv6/conf/default/hop_limit").filter(|&hops| hops > 0);
        take(&mut config.hop_limit6, hops6);
        // Half of a buffer is for what packets take beside their payload (tcp_win_from_space()).
        if let Some(&buffer) = self.numbers("tcp_rmem").get(1)
            && options.tcp_rcvbuf_mode != 0
        {
            let window = (buffer / 2).clamp(1024, u64::from(config.receive_window));
            config.initial_receive_window = window as u32;
            if self.flag("tcp_moderate_rcvbuf") == Some(false) {
                config.receive_window = window as u32;
            }
        }
    }

    /// What is set and not followed, as sysctl(8) writes it.
    pub fn not_obeyed(&self) -> Vec<String> {
        let plain = NOT_OBEYED.iter().filter_map(|&(name, default)| {
            self.number(name).filter(|&value| value != default).map(|value| (name, value.to_string()))
        });
        let beyond = |name, most: u64, so| {
            let value = self.number(name).filter(|&value| value > most)?;
            Some((name, format!("{value} ({so})")))
        };
        let partly = [
            beyond("tcp_ecn", 2, "as without accurate ECN"),
            beyond("tcp_mtu_probing", 1, "as 1"),
            beyond("tcp_timestamps", 1, "as 1"),
        ];
        let reuse = self.number("tcp_tw_reuse").filter(|&value| value == 0);
        let reuse = reuse.map(|_| ("tcp_tw_reuse", "0 (as 1)".to_owned()));
        let algorithm = (self.0)("tcp_congestion_control");
        let algorithm = algorithm.trim();
        let known = algorithm.is_empty() || Algorithm::named(algorithm.as_bytes()).is_some();
        let congestion = (!known).then(|| ("tcp_congestion_control", format!("{algorithm} (cubic)")));
        plain
            .chain(partly.into_iter().flatten())
            .chain(reuse)
            .chain(congestion)
            .map(|(name, value)| format!("net.ipv4.{name}={value}"))
            .collect()
    }
}

/// EF_TCP_SYNCOOKIES, where nobody set it.
const GIVEN_BY_SYSCTL: u64 = 2;

fn take<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

/// The keys of Fast Open cookies as net.ipv4.tcp_fastopen_key writes them: one, or two with a comma between; of each four words in
/// hexadecimal digits, whose bytes stand in the machine's order of the least first (proc_tcp_fastopen_key() in
/// net/ipv4/sysctl_net_ipv4.c). `None` if none was made yet, or it is not readable.
#[must_use]
pub fn fast_open_keys(text: &str) -> Option<FastOpenKeys> {
    let key = |text: &str| {
        let mut words = text.split('-').map(|word| u32::from_str_radix(word, 16));
        let mut key = [0; 16];
        for part in key.chunks_exact_mut(4) {
            part.copy_from_slice(&words.next()?.ok()?.to_le_bytes());
        }
        words.next().is_none().then_some(key).filter(|key| *key != [0; 16])
    };
    let mut keys = text.trim().split(',').map(key);
    Some((keys.next()??, keys.next().flatten()))
}

/// What of this network namespace's settings an engine does not follow, for whoever starts a program.
#[must_use]
pub fn not_obeyed() -> Vec<String> {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
    Sysctls(read).not_obeyed()
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use overfly_wire::MacAddr;

    use super::*;

    fn with<'a>(set: &'a [(&'a str, &'a str)]) -> Sysctls<impl Fn(&str) -> String + 'a> {
        Sysctls(move |name: &str| {
            set.iter()
                .find(|(its, _)| *its == name)
                .map_or_else(String::new, |(_, value)| format!("{value}\n"))
        })
    }

    fn config(set: &[(&str, &str)], options: &Options) -> Config {
        let mut config = Config::new(MacAddr([2; 6]), Ipv4Addr::LOCALHOST, 8);
        with(set).apply(&mut config, options);
        config
    }

    #[test]
    fn what_is_given_to_the_program_counts_before_what_is_set() {
        let set = [
            ("tcp_retries2", "5"),
            ("tcp_syn_retries", "2"),
            ("tcp_fin_timeout", "7"),
            ("tcp_syncookies", "0"),
        ];
        let obeyed = config(&set, &Options::DEFAULT);
        assert_eq!((obeyed.data_retries, obeyed.syn_retries, obeyed.fin_timeout.as_secs()), (5, 2, 7));
        assert_eq!(obeyed.syn_cookies, SynCookies::Off);
        let mut options = Options::DEFAULT;
        for (name, value) in [
            ("EF_RETRANSMIT_THRESHOLD", "9"),
            ("EF_RETRANSMIT_THRESHOLD_SYN", "8"),
            ("EF_TCP_FIN_TIMEOUT", "60"),
            ("EF_TCP_SYNCOOKIES", "1"),
        ] {
            options.set(name, value).unwrap();
        }
        let given = config(&set, &options);
        assert_eq!((given.data_retries, given.syn_retries, given.fin_timeout.as_secs()), (9, 8, 60));
        assert_eq!(given.syn_cookies, SynCookies::WhenFull);
    }

    #[test]
    fn without_a_kernel_that_says_defaults_stand() {
        let (defaults, read) =
            (config(&[], &Options::DEFAULT), Config::new(MacAddr([2; 6]), Ipv4Addr::LOCALHOST, 8));
        assert_eq!(format!("{defaults:?}"), format!("{read:?}"));
        assert!(with(&[]).not_obeyed().is_empty());
    }

    #[test]
    fn absurd_values_make_an_engine_all_the_same() {
        for value in ["0", "255", "4294967295", "18446744073709551615", "-1", "", "x", "1 2 3"] {
            let all = Sysctls(|_: &str| value.to_owned());
            let mut config = Config::new(MacAddr([2; 6]), Ipv4Addr::LOCALHOST, 8);
            config.max_flows = 4;
            all.apply(&mut config, &Options::DEFAULT);
            assert!(overfly_engine::Engine::new(config).is_ok(), "{value}");
        }
    }

    #[test]
    fn fast_open_keys_are_read_as_the_kernel_writes_them() {
        let text = "03020100-07060504-0b0a0908-0f0e0d0c";
        let key: [u8; 16] = core::array::from_fn(|index| index as u8);
        assert_eq!(fast_open_keys(&format!("{text}\n")), Some((key, None)));
        let both = fast_open_keys(&format!("{text},00000001-00000000-00000000-00000000\n")).unwrap();
        assert_eq!((both.0, both.1.unwrap()[0]), (key, 1));
        for none in ["", "00000000-00000000-00000000-00000000\n", "1-2-3", "1-2-3-4-5", "x-1-2-3"] {
            assert_eq!(fast_open_keys(none), None, "{none}");
        }
    }

    #[test]
    fn what_is_set_and_not_followed_is_named() {
        let set = [
            ("tcp_reordering", "10"),
            ("tcp_recovery", "1"),
            ("tcp_ecn", "3"),
            ("tcp_mtu_probing", "2"),
            ("tcp_tw_reuse", "0"),
            ("tcp_congestion_control", "vegas"),
        ];
        let named = [
            "net.ipv4.tcp_reordering=10",
            "net.ipv4.tcp_ecn=3 (as without accurate ECN)",
            "net.ipv4.tcp_mtu_probing=2 (as 1)",
            "net.ipv4.tcp_tw_reuse=0 (as 1)",
            "net.ipv4.tcp_congestion_control=vegas (cubic)",
        ];
        assert_eq!(with(&set).not_obeyed(), named);
        assert!(with(&[("tcp_tw_reuse", "1")]).not_obeyed().is_empty());
        for known in ["cubic", "reno", "bbr"] {
            assert!(with(&[("tcp_congestion_control", known)]).not_obeyed().is_empty());
        }
    }

    /// A row of docs/tcp.md for each of them, and of the table nothing else.
    #[test]
    fn the_document_has_what_is_read() {
        let document =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tcp.md")).unwrap();
        let rows: Vec<&str> = document.lines().skip_while(|line| !line.starts_with("| sysctl |")).collect();
        let names: Vec<&str> = rows[2..]
            .iter()
            .take_while(|row| row.starts_with('|'))
            .flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2))
            .collect();
        let read = core::cell::RefCell::new(Vec::new());
        let noting = Sysctls(|name: &str| {
            read.borrow_mut().push(name.trim_start_matches("../ipv6/").to_owned());
            "1 1 1".to_owned()
        });
        noting.apply(&mut Config::new(MacAddr([2; 6]), Ipv4Addr::LOCALHOST, 8), &Options::DEFAULT);
        noting.not_obeyed();
        // What other parts read.
        let elsewhere = ["tcp_mem", "tcp_notsent_lowat", "tcp_keepalive_time", "tcp_keepalive_intvl"];
        let elsewhere =
            elsewhere.into_iter().chain(["tcp_keepalive_probes", "tcp_fastopen", "tcp_fastopen_key"]);
        read.borrow_mut().extend(elsewhere.map(str::to_owned));
        for name in read.borrow().iter() {
            assert!(names.contains(&name.as_str()), "docs/tcp.md lacks {name}");
        }
        for name in names {
            assert!(read.borrow().iter().any(|its| its == name), "docs/tcp.md: nothing reads {name}");
        }
    }
}

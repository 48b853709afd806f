//! What the kernel under the tests can do.

/// Linux 6.17 gives each NAPI a thread where it is asked to; it can be placed where the kernel's threads are seen.
pub(crate) fn napis_have_threads() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let seen = std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n");
    seen && (numbers.next(), numbers.next()) >= (Some(6), Some(17))
}

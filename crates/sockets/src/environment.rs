//! What `overfly run` told this process through its environment, for a program that starts itself anew with an environment of
//! its own making: nginx, when its binary is upgraded, hands on no variable that its configuration does not name.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicI32, Ordering};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::OnceLock;

/// `NAME=value`, as the process found them.
static TOLD: OnceLock<Vec<CString>> = OnceLock::new();
/// The process that found them: a child of a fork that becomes something else is the program's own business.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Once, before the program can change its environment.
pub(crate) fn remember() {
    PROCESS.store(rustix::process::getpid().as_raw_nonzero().get(), Ordering::Relaxed);
    TOLD.get_or_init(|| {
        let ours = |name: &OsStr| {
            let name = name.as_bytes();
            name == b"LD_PRELOAD" || name.starts_with(b"OVERFLY_") || name.starts_with(b"EF_")
        };
        let variables = std::env::vars_os().filter(|(name, _)| ours(name));
        let string = |(mut name, value): (std::ffi::OsString, std::ffi::OsString)| {
            name.push("=");
            name.push(value);
            CString::new(name.into_vec()).ok()
        };
        variables.filter_map(string).collect()
    });
}

/// What is to be said of the program at `path` that this process is about to become, if it is started so that it will know nothing
/// of Overfly (`env -i`, `su -`): nothing else would ever say why it is not accelerated.
pub(crate) fn loss(path: &CStr, given: &[*const c_char]) -> Option<String> {
    TOLD.get().filter(|told| !told.is_empty())?;
    if rustix::process::getpid().as_raw_nonzero().get() != PROCESS.load(Ordering::Relaxed)
        || has(given, b"OVERFLY_BROKER=")
        || has(given, b"LD_PRELOAD=")
    {
        return None;
    }
    Some(format!(
        "{} is started without this environment's LD_PRELOAD and OVERFLY_BROKER: the kernel carries its connections. Empty the \
         environment before: `env -i overfly run …`",
        path.to_string_lossy()
    ))
}

/// Whether an environment has a variable; `name` ends with `=`.
fn has(given: &[*const c_char], name: &[u8]) -> bool {
    // SAFETY: the strings of a program's environment end with a null byte, and stay while it starts another.
    given.iter().any(|word| unsafe { CStr::from_ptr(*word) }.to_bytes().starts_with(name))
}

/// The environment for the program at `path` in place of `given`, ended by a null pointer; `None`: as it is given. It lives as
/// long as `given`.
pub(crate) fn completed(path: &CStr, given: &[*const c_char]) -> Option<Vec<*const c_char>> {
    let told = TOLD.get().filter(|told| !told.is_empty())?;
    // Another program, or a choice that the program has made itself, is none of our business.
    if has(given, b"OVERFLY_BROKER=") || has(given, b"LD_PRELOAD=") || !is_ourselves(path) {
        return None;
    }
    let lacking = told.iter().filter(|variable| {
        let bytes = variable.to_bytes();
        let name = bytes.iter().position(|byte| *byte == b'=').map_or(bytes, |end| &bytes[..=end]);
        !has(given, name)
    });
    let lacking = lacking.map(|variable| variable.as_ptr());
    Some(given.iter().copied().chain(lacking).chain([core::ptr::null()]).collect())
}

/// Whether `path` leads to the program that runs here, or to what has taken its place in the file system.
fn is_ourselves(path: &CStr) -> bool {
    let Ok(running) = std::fs::read_link("/proc/self/exe") else { return false };
    let running = running.as_os_str().as_bytes();
    let running = running.strip_suffix(b" (deleted)").unwrap_or(running);
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    std::fs::canonicalize(path).is_ok_and(|path| path.as_os_str().as_bytes() == running)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ourselves() -> CString {
        CString::new(std::env::current_exe().unwrap().into_os_string().into_vec()).unwrap()
    }

    fn words(list: &[*const c_char]) -> Vec<&str> {
        // SAFETY: every pointer but the null ones is of a string above or of `TOLD`.
        list.iter()
            .filter(|word| !word.is_null())
            .map(|word| unsafe { CStr::from_ptr(*word) }.to_str().unwrap())
            .collect()
    }

    #[test]
    fn only_this_program_and_only_what_lacks() {
        let told = ["LD_PRELOAD=/lib/overfly", "OVERFLY_BROKER=x", "EF_UDP=0"];
        TOLD.set(told.iter().map(|word| CString::new(*word).unwrap()).collect()).unwrap();
        let own = [c"TZ=UTC".as_ptr(), c"EF_UDP=1".as_ptr()];
        let list = completed(&ourselves(), &own).unwrap();
        assert_eq!(words(&list), ["TZ=UTC", "EF_UDP=1", "LD_PRELOAD=/lib/overfly", "OVERFLY_BROKER=x"]);
        assert!(list.last().unwrap().is_null());
        assert_eq!(completed(c"/bin/sh", &own), None);
        assert_eq!(loss(c"/bin/sh", &own), None, "not the process that was told");
        PROCESS.store(rustix::process::getpid().as_raw_nonzero().get(), Ordering::Relaxed);
        assert!(loss(c"/bin/sh", &own).unwrap().starts_with("/bin/sh is started without"));
        assert_eq!(loss(c"/bin/sh", &[c"OVERFLY_BROKER=y".as_ptr()]), None);
        assert_eq!(completed(&ourselves(), &[c"LD_PRELOAD=/lib/other".as_ptr()]), None);
        assert_eq!(completed(&ourselves(), &[c"OVERFLY_BROKER=y".as_ptr()]), None);
    }
}

//! Finding the program to run, and whether a library can be preloaded into it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a program was not found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// No such file; exit status 127, as a shell says it.
    NotFound,
    /// It is there but cannot be executed; exit status 126.
    NotExecutable,
}

/// Where execvp(3) would find `program`.
pub(crate) fn find(program: &OsStr) -> Result<PathBuf, Missing> {
    if program.as_bytes().contains(&b'/') {
        return executable(Path::new(program)).map(|()| PathBuf::from(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut missing = Missing::NotFound;
    for folder in std::env::split_paths(&path) {
        let candidate = folder.join(program);
        match executable(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(Missing::NotExecutable) => missing = Missing::NotExecutable,
            Err(Missing::NotFound) => {}
        }
    }
    Err(missing)
}

fn executable(path: &Path) -> Result<(), Missing> {
    match path.metadata() {
        Ok(metadata) if metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 => Ok(()),
        Ok(_) => Err(Missing::NotExecutable),
        Err(_) => Err(Missing::NotFound),
    }
}

/// Why a library cannot be preloaded into the program at `path`, or would do nothing there; None if it can as far as one sees
/// from the file. A script is judged by its interpreter.
pub(crate) fn obstacle(path: &Path) -> Option<String> {
    let mut path = path.to_owned();
    for _ in 0..4 {
        if let Some(reason) = valgrind(&path) {
            return Some(reason);
        }
        match kind(&path) {
            Ok(Kind::Dynamic) => return privileged(&path),
            Ok(Kind::Static) => return Some(format!("{} is statically linked", path.display())),
            Ok(Kind::Musl) => {
                return Some(format!(
                    "{} is linked with musl, and liboverfly.so with glibc: one process cannot have both",
                    path.display()
                ));
            }
            Ok(Kind::Go) => {
                return Some(format!(
                    "{} is a Go program: it makes its system calls itself, where no library sees them",
                    path.display()
                ));
            }
            Ok(Kind::Foreign) => {
                return Some(format!("{} is not a program for this machine's architecture", path.display()));
            }
            Ok(Kind::Script(interpreter)) => path = interpreter,
            Ok(Kind::Unknown) => {
                return Some(format!("{} is neither an ELF program nor a script", path.display()));
            }
            Err(error) => return Some(format!("{} cannot be read: {error}", path.display())),
        }
    }
    Some(format!("{} is a script of a script of a script", path.display()))
}

/// Valgrind runs programs on a processor of its own, with its own idea of which calls there are: a library with a signal
/// handler and memory shared with the kernel does not survive that.
fn valgrind(path: &Path) -> Option<String> {
    let name = path.file_name()?.as_bytes();
    (name == b"valgrind" || name == b"valgrind.bin")
        .then(|| format!("{} runs programs on a processor of its own, without liboverfly.so", path.display()))
}

/// The dynamic linker preloads nothing into a program that gets rights which its caller has not (AT_SECURE, ld.so(8)):
/// set-user-ID, set-group-ID (fs/exec.c, bprm_fill_uid), capabilities of the file (security/commoncap.c,
/// cap_bprm_creds_from_file; for root they add nothing).
fn privileged(path: &Path) -> Option<String> {
    use rustix::fs::StatVfsMountFlags;
    use rustix::process::{getegid, geteuid, getgid, getuid};
    const SET_USER: u32 = 0o4000;
    const SET_GROUP: u32 = 0o2000;
    const GROUP_EXECUTES: u32 = 0o010;
    let metadata = path.metadata().ok()?;
    // Where the kernel ignores all of that: fs/exec.c, mnt_may_suid and task_no_new_privs.
    let no_set_id =
        rustix::fs::statvfs(path).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::NOSUID));
    if no_set_id || rustix::thread::no_new_privs().unwrap_or(false) {
        return None;
    }
    let mode = metadata.permissions().mode();
    let user = mode & SET_USER != 0 && ![getuid(), geteuid()].iter().all(|id| id.as_raw() == metadata.uid());
    let both = SET_GROUP | GROUP_EXECUTES;
    let group = mode & both == both && ![getgid(), getegid()].iter().all(|id| id.as_raw() == metadata.gid());
    let mut value = [0; 64];
    let capable = !geteuid().is_root()
        && rustix::fs::getxattr(path, c"security.capability", &mut value).is_ok_and(|length| length > 0);
    let what = match (user, group, capable) {
        (true, ..) => "is set-user-ID",
        (_, true, _) => "is set-group-ID",
        (_, _, true) => "has capabilities of its own",
        _ => return None,
    };
    Some(format!("{} {what}, and no library is preloaded into such programs", path.display()))
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Dynamic,
    /// Dynamic, but for musl's linker.
    Musl,
    /// Dynamic, but made by Go's compiler.
    Go,
    Static,
    Foreign,
    Script(PathBuf),
    Unknown,
}

/// System V ABI, "Object Files": a program that the dynamic linker starts has a PT_INTERP header.
fn kind(path: &Path) -> std::io::Result<Kind> {
    const PT_INTERP: u32 = 3;
    const ELFCLASS64: u8 = 2;
    let mut file = File::open(path)?;
    let mut head = Vec::new();
    file.by_ref().take(256).read_to_end(&mut head)?;
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or(line).trim_ascii();
        let interpreter = line.split(u8::is_ascii_whitespace).next().unwrap_or(line);
        return Ok(Kind::Script(PathBuf::from(OsStr::from_bytes(interpreter))));
    }
    if !head.starts_with(b"\x7fELF") {
        return Ok(Kind::Unknown);
    }
    if head.len() < 64 || head[4] != ELFCLASS64 || kind_machine(&head) != own_machine() {
        return Ok(Kind::Foreign);
    }
    let table = u64::from_le_bytes(head[32..40].try_into().expect("eight bytes"));
    let entry_len = usize::from(u16::from_le_bytes([head[54], head[55]]));
    let entries = usize::from(u16::from_le_bytes([head[56], head[57]]));
    let mut headers = Vec::new();
    file.seek(SeekFrom::Start(table))?;
    file.by_ref().take((entry_len * entries) as u64).read_to_end(&mut headers)?;
    let interpreted =
        headers.chunks_exact(entry_len.max(HEADER_LEN)).find(|header| header[..4] == PT_INTERP.to_le_bytes());
    let Some(header) = interpreted else { return Ok(Kind::Static) };
    let interpreter = read_at(&mut file, number(header, 8), number(header, 32))?;
    if Path::new(OsStr::from_bytes(&interpreter))
        .file_name()
        .is_some_and(|name| name.as_bytes().starts_with(b"ld-musl"))
    {
        return Ok(Kind::Musl);
    }
    Ok(if has_section(&mut file, &head, b".go.buildinfo")? { Kind::Go } else { Kind::Dynamic })
}

/// Size of a program header, and of a section header, of ELF64.
const HEADER_LEN: usize = 56;
const SECTION_LEN: usize = 64;
/// No path and no table of section names that a linker wrote is longer.
const PART_MAX: u64 = 1 << 20;

/// Eight bytes of a header, little-endian.
fn number(header: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(header[offset..offset + 8].try_into().expect("eight bytes"))
}

/// What of these bytes there is.
fn read_at(file: &mut File, offset: u64, length: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(offset))?;
    file.by_ref().take(length.min(PART_MAX)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether the file has a section of this name (System V ABI, "Sections"). `head`: its first bytes, 64 at least. A file that
/// was stripped of its section headers has none.
fn has_section(file: &mut File, head: &[u8], name: &[u8]) -> std::io::Result<bool> {
    let half = |offset: usize| usize::from(u16::from_le_bytes([head[offset], head[offset + 1]]));
    let (entry_len, entries, names) = (half(58), half(60), half(62));
    if entry_len < SECTION_LEN {
        return Ok(false);
    }
    let table = read_at(file, number(head, 40), (entry_len * entries) as u64)?;
    let Some(strings) = table.chunks_exact(entry_len).nth(names) else { return Ok(false) };
    let strings = read_at(file, number(strings, 24), number(strings, 32))?;
    Ok(table.chunks_exact(entry_len).any(|section| {
        let at = u32::from_le_bytes(section[..4].try_into().expect("four bytes")) as usize;
        strings
            .get(at..)
            .is_some_and(|rest| rest.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&0)))
    }))
}

fn kind_machine(head: &[u8]) -> u16 {
    u16::from_le_bytes([head[18], head[19]])
}

/// The machine that this very program is for.
fn own_machine() -> u16 {
    const EM_X86_64: u16 = 62;
    const EM_AARCH64: u16 = 183;
    if cfg!(target_arch = "aarch64") { EM_AARCH64 } else { EM_X86_64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_a_shell_does() {
        assert!(find(OsStr::new("sh")).unwrap().ends_with("sh"));
        assert_eq!(find(OsStr::new("no-such-program-here")), Err(Missing::NotFound));
        assert_eq!(find(OsStr::new("/etc/passwd")), Err(Missing::NotExecutable));
    }

    #[test]
    fn a_dynamic_program_and_its_scripts_can_be_preloaded() {
        assert_eq!(obstacle(Path::new("/proc/self/exe")), None);
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        std::fs::write(&script, "#!/bin/sh -e\ntrue\n").unwrap();
        assert_eq!(obstacle(&script), None);
    }

    #[test]
    fn a_program_without_an_interpreter_is_static() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("static");
        // Our own file with every PT_INTERP header turned into PT_NULL.
        let mut bytes = std::fs::read("/proc/self/exe").unwrap();
        let table = usize::try_from(u64::from_le_bytes(bytes[32..40].try_into().unwrap())).unwrap();
        let entries = usize::from(u16::from_le_bytes([bytes[56], bytes[57]]));
        for header in bytes[table..].chunks_exact_mut(56).take(entries) {
            if header[0] == 3 {
                header[0] = 0;
            }
        }
        std::fs::write(&path, &bytes).unwrap();
        assert!(obstacle(&path).unwrap().contains("statically linked"));
        // A table that lies about where things are is no reason to fail.
        bytes[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
        std::fs::write(&path, &bytes).unwrap();
        assert!(obstacle(&path).unwrap().contains("statically linked"));
        std::fs::write(&path, &bytes[..40]).unwrap();
        assert!(obstacle(&path).unwrap().contains("architecture"));
        std::fs::write(&path, "plain text").unwrap();
        assert!(obstacle(&path).unwrap().contains("neither"));
    }

    /// Our own file with one run of bytes in place of another of the same length, wherever it appears.
    fn altered(folder: &Path, name: &str, from: &[u8], to: &[u8]) -> PathBuf {
        assert_eq!(from.len(), to.len());
        let mut bytes = std::fs::read("/proc/self/exe").unwrap();
        let mut found = 0;
        for at in 0..bytes.len() - from.len() {
            if &bytes[at..at + from.len()] == from {
                bytes[at..at + from.len()].copy_from_slice(to);
                found += 1;
            }
        }
        assert!(found > 0, "nothing to alter");
        let path = folder.join(name);
        std::fs::write(&path, &bytes).unwrap();
        path
    }

    #[test]
    fn programs_of_musl_and_of_go_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let interpreter: &[u8] = if cfg!(target_arch = "aarch64") {
            b"/lib/ld-linux-aarch64.so.1\0"
        } else {
            b"/lib64/ld-linux-x86-64.so.2\0"
        };
        let mut musl = b"/lib/ld-musl-x86_64.so.1".to_vec();
        musl.resize(interpreter.len(), 0);
        let path = altered(folder.path(), "musl", interpreter, &musl);
        assert!(obstacle(&path).unwrap().contains("is linked with musl"));
        // A section that every program has becomes Go's; the names are of one length.
        let path = altered(folder.path(), "go", b"\0.eh_frame_hdr\0", b"\0.go.buildinfo\0");
        assert!(obstacle(&path).unwrap().contains("is a Go program"));
    }

    #[test]
    fn programs_that_get_rights_of_their_own_are_not_preloaded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        std::fs::copy("/proc/self/exe", &path).unwrap();
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o4755);
        assert_eq!(obstacle(&path), None, "it is ours: nothing is gained");
        if !rustix::process::geteuid().is_root() {
            return;
        }
        std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
        mode(0o4755);
        assert!(obstacle(&path).unwrap().contains("is set-user-ID, and no library"));
        mode(0o2755);
        assert!(obstacle(&path).unwrap().contains("is set-group-ID"));
        mode(0o0755);
        assert_eq!(obstacle(&path), None);
    }

    #[test]
    fn valgrind_is_left_to_the_kernel() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("valgrind");
        std::fs::write(&path, "#!/bin/sh\ntrue\n").unwrap();
        assert!(obstacle(&path).unwrap().contains("a processor of its own"));
    }
}

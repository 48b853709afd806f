//! Finding the program to run, and whether a library can be preloaded into it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
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

/// Why a library cannot be preloaded into the program at `path`, or None if it can as far as one
/// sees from the file. A script is judged by its interpreter.
pub(crate) fn obstacle(path: &Path) -> Option<String> {
    let mut path = path.to_owned();
    for _ in 0..4 {
        match kind(&path) {
            Ok(Kind::Dynamic) => return None,
            Ok(Kind::Static) => return Some(format!("{} is statically linked", path.display())),
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

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Dynamic,
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
    file.take((entry_len * entries) as u64).read_to_end(&mut headers)?;
    let interpreted =
        headers.chunks_exact(entry_len.max(4)).any(|header| header[..4] == PT_INTERP.to_le_bytes());
    Ok(if interpreted { Kind::Dynamic } else { Kind::Static })
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
        std::fs::write(&path, &bytes[..40]).unwrap();
        assert!(obstacle(&path).unwrap().contains("architecture"));
        std::fs::write(&path, "plain text").unwrap();
        assert!(obstacle(&path).unwrap().contains("neither"));
    }
}

//! Compiles the XDP program with clang.

use std::path::{Path, PathBuf};
use std::process::Command;

const INSTALL: &str = "the XDP program needs clang and libbpf's headers: apt-get install clang libbpf-dev";

fn main() {
    let source = Path::new("bpf/steer.bpf.c");
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let object = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join("steer.bpf.o");
    let architecture = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    let status = Command::new(&clang)
        .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf"])
        // <asm/types.h> is in a folder of the host's architecture on Debian, where -target bpf does not look.
        .arg("-idirafter")
        .arg(format!("/usr/include/{architecture}-linux-gnu"))
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(&object)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{clang} could not compile {} ({status}); {INSTALL}", source.display()),
        Err(error) => panic!("{clang}: {error}; {INSTALL}"),
    }
}

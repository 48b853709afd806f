//! `scripts/install.sh`, with an apt-get that installs nothing.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use super::write_script;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/install.sh");

/// What the script says, and has apt-get install, on a machine that has none of the tools.
fn installed(words: &[&str]) -> (String, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for tool in ["bash", "id", "chmod", "rm"] {
        let place =
            ["/usr/bin", "/bin"].map(|its| Path::new(its).join(tool)).into_iter().find(|its| its.exists());
        symlink(place.unwrap(), path.join(tool)).unwrap();
    }
    for (name, text) in [
        ("apt-get", format!("#!/bin/sh\necho \"$@\" >> {}/asked\n", path.display())),
        ("cargo", "#!/bin/sh\n".to_owned()),
    ] {
        write_script(&path.join(name), &text);
    }
    let output = Command::new("/bin/bash").arg(SCRIPT).args(words).env("PATH", path).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let asked = fs::read_to_string(path.join("asked")).unwrap();
    let install = asked.lines().find(|line| line.contains(" install ")).unwrap();
    let packages = install.split(' ').skip_while(|word| *word != "--no-install-recommends").skip(1);
    (said, packages.map(str::to_owned).collect())
}

#[test]
fn the_quickstart_installs_what_it_needs_and_says_what() {
    let (said, packages) = installed(&["quickstart"]);
    for needed in ["nginx-light", "clang", "gcc", "make", "iproute2", "ethtool"] {
        assert!(packages.iter().any(|package| package == needed), "{needed}: {packages:?}");
        assert!(said.contains(needed), "{said}");
    }
    for others in ["valgrind", "openjdk-17-jdk-headless", "postgresql-contrib", "tshark", "npm"] {
        assert!(!packages.iter().any(|package| package == others), "{others}: {packages:?}");
    }
    // And headers, where they are missing.
    assert!(packages.len() <= 8, "{packages:?}");
    let (_, all) = installed(&[]);
    assert!(all.len() > 30 && packages.iter().all(|package| all.contains(package)), "{all:?}");
}

//! The examples of docs/load-results.md run as they stand.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::Folder;
use crate::server::Server;

#[test]
fn every_example_runs() {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/load-results.md"))
            .unwrap();
    let server = Server::new(4, Duration::from_millis(1));
    let blocks = text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let blocks: Vec<String> = blocks
        .map(|block| block.replace("http://10.77.0.1", &format!("http://{}", server.address)))
        .collect();
    assert!(blocks.len() >= 6, "{} examples", blocks.len());
    let command = Path::new(env!("CARGO_BIN_EXE_overfly")).parent().unwrap().display().to_string();
    let path = format!("{command}:{}", std::env::var("PATH").unwrap());
    for block in blocks {
        let folder = Folder::new();
        let mut shell = Command::new("sh");
        shell.args(["-ec", &block]).env("PATH", &path).current_dir(folder.0.path()).stdin(Stdio::null());
        let output = shell.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{block}\n{said}");
        assert!(!output.stdout.is_empty(), "{block}");
    }
}

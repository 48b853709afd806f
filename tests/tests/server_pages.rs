//! The commands of docs/servers: each page's are run as they stand there, in the order `prepare`, `server`, `client`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use overfly_bench::lab::Lab;
use overfly_tests::{Server, eventually, kernel_accepted, overfly};

/// A JVM on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// A folder of the server side's own, which goes with the lab.
const FOLDER: &str = "/dev/shm/page";

fn pages() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/servers");
    let mut pages: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("docs/servers").map(|entry| entry.expect("a page").path()).collect();
    pages.sort();
    pages
}

/// The blocks of a page that begin with ```sh and this word.
fn commands(page: &str, word: &str) -> String {
    let mut text = String::new();
    let mut inside = false;
    for line in page.lines() {
        if line.starts_with("```") {
            inside = line == format!("```sh {word}");
        } else if inside {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

fn shell(lab: &Lab, side: &str, script: &str) -> Command {
    let binary = overfly();
    let path = std::env::var("PATH").expect("PATH");
    let mut command = lab.command(side, "sh");
    command
        .args(["-euc", &format!("mkdir -p {FOLDER}; cd {FOLDER}\n{script}")])
        .env("PATH", format!("{}:{path}:/usr/sbin", binary.parent().expect("a folder").display()))
        .env("SERVER", "10.77.0.1")
        .env("EF_NO_FAIL", "0")
        .stdin(Stdio::null());
    command
}

fn run(lab: &Lab, side: &str, script: &str) -> Output {
    shell(lab, side, script).output().expect("start a shell")
}

#[test]
fn the_commands_of_each_servers_page_work_as_they_stand_there() {
    let pages = pages();
    assert!(pages.len() >= 6, "{pages:?}");
    for place in pages {
        println!("{}", place.display());
        let page = std::fs::read_to_string(&place).expect("a page");
        let (server, client) = (commands(&page, "server"), commands(&page, "client"));
        assert!(server.contains("overfly run") && !client.is_empty(), "{} has no commands", place.display());
        let lab = Lab::new(overfly()).expect("a lab");
        let prepared = run(&lab, "server", &commands(&page, "prepare"));
        assert!(prepared.status.success(), "{}", String::from_utf8_lossy(&prepared.stderr));
        // The last line is the server: the shell becomes it, so that a signal reaches it.
        let (before, last) = server.trim_end().rsplit_once('\n').unwrap_or(("", server.trim_end()));
        let mut server = Server::spawn(shell(&lab, "server", &format!("{before}\nexec {last}")));
        let end = Instant::now() + PATIENCE;
        let answer = loop {
            let answer = run(&lab, "client", &client);
            if answer.status.success() {
                break String::from_utf8_lossy(&answer.stdout).into_owned();
            }
            assert!(!server.ended() && Instant::now() < end, "no answer: {answer:?}");
            std::thread::sleep(Duration::from_millis(100));
        };
        assert!(answer.contains("hello"), "{answer}");
        // A peer that the neighbour table lacks yet is the kernel's.
        eventually("the kernel accepts nothing of it", || {
            let before = kernel_accepted(&lab);
            run(&lab, "client", &client).status.success() && kernel_accepted(&lab) == before
        });
        server.stop();
    }
}

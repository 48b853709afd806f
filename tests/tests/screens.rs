//! What commands print on terminals of 60, 80 and 120 columns, with real traffic: no line is left for the terminal to cut.

use std::process::{Command, Stdio};

use overfly_bench::lab::Lab;
use overfly_tests::service::accepts;
use overfly_tests::{Server, eventually, overfly, succeed};

/// Runs a command on a terminal with so many columns, and prints what that was shown.
const TERMINAL: &str = "
import fcntl, os, pty, re, struct, sys, termios
process, terminal = pty.fork()
if process == 0:
    # The size is known before anything is printed.
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack('HHHH', 50, int(sys.argv[1]), 0, 0))
    os.execv(sys.argv[2], sys.argv[2:])
shown = b''
while True:
    try:
        more = os.read(terminal, 65536)
    except OSError:
        break
    if not more:
        break
    shown += more
os.waitpid(process, 0)
# Without colours.
sys.stdout.buffer.write(re.sub(b'\\x1b\\[[0-9;]*m', b'', shown).replace(b'\\r\\n', b'\\n'))
";

/// What `overfly WORDS` shows on the server's side, or the client's.
fn shown(lab: &Lab, side: &str, columns: usize, words: &str) -> String {
    let mut command = lab.command(side, "/usr/bin/python3");
    command.args(["-c", TERMINAL, &columns.to_string()]).arg(overfly()).args(words.split_whitespace());
    command.env("TERM", "xterm").env_remove("COLUMNS");
    let output = command.stdin(Stdio::null()).output().expect("start");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!text.trim().is_empty(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn no_line_is_longer_than_the_terminal() {
    let lab = Lab::new(overfly()).expect("a lab");
    let mut command: Command = lab.command("server", overfly());
    command.args(["run", "--", "/usr/bin/python3", "-m", "http.server", "8080"]);
    command.current_dir("/usr/share/doc").stdout(Stdio::null()).stderr(Stdio::null());
    let server = Server::spawn(command);
    let url = "http://10.77.0.1:8080/";
    eventually("it is accelerated", || {
        succeed(
            &lab,
            "client",
            &["curl", "-s", "--retry", "9", "--retry-connrefused", "-o", "/dev/null", url],
        );
        accepts(&lab) > 0
    });
    for columns in [60, 80, 120] {
        for (side, words) in [
            ("server", "top --once --interval 0.2"),
            ("server", "sockets -a"),
            ("server", "doctor"),
            ("server", "--help"),
            ("server", "run --help"),
            ("server", ""),
            ("client", &format!("load http -c 4 -d 1s {url}")),
        ] {
            let text = shown(&lab, side, columns, words);
            for line in text.lines().filter(|line| !line.contains('\r')) {
                // A path or an address is not for anybody to break.
                let is_one_word = line.split_whitespace().nth(1).is_none();
                assert!(
                    is_one_word || line.chars().count() <= columns,
                    "overfly {words}, {columns} columns:\n{text}\nis too long: {line}"
                );
            }
        }
        // What is left out is said, and nothing is where there is room.
        let top = shown(&lab, "server", columns, "top --once --interval 0.2");
        if columns != 80 {
            assert_eq!(columns < 80, top.contains("more on a wider screen"), "{top}");
        }
    }
    server.stop();
}

//! How commands get to a host: by OpenSSH's client, or they are there already.

use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::interruption::interrupted;

/// Seconds after which a host that does not answer is given up.
const CONNECT_S: u32 = 10;
/// An authentication may take longer than the connection: an agent may ask its owner.
const PATIENCE: Duration = Duration::from_secs(60);

/// How commands get to a host.
#[derive(Debug)]
pub(crate) enum Reach {
    /// It is this machine.
    Here,
    /// One connection, which all commands share.
    Ssh(Master),
}

/// A connection of OpenSSH's that others go through (ControlMaster in ssh_config(5)), in a folder that nobody else may enter. A warden
/// stands over it: both go with this process, however that ends.
#[derive(Debug)]
pub(crate) struct Master {
    warden: Child,
    folder: PathBuf,
    options: Vec<OsString>,
    destination: String,
}

impl Reach {
    /// Connects. `config` is `-F` of ssh.
    ///
    /// # Errors
    /// What ssh says.
    pub(crate) fn ssh(overfly: &Path, destination: &str, config: Option<&Path>) -> Result<Reach, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("overfly-ssh-{}-{number}", std::process::id()));
        DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        let mut options: Vec<OsString> = vec!["-o".into(), "BatchMode=yes".into(), "-T".into()];
        if let Some(config) = config {
            options.extend(["-F".into(), config.as_os_str().to_owned()]);
        }
        options.extend(["-S".into(), folder.join("master").into_os_string()]);
        let mut command = Command::new(overfly);
        command
            .args(["__warden", "--parent"])
            .arg(std::process::id().to_string())
            .arg("--folder")
            .arg(&folder);
        command.args(["--", "ssh", "-M", "-N", "-o", "ControlPersist=no", "-o"]);
        command.arg(format!("ConnectTimeout={CONNECT_S}"));
        // A host that has gone is noticed within 20 s.
        command.args(["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]);
        command.args(&options).arg("--").arg(destination);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // Ctrl-C is for this process, which then ends what it has begun in order.
        let warden = command.process_group(0).spawn().map_err(|error| {
            let _ = std::fs::remove_dir(&folder);
            format!("ssh could not be started: {error}")
        })?;
        let mut master = Master { warden, folder, options, destination: destination.to_owned() };
        master.await_connection()?;
        Ok(Reach::Ssh(master))
    }

    /// A command that carries these words out there, with its three streams. It ends with ssh's status, which is the command's own.
    pub(crate) fn command<T: AsRef<OsStr>>(&self, words: &[T]) -> Command {
        let mut command = match self {
            Reach::Here => {
                let mut command = Command::new(words.first().map_or(OsStr::new(""), AsRef::as_ref));
                command.args(words.iter().skip(1));
                command
            }
            Reach::Ssh(master) => {
                let mut line = OsString::from("exec");
                for word in words {
                    line.push(" ");
                    line.push(quoted(word.as_ref()));
                }
                let mut command = master.client();
                command.arg("--").arg(&master.destination).arg(line);
                command
            }
        };
        command.process_group(0);
        command
    }
}

impl Master {
    /// A client that goes through the connection.
    fn client(&self) -> Command {
        let mut command = Command::new("ssh");
        command.args(["-o", "ControlMaster=no"]).args(&self.options);
        command
    }

    fn await_connection(&mut self) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Ok(Some(_)) = self.warden.try_wait() {
                let mut said = String::new();
                if let Some(stderr) = &mut self.warden.stderr {
                    let _ = stderr.read_to_string(&mut said);
                }
                let said = said.trim().replace(['\n', '\r'], "; ");
                return Err(if said.is_empty() { "ssh ended without a word".to_owned() } else { said });
            }
            let mut check = self.client();
            check.args(["-O", "check", "--"]).arg(&self.destination);
            check.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            if check.status().is_ok_and(|status| status.success()) {
                return Ok(());
            }
            if interrupted() || Instant::now() > end {
                return Err(format!("there was no connection within {} s", PATIENCE.as_secs()));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        if let Some(id) = rustix::process::Pid::from_raw(self.warden.id().cast_signed())
            && matches!(self.warden.try_wait(), Ok(None))
        {
            let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        }
        let _ = self.warden.wait();
        // If the warden was killed before it could.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A word as every shell of POSIX reads it.
fn quoted(word: &OsStr) -> OsString {
    let mut quoted = OsString::from("'");
    for (number, part) in word.to_string_lossy().split('\'').enumerate() {
        if number > 0 {
            quoted.push("'\\''");
        }
        quoted.push(part);
    }
    quoted.push("'");
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_through_a_shell_as_they_are() {
        for word in ["a b", "it's", "$HOME `x` \"y\" \\", "", "*", "a\nb", "''"] {
            let mut line = OsString::from("printf %s ");
            line.push(quoted(OsStr::new(word)));
            let output = Command::new("sh").arg("-c").arg(line).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
    }

    #[test]
    fn who_does_not_answer_is_told_in_ssh_s_own_words() {
        // Nobody listens at port 1.
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config");
        std::fs::write(&config, "Host nobody\n HostName 127.0.0.1\n Port 1\n").unwrap();
        let overfly = folder.path().join("overfly");
        // What stands for the warden only runs what follows.
        std::fs::write(&overfly, "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done; shift; exec \"$@\"\n")
            .unwrap();
        std::fs::set_permissions(&overfly, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let error = Reach::ssh(&overfly, "nobody", Some(&config)).unwrap_err();
        assert!(error.contains("Connection refused"), "{error}");
    }
}

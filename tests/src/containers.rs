//! Containers in a pod of the lab's node, by crun, as a container runtime makes them: process 1 of a process namespace of its own, a root file
//! system of its own, no capability, the pod's network.

use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::pods::Pod;
use crate::{eventually, overfly, send};

/// What a runtime is told of a container.
#[derive(Clone, Debug, Default)]
pub struct Container {
    /// Names its control group, below the pod's.
    pub name: String,
    /// Its user and group.
    pub user: u32,
    /// Its process 1.
    pub words: Vec<String>,
    /// Further environment, as `NAME=VALUE`.
    pub environment: Vec<String>,
    /// Files and folders of the node that it has, read only, and where. The agent's folder is one.
    pub mounts: Vec<(PathBuf, String)>,
}

impl Container {
    /// `overfly run` with nginx, which answers with `words`; the agent's socket is where nobody needs to say it.
    #[must_use]
    pub fn nginx(pod: &Pod, name: &str, user: u32, port: u16, words: &str) -> Container {
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path /tmp/{kind};"))
            .join(" ");
        let global = "daemon off; worker_processes 1; pid /tmp/pid; error_log stderr;";
        let script = format!(
            "echo \"$0\" > /tmp/nginx.conf; exec {} run -- nginx -e stderr -c /tmp/nginx.conf",
            overfly().display()
        );
        let configuration = format!(
            "{global} events {{ worker_connections 512; }} http {{ access_log off; {temporary} \
             server {{ listen {port}; location / {{ return 200 '{words}'; }} }} }}"
        );
        Container {
            name: name.to_owned(),
            user,
            words: ["sh", "-c", &script, &configuration].map(str::to_owned).to_vec(),
            environment: vec!["EF_NO_FAIL=0".to_owned()],
            mounts: vec![(pod.socket_folder.clone(), "/run/overfly".to_owned())],
        }
    }

    /// As the runtime's specification has it (`config.json` of the Open Container Initiative).
    fn specification(&self, pod: &Pod) -> Value {
        let scratch = |place: &str, mode: &str| json!({"destination": place, "type": "tmpfs", "source": "tmpfs", "options": [format!("mode={mode}")]});
        let mut mounts = vec![
            json!({"destination": "/proc", "type": "proc", "source": "proc"}),
            scratch("/dev", "755"),
            scratch("/dev/shm", "1777"),
            scratch("/run", "755"),
            scratch("/tmp", "1777"),
            json!({"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]}),
        ];
        mounts.extend(self.mounts.iter().map(|(source, place)| {
            json!({"destination": place, "type": "bind", "source": source, "options": ["bind", "ro"]})
        }));
        let mut environment = vec!["PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned()];
        environment.extend(self.environment.iter().cloned());
        json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": self.user, "gid": self.user},
                "args": self.words,
                "env": environment,
                "cwd": "/",
                "capabilities": {"bounding": [], "effective": [], "permitted": [], "inheritable": [], "ambient": []},
                "noNewPrivileges": true,
            },
            "root": {"path": "root", "readonly": true},
            "mounts": mounts,
            "linux": {
                "cgroupsPath": format!("{}/{}", pod.group(), self.name),
                "namespaces": [
                    {"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "cgroup"},
                    {"type": "network", "path": format!("/proc/{}/ns/net", pod.inner)},
                ],
            },
        })
    }

    /// Starts it.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(&self, pod: &Pod) -> Running {
        // The image: the node's programs, and overfly, without the rest of the node's files. crun knows one hierarchy of control groups.
        const BEGIN: &str = "set -e
            mount -t cgroup2 none /sys/fs/cgroup
            mount -t tmpfs -o mode=755 tmpfs root
            mkdir -p root/usr root/etc root/proc root/sys root/dev root/run root/tmp \"root$1\"
            for name in bin sbin lib lib64; do [ ! -e /$name ] || cp -P /$name root/; done
            cp /etc/passwd /etc/group /etc/ld.so.cache root/etc/
            mount --bind /usr root/usr
            mount --bind \"$1\" \"root$1\"
            exec crun --root state --cgroup-manager=cgroupfs run --pid-file pid \"$2\"";
        let bundle = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(bundle.path().join("root")).expect("a folder");
        std::fs::write(bundle.path().join("config.json"), self.specification(pod).to_string())
            .expect("write");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", BEGIN, "begin"]);
        command.arg(overfly().parent().expect("a folder")).arg(format!("{}-{}", self.name, pod.inner));
        command.current_dir(bundle.path()).stdin(Stdio::null());
        let said = tempfile::tempfile().expect("a file");
        command.stdout(said.try_clone().expect("dup")).stderr(said.try_clone().expect("dup"));
        let mut crun = command.spawn().expect("start crun");
        let mut process = 0;
        eventually("the container begins", || {
            let ended = crun.try_wait().expect("wait");
            assert!(ended.is_none(), "{ended:?}: {}", crate::pods::text(&said));
            let line = std::fs::read_to_string(bundle.path().join("pid")).unwrap_or_default();
            process = line.trim().parse().unwrap_or_default();
            process != 0
        });
        Running { crun, process, said, _bundle: bundle }
    }
}

/// A container that has begun.
#[derive(Debug)]
pub struct Running {
    crun: Child,
    /// Its process 1, as the node numbers it.
    pub process: u32,
    said: std::fs::File,
    _bundle: tempfile::TempDir,
}

impl Running {
    /// What its programs have said.
    #[must_use]
    pub fn log(&self) -> String {
        crate::pods::text(&self.said)
    }

    /// Sends process 1 a signal, as a runtime does that is to end it, and waits for the end.
    ///
    /// # Panics
    /// If it does not end within ten seconds.
    #[track_caller]
    pub fn end(&mut self, signal: Signal) -> ExitStatus {
        send(self.process, signal);
        let mut status = None;
        eventually("the container ends", || {
            status = self.crun.try_wait().expect("wait");
            status.is_some()
        });
        status.expect("a status")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.crun.try_wait().is_ok_and(|ended| ended.is_none()) {
            // With process 1 all others end, and with them crun.
            send(self.process, Signal::KILL);
            let _ = self.crun.wait();
        }
    }
}

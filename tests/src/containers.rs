//! Containers in a pod of the lab's node, by crun, as a container runtime makes them: process 1 of a process namespace of its own, a root file
//! system of its own, no capability, the pod's network.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::pods::Pod;
use crate::{alive, eventually, overfly, send};

/// What containerd and CRI-O keep from containers that are not privileged (`populateDefaultUnixSpec()` in containerd's oci/spec.go).
const MASKED: [&str; 10] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

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
    /// Folders of the node that it has, and where; the agent's is one.
    pub mounts: Vec<Mount>,
    /// What it may do, as `CAP_NAME`; nothing otherwise.
    pub capabilities: Vec<String>,
    /// It sees the node's processes, as a pod with `hostPID`.
    pub sees_node: bool,
    /// The root of its image; otherwise it has the node's programs, and overfly, without the rest of the node's files.
    pub image: Option<PathBuf>,
    /// The runtime's usual profile forbids it what it forbids whoever has such capabilities, as with `RuntimeDefault`.
    pub is_confined: bool,
}

/// A folder that a container has.
#[derive(Clone, Debug)]
pub struct Mount {
    /// Where the node has it.
    pub source: PathBuf,
    /// Where the container has it.
    pub place: String,
    /// The container may write there.
    pub is_writable: bool,
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
            mounts: vec![Mount {
                source: pod.socket_folder.clone(),
                place: "/run/overfly".to_owned(),
                is_writable: false,
            }],
            is_confined: true,
            ..Container::default()
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
        if self.image.is_none() {
            // After /tmp, where it may be.
            let folder = overfly().parent().expect("a folder").to_owned();
            mounts.push(
                json!({"destination": folder, "type": "bind", "source": folder, "options": ["bind", "ro"]}),
            );
        }
        mounts.extend(self.mounts.iter().map(|Mount { source, place, is_writable }| {
            let options = ["bind", if *is_writable { "rw" } else { "ro" }];
            json!({"destination": place, "type": "bind", "source": source, "options": options})
        }));
        let mut namespaces = vec![
            json!({"type": "network", "path": format!("/proc/{}/ns/net", pod.inner)}),
            json!({"type": "mount"}),
            json!({"type": "ipc"}),
            json!({"type": "uts"}),
            json!({"type": "cgroup"}),
        ];
        if !self.sees_node {
            namespaces.push(json!({"type": "pid"}));
        }
        let mut environment = vec!["PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned()];
        environment.extend(self.environment.iter().cloned());
        let may = &self.capabilities;
        let mut specification = json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": self.user, "gid": self.user},
                "args": self.words,
                "env": environment,
                "cwd": "/",
                "capabilities": {"bounding": may, "effective": may, "permitted": may},
                "noNewPrivileges": true,
            },
            "root": {"path": "root", "readonly": true},
            "mounts": mounts,
            "linux": {
                "cgroupsPath": format!("{}/{}", pod.group(), self.name),
                "namespaces": namespaces,
                "maskedPaths": MASKED,
                "readonlyPaths": READ_ONLY,
            },
        });
        if self.is_confined {
            specification["linux"]["seccomp"] = usual_profile(may);
        }
        specification
    }

    /// Starts it.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(&self, pod: &Pod) -> Running {
        // crun knows one hierarchy of control groups.
        const BEGIN: &str = "set -e
            mount -t cgroup2 none /sys/fs/cgroup
            if [ -n \"$2\" ]; then
                mount --bind \"$2\" root
            else
                mount -t tmpfs -o mode=755 tmpfs root
                mkdir -p root/usr root/etc root/proc root/sys root/dev root/run root/tmp
                for name in bin sbin lib lib64; do [ ! -e /$name ] || cp -P /$name root/; done
                cp /etc/passwd /etc/group /etc/ld.so.cache root/etc/
                mount --bind /usr root/usr
            fi
            exec crun --root state --cgroup-manager=cgroupfs run --pid-file pid \"$1\"";
        let bundle = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(bundle.path().join("root")).expect("a folder");
        std::fs::write(bundle.path().join("config.json"), self.specification(pod).to_string())
            .expect("write");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", BEGIN, "begin"]);
        command.arg(format!("{}-{}", self.name, pod.inner));
        command.arg(self.image.as_deref().unwrap_or("".as_ref()));
        command.current_dir(bundle.path()).stdin(Stdio::null());
        let said = tempfile::tempfile().expect("a file");
        command.stdout(said.try_clone().expect("dup")).stderr(said.try_clone().expect("dup"));
        let crun = command.spawn().expect("start crun");
        Running::begun(crun, pod.group.place.join(&self.name), said, bundle)
    }

    /// Starts it by podman, of an image in the storage that a file describes.
    ///
    /// Podman would make it a control group with a program for devices, and raise limits, for which this machine's root may lack
    /// CAP_SYS_RESOURCE: so the container stays in the control group in which podman is, one of the pod's.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start_by_podman(&self, pod: &Pod, storage: &Path, image: &str) -> Running {
        const BEGIN: &str = "set -e
            echo $$ > \"$1/cgroup.procs\"
            mount -t cgroup2 none /sys/fs/cgroup
            shift
            exec podman --runtime=crun --cgroup-manager=cgroupfs --events-backend=none --tmpdir=\"$PWD/state\" \"$@\"";
        let bundle = tempfile::tempdir().expect("a folder");
        let group = pod.group.place.join(format!("{}-podman", self.name));
        std::fs::create_dir(&group).expect("a control group");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", BEGIN, "begin"]);
        command.arg(&group).args(["run", "--rm", "--pull=never", "--cgroups=disabled"]);
        command.arg(format!("--pidfile={}", bundle.path().join("pid").display()));
        command.args(["--ulimit=nofile=1024:1024", "--ulimit=nproc=512:512"]);
        command.arg(format!("--network=ns:/proc/{}/ns/net", pod.inner));
        command.args(["--cap-drop=all", "--security-opt=no-new-privileges", "--read-only", "--tmpfs=/tmp"]);
        command.arg(format!("--user={0}:{0}", self.user));
        command.args(self.environment.iter().map(|variable| format!("--env={variable}")));
        command.args(self.mounts.iter().map(|Mount { source, place, is_writable }| {
            format!("--volume={}:{place}:{}", source.display(), if *is_writable { "rw" } else { "ro" })
        }));
        command.arg(image).args(&self.words);
        command.env("CONTAINERS_STORAGE_CONF", storage).current_dir(bundle.path()).stdin(Stdio::null());
        let said = tempfile::tempfile().expect("a file");
        command.stdout(said.try_clone().expect("dup")).stderr(said.try_clone().expect("dup"));
        let podman = command.spawn().expect("start podman");
        Running::begun(podman, group, said, bundle)
    }
}

/// What podman, CRI-O and with a few more calls containerd forbid (the containers project's seccomp.json, in Debian's
/// golang-github-containers-common), as a runtime is told it: the file has conditions that whoever starts containers resolves.
fn usual_profile(capabilities: &[String]) -> Value {
    let text = std::fs::read_to_string("/usr/share/containers/seccomp.json")
        .expect("golang-github-containers-common is installed");
    let profile: Value = serde_json::from_str(&text).expect("JSON");
    let any = |condition: &Value, its: &dyn Fn(&str) -> bool| {
        condition.as_array().map(|list| list.iter().filter_map(Value::as_str).any(its))
    };
    let has = |name: &str| capabilities.iter().any(|its| its == name);
    let is_here = |name: &str| name == if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    let holds = |entry: &&Value| {
        let (includes, excludes) = (&entry["includes"], &entry["excludes"]);
        any(&includes["caps"], &has).unwrap_or(true)
            && any(&includes["arches"], &is_here).unwrap_or(true)
            && !any(&excludes["caps"], &has).unwrap_or(false)
    };
    let rules = profile["syscalls"].as_array().expect("rules").iter().filter(holds).map(|entry| {
        let mut rule = json!({"names": entry["names"], "action": entry["action"]});
        for key in ["args", "errnoRet"] {
            if !entry[key].is_null() {
                rule[key] = entry[key].clone();
            }
        }
        rule
    });
    json!({
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "syscalls": rules.collect::<Vec<_>>(),
    })
}

/// A container that has begun.
#[derive(Debug)]
pub struct Running {
    runtime: Child,
    /// Its process 1, as the node numbers it.
    pub process: u32,
    /// The folder of its control group.
    group: PathBuf,
    said: std::fs::File,
    _bundle: tempfile::TempDir,
}

impl Running {
    /// Once it has begun.
    fn begun(mut runtime: Child, group: PathBuf, said: std::fs::File, bundle: tempfile::TempDir) -> Running {
        let mut process = 0;
        eventually("the container begins", || {
            let ended = runtime.try_wait().expect("wait");
            let line = std::fs::read_to_string(bundle.path().join("pid")).unwrap_or_default();
            process = line.trim().parse().unwrap_or_default();
            assert!(process != 0 || ended.is_none(), "{ended:?}: {}", crate::pods::text(&said));
            process != 0
        });
        Running { runtime, process, group, said, _bundle: bundle }
    }

    /// What its programs have said.
    #[must_use]
    pub fn log(&self) -> String {
        crate::pods::text(&self.said)
    }

    /// Whether it has ended.
    ///
    /// # Panics
    /// If the kernel does not say.
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        self.runtime.try_wait().expect("wait").is_some()
    }

    /// Sends process 1 a signal, as a runtime does that is to end it, and waits for the end.
    ///
    /// # Panics
    /// If it does not end within ten seconds.
    #[track_caller]
    pub fn end(&mut self, signal: Signal) -> ExitStatus {
        send(self.process, signal);
        eventually("the container's first process ends", || !alive(self.process));
        self.clear();
        let mut status = None;
        eventually("the container ends", || {
            status = self.runtime.try_wait().expect("wait");
            status.is_some()
        });
        status.expect("a status")
    }

    /// Ends what is left without process 1, as runtimes do where that is none of a process namespace's own.
    fn clear(&self) {
        let _ = std::fs::write(self.group.join("cgroup.kill"), "1");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.runtime.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.clear();
            let _ = self.runtime.wait();
        }
    }
}

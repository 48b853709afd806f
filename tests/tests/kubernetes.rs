//! `deploy/kubernetes/*.yaml` and the chart in `deploy/helm`: held to Kubernetes' own schemas. The agent and its server are played with crun, the
//! Job with processes: a namespace stands for each pod, and /etc/hosts for the cluster's DNS. Needs root, crun, nginx, python3 with venv, and PyPI.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::Duration;

use overfly_bench::lab::Lab;
use overfly_tests::containers::{Container, Mount, Running};
use overfly_tests::pods::{MOUNTED, Node, Pod, on_own_machine};
use overfly_tests::service::agents_capabilities;
use overfly_tests::{Nginx, Server, alive, eventually, output, overfly, send};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Of PyPI.
const VALIDATOR: &str = "kubernetes-validate==1.37.0";
/// The oldest version of Kubernetes that has all of what is used, of those that the validator knows.
const KUBERNETES: &str = "1.28";

/// Helm's own engine. Also of PyPI, by somebody who is neither Helm's nor known here: it gets no network and no rights.
const HELM: &str = "helm-python-sdk==0.2.2";

/// A Python that has the validator; kept from run to run, since it is large.
fn python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kubernetes-validate");
        let python = place.join("bin/python");
        let has = |python: &Path| {
            let mut command = Command::new(python);
            command.args(["-c", "import kubernetes_validate, yaml"]).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        // Tests in process namespaces of their own are other processes, and may come here at the same time.
        let only_one = File::create(place.with_extension("lock")).expect("a file to lock");
        only_one.lock().expect("its lock");
        if !has(&python) {
            succeeds(Path::new("python3"), &["-m", "venv", &place.display().to_string()]);
            succeeds(&python, &["-m", "pip", "install", "--quiet", VALIDATOR]);
        }
        python
    })
}

fn succeeds(program: &Path, words: &[&str]) {
    let status = Command::new(program).args(words).stdout(Stdio::null()).status();
    assert!(status.expect("start a program").success(), "{} {words:?}", program.display());
}

/// The folder with Helm's engine.
fn helm() -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("helm");
    if !place.join("helm_python").exists() {
        // A wheel: nothing of it runs here.
        let target = ["--only-binary=:all:", "--no-deps", "--no-compile", "--target"];
        let mut words = vec!["-m", "pip", "install", "--quiet"];
        words.extend(target);
        let own = place.display().to_string();
        words.extend([own.as_str(), HELM]);
        succeeds(python(), &words);
    }
    place
}

/// What Helm makes of the chart: the objects that Kubernetes' schemas find sound, or why it refuses.
fn rendered(values: &Value) -> Result<Vec<Value>, String> {
    const SCRIPT: &str = "
import json, sys, helm_python as helm
said = [its for its in helm.lint(sys.argv[1])['messages'] if its['severity'] > 1]
assert not said, said
with helm.Chart.load(sys.argv[1]) as chart:
    try:
        texts = chart.render(json.loads(sys.argv[2]), name='overfly', namespace='kube-system')
    except helm.HelmValuesError as error:
        print(error)
        sys.exit(1)
print('\\n---\\n'.join(texts.values()))
";
    let chart = tempfile::tempdir().expect("a folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/helm/overfly");
    let copy = chart.path().join("overfly");
    succeeds(Path::new("cp"), &["-r", &source.display().to_string(), &copy.display().to_string()]);
    succeeds(Path::new("chmod"), &["-R", "a+rX", &chart.path().display().to_string()]);
    let mut command = Command::new("unshare");
    command.args(["--net", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]);
    command.args(["--bounding-set=-all", "--inh-caps=-all", "python3", "-c", SCRIPT]).arg(&copy);
    command
        .arg(values.to_string())
        .env("PATH", "/usr/bin:/bin")
        .env("PYTHONPATH", helm())
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.env("HOME", "/nonexistent").output().expect("start Python");
    let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(said.is_empty(), "{said}");
    if !output.status.success() {
        return Err(text.into_owned());
    }
    let place = chart.path().join("objects.yaml");
    std::fs::write(&place, text.as_bytes()).expect("write");
    Ok(sound(&place))
}

fn manifest(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes").join(name)
}

/// The objects of a manifest.
fn objects(name: &str) -> Vec<Value> {
    sound(&manifest(name))
}

/// The objects of a file, after the validator has found nothing wrong.
fn sound(file: &Path) -> Vec<Value> {
    const SCRIPT: &str = "
import json, sys, kubernetes_validate, yaml
objects = [its for its in yaml.safe_load_all(open(sys.argv[1])) if its]
for its in objects:
    kubernetes_validate.validate(its, sys.argv[2], strict=True)
print(json.dumps(objects))
";
    let mut command = Command::new(python());
    let checked = command.arg("-c").arg(SCRIPT).arg(file).arg(KUBERNETES).output().expect("start Python");
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(checked.status.success(), "{}: {said}", file.display());
    serde_json::from_slice(&checked.stdout).expect("JSON")
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|its| its["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

#[test]
fn the_manifests_are_what_kubernetes_expects_and_fit_together() {
    let (job, server, agent) = (objects("load-job.yaml"), objects("load-server.yaml"), objects("agent.yaml"));
    for objects in [&job, &server] {
        let selector = &of_kind(objects, "Service")["spec"]["selector"];
        let pods = objects.iter().find(|its| its["spec"]["template"].is_object()).expect("pods");
        assert_eq!(selector, &pods["spec"]["template"]["metadata"]["labels"], "the service finds the pods");
    }
    let (service, job) = (of_kind(&job, "Service"), of_kind(&job, "Job"));
    let (name, pod) = (job["metadata"]["name"].as_str().expect("a name"), &job["spec"]["template"]["spec"]);
    assert_eq!(pod["subdomain"], service["metadata"]["name"], "pods have names in the service's domain");
    assert_eq!(job["spec"]["completions"], job["spec"]["parallelism"], "none waits for another's end");
    let arguments = pod["containers"][0]["args"].to_string();
    let port = &service["spec"]["ports"][0]["port"];
    let subdomain = pod["subdomain"].as_str().expect("a domain");
    for argument in
        [format!("--shards={}", job["spec"]["completions"]), format!("--join={name}-0.{subdomain}:{port}")]
    {
        assert!(arguments.contains(&argument), "{argument}: {arguments}");
    }
    let server_name = of_kind(&server, "Service")["metadata"]["name"].as_str().expect("a name").to_owned();
    assert!(arguments.contains(&format!("http://{server_name}/")), "{arguments}");

    // The server's pods have the folder in which the agent makes its socket, and say where that is.
    let places = |objects: &[Value], kind: &str, name: &str| {
        let pod = &of_kind(objects, kind)["spec"]["template"]["spec"];
        let its = |place: &Value| place["name"] == name;
        let find =
            |list: &Value| list.as_array().expect("a list").iter().find(|one| its(one)).expect(name).clone();
        let host = find(&pod["volumes"])["hostPath"]["path"].clone();
        (host, find(&pod["containers"][0]["volumeMounts"])["mountPath"].clone())
    };
    let (of_agent, of_server) =
        (places(&agent, "DaemonSet", "socket"), places(&server, "Deployment", "agent"));
    assert_eq!(of_agent.0, of_server.0, "one folder of the node's");
    assert_eq!(of_agent.1, "/run/overfly", "where the agent listens if nobody says otherwise");
    let variable = &of_kind(&server, "Deployment")["spec"]["template"]["spec"]["containers"][0]["env"][0];
    assert_eq!(variable["value"], format!("{}/agent.sock", of_server.1.as_str().expect("a path")));
}

#[test]
fn the_chart_makes_what_the_manifests_say_and_what_its_values_change() {
    let sorted = |objects: Vec<Value>| {
        let mut texts: Vec<String> = objects.iter().map(Value::to_string).collect();
        texts.sort();
        texts
    };
    let all = json!({"server": {"enabled": true}, "load": {"enabled": true}});
    let plain = ["agent.yaml", "load-server.yaml", "load-job.yaml"].map(objects).concat();
    assert_eq!(sorted(rendered(&all).expect("objects")), sorted(plain), "chart and manifests say the same");
    let agent = rendered(&json!({})).expect("objects");
    assert_eq!(
        sorted(agent.clone()),
        sorted(objects("agent.yaml")),
        "the agent alone, if nobody asks for more"
    );

    let values = json!({
        "image": {"repository": "here/overfly", "tag": "7"},
        "agent": {"folder": "/srv/agent", "policy": "[[rule]]\nusers = [7]\nstacks = 1\n", "nodeSelector": {"fast": "yes"}, "tolerations": []},
        "server": {"enabled": true, "replicas": 5, "profile": "latency"},
        "load": {"enabled": true, "shards": 3, "connections": 9, "duration": "1m", "warmup": "500ms"},
    });
    let changed = rendered(&values).expect("objects");
    let configured = changed.iter().find(|its| its["data"]["broker.toml"].is_string()).expect("a policy");
    assert_eq!(configured["data"]["broker.toml"], values["agent"]["policy"]);
    let pod = |kind: &str| of_kind(&changed, kind)["spec"]["template"]["spec"].clone();
    let (agent, server, load) = (pod("DaemonSet"), pod("Deployment"), pod("Job"));
    assert_eq!(agent["nodeSelector"]["fast"], "yes");
    assert!(agent["tolerations"].is_null());
    for volumes in [&agent["volumes"], &server["volumes"]] {
        assert!(
            volumes.to_string().contains("\"path\":\"/srv/agent\""),
            "one folder of the node's: {volumes}"
        );
    }
    for its in [&agent, &server, &load] {
        assert_eq!(its["containers"][0]["image"], "here/overfly:7");
    }
    assert_eq!(of_kind(&changed, "Deployment")["spec"]["replicas"], 5);
    assert!(words(&server["containers"][0]["command"]).contains(&"latency".to_owned()));
    let job = &of_kind(&changed, "Job")["spec"];
    assert_eq!((&job["completions"], &job["parallelism"]), (&json!(3), &json!(3)));
    let arguments = words(&load["containers"][0]["args"]);
    for argument in ["--shards=3", "-c9", "-d1m", "--warmup=500ms"] {
        assert!(arguments.iter().any(|its| its == argument), "{argument}: {arguments:?}");
    }

    for (values, said) in [
        (json!({"agent": {"polcy": ""}}), "polcy"),
        (json!({"load": {"shards": 0}}), "/load/shards"),
        (json!({"load": {"duration": "soon"}}), "/load/duration"),
    ] {
        let refused = rendered(&values).expect_err("it is refused");
        assert!(refused.contains(said), "{said}: {refused}");
    }
}

/// Starts a pod of the Job as its manifest says, but for what takes long.
fn pod(lab: &Lab, side: &str, index: usize, words: &[String]) -> Child {
    let mut command = lab.command(side, overfly());
    command.args(words).env("JOB_COMPLETION_INDEX", index.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("start a pod")
}

#[test]
fn the_job_s_shards_find_each_other_start_in_step_and_make_one_report() {
    let lab = Lab::routed(overfly()).expect("a lab");
    Nginx::default().install(&lab, &[]);
    let server = Server::nginx(&lab);
    let objects = objects("load-job.yaml");
    let container = &of_kind(&objects, "Job")["spec"]["template"]["spec"]["containers"][0];
    let words = |key: &str| {
        container[key].as_array().expect("words").iter().map(|word| word.as_str().expect("a word").to_owned())
    };
    let changed = |word: String| match word.as_str() {
        "--shards=4" => "--shards=3".to_owned(),
        "-d30s" => "-d2s".to_owned(),
        "--warmup=5s" => "--warmup=200ms".to_owned(),
        "-c64" => "-c4".to_owned(),
        _ => word,
    };
    let words: Vec<String> = words("command").skip(1).chain(words("args")).map(changed).collect();

    // The server has its name; the first pod gets its own when it is there.
    let names = |names: &str| {
        for side in ["client", "middle"] {
            let path = "/dev/shm/hosts";
            lab.write(
                side,
                path,
                format!("127.0.0.1 localhost\n10.77.1.1 overfly-server\n{names}").as_bytes(),
            )
            .expect("write");
        }
    };
    names("");
    for side in ["client", "middle"] {
        let bound = output(&lab, side, &["mount", "--bind", "/dev/shm/hosts", "/etc/hosts"]);
        assert!(bound.status.success(), "{}", String::from_utf8_lossy(&bound.stderr));
    }
    let mut late: Vec<Child> = [1, 2]
        .into_iter()
        .zip(["client", "middle"])
        .map(|(index, side)| pod(&lab, side, index, &words))
        .collect();
    sleep(Duration::from_millis(500));
    assert!(
        late.iter_mut().all(|pod| pod.try_wait().is_ok_and(|ended| ended.is_none())),
        "they wait for a name"
    );
    names("10.77.2.2 overfly-load-0.overfly-load\n");
    let first = pod(&lab, "client", 0, &words).wait_with_output().expect("wait");
    let said = String::from_utf8_lossy(&first.stderr).into_owned();
    assert!(first.status.success() && said.contains("3 of 3: ") && said.contains("Started: "), "{said}");
    let merged: Value = serde_json::from_slice(&first.stdout).expect("one report, the merged one");
    let parts: Vec<Value> = late
        .drain(..)
        .map(|pod| {
            let output = pod.wait_with_output().expect("wait");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            serde_json::from_slice(&output.stdout).expect("a report")
        })
        .collect();
    let number = |value: &Value, key: &str| value[key].as_u64().expect("a number");
    assert_eq!((number(&merged, "connections"), number(&merged, "failed_total")), (12, 0), "{merged}");
    let of_parts: u64 = parts.iter().map(|part| number(part, "succeeded")).sum();
    assert!(parts.iter().all(|part| number(part, "succeeded") > 0));
    assert!(number(&merged, "succeeded") > of_parts, "the first shard's are in it");

    server.stop();
}

/// The words of a list in a manifest.
fn words(list: &Value) -> Vec<String> {
    let words = list.as_array().expect("a list").iter();
    words.map(|word| word.as_str().expect("a word").to_owned()).collect()
}

/// A container as a manifest has it, whose volumes are these folders of the node's.
fn container(objects: &[Value], kind: &str, folders: &[(&str, &Path)], image: Option<&Path>) -> Container {
    let spec = &of_kind(objects, kind)["spec"]["template"]["spec"];
    let container = &spec["containers"][0];
    let security = &container["securityContext"];
    assert_eq!(words(&security["capabilities"]["drop"]), ["ALL"]);
    assert_eq!(security["readOnlyRootFilesystem"], true, "as all containers of the tests have it");
    let user = [&spec["securityContext"], security].into_iter().find_map(|its| its["runAsUser"].as_u64());
    let profiles = [&security["seccompProfile"], &spec["securityContext"]["seccompProfile"]];
    let confinement = profiles.into_iter().find_map(|its| its["type"].as_str()).expect("a profile, or none");
    let capabilities = &security["capabilities"]["add"];
    let mounts = container["volumeMounts"].as_array().expect("a list").iter().filter_map(|mount| {
        let (name, place) = (mount["name"].as_str()?, mount["mountPath"].as_str()?.to_owned());
        let folder = folders.iter().find(|(its, _)| *its == name);
        assert!(folder.is_some() || place == "/tmp", "{name} is no folder that the test knows");
        let is_writable = mount["readOnly"] != true;
        folder.map(|(_, source)| Mount { source: source.to_path_buf(), place, is_writable })
    });
    let variables = container["env"].as_array().into_iter().flatten();
    let mut command = words(&container["command"]);
    if image.is_none() {
        command[0] = overfly().display().to_string();
    }
    Container {
        name: container["name"].as_str().expect("a name").to_owned(),
        user: user.and_then(|user| u32::try_from(user).ok()).expect("a user"),
        words: command
            .into_iter()
            .chain(container["args"].as_array().into_iter().flat_map(|_| words(&container["args"])))
            .collect(),
        environment: variables
            .filter_map(|its| Some(format!("{}={}", its["name"].as_str()?, its["value"].as_str()?)))
            .collect(),
        mounts: mounts.collect(),
        capabilities: if capabilities.is_array() { words(capabilities) } else { Vec::new() }
            .iter()
            .map(|name| format!("CAP_{name}"))
            .collect(),
        sees_node: spec["hostPID"] == true,
        image: image.map(Path::to_owned),
        is_confined: confinement == "RuntimeDefault",
    }
}

/// A node whose agent and pods are as the manifests have them.
struct Cluster {
    node: Node,
    /// The agent's own pod, and the server's.
    system: Pod,
    pod: Pod,
    agent: Container,
    server: Container,
    _settings: [tempfile::TempDir; 2],
}

impl Cluster {
    /// Its containers have this image, or the node's programs.
    fn new(image: Option<&Path>) -> Cluster {
        let node = Node::new();
        let (system, pod) = (node.pod(11, MOUNTED), node.pod(12, MOUNTED));
        let settings = |file: &str, key: &str| {
            let objects = objects(file);
            let value = of_kind(&objects, "ConfigMap")["data"][key].as_str().expect("a value").to_owned();
            (objects, value)
        };
        let (agent, policy) = settings("agent.yaml", "broker.toml");
        assert!(policy.contains("\"/kubepods\""), "{policy}");
        let policy = policy.replace("\"/kubepods\"", &format!("\"{}\"", pod.group()));
        let (server, configuration) = settings("load-server.yaml", "nginx.conf");
        let folders = [("broker.toml", policy), ("nginx.conf", configuration)].map(|(name, words)| {
            let folder = tempfile::tempdir().expect("a folder");
            std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
            std::fs::write(folder.path().join(name), words).expect("write");
            folder
        });
        let [of_agent, of_server] = &folders;
        let socket = node.folder.path();
        let agent = container(&agent, "DaemonSet", &[("socket", socket), ("policy", of_agent.path())], image);
        let mut server = container(
            &server,
            "Deployment",
            &[("agent", socket), ("configuration", of_server.path())],
            image,
        );
        server.environment.push("EF_NO_FAIL=0".to_owned());
        Cluster { system, pod, agent, server, node, _settings: folders }
    }

    /// An agent's container, once it listens.
    fn begin(&self, agent: &Container) -> Running {
        let agent = agent.start(&self.system);
        eventually("the agent listens", || agent.log().contains("containers are served"));
        agent
    }

    /// Whether the server is accelerated before it ends.
    fn is_served(&self, server: &mut Running) -> bool {
        (0..100).any(|_| {
            sleep(Duration::from_millis(50));
            self.node.fetched(&self.pod, 8080) == "ok\n" && self.pod.accepts() > 0 || server.has_ended()
        }) && !server.has_ended()
    }
}

/// The agent's container serves a pod's, each as its manifest has it but for what the agent may do.
fn serves_with(cluster: &Cluster, capabilities: &[String]) -> Result<(), String> {
    let agent = Container { capabilities: capabilities.to_vec(), ..cluster.agent.clone() };
    served_by(cluster, &agent)
}

fn served_by(cluster: &Cluster, agent: &Container) -> Result<(), String> {
    let agent = cluster.begin(agent);
    let mut server = cluster.server.start(&cluster.pod);
    let is_served = cluster.is_served(&mut server);
    let log = format!("{}\n{}", agent.log(), server.log());
    if !is_served {
        return Err(log);
    }
    assert!(server.end(Signal::TERM).success(), "{}", server.log());
    if log.contains("Operation not permitted") { Err(log) } else { Ok(()) }
}

/// An image in a storage of its own, mounted.
struct Image {
    storage: tempfile::TempDir,
    root: PathBuf,
}

impl Image {
    fn new() -> Image {
        let storage = tempfile::tempdir().expect("a folder");
        std::fs::set_permissions(storage.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
        let place = storage.path().display();
        let settings =
            format!("[storage]\ndriver = 'overlay'\nrunroot = '{place}/run'\ngraphroot = '{place}/graph'\n");
        std::fs::write(storage.path().join("storage.conf"), settings).expect("write");
        let mut image = Image { storage, root: PathBuf::new() };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/image.sh");
        image.done(&script, &["overfly:tested"]);
        let container =
            image.done(Path::new("buildah"), &["from", "--pull-never", "localhost/overfly:tested"]);
        image.root = image.done(Path::new("buildah"), &["mount", &container]).into();
        image
    }

    /// What a command prints that finds its containers in this storage.
    fn done(&self, program: &Path, words: &[&str]) -> String {
        let mut command = Command::new(program);
        command.args(words).env("CONTAINERS_STORAGE_CONF", self.storage.path().join("storage.conf"));
        let output = command.env("BUILD", overfly().parent().expect("a folder")).output().expect("start");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} {words:?}: {said}", program.display());
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let mut command = Command::new("buildah");
        command.args(["umount", "--all"]).stdout(Stdio::null());
        let _ = command.env("CONTAINERS_STORAGE_CONF", self.storage.path().join("storage.conf")).status();
    }
}

#[test]
#[ignore = "makes a Debian: needs buildah, podman, debootstrap and Debian's mirror, and takes a minute; `make packages-test` has it"]
fn the_image_has_what_the_manifests_start() {
    if !on_own_machine("the_image_has_what_the_manifests_start") {
        return;
    }
    let image = Image::new();
    let cluster = Cluster::new(Some(&image.root));
    served_by(&cluster, &cluster.agent).expect("the image's agent serves the image's nginx");

    // And by podman, which knows nothing of Kubernetes.
    let agent = cluster.begin(&cluster.agent);
    let mut server = cluster.server.start_by_podman(
        &cluster.pod,
        &image.storage.path().join("storage.conf"),
        "localhost/overfly:tested",
    );
    assert!(cluster.is_served(&mut server), "{}{}", agent.log(), server.log());
    send(server.process, Signal::TERM);
    eventually("podman's container ends", || server.has_ended());
    eventually("its broker ends", || cluster.pod.brokers().is_empty());
    assert!(!cluster.pod.is_steered());
}

#[test]
fn the_kubelet_starts_agent_and_server_again_and_they_find_each_other() {
    if !on_own_machine("the_kubelet_starts_agent_and_server_again_and_they_find_each_other") {
        return;
    }
    let cluster = Cluster::new(None);
    let mut agent = cluster.begin(&cluster.agent);
    let mut server = cluster.server.start(&cluster.pod);
    assert!(cluster.is_served(&mut server), "{}{}", agent.log(), server.log());
    let brokers = cluster.pod.brokers();
    // The agent's pod is deleted: whatever is in its container ends, the brokers of other pods too.
    assert!(agent.end(Signal::TERM).success(), "{}", agent.log());
    eventually("the pod's broker ends", || brokers.iter().all(|&id| !alive(id)));
    eventually("the pod's program ends", || server.has_ended());
    assert!(!cluster.pod.is_steered(), "the pod's interface is as before");
    let agent = cluster.begin(&cluster.agent);
    let mut server = cluster.server.start(&cluster.pod);
    assert!(cluster.is_served(&mut server), "{}{}", agent.log(), server.log());
}

#[test]
fn the_agent_has_the_capabilities_that_it_needs_and_no_others_and_the_server_none() {
    if !on_own_machine("the_agent_has_the_capabilities_that_it_needs_and_no_others_and_the_server_none") {
        return;
    }
    let objects = objects("agent.yaml");
    let pod = &of_kind(&objects, "DaemonSet")["spec"]["template"]["spec"];
    assert_eq!(pod["hostPID"], true);
    let capabilities = &pod["containers"][0]["securityContext"]["capabilities"];
    assert_eq!(words(&capabilities["drop"]), ["ALL"]);
    assert_eq!(words(&capabilities["add"]), agents_capabilities(), "as systemd's unit");
    let all: Vec<String> = words(&capabilities["add"]).iter().map(|name| format!("CAP_{name}")).collect();
    let cluster = Cluster::new(None);
    serves_with(&cluster, &all).expect("with what the manifest has");
    for without in &all {
        let rest: Vec<String> = all.iter().filter(|name| *name != without).cloned().collect();
        let outcome = serves_with(&cluster, &rest);
        println!("without {without}: {outcome:?}");
        assert!(outcome.is_err(), "{without} is in the manifest, and nothing needs it");
    }
}

//! Runs profiles by `python3 -m overfly.astf compile`, and reads the form that comes out.
//!
//! A profile is a program: it runs as the user, in a child process. Who called `sudo` is the user then, not root.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::form::Form;
use crate::error::Error;

/// What is compiled.
#[derive(Debug, Clone, Default)]
pub(crate) struct Source {
    pub(crate) profiles: Vec<PathBuf>,
    /// Of `-t`, as one word.
    pub(crate) tunables: Option<String>,
    pub(crate) topology: Option<PathBuf>,
    /// Where the package is, if somebody says so.
    pub(crate) python: Option<PathBuf>,
}

/// What compiling came to.
pub(crate) enum Compiled {
    Form(Box<Form>),
    /// The profile said something instead, such as its help: to be printed.
    Text(String),
    /// It is wrong, and what is wrong was said on standard error.
    Refused,
}

/// Finds the package in the folder that is its first argument.
const START: &str = "import sys; sys.dont_write_bytecode = True; sys.path.insert(0, sys.argv.pop(1)); \
     from overfly.astf.__main__ import main; main()";

/// Compiles. Messages go to standard error as they come.
pub(crate) fn compile(source: &Source) -> Result<Compiled, Error> {
    let package = package(source.python.as_deref())?;
    let mut command = Command::new("python3");
    // As `python3 -m overfly.astf compile` with PYTHONPATH, but no folder of the user's can stand in for a module.
    command.arg("-I").arg("-c").arg(START).arg(&package).arg("compile").args(&source.profiles);
    if let Some(topology) = &source.topology {
        command.arg("--topology").arg(topology);
    }
    // Last: after `-t --…` all the rest is the profile's.
    if let Some(tunables) = &source.tunables {
        command.arg("-t");
        if tunables.starts_with('-') {
            command.args(tunables.split_whitespace());
        } else {
            command.arg(tunables);
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    if let Some((user, group)) = caller() {
        // Without root's supplementary groups: std leaves them behind with the user.
        command.uid(user).gid(group);
    }
    let output = command.spawn().and_then(std::process::Child::wait_with_output).map_err(|error| {
        Error::machine("python3, which runs profiles", format!("{error}: install Python 3.9 or later"))
    })?;
    if !output.status.success() {
        return Ok(Compiled::Refused);
    }
    if output.stdout.first() != Some(&b'{') {
        return Ok(Compiled::Text(String::from_utf8_lossy(&output.stdout).into_owned()));
    }
    let form = Form::read(&output.stdout).map_err(|error| {
        Error::machine(
            format!("the form that {} wrote", package.display()),
            format!("{error}: install it together with this overfly"),
        )
    })?;
    Ok(Compiled::Form(Box::new(form)))
}

/// Where the Python package is: beside the installation, or in the checkout that this was built in.
fn package(given: Option<&Path>) -> Result<PathBuf, Error> {
    let folder = std::env::current_exe().ok().and_then(|path| Some(path.parent()?.to_owned()));
    // So many folders up, and what is there.
    let beside = [(1, "share/overfly/python"), (1, "lib/overfly/python"), (2, "python"), (3, "python")];
    let places = given.map(Path::to_owned).into_iter().chain(
        folder
            .into_iter()
            .flat_map(|folder| beside.map(|(up, place)| Some(folder.ancestors().nth(up)?.join(place))))
            .flatten()
            .chain([
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python"),
                "/usr/share/overfly/python".into(),
            ])
            .filter(|_| given.is_none()),
    );
    let mut looked = Vec::new();
    for place in places {
        if place.join("overfly/astf/__main__.py").is_file() {
            return Ok(place);
        }
        looked.push(place.display().to_string());
    }
    Err(Error::machine(
        "the Python package overfly, which reads profiles, is not there",
        format!("--python FOLDER says where it is; looked in {}", looked.join(", ")),
    ))
}

/// Who called `sudo`, if this is root on somebody's behalf; or the real user of a program that is root by its mode.
fn caller() -> Option<(u32, u32)> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let user = rustix::process::getuid().as_raw();
    if user != 0 {
        return Some((user, rustix::process::getgid().as_raw()));
    }
    let user = number("SUDO_UID").filter(|user| *user != 0)?;
    Some((user, number("SUDO_GID").unwrap_or(user)))
}

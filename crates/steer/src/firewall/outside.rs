//! What judges packets besides nf_tables, and cannot be followed: tables of the old ip_tables, and programs of control groups
//! (systemd's IPAddressDeny).

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use overfly_broker::Protocol;
use overfly_broker::message::{Kind, Request};
use rustix::fs::{Mode, OFlags, fstat, fstatfs, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::{Pid, test_kill_process};

use crate::error::{Error, last_error};

/// `BPF_PROG_QUERY` of `bpf(2)`.
const BPF_PROG_QUERY: libc::c_int = 16;
/// Programs of all groups above, too.
const BPF_F_QUERY_EFFECTIVE: u32 = 1;
/// `enum bpf_attach_type`: what a socket's packets go by.
const PACKETS: [u32; 2] = [0, 1];
const CONNECT: [u32; 2] = [10, 11];
const SEND_AND_RECEIVE: [u32; 4] = [14, 15, 19, 20];
/// `CGROUP2_SUPER_MAGIC` of include/uapi/linux/magic.h.
const CGROUP2: rustix::fs::FsWord = 0x6367_7270;
/// How long it is taken for granted that a process's group has no programs.
const TRUST: Duration = Duration::from_secs(1);
const PROCESSES_MAX: usize = 1024;

/// The tables of the old ip_tables or ip6_tables in this thread's network namespace.
pub(crate) fn old_tables(ipv4: bool) -> Vec<String> {
    let name = if ipv4 { "ip_tables_names" } else { "ip6_tables_names" };
    let names = std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    names.lines().map(str::to_owned).collect()
}

/// Which processes and sockets have been looked at.
#[derive(Debug, Default)]
pub(crate) struct ControlGroups {
    /// Without programs, as of then.
    free: RefCell<HashMap<(Pid, bool, bool), Instant>>,
    hierarchy: Hierarchy,
    stacks: BTreeMap<u16, Holder>,
    /// The stacks whose packets a program judges.
    judged: BTreeSet<u16>,
    /// Of some stack's process a program judges connect() since a look, which nobody has asked about yet.
    judges_connects: bool,
}

/// Who has a stack.
#[derive(Debug)]
struct Holder {
    process: Pid,
    /// The groups by which the kernel judges its sockets, by their numbers: those in which the process was seen, and in which
    /// sockets were made that it listens with. With each, what judges there. What a group that has gone, or cannot be opened any more, had last counts on: its sockets keep it.
    groups: BTreeMap<u64, Option<String>>,
    /// A program judges the process's connect(), as of the last look.
    judges_connect: bool,
}

impl Holder {
    /// Looks at all groups. What judges, if anything does.
    fn look(&mut self, hierarchy: &Hierarchy) -> Option<String> {
        let mut present = 0;
        match hierarchy.group_of(self.process) {
            Ok(Some((group, name))) => {
                present = fstat(&group).map_or(0, |status| status.st_ino);
                self.groups.insert(present, judge_at(group.as_fd(), &name, &PACKETS));
                self.judges_connect = judge_at(group.as_fd(), &name, &CONNECT).is_some();
            }
            Ok(None) => self.judges_connect = false,
            Err(error) if is_over(self.process, &error) => return None,
            Err(error) => return Some(unreadable(self.process, &error)),
        }
        for (&number, judge) in self.groups.iter_mut().filter(|(number, _)| **number != present) {
            if let Ok((group, name)) = hierarchy.group_at(number) {
                *judge = judge_at(group.as_fd(), &name, &PACKETS);
            }
        }
        self.groups.values().flatten().next().cloned()
    }
}

impl ControlGroups {
    /// Whether nothing in a process's control group judges the packets of what it asks for.
    ///
    /// # Errors
    /// [`Error::Firewall`] if something does, or it cannot be told.
    pub(crate) fn check(&self, process: Pid, request: &Request) -> Result<(), Error> {
        let key = (process, request.kind == Kind::Connect, request.protocol == Protocol::Udp);
        let now = Instant::now();
        let mut free = self.free.borrow_mut();
        if free.get(&key).is_some_and(|since| now.duration_since(*since) < TRUST) {
            return Ok(());
        }
        let judge = match self.hierarchy.group_of(process) {
            Ok(Some((group, name))) => judge_at(group.as_fd(), &name, &hooks(request)),
            Ok(None) => None,
            Err(error) if is_over(process, &error) => None,
            Err(error) => Some(unreadable(process, &error)),
        };
        if let Some(judge) = judge {
            return Err(Error::Firewall(judge));
        }
        if free.len() >= PROCESSES_MAX {
            free.clear();
        }
        free.insert(key, now);
        Ok(())
    }

    /// Whether nothing judges the packets of a socket that was made in the control group of that number, which a stack listens
    /// with from now on.
    ///
    /// # Errors
    /// As [`ControlGroups::check`].
    pub(crate) fn check_socket(&mut self, stack: u16, group: u64, request: &Request) -> Result<(), Error> {
        // Most are made by the process itself, whose group is looked at without CAP_DAC_READ_SEARCH.
        if self.stacks.get(&stack).is_some_and(|holder| holder.groups.get(&group) == Some(&None)) {
            return Ok(());
        }
        let judge = match self.hierarchy.group_at(group) {
            Ok((folder, name)) => judge_at(folder.as_fd(), &name, &hooks(request)),
            Err(error) => Some(format!(
                "the control group in which the socket was made cannot be opened ({error}), so that nobody knows of its programs"
            )),
        };
        if let Some(judge) = judge {
            return Err(Error::Firewall(judge));
        }
        if let Some(holder) = self.stacks.get_mut(&stack) {
            holder.groups.entry(group).or_default();
        }
        Ok(())
    }

    /// A stack is a process's from now on, whose group is looked at. (If a program judges it already, its listeners say so.)
    pub(crate) fn watch(&mut self, stack: u16, process: Pid) {
        let mut holder = Holder { process, groups: BTreeMap::new(), judges_connect: false };
        if holder.look(&self.hierarchy).is_some() {
            self.judged.insert(stack);
        }
        self.stacks.insert(stack, holder);
    }

    /// A stack is nobody's any more. Its number may be another's soon.
    pub(crate) fn forget(&mut self, stack: u16) {
        self.stacks.remove(&stack);
        self.judged.remove(&stack);
    }

    /// Looks at the groups of all stacks: nobody tells when a program comes or goes. What there is to say, a line for each process
    /// with news.
    pub(crate) fn look(&mut self) -> Vec<String> {
        let mut news = BTreeMap::new();
        for (&stack, holder) in &mut self.stacks {
            let judged = holder.judges_connect;
            let judge = holder.look(&self.hierarchy);
            if holder.judges_connect && !judged {
                self.free.borrow_mut().retain(|(known, ..), _| *known != holder.process);
                self.judges_connects = true;
            }
            let pid = holder.process.as_raw_nonzero();
            if judge.is_none() && self.judged.remove(&stack) {
                news.insert(pid, format!("process {pid} is accelerated again: no BPF program of its control groups judges its packets any more"));
            }
            if let Some(judge) = judge
                && self.judged.insert(stack)
            {
                self.free.borrow_mut().retain(|(known, ..), _| *known != holder.process);
                let then =
                    "the kernel serves its new connections, and those that Overfly carries stand still";
                news.insert(pid, format!("process {pid}: {judge}: {then}"));
            }
        }
        news.into_values().collect()
    }

    /// Whether a program has begun to judge connect() of a process that has a stack: what it was granted before counts no more.
    pub(crate) fn begins_to_judge_connects(&mut self) -> bool {
        std::mem::take(&mut self.judges_connects)
    }

    /// The stacks whose packets a program judges, as of the last look.
    pub(crate) const fn judged(&self) -> &BTreeSet<u16> {
        &self.judged
    }
}

/// What of a group's programs concerns a request.
fn hooks(request: &Request) -> Vec<u32> {
    let (connects, datagrams) = (request.kind == Kind::Connect, request.protocol == Protocol::Udp);
    let mut hooks = PACKETS.to_vec();
    hooks.extend(CONNECT.iter().filter(|_| connects));
    hooks.extend(SEND_AND_RECEIVE.iter().filter(|_| datagrams));
    hooks
}

/// Whether a process has no group because it has gone.
fn is_over(process: Pid, error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotFound && test_kill_process(process).is_err()
}

fn unreadable(process: Pid, error: &std::io::Error) -> String {
    let pid = process.as_raw_nonzero();
    format!(
        "the control group of process {pid} cannot be read ({error}), so that nobody knows of its programs"
    )
}

/// Why packets are the kernel's: what a control group has at one of these hooks.
fn judge_at(group: BorrowedFd<'_>, name: &str, hooks: &[u32]) -> Option<String> {
    hooks.iter().find_map(|&hook| match programs(group, hook) {
        Ok(0) => None,
        Ok(count) => Some(format!(
            "{count} BPF programs of the control group {name}, or those above, judge its packets (systemd's IPAddressDeny= and the like; `bpftool cgroup tree` lists them)"
        )),
        Err(errno) => Some(format!("the programs of the control group {name} cannot be read ({errno})")),
    })
}

/// The second hierarchy of control groups.
#[derive(Debug, Default)]
struct Hierarchy {
    /// Its root where no mount shows it: mounted nowhere, it goes with this descriptor. It is kept since the kernel takes 7 ms to make one.
    hidden: OnceCell<OwnedFd>,
}

impl Hierarchy {
    /// The folder of the group of a number, and its name. Needs CAP_DAC_READ_SEARCH.
    fn group_at(&self, number: u64) -> Result<(OwnedFd, String), std::io::Error> {
        /// `struct file_handle` of open_by_handle_at(2), as kernfs fills it (`FILEID_KERNFS`, include/linux/exportfs.h).
        #[repr(C)]
        struct Handle {
            length: u32,
            kind: i32,
            number: u64,
        }
        let mut handle = Handle { length: 8, kind: 0xfe, number };
        // A mount's own descriptor is none that can be asked.
        let root =
            openat(&self.root()?, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        // SAFETY: `handle` has the form of a file handle of that length, and outlives the call.
        let group = unsafe {
            libc::open_by_handle_at(
                root.as_raw_fd(),
                (&raw mut handle).cast(),
                libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC,
            )
        };
        if group < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else knows.
        let group = unsafe { OwnedFd::from_raw_fd(group) };
        let name = std::fs::read_link(format!("/proc/self/fd/{}", group.as_raw_fd()))?;
        Ok((group, name.to_string_lossy().into_owned()))
    }

    /// The folder of a process's group in the second hierarchy, and its name; `None` if it is in none.
    fn group_of(&self, process: Pid) -> Result<Option<(OwnedFd, String)>, std::io::Error> {
        let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", process.as_raw_nonzero()))?;
        let Some(path) = groups.lines().find_map(|line| line.strip_prefix("0::")) else { return Ok(None) };
        let inside = path.trim_start_matches('/');
        let inside = if inside.is_empty() { "." } else { inside };
        let group = openat(
            &self.root()?,
            inside,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Some((group, path.to_owned())))
    }

    /// The second hierarchy's root.
    fn root(&self) -> Result<OwnedFd, std::io::Error> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        // What stands there may be hidden by another mount.
        let is_it = |file: &File| fstatfs(file).is_ok_and(|told| told.f_type == CGROUP2);
        if let Some(root) = mounted(&mounts).and_then(|at| File::open(at).ok()).filter(is_it) {
            return Ok(root.into());
        }
        if let Some(hidden) = self.hidden.get() {
            return hidden.try_clone();
        }
        // `ip netns exec` hides it, for one.
        let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(context.as_fd())?;
        let root = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        self.hidden.get_or_init(|| root).try_clone()
    }
}

/// Where the second hierarchy is mounted as a whole (Documentation/filesystems/proc.rst, mountinfo).
fn mounted(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        (kind.starts_with("cgroup2 ") && root == "/").then(|| PathBuf::from(at))
    })
}

/// How many programs a group and those above it have at a hook.
fn programs(group: BorrowedFd<'_>, hook: u32) -> Result<u32, Errno> {
    // union bpf_attr, query: target_fd, attach_type, query_flags, attach_flags, prog_ids (64 bits), prog_cnt, and what later
    // kernels add. Without room for their numbers it says how many there are.
    const COUNT: usize = 6;
    let mut attributes = [0_u32; 32];
    attributes[..3].copy_from_slice(&[group.as_raw_fd() as u32, hook, BPF_F_QUERY_EFFECTIVE]);
    // SAFETY: the kernel reads and writes at most the given number of bytes of `attributes`, and `prog_ids` is null.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_PROG_QUERY, attributes.as_mut_ptr(), size_of_val(&attributes))
    };
    match result {
        0 => Ok(attributes[COUNT]),
        _ => match last_error() {
            // A kernel without control groups' programs.
            Errno::INVAL | Errno::OPNOTSUPP => Ok(0),
            errno => Err(errno),
        },
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{AtFlags, mkdirat, unlinkat};

    use super::*;

    /// `bpf(2)` with a few numbers.
    fn bpf(command: libc::c_int, attributes: &mut [u32; 32]) -> libc::c_int {
        // SAFETY: the kernel reads and writes at most the given number of bytes of `attributes`, whose pointers are to memory
        // that outlives the call.
        let result = unsafe {
            libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size_of_val(attributes))
        };
        assert!(result >= 0, "bpf {command}: {}", std::io::Error::last_os_error());
        result as libc::c_int
    }

    const BPF_PROG_ATTACH: libc::c_int = 8;
    const BPF_PROG_DETACH: libc::c_int = 9;
    const CGROUP_SKB: u32 = 8;
    const CGROUP_SOCK_ADDR: u32 = 18;

    /// A program of a type, for a hook of that, that lets everything through: `r0 = 1; exit`.
    fn program(kind: u32, hook: u32) -> OwnedFd {
        const BPF_PROG_LOAD: libc::c_int = 5;
        let instructions: [u64; 2] = [0x0000_0001_0000_00b7, 0x95];
        let mut attributes = [0_u32; 32];
        attributes[..2].copy_from_slice(&[kind, 2]);
        attributes[17] = hook;
        for (at, pointer) in [(2, instructions.as_ptr().addr()), (4, c"GPL".as_ptr().addr())] {
            attributes[at] = pointer as u32;
            attributes[at + 1] = (pointer as u64 >> 32) as u32;
        }
        // SAFETY: a new descriptor that nobody else knows.
        unsafe { OwnedFd::from_raw_fd(bpf(BPF_PROG_LOAD, &mut attributes)) }
    }

    /// A control group with a process; both go with it.
    struct Group {
        root: OwnedFd,
        name: String,
        process: std::process::Child,
    }

    impl Drop for Group {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
            let end = Instant::now() + Duration::from_secs(5);
            while unlinkat(&self.root, &self.name, AtFlags::REMOVEDIR).is_err() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Made for a test, and what its programs are attached to.
    fn group(test: &str) -> (Group, OwnedFd) {
        let root = Hierarchy::default().root().unwrap();
        let name = format!("overfly-test-{test}-{}", std::process::id());
        mkdirat(&root, &name, Mode::from_raw_mode(0o755)).unwrap();
        let process = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let group = Group { root, name, process };
        let id = group.process.id();
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let members =
            openat(&group.root, format!("{}/cgroup.procs", group.name), flags, Mode::empty()).unwrap();
        rustix::io::write(&members, id.to_string().as_bytes()).unwrap();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = openat(&group.root, &group.name, flags, Mode::empty()).unwrap();
        (group, folder)
    }

    #[test]
    fn a_program_that_judges_connect_is_news() {
        let (group, folder) = group("connect");
        let pid = Pid::from_raw(group.process.id().cast_signed()).unwrap();
        let mut groups = ControlGroups::default();
        groups.watch(5, pid);
        let connect = Request::new(Kind::Connect);
        assert!(groups.check(pid, &connect).is_ok());
        assert!(groups.look().is_empty() && !groups.begins_to_judge_connects());
        let program = program(CGROUP_SOCK_ADDR, CONNECT[0]);
        let mut attributes = [0_u32; 32];
        attributes[..3].copy_from_slice(&[folder.as_raw_fd() as u32, program.as_raw_fd() as u32, CONNECT[0]]);
        bpf(BPF_PROG_ATTACH, &mut attributes);
        assert!(groups.look().is_empty() && groups.judged().is_empty(), "it does not judge packets");
        assert!(groups.begins_to_judge_connects() && groups.check(pid, &connect).is_err());
        assert!(groups.look().is_empty() && !groups.begins_to_judge_connects());
        bpf(BPF_PROG_DETACH, &mut attributes);
        assert!(groups.look().is_empty() && !groups.begins_to_judge_connects());
        assert!(groups.check(pid, &connect).is_ok());
    }

    #[test]
    fn a_process_whose_group_has_a_program_is_the_kernels() {
        let (group, folder) = group("packets");
        let id = group.process.id();
        let pid = Pid::from_raw(id.cast_signed()).unwrap();
        let listen = Request::new(Kind::Listen);
        let own = rustix::process::getpid();
        let before = ControlGroups::default().check(own, &listen);
        assert!(ControlGroups::default().check(pid, &listen).is_ok(), "{before:?}");
        let mut groups = ControlGroups::default();
        groups.watch(5, pid);
        groups.watch(6, own);
        assert!(groups.look().is_empty());
        let program = program(CGROUP_SKB, 0);
        let mut attributes = [0_u32; 32];
        let numbers = [folder.as_raw_fd() as u32, program.as_raw_fd() as u32, PACKETS[1]];
        attributes[..3].copy_from_slice(&numbers);
        bpf(BPF_PROG_ATTACH, &mut attributes);
        let error = ControlGroups::default().check(pid, &listen).unwrap_err().to_string();
        assert!(error.contains(&group.name) && error.contains("1 BPF programs"), "{error}");
        assert!(ControlGroups::default().check(own, &listen).is_ok());

        // Who has a stack already is looked at again.
        let news = groups.look();
        assert!(
            news.len() == 1 && news[0].contains(&group.name) && news[0].contains(&id.to_string()),
            "{news:?}"
        );
        assert_eq!(groups.judged(), &BTreeSet::from([5]));
        assert!(groups.check(pid, &listen).is_err());
        assert!(groups.look().is_empty(), "said once");
        bpf(BPF_PROG_DETACH, &mut attributes);
        let news = groups.look();
        assert!(news.len() == 1 && news[0].contains("accelerated again"), "{news:?}");
        assert!(groups.judged().is_empty());
        groups.forget(5);
        assert!(groups.look().is_empty());
    }

    #[test]
    fn the_second_hierarchy_is_found_where_it_is_mounted() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro\n\
                      31 30 0:27 /part /mnt rw shared:5 - cgroup2 cgroup2 rw\n\
                      32 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:5 - cgroup2 cgroup2 rw\n";
        assert_eq!(mounted(mounts), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(mounted("1 2 0:3 / / rw - ext4 /dev/vda rw\n"), None);
    }
}

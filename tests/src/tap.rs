//! The frames of a lab's server as a file: a macvtap device on its end of the link, in place of the kernel's addresses.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Ipv6Addr;
use std::process::Command;

use overfly_bench::lab::{DEVICE, Lab, SCRATCH};
use overfly_wire::MacAddr;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, Timespec};
use rustix::mount::{MountFlags, mount_remount};

/// The server's address over IPv6.
pub const SERVER6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
/// The client's, which the kernel has.
pub const CLIENT6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);

/// A virtio_net_hdr without offloads stands before each frame.
const VNET_HEADER: usize = 10;

/// The server's end of the link. The device goes with the lab.
#[derive(Debug)]
pub struct Tap {
    file: File,
    /// Its hardware address.
    pub mac: MacAddr,
}

impl Tap {
    /// Takes the server's addresses from the kernel, and opens the device. The client sends whole frames with whole checksums,
    /// as on a wire, and what it sends to groups comes too (by itself a macvtap device takes some of it by chance: its filter
    /// is a hash).
    ///
    /// # Panics
    /// If that fails.
    #[must_use]
    pub fn new(lab: &Lab) -> Self {
        let offloads = ["ethtool", "-K", DEVICE, "tx", "off", "tso", "off", "gso", "off", "gro", "off"];
        configure(lab, "client", &offloads);
        let address = format!("{CLIENT6}/64");
        configure(lab, "client", &["ip", "address", "replace", &address, "dev", DEVICE, "nodad"]);
        for words in [
            &["ip", "address", "flush", "dev", DEVICE][..],
            &["ip", "link", "add", "link", DEVICE, "name", "tap0", "type", "macvtap", "mode", "passthru"],
            &["ip", "link", "set", "tap0", "up", "txqueuelen", "8192", "allmulticast", "on"],
        ] {
            configure(lab, "server", words);
        }
        lab.within("server", open).expect("enter the server")
    }

    /// Reads a frame into `buffer`; `None` if none waits.
    ///
    /// # Panics
    /// If the device fails.
    pub fn read<'a>(&mut self, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        match self.file.read(buffer) {
            Ok(length) => Some(&buffer[VNET_HEADER..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("read from the tap: {error}"),
        }
    }

    /// Writes a frame.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if the device's queue is full, [`ErrorKind::InvalidInput`] if the kernel does not take such a
    /// frame.
    pub fn write(&mut self, frame: &[u8]) -> io::Result<()> {
        let whole = [&[0; VNET_HEADER][..], frame].concat();
        let written = self.file.write(&whole)?;
        assert_eq!(written, whole.len(), "a device takes a frame whole");
        Ok(())
    }

    /// Waits for a frame, for `pause` at most (below a second).
    pub fn wait(&self, pause: std::time::Duration) {
        let pause = Timespec { tv_sec: 0, tv_nsec: pause.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&pause));
    }
}

/// Runs a command in a side of the lab, without the `overfly` command that may not have been built.
fn configure(lab: &Lab, side: &str, words: &[&str]) {
    let output = lab.within(side, || Command::new(words[0]).args(&words[1..]).output());
    let output = output.expect("enter the side").expect("start a command");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Opens the device, inside the server's namespaces.
fn open() -> Tap {
    let class = "/sys/class/net/tap0";
    let read = |name: &str| std::fs::read_to_string(format!("{class}/{name}")).expect("a device's file");
    let mut octets = [0; 6];
    for (octet, text) in octets.iter_mut().zip(read("address").trim().split(':')) {
        *octet = u8::from_str_radix(text, 16).expect("a hexadecimal octet");
    }
    let number = read(&format!("tap{}/dev", read("ifindex").trim()));
    let (major, minor) = number.trim().split_once(':').expect("major:minor");
    let device = rustix::fs::makedev(major.parse().expect("major"), minor.parse().expect("minor"));
    // In the lab's own tmpfs, which is mounted without devices; the name is not needed beyond the opening.
    mount_remount(SCRATCH, MountFlags::NOSUID, "").expect("allow devices");
    let path = format!("{SCRATCH}/tap0");
    let path = path.as_str();
    rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, Mode::RUSR | Mode::WUSR, device)
        .expect("make a device node");
    let file = rustix::fs::open(path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
        .expect("open the device node");
    rustix::fs::unlink(path).expect("remove the device node");
    Tap { file: File::from(file), mac: MacAddr(octets) }
}

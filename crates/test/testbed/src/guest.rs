//! A running guest of any kind, and its specification.
//!
//! Guests differ in how they are started ([`uml`](crate::uml), [`qemu`](crate::qemu)); from then on they are
//! a process group and a console with the same agent behind it. Dropping a guest kills it without telling it,
//! like a power cut.

use crate::console::Console;
use crate::endpoint::{Endpoint, Running};
use crate::process::Group;
use anyhow::{Context, Result};
use rustix::process::Signal;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a guest may take to boot. Three emulated ones at once on a busy machine take 40 s.
pub const BOOT_TIMEOUT: Duration = Duration::from_secs(60);

/// The connection of the guest's network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// No interface at all.
    None,
    /// A vhost-user socket on which the switch listens.
    VhostUser(PathBuf),
    /// A vhost-user socket on which the guest's VMM listens and the switch connects (QEMU only).
    VhostUserServer(PathBuf),
    /// An existing TAP.
    Tap {
        /// Name of the interface.
        interface: String,
        /// The namespace it is in.
        namespace: Option<String>,
    },
}

/// The specification of a guest.
#[derive(Clone, Debug)]
pub struct GuestOptions {
    /// Host name, at most 63 characters of `[a-z0-9-]`.
    pub name: String,
    /// Memory in MiB.
    pub memory: u32,
    /// The connection of its interface.
    pub network: Network,
    /// A TAP that is a second network card, `vec0`, and its namespace (User Mode Linux only).
    pub card: Option<(String, String)>,
    /// Hardware address; one made from the name by default.
    pub mac: String,
    /// Largest IP packet of the interface; the driver's default if `None`.
    pub mtu: Option<u16>,
    /// Addresses with prefix length.
    pub addresses: Vec<String>,
    /// The host's processor on which it runs, with all its threads; any if `None`.
    pub processor: Option<usize>,
}

impl GuestOptions {
    /// A guest with 192 MiB and no network.
    pub fn new(name: &str) -> GuestOptions {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let [a, b, c, d, ..] = hasher.finish().to_be_bytes();
        GuestOptions {
            name: name.into(),
            memory: 192,
            network: Network::None,
            card: None,
            mac: format!("02:00:{a:02x}:{b:02x}:{c:02x}:{d:02x}"),
            mtu: None,
            addresses: Vec::new(),
            processor: None,
        }
    }

    /// Connects the interface to a vhost-user socket on which the switch listens.
    pub fn vhost_user(mut self, socket: impl Into<PathBuf>) -> GuestOptions {
        self.network = Network::VhostUser(socket.into());
        self
    }

    /// Connects the interface to an existing TAP.
    pub fn tap(mut self, interface: &str, namespace: Option<&str>) -> GuestOptions {
        self.network = Network::Tap {
            interface: interface.into(),
            namespace: namespace.map(Into::into),
        };
        self
    }

    /// Gives the guest a second network card, which is an existing TAP in a namespace.
    pub fn card(mut self, interface: &str, namespace: &str) -> GuestOptions {
        self.card = Some((interface.into(), namespace.into()));
        self
    }

    /// Adds an address with prefix length.
    pub fn address(mut self, address: &str) -> GuestOptions {
        self.addresses.push(address.into());
        self
    }

    /// Pins it to a processor of the host.
    pub fn processor(mut self, processor: usize) -> GuestOptions {
        self.processor = Some(processor);
        self
    }

    /// Sets the largest IP packet.
    pub fn mtu(mut self, mtu: u16) -> GuestOptions {
        self.mtu = Some(mtu);
        self
    }

    /// Sets the hardware address.
    pub fn mac(mut self, mac: &str) -> GuestOptions {
        self.mac = mac.into();
        self
    }

    /// The words of the kernel command line that `init.sh` reads. `interface` is the name the driver gives.
    pub(crate) fn kernel_arguments(&self, interface: &str) -> String {
        let interface = if self.network == Network::None {
            "none"
        } else {
            interface
        };
        let mut text = format!("hs.name={} hs.if={interface} hs.mac={}", self.name, self.mac);
        if let Some(mtu) = self.mtu {
            text += &format!(" hs.mtu={mtu}");
        }
        if !self.addresses.is_empty() {
            text += &format!(" hs.addr={}", self.addresses.join(","));
        }
        text
    }
}

/// A running guest. Commands run in it as root.
#[derive(Debug)]
pub struct Guest {
    options: GuestOptions,
    group: Group,
    console: Console,
    started: Instant,
    boot_time: Option<Duration>,
    directory: TempDir,
}

impl Guest {
    /// Starts `command`, whose standard input and output are the guest's console. `directory` lives as long.
    pub(crate) fn start(options: GuestOptions, mut command: Command, directory: TempDir) -> Result<Guest> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let errors = std::fs::File::create(directory.path().join("stderr"))?;
        command.stderr(errors);
        let started = Instant::now();
        let mut group = Group::spawn(command)?;
        let input = group.child().stdin.take().context("standard input is a pipe")?;
        let output = group.child().stdout.take().context("standard output is a pipe")?;
        let console = Console::new(&options.name, input, output);
        Ok(Guest {
            options,
            group,
            console,
            started,
            boot_time: None,
            directory,
        })
    }

    /// Waits until the guest has booted for the first time.
    pub fn wait_ready(&mut self) -> Result<()> {
        self.wait_boot(1)?;
        self.boot_time.get_or_insert_with(|| self.started.elapsed());
        Ok(())
    }

    /// Waits until the guest has booted `boots` times in all.
    pub fn wait_boot(&self, boots: u32) -> Result<()> {
        self.console.wait_ready(boots, BOOT_TIMEOUT).with_context(|| {
            format!(
                "{} did not boot; its standard error:\n{}",
                self.options.name,
                self.errors().trim_end()
            )
        })
    }

    /// What the VMM has written to its standard error.
    pub fn errors(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("stderr")).unwrap_or_default()
    }

    /// Specification of the guest.
    pub fn options(&self) -> &GuestOptions {
        &self.options
    }

    /// How often it has booted.
    pub fn boots(&self) -> u32 {
        self.console.boots()
    }

    /// From the start of its process to the first command it could have run.
    pub fn boot_time(&self) -> Option<Duration> {
        self.boot_time
    }

    /// Temporary files of the guest.
    pub fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// Process identifier of the leader of the guest's process group.
    pub fn pid(&self) -> u32 {
        self.group.pid()
    }

    /// Takes the end of its main process; false if it runs still.
    pub fn reap(&mut self) -> bool {
        self.group.ended().is_some()
    }

    /// The last lines of its console.
    pub fn console_tail(&self) -> String {
        self.console.tail(40)
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.group.kill();
    }

    /// Sends a signal to its processes, SIGSTOP for instance.
    pub fn signal(&mut self, signal: Signal) {
        self.group.signal_all(signal);
    }

    /// Reboots from inside, without any orderly shutdown, and waits until it is back.
    pub fn reboot(&self) -> Result<()> {
        let boots = self.boots();
        // The answer to this command never comes.
        drop(self.start_command("echo rebooting > /dev/console; reboot -f")?);
        self.wait_boot(boots + 1)
    }

    /// Takes the network driver out of the running guest.
    pub fn unload_driver(&self) -> Result<()> {
        self.must("rmmod virtio_net").map(drop)
    }

    /// Puts the driver back and configures the interface as at boot.
    pub fn load_driver(&self) -> Result<()> {
        self.must("insmod /modules/virtio_net.ko && network-up").map(drop)
    }

    fn start_command(&self, command: &str) -> Result<Running> {
        self.console.start(command)
    }
}

impl Endpoint for Guest {
    fn name(&self) -> &str {
        &self.options.name
    }

    fn start(&self, command: &str) -> Result<Running> {
        self.start_command(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_differ_by_name_and_are_local_unicast() {
        let (a, b) = (GuestOptions::new("a"), GuestOptions::new("b"));
        assert_ne!(a.mac, b.mac);
        assert!(a.mac.starts_with("02:00:"));
        assert_eq!(GuestOptions::new("a").mac, a.mac);
    }

    #[test]
    fn the_command_line_says_what_init_reads() {
        let options = GuestOptions::new("vm")
            .mac("02:00:00:00:00:01")
            .mtu(9000)
            .address("10.0.0.1/24");
        assert_eq!(
            options.kernel_arguments("eth0"),
            "hs.name=vm hs.if=none hs.mac=02:00:00:00:00:01 hs.mtu=9000 hs.addr=10.0.0.1/24"
        );
        let text = options.vhost_user("/x").kernel_arguments("eth0");
        assert!(text.contains("hs.if=eth0"));
    }
}

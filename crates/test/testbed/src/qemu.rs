//! QEMU: a complete machine, with virtio over PCI and a VMM that speaks vhost-user.
//!
//! KVM is used only where a guest really boots under it, which is tried once per boot of the machine: a
//! `/dev/kvm` that can be opened proves nothing inside other virtual machines. Otherwise the processor is
//! emulated, which takes a few seconds to boot and is slow, but exercises the same driver and VMM. QEMU 7.2
//! crashes under emulation with vhost-user and MSI-X, so the device then has no vectors.

use crate::guest::{Guest, GuestOptions, Network};
use crate::qmp::Qmp;
use crate::{build_dir, initrd, process};
use anyhow::{Context, Result, bail};
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// How long a guest may take to boot when it is tried whether KVM works.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// The machine's specification beyond that of every guest.
#[derive(Clone, Debug, Default)]
pub struct QemuOptions {
    /// Further properties of the network device, `guest_tso4=off` for instance.
    pub device: Vec<String>,
    /// Entries of both rings, 256 to 1024, a power of two; QEMU's default (256) if `None`.
    pub queue_size: Option<u16>,
    /// Whether the VMM connects again, after a second, when the switch goes away.
    pub reconnect: bool,
    /// Pairs of queues; one if `None`.
    pub queues: Option<u8>,
    /// Virtual processors; one if `None`.
    pub processors: Option<u8>,
    /// Emulate the processor even where KVM works.
    pub emulate: bool,
}

impl QemuOptions {
    /// Options with these device properties.
    pub fn device(properties: &[&str]) -> QemuOptions {
        QemuOptions {
            device: properties.iter().map(|&text| text.into()).collect(),
            ..QemuOptions::default()
        }
    }
}

/// A machine run by QEMU: a [`Guest`] with a management socket.
#[derive(Debug)]
pub struct QemuGuest {
    guest: Guest,
    accelerator: &'static str,
}

impl Deref for QemuGuest {
    type Target = Guest;

    fn deref(&self) -> &Guest {
        &self.guest
    }
}

impl DerefMut for QemuGuest {
    fn deref_mut(&mut self) -> &mut Guest {
        &mut self.guest
    }
}

impl QemuGuest {
    /// Starts a machine and waits until it is up.
    pub fn boot(options: GuestOptions, qemu: &QemuOptions) -> Result<QemuGuest> {
        let mut guest = QemuGuest::start(options, qemu)?;
        guest.wait_ready()?;
        Ok(guest)
    }

    /// Starts a machine without waiting.
    pub fn start(options: GuestOptions, qemu: &QemuOptions) -> Result<QemuGuest> {
        let accelerator = if !qemu.emulate && kvm_works()? {
            "kvm"
        } else {
            "tcg"
        };
        start(options, qemu, accelerator)
    }

    /// `kvm`, or `tcg` for emulation.
    pub fn accelerator(&self) -> &'static str {
        self.accelerator
    }

    /// The guest alone, for callers to which the VMM does not matter.
    pub fn into_guest(self) -> Guest {
        self.guest
    }

    /// A connection to QEMU's management socket; QEMU serves one at a time.
    pub fn qmp(&self) -> Result<Qmp> {
        Qmp::connect(&self.guest.directory().join("qmp"))
    }

    /// Presses the reset button, and waits until the guest is back.
    pub fn reset(&self) -> Result<()> {
        let boots = self.boots();
        self.qmp()?.execute("system_reset")?;
        self.wait_boot(boots + 1)
    }
}

fn start(options: GuestOptions, qemu: &QemuOptions, accelerator: &'static str) -> Result<QemuGuest> {
    let (kernel, modules) = build_dir::guest_kernel()?;
    let initrd = initrd::build("qemu", &modules)?;
    let directory = tempfile::Builder::new().prefix("hs-qemu-").tempdir()?;
    let mut command = program(&options);
    command
        .args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-serial",
            "stdio",
            "-M",
            "pc",
        ])
        .args(["-smp", &qemu.processors.unwrap_or(1).to_string()])
        .args([
            "-accel",
            accelerator,
            "-cpu",
            if accelerator == "kvm" { "host" } else { "max" },
        ])
        .args(["-m", &format!("{}M", options.memory)])
        .args([
            "-object",
            &format!("memory-backend-memfd,id=memory,size={}M,share=on", options.memory),
        ])
        .args(["-numa", "node,memdev=memory"])
        .args([
            "-qmp",
            &format!("unix:{}/qmp,server=on,wait=off", directory.path().display()),
        ])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initrd)
        .args([
            "-append",
            // Counting timer interrupts at boot finds too few on a busy machine, and the kernel then does
            // without.
            &format!(
                "console=ttyS0 quiet loglevel=4 no_timer_check {}",
                options.kernel_arguments("eth0")
            ),
        ]);
    network_arguments(&mut command, &options, qemu, accelerator);
    Ok(QemuGuest {
        guest: Guest::start(options, command, directory)?,
        accelerator,
    })
}

/// QEMU, in the namespace of its TAP and on its processor.
fn program(options: &GuestOptions) -> Command {
    let mut words = Vec::new();
    if let Network::Tap {
        namespace: Some(namespace),
        ..
    } = &options.network
    {
        words.extend(["ip", "netns", "exec", namespace].map(str::to_owned));
    }
    if let Some(processor) = options.processor {
        words.extend(["taskset".into(), "--cpu-list".into(), processor.to_string()]);
    }
    words.push("qemu-system-x86_64".into());
    let mut command = process::command(&words[0]);
    command.args(&words[1..]);
    command
}

fn network_arguments(command: &mut Command, options: &GuestOptions, qemu: &QemuOptions, accelerator: &str) {
    let socket = |path: &Path, extra: &str| format!("socket,id=char,path={}{extra}", path.display());
    let backend = match &options.network {
        Network::None => return,
        Network::VhostUser(path) => {
            let extra = if qemu.reconnect { ",reconnect=1" } else { "" };
            command.args(["-chardev", &socket(path, extra)]);
            let queues = qemu
                .queues
                .map_or_else(String::new, |queues| format!(",queues={queues}"));
            format!("vhost-user,id=net,chardev=char{queues}")
        }
        Network::VhostUserServer(path) => {
            command.args(["-chardev", &socket(path, ",server=on,wait=off")]);
            "vhost-user,id=net,chardev=char".to_owned()
        }
        Network::Tap { interface, .. } => format!("tap,id=net,ifname={interface},script=no,downscript=no"),
    };
    let mut device = format!("virtio-net-pci,netdev=net,romfile=,mac={}", options.mac);
    if accelerator != "kvm" {
        device += ",vectors=0";
    }
    if qemu.queues.is_some() {
        device += ",mq=on";
    }
    if let Some(mtu) = options.mtu {
        device += &format!(",host_mtu={mtu}");
    }
    if let Some(size) = qemu.queue_size {
        device += &format!(",rx_queue_size={size},tx_queue_size={size}");
    }
    for property in &qemu.device {
        device += &format!(",{property}");
    }
    command.args(["-netdev", &backend, "-device", &device]);
}

/// Whether a guest boots under KVM here; tried once, then remembered until the machine is booted again.
pub fn kvm_works() -> Result<bool> {
    static WORKS: OnceLock<bool> = OnceLock::new();
    if let Some(&works) = WORKS.get() {
        return Ok(works);
    }
    let works = if std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_err()
    {
        false
    } else {
        let machine = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").context("no boot id")?;
        let answer = build_dir::cached(&format!("kvm-works-{}", machine.trim()), || {
            Ok(if probe() { "yes" } else { "no" }.into())
        })?;
        match std::fs::read_to_string(&answer)?.as_str() {
            "yes" => true,
            "no" => false,
            other => bail!("{} holds {other:?}; remove it", answer.display()),
        }
    };
    Ok(*WORKS.get_or_init(|| works))
}

fn probe() -> bool {
    let Ok(guest) = start(GuestOptions::new("probe"), &QemuOptions::default(), "kvm") else {
        return false;
    };
    let deadline = std::time::Instant::now() + PROBE_TIMEOUT;
    while std::time::Instant::now() < deadline && guest.boots() == 0 {
        std::thread::sleep(Duration::from_millis(20));
    }
    guest.boots() > 0
}

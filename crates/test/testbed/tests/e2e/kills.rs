//! The data plane is killed again and again under mixed load, and no guest is harmed: each chain comes back
//! once, and each receive buffer is filled once.
//!
//! A QEMU guest sends large frames to a guest that receives slowly, and small ones to others, and so do
//! polling guests, whose rings go on at each base that some front end asks for. Their driver notices any
//! chain that comes back and was not sent.

use crate::failures::with_container;
use crate::rig::{finish, options, v4};
use anyhow::{Context, Result, ensure};
use std::time::{Duration, Instant};
use testbed::polling::{Frame, GoOn, PollingGuest};
use testbed::switch::Role;
use testbed::{Endpoint, Lab, Namespace, QemuGuest, QemuOptions, Switch, Testpmd, TestpmdOptions};

const PORTS: [&str; 3] = ["sender", "slow", "fast"];
const SENDER: usize = 0;
const SLOW: usize = 1;
const FAST: usize = 2;

/// Entries of each ring of a polling guest.
const RING: u64 = 256;

/// How long the load lasts before each kill.
const LOAD: Duration = Duration::from_millis(300);

/// How long everything may take to return after a kill: the supervisor waits up to 5 s.
const RETURN: Duration = Duration::from_secs(20);

/// The polling guests.
struct Load {
    guest: PollingGuest,
    received: [u64; 3],
    turn: u32,
}

impl Load {
    fn new(switch: &Switch) -> Result<Load> {
        let guest = PollingGuest::connect(&PORTS.map(|port| switch.socket(port)), 1514)?;
        let mut load = Load {
            guest,
            received: [0; 3],
            turn: 0,
        };
        load.introduce()?;
        Ok(load)
    }

    /// Has the switch learn where the stations are: station n is at port n.
    fn introduce(&mut self) -> Result<()> {
        for port in 0..PORTS.len() {
            let frame = Frame::udp(60, port as u32, u32::MAX);
            self.guest.send(port, &frame)?;
            self.guest.flush(port);
        }
        Ok(())
    }

    /// Sends a few frames of all kinds, and receives: one frame for the slow guest now and then.
    fn step(&mut self) -> Result<()> {
        for size in [1400, 60, 128, 700, 60] {
            self.turn += 1;
            let to = if self.turn.is_multiple_of(3) { SLOW } else { FAST };
            self.guest
                .send(SENDER, &Frame::udp(size, SENDER as u32, to as u32))?;
        }
        self.guest.flush(SENDER);
        let slow = usize::from(self.turn.is_multiple_of(4));
        for (port, limit) in [(SENDER, 64), (SLOW, slow), (FAST, 64)] {
            self.received[port] += self.guest.receive(port, limit, |_| ())? as u64;
        }
        Ok(())
    }

    fn run(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.step()?;
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// Waits until both receivers get more frames than their rings held before.
    fn receive_more(&mut self) -> Result<()> {
        let end = Instant::now() + RETURN;
        let before = self.received;
        let gets_nothing = |load: &Load| {
            [SLOW, FAST]
                .into_iter()
                .find(|&port| load.received[port] <= before[port] + RING)
        };
        while let Some(port) = gets_nothing(self) {
            ensure!(Instant::now() < end, "{} gets nothing", PORTS[port]);
            self.run(Duration::from_millis(10))?;
        }
        Ok(())
    }

    fn reconnect(&mut self, switch: &Switch, go_on: GoOn) -> Result<()> {
        for (port, name) in PORTS.iter().enumerate() {
            let end = Instant::now() + RETURN;
            while let Err(error) = self.guest.reconnect(port, &switch.socket(name), go_on) {
                ensure!(Instant::now() < end, "{name} cannot connect: {error:#}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        self.introduce()
    }

    /// Receives all that is on its way, and returns when every chain is back.
    fn drain(&mut self) -> Result<()> {
        let end = Instant::now() + RETURN;
        loop {
            let mut outstanding = 0;
            for port in 0..PORTS.len() {
                self.received[port] += self.guest.receive(port, 256, |_| ())? as u64;
                outstanding += self.guest.outstanding(port)?;
            }
            if outstanding == 0 {
                return Ok(());
            }
            ensure!(Instant::now() < end, "{outstanding} chains do not come back");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What the QEMU guest sends all the time; stations of polling guests answer nothing.
const FLOOD: &str = "for n in 1 2; do arp -i eth0 -s 10.9.0.10$n 02:50:00:00:00:0$n; done; \
                     (while :; do ping -q -i 0.002 -c 400 -W 1 -s 1400 10.9.0.101; done >/dev/null 2>&1 & \
                     while :; do ping -q -i 0.002 -c 400 -W 1 -s 10 10.9.0.102; done >/dev/null 2>&1 &)";

/// Kills the data plane so many times.
fn kill(kills: usize, lab: &Lab) -> Result<()> {
    let container = Namespace::new("container")?;
    let mut config = with_container(&container);
    for port in PORTS {
        config += &format!("[[switch.port]]\nname = \"{port}\"\ntype = \"vhost-user\"\n");
    }
    let switch = Switch::start(&config)?;
    let reconnect = QemuOptions {
        reconnect: true,
        ..QemuOptions::default()
    };
    let qemu = QemuGuest::boot(options(&switch, "vm1", 1), &reconnect)?;
    let mut load = Load::new(&switch)?;
    qemu.must(FLOOD)?;
    for number in 0..kills {
        load.run(LOAD)?;
        let old = switch.kill(Role::DataPlane)?;
        switch.wait_replaced(Role::DataPlane, old)?;
        load.reconnect(&switch, [GoOn::Used, GoOn::Available, GoOn::Zero][number % 3])?;
        load.receive_more()
            .with_context(|| format!("after kill {number}"))?;
        let end = Instant::now() + RETURN;
        let ping = format!("ping -q -c 1 -W 1 {}", v4(50));
        while qemu.run(&ping)?.status != 0 {
            ensure!(
                Instant::now() < end,
                "the QEMU guest does not return after kill {number}: {:#?}\n{}\n{}",
                switch.ports()?,
                qemu.errors(),
                qemu.run("ip neigh; ip -s link; cat /proc/interrupts; dmesg | tail")?
                    .stdout
            );
            load.run(Duration::from_millis(50))?;
        }
        let said = qemu
            .run("dmesg | grep -E 'not a head|is broken|timed out|BUG:|Oops'")?
            .stdout;
        ensure!(said.is_empty(), "after kill {number} the guest says: {said}");
        if number % 20 == 19 {
            lab.note(format!(
                "{} kills, {:?} frames received",
                number + 1,
                load.received
            ));
        }
    }
    qemu.must("killall ping; sleep 0.1; killall ping; true")?;
    load.drain().context("after the last kill")?;
    drop(qemu);
    drop(load);
    finish(switch, []).map(drop)
}

#[test]
fn a_few_kills_under_load_harm_no_guest() -> Result<()> {
    let Some(lab) = Lab::enter("a_few_kills_under_load_harm_no_guest") else {
        return Ok(());
    };
    kill(5, &lab)
}

/// `make test-kills`: 18 minutes, since the supervisor waits longer each time. `HYPERSWITCH_KILLS` says
/// another number.
#[test]
#[ignore = "takes long"]
fn two_hundred_kills_under_load_harm_no_guest() -> Result<()> {
    let Some(lab) = Lab::enter("two_hundred_kills_under_load_harm_no_guest") else {
        return Ok(());
    };
    let kills = std::env::var("HYPERSWITCH_KILLS").map_or(Ok(200), |kills| kills.parse())?;
    kill(kills, &lab)
}

/// DPDK's virtio-user as a server asks for base 0 at every connection.
#[test]
fn a_polling_driver_that_listens_goes_on() -> Result<()> {
    let Some(lab) = Lab::enter("a_polling_driver_that_listens_goes_on") else {
        return Ok(());
    };
    let directory = tempfile::tempdir()?;
    let sockets = ["p1", "p2"].map(|port| directory.path().join(port));
    let mut config = "[[switch]]\nname = \"sw0\"\ntype = \"private\"\n".to_owned();
    for (port, socket) in ["p1", "p2"].iter().zip(&sockets) {
        config += &format!(
            "[[switch.port]]\nname = \"{port}\"\ntype = \"vhost-user\"\nmode = \"client\"\nsocket = \"{}\"\n",
            socket.display()
        );
    }
    let switch = Switch::start(&config)?;
    let options = TestpmdOptions::guest(&sockets, "server=1");
    let mut testpmd = Testpmd::start(&options)?;
    for port in ["p1", "p2"] {
        switch.wait_port(port, "running")?;
    }
    testpmd.start_loop(2)?;
    for _ in 0..3 {
        let rate = testpmd.packets_per_second(Duration::from_secs(1))?;
        lab.note(format!("{:.2} million packets per second", rate / 1e6));
        ensure!(rate > 1000.0, "{rate} packets per second");
        let old = switch.kill(Role::DataPlane)?;
        switch.wait_replaced(Role::DataPlane, old)?;
        for port in ["p1", "p2"] {
            switch.wait_port(port, "running")?;
        }
        // What was under way at the kill may be lost, and with it the loop.
        testpmd.stop()?;
        testpmd.start_loop(2)?;
    }
    let rate = testpmd.packets_per_second(Duration::from_secs(1))?;
    ensure!(rate > 1000.0, "{rate} packets per second after the last kill");
    testpmd.stop()?;
    // The switch ends first: a port whose VMM has gone is a problem that it would tell of.
    finish(switch, [])?;
    testpmd.kill();
    Ok(())
}

/// QEMU with more queues than there are or a larger MTU, and DPDK with larger rings: the port says so. A QEMU
/// that wants what there is has nothing to warn of.
#[test]
fn a_port_says_what_its_machine_wants() -> Result<()> {
    let Some(_lab) = Lab::enter("a_port_says_what_its_machine_wants") else {
        return Ok(());
    };
    let switch = Switch::start(&crate::rig::private(&["vm1", "vm2"], ""))?;
    let says = |port: &str, what: &str| -> Result<()> {
        switch.wait(|| {
            let ports = switch.ports()?;
            let info = ports
                .iter()
                .find(|info| info.name == port)
                .context("no such port")?;
            Ok(info
                .problem
                .as_ref()
                .is_some_and(|problem| problem.contains(what)))
        })?;
        let warnings = switch.status()?.warnings;
        ensure!(
            warnings.iter().any(|warning| warning.contains(what)),
            "{warnings:?}"
        );
        Ok(())
    };
    let two = QemuOptions {
        queues: Some(2),
        reconnect: true,
        ..QemuOptions::default()
    };
    let qemu = QemuGuest::start(options(&switch, "vm1", 1), &two)?;
    says("vm1", "queues=1")?;
    drop(qemu);
    let qemu = QemuGuest::start(options(&switch, "vm2", 2).mtu(9000), &QemuOptions::default())?;
    says("vm2", "an MTU of 9000")?;
    drop(qemu);
    let mut large = TestpmdOptions::guest(&[switch.socket("vm1")], "");
    large.devices[0] = large.devices[0].replace("queue_size=256", "queue_size=4096");
    let mut testpmd = Testpmd::start(&large)?;
    says("vm1", "ring of 4096 entries")?;
    testpmd.kill();
    // Machines that want what there is.
    let qemu = QemuGuest::boot(options(&switch, "vm1", 1), &QemuOptions::default())?;
    let other = QemuGuest::boot(options(&switch, "vm2", 2), &QemuOptions::default())?;
    crate::rig::reaches(&*qemu, &v4(2))?;
    let errors = [qemu.errors(), other.errors()].concat();
    ensure!(errors.is_empty(), "QEMU warns: {errors}");
    drop((qemu, other));
    finish(switch, []).map(drop)
}

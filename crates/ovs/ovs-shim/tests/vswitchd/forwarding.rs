//! Packets of guests through our data plane, decided about by the real ovs-vswitchd.

use crate::plane::PLANE;
use crate::rates::{Rate, flood};
use crate::world::World;
use serde_json::json;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use testbed::polling::{Frame, PollingGuest};

/// How long a packet may take on a machine that is busy.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// So many frames are sent to show that none arrives.
const IN_VAIN: usize = 20;
pub const SIZE: usize = 200;

/// Where things are in a frame without tag.
const UDP_PORTS: usize = 34;

pub struct Guest {
    name: &'static str,
    pub station: u32,
    ports: PollingGuest,
    pub flow: u32,
}

impl Guest {
    pub fn connect(world: &World, name: &'static str, station: u32) -> Guest {
        let socket = world.guest_socket(name);
        world.until("the socket is there", |_| socket.exists());
        Guest::at(&socket, name, station)
    }

    /// The guest whose VMM connects to a socket that is there.
    pub fn at(socket: &PathBuf, name: &'static str, station: u32) -> Guest {
        let end = Instant::now() + TIMEOUT;
        let ports = loop {
            // It may be the socket of a data plane that is ending.
            match PollingGuest::connect(std::slice::from_ref(socket), 2000) {
                Ok(ports) => break ports,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
        };
        Guest::new(name, station, ports)
    }

    pub fn new(name: &'static str, station: u32, ports: PollingGuest) -> Guest {
        Guest {
            name,
            station,
            ports,
            flow: 7,
        }
    }

    pub fn send(&mut self, to: &Guest) {
        self.send_to(to.station);
    }

    pub fn send_to(&mut self, station: u32) {
        let mut frame = Frame::udp(SIZE, self.station, station);
        frame.set_flow(self.flow);
        self.send_frame(&frame);
    }

    pub fn send_frame(&mut self, frame: &Frame) {
        let end = Instant::now() + TIMEOUT;
        while !self.ports.send(0, frame).unwrap() {
            assert!(Instant::now() < end, "nobody takes what {} sends", self.name);
        }
        self.ports.flush(0);
    }

    /// The frames that have come.
    pub fn take(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let keep = |frame: &[u8]| frames.push(frame.to_vec());
        self.ports.receive(0, 256, keep).unwrap();
        // What the host's own stack says is not of a guest.
        frames.retain(|frame| frame[6..8] == [0x02, 0x50]);
        frames
    }

    /// Sends until something arrives, and returns that.
    pub fn reach(&mut self, to: &mut Guest) -> Vec<u8> {
        to.take();
        let end = Instant::now() + TIMEOUT;
        loop {
            self.send(to);
            std::thread::sleep(Duration::from_millis(2));
            if let Some(frame) = to.take().pop() {
                return frame;
            }
            assert!(Instant::now() < end, "{} does not reach {}", self.name, to.name);
        }
    }

    /// What is sent to one guest arrives, if it shall, and nothing of it at the other. ovs-vswitchd changes
    /// flows a moment after it has learned or was told: so it is tried until that is so.
    pub fn misses(&mut self, to: &mut Guest, arrives: bool, other: &mut Guest) {
        let end = Instant::now() + TIMEOUT;
        loop {
            other.take();
            for _ in 0..IN_VAIN {
                self.send(to);
            }
            if arrives {
                self.reach(to);
            }
            std::thread::sleep(Duration::from_millis(50));
            if other.take().is_empty() {
                return;
            }
            assert!(Instant::now() < end, "{} still reaches {}", self.name, other.name);
        }
    }

    /// Nothing that is sent to a guest arrives there.
    pub fn loses(&mut self, to: &mut Guest) {
        let end = Instant::now() + TIMEOUT;
        loop {
            to.take();
            for _ in 0..IN_VAIN {
                self.send(to);
            }
            std::thread::sleep(Duration::from_millis(50));
            if to.take().is_empty() {
                return;
            }
            assert!(Instant::now() < end, "{} still reaches {}", self.name, to.name);
        }
    }
}

/// ovs-vswitchd with guests at `br0`.
pub fn begin(world: &mut World, names: &[&'static str]) -> Vec<Guest> {
    world.start_glue_with(Some(PLANE));
    world.start_vswitchd();
    for name in names {
        world.glue(&format!("plug {name}"));
    }
    world.add_bridge(names);
    let stations = names.iter().zip(1..);
    stations
        .map(|(name, station)| Guest::connect(world, name, station))
        .collect()
}

pub fn normal_forwards(world: &mut World) {
    let guests = begin(world, &["vm1", "vm2", "vm3"]);
    let [mut a, mut b, mut c] = guests.try_into().ok().unwrap();
    for guest in ["vm1", "vm2", "vm3"] {
        world.until("the link is up", |world| {
            world.vsctl(&format!("get Interface {guest} link_state")) == "up"
        });
    }
    // Flooded, learned, then to one port only.
    a.reach(&mut b);
    b.reach(&mut a);
    a.reach(&mut b);
    a.misses(&mut b, true, &mut c);
    counted(world, &mut a, &mut b);
    tagged(world, &mut a, &mut b, &mut c);
    filtered(world, &mut a, &mut b);
    resubmitted(world, &mut a, &mut b, &mut c);
    assert!(world.glue("counters").contains("violations: 0"));
    world.check_log();
}

/// ovs-vswitchd reads what flows have counted.
fn counted(world: &World, a: &mut Guest, b: &mut Guest) {
    world.ofctl("del-flows br0");
    world.ofctl("add-flow br0 priority=1,actions=NORMAL");
    a.reach(b);
    b.take();
    world.appctl("revalidator/purge");
    let before = packets(world);
    all_arrive(1, a, b);
    all_arrive(99, a, b);
    // The first of them made a flow, and all are counted at its end.
    world.appctl("revalidator/purge");
    assert_eq!(packets(world) - before, 100);
    let statistics = world.vsctl("get Interface vm1 statistics:rx_packets");
    assert!(statistics.parse::<u64>().is_ok(), "{statistics}");
}

fn packets(world: &World) -> u64 {
    let flows = world.ofctl("dump-flows br0");
    let count = flows.split("n_packets=").nth(1).unwrap();
    count.split(',').next().unwrap().parse().unwrap()
}

/// An access port and a trunk port.
fn tagged(world: &World, a: &mut Guest, b: &mut Guest, c: &mut Guest) {
    world.vsctl("set Port vm1 tag=10 -- set Port vm2 trunks=10 -- set Port vm3 tag=20");
    let frame = reach_changed(a, b, |frame| frame[12..14] == [0x81, 0x00]);
    assert_eq!(frame[14..18], [0, 10, 0x08, 0x00]);
    a.loses(c);
    world.vsctl("clear Port vm1 tag -- clear Port vm2 trunks -- clear Port vm3 tag");
    reach_changed(a, b, |frame| frame[12..14] == [0x08, 0x00]);
}

/// Sends until what arrives is as wanted: ovs-vswitchd changes its flows a moment after it has said so.
pub fn reach_changed(a: &mut Guest, b: &mut Guest, wanted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let end = Instant::now() + TIMEOUT;
    loop {
        let frame = a.reach(b);
        if wanted(&frame) {
            return frame;
        }
        assert!(Instant::now() < end, "{frame:02x?}");
    }
}

fn filtered(world: &World, a: &mut Guest, b: &mut Guest) {
    let frame = a.reach(b);
    let destination = u16::from_be_bytes([frame[UDP_PORTS + 2], frame[UDP_PORTS + 3]]);
    world.ofctl(&format!(
        "add-flow br0 priority=100,udp,tp_dst={destination},actions=drop"
    ));
    a.loses(b);
    a.flow += 1 << 16;
    a.reach(b);
    world.ofctl(&format!(
        "--strict del-flows br0 priority=100,udp,tp_dst={destination}"
    ));
    a.flow -= 1 << 16;
    a.reach(b);
}

/// Several tables, changed headers, a packet of the controller's.
fn resubmitted(world: &World, a: &mut Guest, b: &mut Guest, c: &mut Guest) {
    world.ofctl("add-flow br0 table=0,priority=50,in_port=vm1,actions=load:5->NXM_NX_REG0[],resubmit(,1)");
    world.ofctl("add-flow br0 table=1,priority=50,reg0=5,udp,actions=mod_nw_tos:32,mod_dl_dst:02:50:00:00:00:63,resubmit(,2)");
    world.ofctl("add-flow br0 table=2,priority=50,actions=output:vm2,output:vm3");
    let frame = reach_changed(a, b, |frame| frame[0..6] == [0x02, 0x50, 0, 0, 0, 0x63]);
    assert_eq!(frame[15], 32, "type of service");
    let sum: u32 = frame[14..34]
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the checksum holds");
    a.reach(c);
    world.ofctl("del-flows br0 table=1");
    world.ofctl("del-flows br0 table=2");
    world.ofctl("--strict del-flows br0 table=0,priority=50,in_port=vm1");
}

/// Installed flows forward, whoever dies.
pub fn forwarding_outlives(world: &mut World) {
    let guests = begin(world, &["vm1", "vm2"]);
    let [mut a, mut b] = guests.try_into().ok().unwrap();
    a.reach(&mut b);
    b.reach(&mut a);
    a.reach(&mut b);
    world.kill_vswitchd();
    all_arrive(100, &mut a, &mut b);
    world.start_vswitchd();
    world.wait_until_configured();
    a.reach(&mut b);
    b.reach(&mut a);
    a.reach(&mut b);
    world.glue("die");
    assert_eq!(world.vswitchd_signal(), Some(libc::SIGABRT));
    all_arrive(100, &mut a, &mut b);
    world.start_vswitchd();
    world.glue("live");
    world.wait_until_configured();
    a.reach(&mut b);
    b.reach(&mut a);
    // Another data plane gets the ports again, and flows, without a new ovs-vswitchd.
    let received = || {
        world
            .vsctl("get Interface vm1 statistics:rx_packets")
            .parse::<u64>()
    };
    let before = received().unwrap();
    lose(world);
    let [mut a, mut b] = [("vm1", 1), ("vm2", 2)].map(|(name, station)| Guest::connect(world, name, station));
    a.reach(&mut b);
    b.reach(&mut a);
    world.until("no counter goes back", |_| received().unwrap() > before);
    world.check_log();
}

/// What a meter lets pass.
const RATE: Rate = Rate {
    per_second: 500,
    burst: 100,
};

/// Ends the data plane; returns when the next one listens for guests.
fn lose(world: &World) {
    let sockets = ["vm1", "vm2"].map(|name| world.guest_socket(name));
    let made = |socket: &std::path::PathBuf| {
        let metadata = std::fs::metadata(socket).ok()?;
        Some((metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
    };
    let old = sockets.each_ref().map(made);
    world.glue("lose");
    world.until("the next data plane listens", |_| {
        let new = sockets.each_ref().map(made);
        new.iter().zip(&old).all(|(new, old)| new.is_some() && new != old)
    });
}

/// OpenFlow's meters, and ports that are taken down.
pub fn meters_and_ports(world: &mut World) {
    let guests = begin(world, &["vm1", "vm2"]);
    let [mut a, mut b] = guests.try_into().ok().unwrap();
    let features = world.ofctl("meter-features br0");
    assert!(features.contains("max_meter:4096 max_bands:1"), "{features}");
    add_meter(world);
    let line = RATE.limits(&mut a, &mut b);
    let before = meter_counts(world);
    let (sent, arrived) = flood(&mut a, &mut b, Duration::from_secs(2));
    let after = meter_counts(world);
    let (packets, dropped) = (after.0 - before.0, after.1 - before.1);
    assert_eq!(packets, sent, "{line}");
    assert_eq!(packets - dropped, arrived);
    let stats = world.ofctl("dump-meters br0");
    assert!(
        stats.contains(&format!("rate={} burst_size={}", RATE.per_second, RATE.burst)),
        "{stats}"
    );
    // The other way is not metered.
    RATE.exceeded(&mut b, &mut a);
    world.kill_vswitchd();
    RATE.limits(&mut a, &mut b);
    world.start_vswitchd();
    world.wait_until_configured();
    add_meter(world);
    RATE.limits(&mut a, &mut b);
    world.ofctl("mod-port br0 vm2 down");
    b.loses(&mut a);
    world.glue("die");
    assert_eq!(world.vswitchd_signal(), Some(libc::SIGABRT));
    b.loses(&mut a);
    world.start_vswitchd();
    world.glue("live");
    world.wait_until_configured();
    a.loses(&mut b);
    b.loses(&mut a);
    world.ofctl("mod-port br0 vm2 up");
    b.reach(&mut a);
    // It was forgotten with its ovs-vswitchd.
    assert!(!world.ofctl("meter-stats br0").contains("meter:1"));
    RATE.exceeded(&mut a, &mut b);
    add_meter(world);
    RATE.limits(&mut a, &mut b);
    // Deleted while a flow uses it: OpenFlow removes the flow with it.
    world.ofctl("del-meter br0 meter=1");
    RATE.exceeded(&mut a, &mut b);
    add_meter(world);
    RATE.limits(&mut a, &mut b);
    world.check_log();
    // Another data plane is told of the meter, and of ports that are down.
    let before = meter_counts(world);
    world.ofctl("mod-port br0 vm1 down");
    lose(world);
    let [mut a, mut b] = [("vm1", 1), ("vm2", 2)].map(|(name, station)| Guest::connect(world, name, station));
    a.loses(&mut b);
    b.loses(&mut a);
    world.ofctl("mod-port br0 vm1 up");
    a.reach(&mut b);
    RATE.limits(&mut a, &mut b);
    let after = meter_counts(world);
    assert!(after.0 > before.0 && after.1 > before.1, "no counter goes back");
    assert!(world.glue("counters").contains("violations: 0"));
}

fn add_meter(world: &World) {
    world.ofctl(&format!(
        "add-meter br0 meter=1,pktps,burst,stats,band=type=drop,rate={},burst_size={}",
        RATE.per_second, RATE.burst
    ));
    world.ofctl("add-flow br0 priority=100,in_port=vm1,actions=meter:1,output:vm2");
}

/// What came to the meter, and what it dropped.
fn meter_counts(world: &World) -> (u64, u64) {
    let stats = world.ofctl("meter-stats br0");
    let number = |key: &str| -> u64 {
        let rest = stats.split(key).nth(1).unwrap_or_else(|| panic!("{stats}"));
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap()
    };
    (number("packet_in_count:"), number(" packet_count:"))
}

/// The product, with its supervisor and sandboxes.
pub fn product_forwards(world: &mut World, program: std::path::PathBuf) {
    world.start_product(program);
    world.start_vswitchd();
    world.vsctl("add-br br0");
    for port in ["vm1", "vm2"] {
        world.vsctl(&format!(
            "add-port br0 {port} -- set Interface {port} type=internal external_ids:vhost-user=server"
        ));
    }
    // What is said later holds as well.
    world.vsctl("add-port br0 vm3 -- set Interface vm3 type=internal");
    world.vsctl("set Interface vm3 external_ids:vhost-user=server");
    let guests = [("vm1", 1), ("vm2", 2), ("vm3", 3)];
    let mut guests = guests.map(|(name, station)| Guest::connect(world, name, station));
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        let [from, to] = guests.get_disjoint_mut([from, to]).unwrap();
        from.reach(to);
        to.reach(from);
        from.reach(to);
    }
    let [mut a, mut b, _] = guests;
    let before = process(world, "ovs");
    assert_eq!((&before["missing"], &before["restarts"]), (&json!([]), &json!(0)));
    // Installed flows forward without the process, and it comes back by itself.
    let pid = i32::try_from(before["pid"].as_u64().unwrap()).unwrap();
    let kept = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    // CAP_NET_ADMIN and CAP_DAC_OVERRIDE alone, and a filter of system calls.
    for line in ["CapEff:\t0000000000001002\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n"] {
        assert!(kept.contains(line), "{line:?} in {kept}");
    }
    // SAFETY: plain integers; the process is one of the product under test.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    assert_eq!(world.vswitchd_signal(), Some(libc::SIGABRT));
    all_arrive(100, &mut a, &mut b);
    world.start_vswitchd();
    world.wait_until_configured();
    assert_eq!(process(world, "ovs")["restarts"], json!(1));
    // The same sockets and connections.
    a.reach(&mut b);
    b.reach(&mut a);
    world.vsctl("del-port vm3");
    world.until("its socket is gone", |world| !world.guest_socket("vm3").exists());
    world.check_log();
}

pub fn process(world: &World, role: &str) -> serde_json::Value {
    let status: serde_json::Value = serde_json::from_str(&world.product("status --json")).unwrap();
    let processes = status["processes"].as_array().unwrap();
    let found = processes.iter().find(|process| process["role"] == role);
    found.unwrap_or_else(|| panic!("{status}")).clone()
}

/// A flow is there when its first packet arrives, so that none of those behind it is lost.
pub fn all_arrive(count: usize, a: &mut Guest, b: &mut Guest) {
    b.take();
    let end = Instant::now() + TIMEOUT;
    (0..count).for_each(|_| a.send(b));
    let mut arrived = 0;
    while arrived < count {
        assert!(Instant::now() < end, "{arrived} of {count}");
        arrived += b.take().len();
    }
}

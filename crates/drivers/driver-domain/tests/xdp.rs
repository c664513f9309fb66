//! Uplinks by AF_XDP: frames both ways over a veth, what is refused and why, and deaths of processes. Needs
//! root; says so and passes without.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::backend::{ALL, Backend};
use common::{Driver, Namespace, can_run, command, sh, tap, unique};
use control_protocol::Channel;
use control_protocol::driver::{BackEnd, InterfaceKind, InterfaceSpec, InterfaceState};
use control_protocol::supervisor::ForwarderId;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// A data plane that hands frames on as they are has no segmentation.
const FEATURES: u64 = 1 << 32 | 1 << 29 | 1 << 15 | 1;

/// The forwarder of the uplink.
const UPLINK: ForwarderId = ForwarderId(1);

/// An uplink in a namespace of its own, a station outside, and a container.
struct Site {
    driver: Driver,
    host: Namespace,
    outside: Namespace,
    inside: Namespace,
    uplink: String,
    far: String,
    tap: String,
    mtu: u32,
    queues: u32,
    /// What is asked of the uplink, and what the data plane can.
    back_end: BackEnd,
    features: u64,
    backend: Option<Backend>,
}

impl Site {
    fn new(driver: impl FnOnce(&Namespace) -> Driver, mtu: u32) -> Site {
        Site::of_queues(driver, mtu, 1)
    }

    /// With queues of the uplink.
    fn of_queues(driver: impl FnOnce(&Namespace) -> Driver, mtu: u32, queues: u32) -> Site {
        let [host, outside, inside] = [(); 3].map(|()| Namespace::new());
        let [uplink, far, tap] = [(); 3].map(|()| unique());
        let driver = driver(&host);
        let site = Site {
            driver,
            mtu,
            queues,
            host,
            outside,
            inside,
            uplink,
            far,
            tap,
            back_end: BackEnd::AfXdp,
            features: FEATURES,
            backend: None,
        };
        site.join();
        site
    }

    /// Makes uplink and far end.
    fn join(&self) {
        let (uplink, far, mtu) = (&self.uplink, &self.far, self.mtu);
        let queues = format!("numrxqueues {0} numtxqueues {0}", self.queues);
        sh(&format!(
            "ip link add {uplink} netns {} mtu {mtu} {queues} type veth peer name {far} address 02:00:00:00:80:01 netns {} mtu {mtu} {queues}",
            self.host.0, self.outside.0
        ));
        self.host.sh(&format!("ethtool -K {uplink} rxvlan off"));
        self.outside.sh(&format!("ip addr add 10.80.0.1/24 dev {far}"));
        self.outside.sh(&format!("ip link set {far} up"));
        self.host.sh(&format!("ip link set {uplink} up"));
    }

    fn spec(&self) -> InterfaceSpec {
        InterfaceSpec {
            kind: InterfaceKind::Uplink {
                back_end: self.back_end,
            },
            name: self.uplink.clone(),
            mtu: None,
        }
    }

    /// A data plane that can everything, as packet sockets want it.
    fn with_all_features(mut self) -> Site {
        self.features = ALL;
        self
    }

    /// Attaches uplink and container.
    fn attach(&mut self) {
        let (backend, [first, second]) = Backend::start(self.features);
        self.driver.attach(0, &self.spec(), first);
        let spec = tap(&self.tap, &self.inside, &["10.80.0.2/24", "fd00:80::2/64"]);
        self.driver.attach(1, &spec, second);
        self.driver.expect_up(0);
        self.driver.expect_up(1);
        // What the container sends is complete, since the data plane of this test completes nothing.
        self.inside.sh(&format!("ethtool -K {} tx off", self.tap));
        self.backend = Some(backend);
    }

    /// What the uplink's forwarder serves, as users see it.
    fn serves(&self) -> String {
        let all = self.driver.supervision.serves();
        let own = all.into_iter().find(|(id, _)| *id == UPLINK);
        own.map(|(_, text)| text).unwrap_or_default()
    }

    fn until_serves(&self, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.serves().contains(text) {
            assert!(Instant::now() < deadline, "'{text}' in {}", self.serves());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn ping(&self) {
        self.inside.ping("10.80.0.1");
        self.outside.ping("10.80.0.2");
    }
}

/// Runs something on a thread in a namespace.
fn within<T: Send + 'static>(namespace: &Namespace, work: impl FnOnce() -> T + Send + 'static) -> T {
    let netns = std::fs::File::open(format!("/run/netns/{}", namespace.0)).unwrap();
    let thread = std::thread::spawn(move || {
        let kind = Some(rustix::thread::LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(netns.as_fd(), kind).unwrap();
        work()
    });
    thread.join().unwrap()
}

#[test]
fn traffic_passes_both_ways_and_open_checksums_are_completed() {
    if !can_run() {
        return;
    }
    let mut site = Site::new(|host| Driver::start(Some(host)), 1500);
    site.attach();
    site.until_serves("AF_XDP in its driver, copied by the kernel (no zero copy here), hidden from the host");
    site.ping();
    site.outside.sh("ping -c 3 -i 0.05 -s 1472 -M do -W 5 10.80.0.2");
    site.inside.sh("ping -c 3 -i 0.05 -s 1472 -M do -W 5 10.80.0.1");
    for options in ["", "-R"] {
        let rate = site.outside.iperf(&site.inside, "10.80.0.2", options);
        println!("AF_XDP {options}: {:.2} Gb/s", rate / 1e9);
        assert!(rate > 1e7);
    }
    let unsummed = site.backend.as_ref().unwrap().devices[0].lock().unwrap().unsummed;
    assert!(
        unsummed > 100,
        "the kernel outside leaves checksums open: {unsummed}"
    );
    assert_eq!(segmented(&site), 0, "the data plane takes no large frames");
    // The device goes down and comes back, by AF_XDP again.
    for _ in 0..3 {
        site.host.sh(&format!("ip link set {} down", site.uplink));
        site.driver.expect_failed(0, "");
        site.host.sh(&format!("ip link set {} up", site.uplink));
        site.driver.expect_up(0);
        site.until_serves("AF_XDP in its driver");
        site.ping();
    }
    // The device vanishes, and another one takes its name.
    site.host.sh(&format!("ip link del {}", site.uplink));
    site.driver.expect_failed(0, "there is no interface");
    site.join();
    site.driver.expect_up(0);
    site.until_serves("AF_XDP in its driver");
    site.ping();
    // The back end changes, and changes again.
    let changes = [
        (BackEnd::Packet, ALL, "packet socket"),
        (BackEnd::AfXdp, FEATURES, "AF_XDP in its driver"),
    ];
    for (back_end, features, text) in changes {
        (site.back_end, site.features) = (back_end, features);
        site.driver.change(0, &site.spec());
        site.until_serves(text);
        site.attach();
        site.until_serves(text);
        site.ping();
    }
    site.driver.detach(0);
    site.driver.list();
    let said = site.host.sh(&format!("ip link show {}", site.uplink));
    assert!(!said.contains("xdp"), "{said}");
}

/// Segments that come together go on as one frame where the data plane takes such, and no byte is changed.
#[test]
fn segments_that_come_together_are_merged() {
    if !can_run() {
        return;
    }
    let mut site = Site::new(|host| Driver::start(Some(host)), 1500).with_all_features();
    site.attach();
    site.until_serves("AF_XDP in its driver");
    site.ping();
    for (to, address) in [
        ("10.80.0.2:5301", "10.80.0.1/24"),
        ("[fd00:80::2]:5301", "fd00:80::1/64"),
    ] {
        let (far, quiet) = (&site.far, "nodad");
        let quiet = if address.contains(':') { quiet } else { "" };
        site.outside
            .sh(&format!("ip addr replace {address} dev {far} {quiet}"));
        let before = segmented(&site);
        stream_arrives_whole(&site, to);
        let merged = segmented(&site) - before;
        assert!(merged > 100, "{to}: {merged} frames were merged");
    }
    let largest = site.backend.as_ref().unwrap().devices[0].lock().unwrap().largest;
    assert!(largest > 3 * 1514 && largest <= 65_535, "{largest}");
    for options in ["", "-R"] {
        let rate = site.outside.iperf(&site.inside, "10.80.0.2", options);
        println!("AF_XDP, merged {options}: {:.2} Gb/s", rate / 1e9);
        assert!(rate > 1e7);
    }
}

/// Frames of the uplink that were to be segmented.
fn segmented(site: &Site) -> u64 {
    site.backend.as_ref().unwrap().devices[0]
        .lock()
        .unwrap()
        .segmented
}

/// Sends 16 MiB by TCP from outside, and compares them.
fn stream_arrives_whole(site: &Site, to: &'static str) {
    const PIECES: u64 = 1 << 21;
    let listener = within(&site.inside, move || TcpListener::bind(to).unwrap());
    let mut sender = within(&site.outside, move || TcpStream::connect(to).unwrap());
    let (mut receiver, _) = listener.accept().unwrap();
    let sending = std::thread::spawn(move || {
        let bytes: Vec<u8> = (0..PIECES)
            .flat_map(|number| (number * 0x9e37_79b9).to_be_bytes())
            .collect();
        sender.write_all(&bytes).unwrap();
    });
    let mut received = Vec::new();
    receiver.read_to_end(&mut received).unwrap();
    sending.join().unwrap();
    assert_eq!(received.len() as u64, 8 * PIECES);
    let is_right = |(number, piece): (u64, &[u8])| piece == (number * 0x9e37_79b9).to_be_bytes();
    assert!((0..).zip(received.chunks(8)).all(is_right));
}

/// Frames of all lengths, up to those for which larger chunks are taken, arrive whole and in order.
#[test]
fn frames_of_all_lengths_come_in_order() {
    if !can_run() {
        return;
    }
    for (mtu, lengths) in [
        (1500, [60, 64, 128, 1000, 1514, 1514]),
        (3400, [60, 1514, 1793, 2048, 3000, 3414]),
        // The last frame that fits one chunk, and the first ones over two and over three.
        (9000, [60, 3840, 3841, 7680, 7681, 9014]),
    ] {
        let mut site = Site::new(|host| Driver::start(Some(host)), mtu);
        site.attach();
        site.until_serves("AF_XDP in its driver");
        let backend = site.backend.as_ref().unwrap();
        backend.devices[0].lock().unwrap().keep = usize::MAX;
        // More than there are chunks, so that all are used again.
        for round in 0..6 {
            backend.devices[0].lock().unwrap().kept.clear();
            let frames: Vec<Vec<u8>> = (round * 900..(round + 1) * 900_usize)
                .map(|number| {
                    let mut frame = vec![number as u8; lengths[number % lengths.len()]];
                    frame[..12].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9]);
                    let kind: &[u8] = match number % 3 {
                        0 => &[0x81, 0x00, 0x20, 0x64, 0x88, 0xb5],
                        _ => &[0x88, 0xb5],
                    };
                    frame[12..12 + kind.len()].copy_from_slice(kind);
                    frame[18..26].copy_from_slice(&(number as u64).to_be_bytes());
                    frame
                })
                .collect();
            let (sent, far) = (frames.clone(), site.far.clone());
            within(&site.outside, move || {
                let socket = nic_packet::Uplink::open(&far, None).unwrap();
                let header = vec![0; socket.header_len()];
                for frame in sent {
                    rustix::io::write(&socket, &[&header[..], &frame].concat()).unwrap();
                    // The ring holds all that comes while this test has no processor for a while.
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
            let ours = || -> Vec<Vec<u8>> {
                let device = backend.devices[0].lock().unwrap();
                let all = device
                    .kept
                    .iter()
                    .filter(|kept| kept[18..24] == [2, 0, 0, 0, 0, 9]);
                all.map(|kept| kept[12..].to_vec()).collect()
            };
            let deadline = Instant::now() + Duration::from_secs(10);
            while ours().len() < frames.len() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
            let ours = ours();
            let numbers =
                |all: &[Vec<u8>]| -> Vec<Vec<u8>> { all.iter().map(|f| f[18..26].to_vec()).collect() };
            assert!(
                numbers(&ours) == numbers(&frames),
                "MTU {mtu}: {} frames",
                ours.len()
            );
            assert!(ours == frames, "all are whole");
        }
    }
}

/// Frames longer than a chunk pass both ways, whole.
#[test]
fn jumbo_frames_pass_both_ways() {
    if !can_run() {
        return;
    }
    let mut site = Site::new(|host| Driver::start(Some(host)), 9000);
    site.attach();
    site.until_serves("frames up to 65553 bytes");
    site.inside.sh(&format!("ip link set {} mtu 9000", site.tap));
    for len in [56, 3798, 3799, 4054, 4055, 8972] {
        let ping = format!("ping -c 3 -i 0.05 -s {len} -M do -W 5");
        site.outside.sh(&format!("{ping} 10.80.0.2"));
        site.inside.sh(&format!("{ping} 10.80.0.1"));
    }
    for options in ["", "-R"] {
        let rate = site.outside.iperf(&site.inside, "10.80.0.2", options);
        println!("AF_XDP, MTU 9000 {options}: {:.2} Gb/s", rate / 1e9);
        assert!(rate > 1e7);
    }
    // With a smaller MTU, one chunk holds a frame.
    site.host.sh(&format!("ip link set {} mtu 1500", site.uplink));
    site.until_serves("frames up to 1792 bytes");
    site.outside.sh(&format!("ip link set {} mtu 1500", site.far));
    site.inside.sh(&format!("ip link set {} mtu 1500", site.tap));
    site.ping();
}

/// All queues of a device lead to the one port, and each flow stays in order.
#[test]
fn frames_come_from_all_queues_of_a_device() {
    if !can_run() {
        return;
    }
    const QUEUES: u32 = 4;
    let start = |host: &Namespace| Driver::start_processes_in(host, "driver_process", "forwarder_process");
    let mut site = Site::of_queues(start, 1500, QUEUES);
    site.outside.sh(&format!("ethtool -L {} tx 2", site.far));
    site.host.sh(&format!("ethtool -L {} rx 2", site.uplink));
    site.attach();
    site.until_serves("from 2 queues");
    // Further queues are noticed when the device's state is asked for.
    site.host.sh(&format!("ethtool -L {} rx {QUEUES}", site.uplink));
    site.outside.sh(&format!("ethtool -L {} tx {QUEUES}", site.far));
    site.driver.look_at_devices();
    site.until_serves("from 4 queues");
    site.driver.expect_up(0);
    site.ping();
    for _ in 0..3 {
        every_queue_is_read(&site, QUEUES);
        for options in ["-P 8", "-R"] {
            let rate = site.outside.iperf(&site.inside, "10.80.0.2", options);
            assert!(rate > 1e7, "{options}");
        }
        // The next forwarder finds the rings of all queues as they are.
        site.driver.supervision.replace_forwarder(UPLINK);
        site.driver
            .expect(0, |state| *state == InterfaceState::Disconnected);
        site.attach();
        site.ping();
    }
    site.driver.replace_broker("driver_process");
    site.driver.new_control();
    site.until_serves("from 4 queues");
    site.ping();
}

/// Has the kernel outside send flows until each queue has passed some, and finds all their frames.
fn every_queue_is_read(site: &Site, queues: u32) {
    let device = &site.backend.as_ref().unwrap().devices[0];
    device.lock().unwrap().kept.clear();
    device.lock().unwrap().keep = usize::MAX;
    let before = passed_by_queues(site, queues);
    let all_passed = || {
        let now = passed_by_queues(site, queues);
        now.iter().zip(&before).all(|(now, then)| now >= &(then + 8))
    };
    let mut flows = 0;
    while !all_passed() {
        assert!(flows < 2000, "{before:?}, {:?}", passed_by_queues(site, queues));
        let first = 20_000 + flows;
        flows += 20;
        let script = format!(
            "for i in {{1..20}}; do echo train-of-a-flow > /dev/udp/10.80.0.2/$(({first} + i)); done"
        );
        let mut bash = std::process::Command::new("ip");
        bash.args(["netns", "exec", &site.outside.0, "bash", "-c", &script]);
        assert!(bash.status().unwrap().success());
    }
    let arrived = || {
        let device = device.lock().unwrap();
        let is_ours = |frame: &&Vec<u8>| frame.ends_with(b"train-of-a-flow\n");
        device.kept.iter().filter(is_ours).count()
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    while arrived() < flows && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(arrived(), flows);
}

/// Frames that the veth has handed to XDP so far, by queue.
fn passed_by_queues(site: &Site, queues: u32) -> Vec<u64> {
    let said = site.host.sh(&format!("ethtool -S {}", site.uplink));
    let of = |queue: u32| -> u64 {
        let name = format!("rx_queue_{queue}_xdp_packets:");
        let line = said.lines().find_map(|line| line.trim().strip_prefix(&name));
        line.and_then(|count| count.trim().parse().ok())
            .unwrap_or_else(|| panic!("{said}"))
    };
    (0..queues).map(of).collect()
}

/// What AF_XDP cannot, a packet socket does, and users are told why.
#[test]
fn what_is_refused_falls_back_with_a_reason() {
    if !can_run() {
        return;
    }
    // A program of somebody else.
    let mut site = Site::new(|host| Driver::start(Some(host)), 1500).with_all_features();
    let other = attach_another_program(&site);
    site.attach();
    site.until_serves("packet socket");
    site.until_serves("not AF_XDP, since it has an XDP program of somebody else (`bpftool net`)");
    drop(other);
    // Tags that would be lost.
    let mut tags = Site::new(|host| Driver::start(Some(host)), 1500).with_all_features();
    tags.host.sh(&format!("ethtool -K {} rxvlan on", tags.uplink));
    tags.attach();
    tags.until_serves("its driver takes VLAN tags out of frames: `ethtool -K");
    // More queues than are served.
    let mut queues = Site::of_queues(|host| Driver::start(Some(host)), 1500, 17).with_all_features();
    queues.attach();
    queues.until_serves("it has 17 queues, and 16 are served at most: `ethtool -L");
    queues.ping();
    // Frames that are too long for the data plane.
    let mut long = Site::new(|host| Driver::start(Some(host)), 65_535).with_all_features();
    long.attach();
    long.until_serves("its MTU of 65535 is more than the 65531 that AF_XDP takes: `ip link set");
    long.ping();
}

/// Attaches the program, with an empty map, as somebody else would.
fn attach_another_program(site: &Site) -> OwnedFd {
    let name = site.uplink.clone();
    within(&site.host, move || {
        let (index, _) = nic_packet::index_and_mtu(&name).unwrap();
        let steering = driver_domain::Steering::load().unwrap();
        ebpf::attach_to_driver(steering.descriptors()[0], index, ebpf::XdpMode::Native).unwrap()
    })
}

/// A device whose driver has no XDP has the program behind it.
#[test]
fn a_driver_without_xdp_has_the_program_behind_it() {
    if !can_run() {
        return;
    }
    let mut site = Site::new(|host| Driver::start(Some(host)), 1500);
    // A bridge over the veth: its own driver has no XDP.
    let (veth, bridge) = (site.uplink.clone(), unique());
    site.host.sh(&format!("ip link add {bridge} type bridge"));
    site.host.sh(&format!("ip link set {veth} master {bridge}"));
    site.host.sh(&format!("ip link set {bridge} up"));
    site.outside
        .sh(&format!("ethtool -K {} tso off gso off", site.far));
    site.uplink = bridge;
    site.attach();
    site.until_serves("AF_XDP behind its driver (its driver has no XDP), copied by the kernel");
    site.ping();
}

/// Not a test: a broker that others kill.
#[test]
#[ignore = "runs as a child of another test"]
fn driver_process() {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    driver_domain::run(Channel::from(stdin), common::owner()).unwrap();
}

/// Not a test: a forwarder that others kill.
#[test]
#[ignore = "runs as a child of another test"]
fn forwarder_process() {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    driver_domain::forward(Channel::from(stdin)).unwrap();
}

/// The death of the broker costs no frame, that of a forwarder opens nothing again; the next one finds the
/// rings as they are, in mid-traffic.
#[test]
fn deaths_of_broker_and_forwarders_leave_the_socket_as_it_is() {
    if !can_run() {
        return;
    }
    let start = |host: &Namespace| Driver::start_processes_in(host, "driver_process", "forwarder_process");
    let mut site = Site::new(start, 1500);
    site.attach();
    site.until_serves("AF_XDP in its driver");
    site.ping();
    let program = |site: &Site| {
        let said = site.host.sh(&format!("ip -d link show {}", site.uplink));
        let at = said.find("prog/xdp").expect("a program");
        said[at..].lines().next().unwrap().to_owned()
    };
    let before = program(&site);
    let mut ping = site.outside.spawn("ping -q -c 200 -i 0.01 -W 5 10.80.0.2");
    for _ in 0..2 {
        site.driver.replace_broker("driver_process");
        site.driver.new_control();
        let is_up = |(_, _, state): &(_, _, InterfaceState)| *state == InterfaceState::Up;
        assert!(site.driver.list().iter().all(is_up));
    }
    assert!(ping.wait().unwrap().success());
    for _ in 0..40 {
        let mut flood = site.outside.spawn("ping -q -f -c 100000 -s 1000 10.80.0.2");
        std::thread::sleep(Duration::from_millis(20));
        site.driver.supervision.replace_forwarder(UPLINK);
        site.driver
            .expect(0, |state| *state == InterfaceState::Disconnected);
        site.attach();
        site.ping();
        flood.kill().unwrap();
        flood.wait().unwrap();
    }
    assert_eq!(program(&site), before, "it was opened again");
    let line = format!(
        "ip netns exec {} ping -q -f -c 5000 -s 1000 10.80.0.2",
        site.outside.0
    );
    let said = String::from_utf8(command(&line).output().unwrap().stdout).unwrap();
    assert!(said.contains(" 0% packet loss"), "all chunks are there: {said}");
}

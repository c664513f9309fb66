//! The processes of the driver domain, on a running switch with containers and an uplink: what each can do,
//! and what its death means to the others. Needs root; says so and passes without.

#![allow(clippy::unwrap_used, reason = "tests")]

mod containers;

use containers::{Instance, Namespace, eventually, kernel_says, run};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The broker, the forwarder of TAPs, the forwarder of the uplink.
const BROKER: &str = "driver";
const TAPS: &str = "forwarder-0";
const UPLINK: &str = "forwarder-1";

/// Two containers and a station behind the uplink.
struct Site {
    containers: [Namespace; 2],
    outside: Namespace,
    host: Namespace,
    instance: Instance,
    _directory: tempfile::TempDir,
}

impl Site {
    fn start() -> Option<Site> {
        Site::start_with("")
    }

    /// With further keys of the switch.
    fn start_with(keys: &str) -> Option<Site> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/net/tun").exists() {
            println!("left out: takes root and TAPs");
            return None;
        }
        let [a, b, outside, host] = ["a", "b", "outside", "host"].map(Namespace::new);
        let veth = format!(
            "ip link add up0 netns {} type veth peer name far0 netns {}",
            host.0, outside.0
        );
        assert!(run(&veth).0);
        assert!(host.run("ip link set up0 up").0);
        assert!(host.run("ethtool -K up0 rxvlan off").0);
        assert!(outside.run("ip addr add 10.84.0.9/24 dev far0").0);
        assert!(outside.run("ip link set far0 up").0);
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("c.toml");
        let port = |name: &str, namespace: &Namespace, host: u8| {
            format!(
                "[[switch.port]]\nname = \"{name}\"\ntype = \"tap\"\nnetns = \"{}\"\n\
                 addresses = [\"10.84.0.{host}/24\"]\n",
                namespace.0
            )
        };
        let switch = "[[switch]]\nname = \"lan\"\ntype = \"external\"\nuplink = \"up0\"\n";
        let text = format!("{switch}{keys}{}{}", port("a", &a, 1), port("b", &b, 2));
        std::fs::write(&file, text).unwrap();
        let site = Site {
            instance: Instance::start_with(
                // Devices do wrong when a frame says so, in debug builds.
                &["HYPERSWITCH_MISBEHAVE=1"],
                &host,
                &directory.path().join("run"),
                &file,
            ),
            containers: [a, b],
            outside,
            host,
            _directory: directory,
        };
        site.reaches_all();
        Some(site)
    }

    fn reaches_all(&self) {
        for address in ["10.84.0.2", "10.84.0.9"] {
            eventually(address, || self.containers[0].pings(address));
        }
    }

    fn process(&self, role: &str) -> Option<Value> {
        let status = self.instance.verb(&["status"]).ok()?;
        let processes = status["processes"].as_array()?.clone();
        processes.into_iter().find(|process| process["role"] == role)
    }

    fn pid(&self, role: &str) -> u64 {
        let mut pid = None;
        eventually(role, || {
            self.process(role).is_some_and(|process| process["pid"].is_u64())
        });
        if let Some(process) = self.process(role) {
            pid = process["pid"].as_u64();
        }
        pid.unwrap()
    }

    /// A thousand requests to the other container or outside, in two seconds at least.
    fn ping(&self, address: &str) -> Child {
        let ping = format!("ping -n -c 1000 -i 0.002 -W 10 {address} | grep -o 'icmp_seq=[0-9]*'");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.containers[0].0, "sh", "-c", &ping]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    }
}

/// Requests but the last 50 are answered: for those that are under way when it ends, `ping` waits two round
/// trips, which is too short on a busy machine.
fn loses_nothing(ping: Child, what: &str) {
    loses_none_up_to(950, ping, what);
}

fn loses_none_up_to(last: u64, ping: Child, what: &str) {
    let text = String::from_utf8(ping.wait_with_output().unwrap().stdout).unwrap();
    let number = |line: &str| line.strip_prefix("icmp_seq=")?.parse().ok();
    let answered: BTreeSet<u64> = text.lines().filter_map(number).collect();
    let lost: Vec<u64> = (1..=last).filter(|number| !answered.contains(number)).collect();
    assert!(lost.is_empty(), "{what}: no answers to {lost:?}");
}

#[test]
fn forwarders_have_no_rights_and_the_broker_has_no_frames() {
    let Some(site) = Site::start() else { return };
    let own = |pid: u64, namespace: &str| std::fs::read_link(format!("/proc/{pid}/ns/{namespace}")).unwrap();
    let broker = site.pid(BROKER);
    let mut users = BTreeSet::new();
    for role in [TAPS, UPLINK] {
        let process = site.process(role).unwrap();
        assert_eq!(process["missing"].as_array().map(Vec::len), Some(0), "{process}");
        let pid = process["pid"].as_u64().unwrap();
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            let capabilities = u64::from_str_radix(&kernel_says(pid, set), 16).unwrap();
            // SYS_NICE where the supervisor may not raise limits.
            assert_eq!(capabilities & !(1 << 23), 0, "{role}: {set}");
        }
        assert_eq!(kernel_says(pid, "Seccomp"), "2");
        assert_eq!(kernel_says(pid, "Groups"), "");
        users.insert(kernel_says(pid, "Uid"));
        for namespace in ["mnt", "net", "ipc", "uts"] {
            assert_ne!(own(pid, namespace), own(broker, namespace), "{role}: {namespace}");
        }
        assert_eq!(std::fs::read_dir(format!("/proc/{pid}/root")).unwrap().count(), 0);
    }
    assert_eq!(users.len(), 2, "each is a user of its own");
    assert!(users.iter().all(|user| !user.split('\t').any(|id| id == "0")));
    // The device of one forwarder is none of the other one's.
    let targets = |role: &str| -> Vec<String> {
        let files = std::fs::read_dir(format!("/proc/{}/fd", site.pid(role))).unwrap();
        let targets = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
        targets
            .map(|target| target.to_string_lossy().into_owned())
            .collect()
    };
    let taps = |role: &str| {
        targets(role)
            .iter()
            .filter(|target| *target == "/dev/net/tun")
            .count()
    };
    assert_eq!((taps(TAPS), taps(UPLINK)), (3, 0));
    let sockets: BTreeSet<String> = targets(TAPS)
        .into_iter()
        .filter(|it| it.starts_with("socket"))
        .collect();
    assert!(targets(UPLINK).iter().all(|target| !sockets.contains(target)));
    // The broker has the devices, too, but neither their frames' memory nor a thread that waits for them.
    let maps = std::fs::read_to_string(format!("/proc/{broker}/maps")).unwrap();
    assert!(
        !maps.contains("hyperswitch-nic") && !maps.contains("socket:"),
        "{maps}"
    );
    for process in [site.pid(TAPS), site.pid(UPLINK)] {
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
        assert!(maps.contains("hyperswitch-nic"), "{maps}");
    }
    let said = site.process(UPLINK).unwrap();
    let serves = said["serves"].as_str().unwrap();
    let expected = "up0: packet socket with receive ring, hidden from the host; passes TCP segmentation";
    assert!(serves.starts_with(expected), "{serves}");
    assert_eq!(site.process(TAPS).unwrap()["serves"], "TAPs: 3");
}

#[test]
fn the_death_of_one_process_is_no_other_ones_loss() {
    let Some(site) = Site::start() else { return };
    let index = || site.containers[0].run("cat /sys/class/net/a/ifindex").1;
    let before = index();
    // The broker: nobody notices.
    for address in ["10.84.0.2", "10.84.0.9"] {
        let pids = [TAPS, UPLINK].map(|role| site.pid(role));
        let ping = site.ping(address);
        site.instance.kill(BROKER);
        loses_nothing(ping, address);
        assert_eq!(pids, [TAPS, UPLINK].map(|role| site.pid(role)));
    }
    // The broker has all in hand.
    site.instance
        .verb(&["port", "set", "a", "--mtu", "1400"])
        .unwrap();
    eventually("the MTU", || {
        site.containers[0].run("cat /sys/class/net/a/mtu").1.trim() == "1400"
    });
    // The uplink's forwarder: containers do not notice, and traffic outside comes back.
    let taps = site.pid(TAPS);
    for _ in 0..2 {
        let ping = site.ping("10.84.0.2");
        site.instance.kill(UPLINK);
        loses_nothing(ping, "between containers");
        site.reaches_all();
    }
    assert_eq!(site.pid(TAPS), taps);
    site.instance.kill(TAPS);
    site.reaches_all();
    assert_eq!(index(), before, "no interface was opened again");
}

/// AF_XDP with real processes: TCP both ways, large segments and open checksums on either side, and deaths.
#[test]
fn an_uplink_by_af_xdp_carries_tcp_and_outlives_processes() {
    let Some(site) = Site::start_with("uplink-back-end = \"af-xdp\"\n") else {
        return;
    };
    let serves = || site.process(UPLINK).unwrap()["serves"].to_string();
    assert!(
        serves().contains("up0: AF_XDP in its driver, copied by the kernel"),
        "{}",
        serves()
    );
    let sends = |options: &str| {
        let (is_done, said) = site.outside.run("iperf3 -s -1 -D");
        assert!(is_done, "{said}");
        let client = format!("iperf3 -c 10.84.0.9 --connect-timeout 5000 -n 20M {options}");
        eventually("TCP", || site.containers[0].run(&client).0);
    };
    sends("");
    sends("-R");
    let ping = site.ping("10.84.0.9");
    site.instance.kill(BROKER);
    loses_nothing(ping, "a broker that died");
    for _ in 0..3 {
        let ping = site.ping("10.84.0.2");
        site.instance.kill(UPLINK);
        loses_nothing(ping, "between containers");
        site.reaches_all();
        assert!(serves().contains("AF_XDP in its driver"), "{}", serves());
    }
    sends("-R");
    let program = || site.host.run("ip link show up0").1.contains("prog/xdp");
    assert!(program());
    let mut site = site;
    site.instance.die();
    let gone = || !site.host.run("ip link show up0").1.contains("prog/xdp");
    eventually("nothing is left at the device", gone);
}

/// Sends sixteen times four datagrams of 1,400 bytes as one (`UDP_SEGMENT`), to port 9.
const SENDS_SEGMENTS: &str = "
import socket, sys
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.setsockopt(socket.IPPROTO_UDP, 103, 1400)
for _ in range(16):
    udp.sendto(b'x' * 5600, (sys.argv[1], 9))";

/// Receives 64 datagrams and says which lengths they have.
const RECEIVES_SEGMENTS: &str = "
import socket, sys
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(('', 9))
udp.settimeout(20)
print('bound', flush=True)
print({len(udp.recv(9999)) for _ in range(64)})";

/// Frames of large datagrams pass from a container to another one as one frame, and through the uplink both
/// ways.
#[test]
fn large_datagrams_pass_taps_and_uplink_whole() {
    let Some(site) = Site::start() else { return };
    let [first, second] = &site.containers;
    let received = |at: &Namespace, device: &str| -> u64 {
        let text = at.run("cat /proc/net/dev").1;
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix(&format!("{device}:")));
        let words: Vec<&str> = line.unwrap().split_whitespace().collect();
        words[1].parse().unwrap()
    };
    for (from, to, device, address) in [
        (first, second, "b", "10.84.0.2"),
        (first, &site.outside, "far0", "10.84.0.9"),
        (&site.outside, first, "a", "10.84.0.1"),
    ] {
        let python = |at: &Namespace, script: &str| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &at.0, "python3", "-c", script, address]);
            command.stdout(Stdio::piped()).spawn().unwrap()
        };
        // Whatever the stacks have to say to each other comes before.
        assert!(from.pings(address));
        let mut receiver = python(to, RECEIVES_SEGMENTS);
        let mut said = BufReader::new(receiver.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "bound");
        let before = received(to, device);
        assert!(python(from, SENDS_SEGMENTS).wait().unwrap().success());
        assert_eq!(said.next().unwrap().unwrap(), "{1400}");
        let frames = received(to, device) - before;
        assert!(receiver.wait().unwrap().success());
        // Some are neighbours that greet each other.
        assert!(frames < 48, "{address}: {frames} frames for 64 datagrams");
    }
}

/// An uplink that goes down and up ten times a second takes nothing from containers and from another uplink,
/// and is used again. For 5 s, or as many as HYPERSWITCH_FLAP_SECONDS says.
#[test]
fn an_uplink_that_flaps_takes_nothing_from_others() {
    let Some(site) = Site::start() else { return };
    let seconds = std::env::var("HYPERSWITCH_FLAP_SECONDS").ok();
    let seconds: u64 = seconds.and_then(|text| text.parse().ok()).unwrap_or(5);
    let other = Namespace::new("other");
    let veth = format!(
        "ip link add up1 netns {} type veth peer name far1 netns {}",
        site.host.0, site.outside.0
    );
    assert!(run(&veth).0);
    for line in ["ip addr add 10.85.0.9/24 dev far1", "ip link set far1 up"] {
        assert!(site.outside.run(line).0);
    }
    assert!(site.host.run("ip link set up1 up").0);
    let verbs = [
        "switch add lan2 --type external --uplink up1".to_owned(),
        format!(
            "port add lan2 c --type tap --netns {} --address 10.85.0.1/24",
            other.0
        ),
    ];
    for verb in verbs {
        let words: Vec<&str> = verb.split(' ').collect();
        site.instance.verb(&words).unwrap();
    }
    eventually("the other uplink", || other.pings("10.85.0.9"));
    let pids = || [BROKER, TAPS, UPLINK].map(|role| site.pid(role));
    let before = pids();
    let begin = |namespace: &Namespace, address: &str| {
        let count = seconds * 500;
        let ping = format!("ping -n -c {count} -i 0.002 -W 10 {address} | grep -o 'icmp_seq=[0-9]*'");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &namespace.0, "sh", "-c", &ping]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let pings = [
        ("between containers", begin(&site.containers[0], "10.84.0.2")),
        ("through another uplink", begin(&other, "10.85.0.9")),
    ];
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        for state in ["down", "up"] {
            assert!(site.host.run(&format!("ip link set up0 {state}")).0);
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let up = Instant::now();
    while !site.outside.pings("10.84.0.1") {
        assert!(up.elapsed() < Duration::from_secs(5), "it is not used again");
    }
    println!("used again {:?} after the last time", up.elapsed());
    for (what, ping) in pings {
        loses_none_up_to(seconds * 500 - 50, ping, what);
    }
    site.reaches_all();
    assert_eq!(pids(), before, "no process died of it");
}

/// Ten times a second, for some seconds: other ports lose nothing, and everything comes back.
#[test]
fn a_forwarder_that_is_killed_all_the_time_hurts_its_own_device_only() {
    let Some(site) = Site::start() else { return };
    let ping = site.ping("10.84.0.2");
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        if let Some(pid) = site.process(UPLINK).and_then(|process| process["pid"].as_u64()) {
            let _ = run(&format!("kill -KILL {pid}"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    loses_nothing(ping, "between containers");
    site.reaches_all();
    assert!(site.outside.pings("10.84.0.1"));
}

/// Beside traffic of its own, and beside traffic of others.
#[test]
fn a_forwarder_that_is_stopped_is_replaced() {
    let Some(site) = Site::start() else { return };
    for (role, address) in [(UPLINK, "10.84.0.2"), (TAPS, "10.84.0.9")] {
        let old = site.pid(role);
        let ping = site.ping(address);
        assert!(run(&format!("kill -STOP {old}")).0);
        eventually("another process", || {
            let process = site.process(role).unwrap_or_default();
            process["pid"].as_u64().is_some_and(|pid| pid != old)
        });
        let said = site.process(role).unwrap();
        assert_eq!(said["last-exit"], "was stopped by signal 19", "{said}");
        if role == UPLINK {
            loses_nothing(ping, "between containers");
        } else {
            ping.wait_with_output().unwrap();
        }
        site.reaches_all();
    }
}

/// A frame that makes the device misbehave that it arrives at: to an unknown station, with that text.
fn misbehave(fault: &str) -> String {
    let text: String = fault.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("02000000ff77 02000000ff09 88b5 {text:0<100}")
}

/// A forwarder in an endless loop, one that dies in the middle of a batch, lies about lengths, overwrites its
/// rings, or has frames without end: containers talk on, and once it is replaced, all is as before.
#[test]
fn a_forwarder_that_misbehaves_hurts_its_own_device_only() {
    if !cfg!(debug_assertions) {
        println!("left out: devices misbehave in debug builds only");
        return;
    }
    let Some(site) = Site::start() else { return };
    for (fault, ends) in [
        ("loop", true),
        ("die", true),
        ("lie", false),
        ("corrupt", false),
        ("flood", false),
    ] {
        let old = site.pid(UPLINK);
        let ping = site.ping("10.84.0.2");
        site.outside.sends("far0", &misbehave(fault));
        let is_replaced = || {
            let process = site.process(UPLINK).unwrap_or_default();
            process["pid"].as_u64().is_some_and(|pid| pid != old)
        };
        if ends {
            eventually(fault, is_replaced);
        }
        loses_nothing(ping, fault);
        if !ends {
            // Whatever the data plane makes of it, an operator's remedy helps.
            site.instance.kill(UPLINK);
        }
        site.reaches_all();
    }
    assert_eq!(site.process("data-plane").unwrap()["restarts"], 0);
    assert_eq!(site.process(TAPS).unwrap()["restarts"], 0);
}

/// Memory that a forwarder has written for itself alone. Of the program it is what the loader has written,
/// several times as much in debug builds.
#[test]
fn a_forwarder_is_small() {
    let Some(site) = Site::start() else { return };
    for role in [TAPS, UPLINK] {
        let maps = std::fs::read_to_string(format!("/proc/{}/smaps", site.pid(role))).unwrap();
        let (mut of_program, mut all, mut is_program) = (0, 0, false);
        for line in maps.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["Private_Dirty:", kib, _] => {
                    let kib: u64 = kib.parse().unwrap();
                    all += kib;
                    of_program += if is_program { kib } else { 0 };
                }
                // The first line of a mapping: range, rights, offset, device, inode, file.
                [range, _, _, _, _, ..] if range.contains('-') => {
                    is_program = words.get(5).is_some_and(|file| file.ends_with("/hyperswitch"));
                }
                _ => {}
            }
        }
        println!("{role}: {all} KiB of its own, {of_program} of them of the program");
        let counted = if cfg!(debug_assertions) {
            all - of_program
        } else {
            all
        };
        assert!(counted <= 2048, "{role}: {maps}");
    }
}

/// The host's stack sees nothing that arrives at an uplink, whichever process dies and however the link
/// flaps, and all of it once the switch is gone.
#[test]
fn the_host_sees_nothing_of_an_uplink_while_the_switch_lives() {
    let Some(mut site) = Site::start() else { return };
    assert!(site.host.run("ip addr add 10.85.0.5/24 dev up0").0);
    assert!(site.outside.run("ip addr add 10.85.0.9/24 dev far0").0);
    let hidden = |site: &Site| {
        assert!(!site.outside.pings("10.85.0.5"), "the host answers");
        site.reaches_all();
    };
    hidden(&site);
    for role in [BROKER, UPLINK] {
        site.instance.kill(role);
        hidden(&site);
    }
    for _ in 0..4 {
        assert!(site.host.run("ip link set up0 down").0);
        assert!(site.host.run("ip link set up0 up").0);
        hidden(&site);
    }
    site.instance.die();
    eventually("the host answers", || site.outside.pings("10.85.0.5"));
}

/// Users see the device of an uplink: its cable, MTU and speed, what has passed, and what was dropped.
#[test]
fn the_device_of_an_uplink_is_shown() {
    let Some(site) = Site::start() else { return };
    let device = || {
        let ports = site
            .instance
            .verb(&["port", "show", "lan:uplink"])
            .unwrap_or_default();
        ports[0]["device"].clone()
    };
    let passed = |name: &str| device()["counters"][name].as_u64().unwrap_or_default();
    let said = device();
    assert_eq!(
        (&said["carrier"], &said["mtu"]),
        (&true.into(), &1500.into()),
        "{said}"
    );
    assert!(said["speed"].as_u64().is_some_and(|speed| speed > 0), "{said}");
    let (received, transmitted) = (passed("received"), passed("transmitted"));
    loses_nothing(site.ping("10.84.0.9"), "outside");
    assert!(passed("received") >= received + 1000);
    assert!(passed("transmitted") >= transmitted + 1000);
    assert_eq!(passed("ring-full"), 0);
    let containers = site.instance.verb(&["port", "show", "a"]).unwrap();
    assert!(
        containers[0]["device"].is_null(),
        "a TAP is no device of the host"
    );
    assert!(site.outside.run("ip link set far0 down").0);
    eventually("no carrier", || device()["carrier"] == false);
    assert!(site.outside.run("ip link set far0 up").0);
    eventually("carrier", || device()["carrier"] == true);
    site.reaches_all();
    // Without a broker to ask, the port is shown all the same.
    let broker = site.pid(BROKER);
    assert!(run(&format!("kill -STOP {broker}")).0);
    assert!(site.instance.verb(&["port", "show", "lan:uplink"]).is_ok());
    eventually("another broker", || {
        site.pid(BROKER) != broker && device()["carrier"] == true
    });
}

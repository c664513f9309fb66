//! Frames that leave and come by an uplink without its forwarder, on a running switch: what changes, and that
//! none is lost or overtaken when the way changes. Needs root; says so and passes without.

#![allow(clippy::unwrap_used, reason = "tests")]

mod containers;

use containers::{Instance, Namespace, eventually, run};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// A container, and a station behind the uplink.
struct Site {
    container: Namespace,
    outside: Namespace,
    host: Namespace,
    instance: Instance,
    directory: tempfile::TempDir,
}

impl Site {
    fn start(fast: bool) -> Option<Site> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/net/tun").exists() {
            println!("left out: takes root and TAPs");
            return None;
        }
        let [container, outside, host] = ["a", "outside", "host"].map(Namespace::new);
        let veth = format!(
            "ip link add up0 netns {} type veth peer name far0 netns {}",
            host.0, outside.0
        );
        assert!(run(&veth).0);
        assert!(host.run("ip link set up0 up").0);
        assert!(outside.run("ip addr add 10.87.0.9/24 dev far0").0);
        assert!(outside.run("ip link set far0 up").0);
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("c.toml");
        std::fs::write(&file, Site::config(&container, fast)).unwrap();
        let instance = Instance::start_in(&host, &directory.path().join("run"), &file);
        let site = Site {
            container,
            outside,
            host,
            instance,
            directory,
        };
        eventually("a ping", || site.container.pings("10.87.0.9"));
        Some(site)
    }

    fn config(container: &Namespace, fast: bool) -> String {
        format!(
            "[[switch]]\nname = \"lan\"\ntype = \"external\"\nuplink = \"up0\"\nuplink-fast-path = {fast}\n\
             [[switch.port]]\nname = \"a\"\ntype = \"tap\"\nnetns = \"{}\"\naddresses = [\"10.87.0.1/24\"]\n",
            container.0
        )
    }

    fn reload(&self, fast: bool) {
        let text = Site::config(&self.container, fast);
        std::fs::write(self.directory.path().join("c.toml"), text).unwrap();
        self.instance.verb(&["reload"]).unwrap();
    }

    /// What `port show` says of the queue.
    fn queue(&self) -> Value {
        let shown = self.instance.verb(&["port", "show", "lan:uplink"]);
        shown.map_or(Value::Null, |shown| shown[0]["device-queue"].clone())
    }

    fn packets(&self) -> u64 {
        self.queue()["packets"].as_u64().unwrap_or(0)
    }

    /// Pings until packets leave by the queue.
    fn is_fast(&self) {
        eventually("packets leave by the queue", || {
            self.container.pings("10.87.0.9") && self.queue()["obstacle"].is_null() && self.packets() > 0
        });
    }

    fn obstacle(&self) -> String {
        self.queue()["obstacle"].as_str().unwrap_or_default().into()
    }

    fn pid(&self, role: &str) -> Value {
        let status = self.instance.verb(&["status"]).unwrap();
        let mut processes = status["processes"].as_array().unwrap().iter();
        processes.find(|process| process["role"] == role).unwrap()["pid"].clone()
    }

    /// What `port show` says of packets that come by the queue.
    fn arrivals(&self) -> Value {
        self.queue()["arrivals"].clone()
    }

    fn came(&self) -> u64 {
        self.arrivals()["packets"].as_u64().unwrap_or(0)
    }

    /// Waits until the container's station has a filter, and packets come by the queue.
    fn steers(&self) {
        eventually("a filter", || self.arrivals()["filters"] == 1);
        let before = self.came();
        eventually("packets come by the queue", || self.came() > before + 100);
    }

    fn python(&self, at: &Namespace, script: &str, argument: &str) -> (Child, BufReader<ChildStdout>) {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &at.0, "python3", "-c", script, argument]);
        let mut child = command
            .stdout(Stdio::piped())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        (child, output)
    }
}

/// Sends numbered datagrams until its input ends, and says how many.
const SENDS: &str = "
import socket, sys, time, threading
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.connect((sys.argv[1], 9))
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set())).start()
number = 0
while not ended.is_set():
    for _ in range(4):
        udp.send(number.to_bytes(8, 'big') + b'x' * 100)
        number += 1
    time.sleep(0.001)
udp.send(b'')
print(number, flush=True)";

/// Receives them until an empty one comes, and says how many came, and how many after a later one.
const RECEIVES: &str = "
import socket
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)
udp.bind(('', 9))
print('bound', flush=True)
count, behind, last = 0, 0, -1
while (data := udp.recv(9999)):
    number = int.from_bytes(data[:8], 'big')
    count += 1
    behind += number < last
    last = max(last, number)
print(count, behind, flush=True)";

fn line(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line.trim().into()
}

/// Runs a numbered stream outwards beside `changes`, none of which is lost or overtaken.
fn beside_a_stream(site: &Site, changes: impl FnOnce()) {
    run_stream(site, [&site.container, &site.outside], "10.87.0.9", changes);
}

/// As [`beside_a_stream`], inwards.
fn beside_a_stream_inwards(site: &Site, changes: impl FnOnce()) {
    run_stream(site, [&site.outside, &site.container], "10.87.0.1", changes);
}

fn run_stream(site: &Site, [from, to]: [&Namespace; 2], address: &str, changes: impl FnOnce()) {
    let (mut receiver, mut received) = site.python(to, RECEIVES, "");
    assert_eq!(line(&mut received), "bound");
    let (mut sender, mut sent) = site.python(from, SENDS, address);
    changes();
    drop(sender.stdin.take());
    let sent = line(&mut sent);
    assert_eq!(
        line(&mut received),
        format!("{sent} 0"),
        "of {sent}: {}",
        site.queue()
    );
    assert!(sender.wait().unwrap().success() && receiver.wait().unwrap().success());
}

#[test]
fn frames_leave_by_the_queue_with_their_offloads_and_change_their_way_in_order() {
    let Some(site) = Site::start(true) else { return };
    site.is_fast();
    let before = site.packets();
    assert!(site.outside.run("iperf3 -s -1 -D").0);
    let client = "iperf3 -c 10.87.0.9 --connect-timeout 5000 -n 40M";
    eventually("TCP", || site.container.run(client).0);
    let sent = site.packets() - before;
    // Frames of 1,448 bytes would be 29,000.
    assert!((100..20_000).contains(&sent), "large frames stay whole: {sent}");
    let armed = || site.queue()["armed"].as_u64().unwrap_or(0);
    beside_a_stream(&site, || {
        for _ in 0..5 {
            site.reload(false);
            assert_eq!(site.queue(), Value::Null);
            site.reload(true);
            eventually("the queue's turn", || armed() > 0);
        }
        site.instance.kill("driver");
        eventually("a broker", || site.pid("driver").is_u64());
    });
}

#[test]
fn a_link_that_goes_down_and_a_forwarder_that_dies_end_the_queues_turn() {
    let Some(site) = Site::start(true) else { return };
    site.is_fast();
    site.instance.kill("forwarder-1");
    site.is_fast();
    assert!(site.host.run("ip link set up0 down").0);
    eventually("it is not used", || {
        site.container.pings("10.87.0.9");
        !site.obstacle().is_empty()
    });
    assert!(site.host.run("ip link set up0 up").0);
    site.is_fast();
    site.instance.kill("data-plane");
    site.is_fast();
    site.instance.kill("control");
    site.is_fast();
    beside_a_stream(&site, || eventually("packets", || site.packets() > 500));
}

#[test]
fn a_data_plane_that_was_started_without_queues_uses_none_and_lives() {
    let Some(site) = Site::start(false) else { return };
    assert_eq!(site.queue(), Value::Null);
    let pid = site.pid("data-plane");
    site.reload(true);
    eventually("it says why", || site.obstacle().contains("restart the service"));
    assert!(site.container.pings("10.87.0.9"));
    assert_eq!(site.pid("data-plane"), pid);
    site.instance.kill("data-plane");
    eventually("a ping", || site.container.pings("10.87.0.9"));
    assert!(
        site.obstacle().contains("restart the service"),
        "{}",
        site.obstacle()
    );
}

#[test]
fn frames_come_by_the_queue_and_none_is_lost_or_overtaken_when_filters_come_and_go() {
    let Some(site) = Site::start(true) else { return };
    beside_a_stream_inwards(&site, || {
        site.steers();
        for _ in 0..3 {
            site.reload(false);
            assert_eq!(site.queue(), Value::Null);
            site.reload(true);
            site.steers();
        }
        site.instance.kill("driver");
        eventually("a broker", || site.pid("driver").is_u64());
        site.steers();
    });
    assert_eq!(site.arrivals()["unusable"], 0);
    eventually("the filter goes with its stream", || {
        site.arrivals()["filters"] == 0
    });
    assert!(site.container.pings("10.87.0.9"));
}

#[test]
fn frames_that_come_by_the_queue_need_no_forwarder() {
    let Some(site) = Site::start(true) else { return };
    beside_a_stream_inwards(&site, || {
        site.steers();
        for _ in 0..3 {
            site.instance.kill("forwarder-1");
            let before = site.came();
            eventually("packets come", || site.came() > before + 500);
        }
        site.instance.kill("control");
        eventually("a control process", || site.came() > 0);
    });
}

#[test]
fn frames_take_the_forwarder_again_when_the_data_plane_dies() {
    let Some(site) = Site::start(true) else { return };
    let (mut receiver, mut received) = site.python(&site.container, RECEIVES, "");
    assert_eq!(line(&mut received), "bound");
    let (mut sender, _sent) = site.python(&site.outside, SENDS, "10.87.0.1");
    for _ in 0..2 {
        site.steers();
        let pid = site.pid("data-plane");
        site.instance.kill("data-plane");
        eventually("another one", || site.pid("data-plane") != pid);
        eventually("a ping", || site.container.pings("10.87.0.9"));
    }
    site.steers();
    drop(sender.stdin.take());
    // Frames that came meanwhile are lost where the socket's ring was full, and in no order if it was.
    let counted = line(&mut received);
    assert!(!counted.starts_with("0 "), "{counted}");
    assert!(sender.wait().unwrap().success() && receiver.wait().unwrap().success());
}

#[test]
fn tcp_comes_whole_by_the_queue_with_open_checksums() {
    let Some(site) = Site::start(true) else { return };
    assert!(site.container.run("iperf3 -s -D").0);
    let client = |amount| format!("iperf3 -c 10.87.0.1 --connect-timeout 5000 {amount}");
    eventually("TCP and a filter", || {
        site.outside.run(&client("-t 6")).0 && site.came() > 0
    });
    let before = (site.came(), site.arrivals()["bytes"].as_u64().unwrap());
    eventually("TCP", || site.outside.run(&client("-n 40M")).0);
    let (packets, bytes) = (
        site.came() - before.0,
        site.arrivals()["bytes"].as_u64().unwrap() - before.1,
    );
    assert!(bytes > 20_000_000, "{bytes} bytes by the queue");
    assert!(packets < 20_000, "large frames stay whole: {packets}");
}

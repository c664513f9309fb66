//! Attacks on the kernel path of a running switch, and what has to see packets there.

#![allow(clippy::unwrap_used)]

mod containers;

use containers::pairs::Site;
use containers::{eventually, run};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

/// A perl program that sends as many raw frames as its third argument says: the first one is the index of the
/// interface, the second the frame in hexadecimal digits; NNNN there counts up.
const SPRAY: &str = "socket(S, 17, 3, 0) or die $!; \
    bind(S, pack('S n i S C C a8', 17, 3, $ARGV[0], 0, 0, 0, '')) or die $!; \
    for $n (1 .. $ARGV[2]) { $f = $ARGV[1]; $x = sprintf('%04x', $n); $f =~ s/NNNN/$x/; \
    send(S, pack('H*', $f), 0); select(undef, undef, undef, 0.01) if $n % 20 == 0 }";

/// Sends frames of a container, see [`SPRAY`].
fn spray(site: &Site, space: usize, frame: &str, count: u32) {
    let index = site.spaces[space].run("cat /sys/class/net/eth0/ifindex").1;
    let said = Command::new("ip")
        .args(["netns", "exec", &site.spaces[space].0, "perl", "-e", SPRAY])
        .args([index.trim(), frame, &count.to_string()])
        .output()
        .unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
}

/// Pings that pass, none of them from this port by the kernel alone.
fn all_are_seen(site: &Site, port: &str, why: &str) {
    assert_eq!(site.kernel_path(port).0, 0, "{why}: at once");
    let before = site.by_kernel(port);
    eventually(why, || site.answered(5, "") == 5);
    assert_eq!(site.answered(20, ""), 20, "{why}");
    assert_eq!(site.by_kernel(port), before, "{why}");
}

#[test]
fn what_has_to_see_packets_sees_all_from_the_answer_on() {
    let site = Site::start(3);
    let mirror = "[[mirror]]\nname = \"ids\"\nsources = [\"c1\"]\ndestination = \"c2\"\n";
    site.on_kernel_path();
    // A guard looks at what its own port sends.
    for (port, begin, end) in [
        (
            "c0",
            "port set c0 --max-rate-from 100M",
            "port set c0 --max-rate-from none",
        ),
        (
            "c1",
            "port set c0 --max-rate-from 100M",
            "port set c0 --max-rate-from none",
        ),
        (
            "c0",
            "port set c1 --max-rate-to 100M",
            "port set c1 --max-rate-to none",
        ),
        ("c1", "port set c1 --guards dhcp", "port set c1 --no-guards"),
        ("c0", "port set c0 --guards dhcp", "port set c0 --no-guards"),
    ] {
        site.say(begin);
        all_are_seen(&site, port, begin);
        site.say(end);
        site.on_kernel_path();
    }
    site.reload_with(mirror);
    all_are_seen(&site, "c0", "a mirror");
    all_are_seen(&site, "c1", "a mirror");
    assert!(site.kernel_path("c1").1.contains("mirror"));
    // The monitor gets copies, and its own stack takes none of them.
    assert!(site.instance.counter("c2", "transmitted") > 20);
    site.reload_with("");
    site.on_kernel_path();
}

#[test]
fn a_p4_program_sees_all_packets_of_its_port() {
    let site = Site::start(2);
    let program = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../p4/p4-bmv2/programs/firewall/firewall.json"
    );
    site.say(&format!("p4 load {program} --name fire"));
    site.on_kernel_path();
    site.say("p4 stage add fire --at 10 --port 1=c0");
    let is_in_force = || {
        let all = site.instance.verb(&["p4", "stage", "show"]).unwrap_or_default();
        all.to_string().contains("in force")
    };
    eventually("it is in force", is_in_force);
    assert_eq!(site.kernel_path("c0").0, 0);
    let before = site.by_kernel("c0");
    site.answered(20, "");
    assert_eq!(site.by_kernel("c0"), before);
    assert!(site.kernel_path("c0").1.contains("P4"));
    site.say("p4 stage remove fire");
    site.on_kernel_path();
}

#[test]
fn a_capture_has_all_frames_and_its_end_is_noticed() {
    let site = Site::start(2);
    site.on_kernel_path();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.pcap");
    let run_dir = site.instance.run_dir().to_owned();
    let mut capture = Command::new(env!("CARGO_BIN_EXE_hyperswitch"))
        .arg("--run-dir")
        .arg(run_dir)
        .args(["capture", "c1", "--write"])
        .arg(&file)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("it captures", || site.kernel_path("c1").1.contains("capture"));
    assert_eq!(site.kernel_path("c0").0, 0);
    let before = site.by_kernel("c0");
    assert_eq!(site.answered(50, " -p 7e57ab1e"), 50);
    assert_eq!(site.by_kernel("c0"), before);
    run(&format!("kill -INT {}", capture.id()));
    capture.wait().unwrap();
    let bytes = std::fs::read(&file).unwrap();
    let marker = [0x7e, 0x57, 0xab, 0x1e].repeat(8);
    let frames = bytes
        .windows(marker.len() + 1)
        .filter(|window| window[1..] == marker && window[0] != 0x1e);
    assert!(frames.count() >= 100, "requests and answers");
    // Nothing is asked that would look at ports.
    let before = site.by_kernel("c0");
    eventually("the kernel forwards again", || {
        site.pings() && site.by_kernel("c0") > before
    });
}

#[test]
fn a_vlan_or_another_owner_of_an_address_is_obeyed() {
    let site = Site::start(3);
    site.on_kernel_path();
    site.say("port set c1 --access 5");
    assert_eq!(site.kernel_path("c0").0 + site.kernel_path("c1").0, 0);
    assert_eq!(site.answered(5, ""), 0, "another VLAN");
    site.say("port set c1 --untagged");
    site.on_kernel_path();
    // A station behind the second container moves to the third one.
    let (sender, moved, payload) = (site.mac(0), "020000000077", "5a".repeat(50));
    let hello = format!("ffffffffffff{moved}88b5{payload}");
    let to_moved = format!("{moved}{sender}88b5c0ffee{payload}");
    site.spaces[1].sends("eth0", &hello);
    let by_kernel = site.by_kernel("c0");
    eventually("the kernel forwards to it", || {
        site.spaces[0].sends("eth0", &to_moved);
        site.by_kernel("c0") > by_kernel
    });
    let heard = site.spaces[2].hears("eth0", "c0ffee", || {
        site.spaces[2].sends("eth0", &hello);
        let before = site.instance.counter("c2", "transmitted");
        eventually("it moves", || {
            site.spaces[0].sends("eth0", &to_moved);
            site.instance.counter("c2", "transmitted") > before + 2
        });
    });
    assert!(heard.is_some());
}

/// A container that forwards packets would forward what was flooded to it.
#[test]
fn frames_for_other_addresses_are_none_of_a_stack_s() {
    let site = Site::start(2);
    site.on_kernel_path();
    let received = || {
        let said = site.spaces[1].run("cat /proc/net/snmp").1;
        let line = said
            .lines()
            .filter(|line| line.starts_with("Ip:"))
            .nth(1)
            .unwrap()
            .to_owned();
        line.split(' ').nth(3).unwrap().parse::<u64>().unwrap()
    };
    let arrived = || {
        let said = site.spaces[1]
            .run("cat /sys/class/net/eth0/statistics/rx_packets")
            .1;
        said.trim().parse::<u64>().unwrap()
    };
    // An ICMP echo request, with its checksums.
    let packet = "4500001c000000004001665b0a4200010a4200020800f7ff00000000";
    let frame = |to: &str| format!("{to}{}0800{packet}{}", site.mac(0), "00".repeat(18));
    let own = (received(), arrived());
    spray(&site, 0, &frame(&site.mac(1)), 10);
    eventually("those for its own address", || {
        received() >= own.0 + 10 && arrived() >= own.1 + 10
    });
    let before = (received(), arrived());
    // Through the data plane at first, which may have the kernel do it.
    for _ in 0..5 {
        spray(&site, 0, &frame("020000000099"), 40);
    }
    eventually("they arrive", || arrived() >= before.1 + 150);
    assert!(received() <= before.0 + 2, "{} were taken", received() - before.0);
}

#[test]
fn a_stream_by_the_kernel_is_whole_and_in_large_segments() {
    let site = Site::start(2);
    site.on_kernel_path();
    let before = [
        site.by_kernel("c0"),
        site.instance.counter("c0", "kernel-path-bytes"),
    ];
    let serve = "use IO::Socket; use Digest::MD5; $l = IO::Socket::INET->new(LocalPort => 5001, Listen => 1) or die; \
        $| = 1; print qq(ready\\n); $s = $l->accept; $d = Digest::MD5->new; $d->addfile($s); print $d->hexdigest, qq(\\n)";
    let send = "use IO::Socket; use Digest::MD5; $s = IO::Socket::INET->new(PeerAddr => '10.66.0.2:5001') or die; \
        $d = Digest::MD5->new; for $n (1 .. 2000) { $b = pack('N*', map { $n * 7919 + $_ * 104729 } 0 .. 8191); \
        $d->add($b); print $s $b } close $s; print $d->hexdigest, qq(\\n)";
    let perl = |space: usize, program: &str| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &site.spaces[space].0, "perl", "-e", program]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let server = perl(1, serve);
    eventually("it listens", || site.spaces[1].run("ss -ltn").1.contains(":5001"));
    let client = perl(0, send).wait_with_output().unwrap();
    let server = server.wait_with_output().unwrap();
    let sent = String::from_utf8_lossy(&client.stdout).into_owned();
    assert_eq!(String::from_utf8_lossy(&server.stdout), format!("ready\n{sent}"));
    assert_eq!(sent.trim().len(), 32);
    let packets = site.by_kernel("c0") - before[0];
    let bytes = site.instance.counter("c0", "kernel-path-bytes") - before[1];
    assert!(bytes > 60_000_000, "{bytes} of 65,536,000 by the kernel");
    assert!(bytes / packets > 4_000, "{packets} frames");
    let sums = site.spaces[1].run("nstat -asz TcpInCsumErrors").1;
    assert!(
        sums.lines()
            .any(|line| line.split_whitespace().nth(1) == Some("0")),
        "{sums}"
    );
}

#[test]
fn a_container_that_sprays_addresses_takes_its_share_and_no_more() {
    let site = Site::start(3);
    site.on_kernel_path();
    let (to, payload) = (site.mac(1), "5a".repeat(50));
    site.say("port set c0 --mac-limit 4096 --miss-rate 100000");
    // Twice, since packets of the first time go to the control process.
    for _ in 0..2 {
        spray(&site, 0, &format!("{to}0200ee00NNNN88b5{payload}"), 1_500);
    }
    let counter = |name: &str| site.instance.counter("c0", name);
    eventually("more are refused", || counter("kernel-path-over-share") > 0);
    let (flows, _) = site.kernel_path("c0");
    assert!((400..=512).contains(&flows), "{flows}");
    assert_eq!(site.instance.counter("c1", "kernel-path-displaced"), 0);
    // Others have room.
    let others = || {
        site.spaces[2].pings("10.66.0.2") && site.spaces[1].pings("10.66.0.3") && site.kernel_path("c2").0 > 0
    };
    eventually("others come on the kernel path", others);
    let refused: Vec<Value> = vec![site.instance.verb(&["flow", "list"]).unwrap()];
    assert!(refused[0].to_string().contains("no room"), "a reason is told");
}

#[test]
fn each_way_is_named() {
    let site = Site::start(2);
    site.on_kernel_path();
    let (from, to) = (site.mac(0), site.mac(1));
    let colons = |mac: &str| {
        let bytes: Vec<_> = mac
            .as_bytes()
            .chunks(2)
            .map(|byte| String::from_utf8_lossy(byte))
            .collect();
        bytes.join(":")
    };
    let trace = || {
        let (from, to) = (colons(&from), colons(&to));
        let line = format!("trace --in-port c0 --src {from} --dst {to}");
        let words: Vec<&str> = line.split(' ').collect();
        site.instance.verb(&words).unwrap().to_string()
    };
    assert!(trace().contains("\"kernel-path\""), "{}", trace());
    let flows = || site.instance.verb(&["flow", "list"]).unwrap().to_string();
    assert!(flows().contains("\"way\":\"kernel-path\""), "{}", flows());
    site.say("port set c1 --max-rate-to 100M");
    for said in [trace(), flows()] {
        assert!(said.contains("its bandwidth is limited"), "{said}");
    }
    assert!(site.instance.counter("c0", "kernel-path-withdrawn") > 0);
}

/// Where the data plane has the table: its first address, and its length.
fn table_of(pid: u64) -> (u64, usize) {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let line = maps
        .lines()
        .find(|line| line.contains("bpf-map") && line.contains("rw-s"));
    let (begin, end) = line.unwrap().split_once(' ').unwrap().0.split_once('-').unwrap();
    let [begin, end] = [begin, end].map(|address| u64::from_str_radix(address, 16).unwrap());
    (begin, (end - begin) as usize)
}

/// Has the entry lead to other places, and makes counters and other entries wrong.
fn lie(site: &Site, memory: &File, begin: u64, (live, entry): (u64, &[u8])) {
    let mut number = 1u32;
    for round in 0..200u32 {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Ports of type veth and others, and what is no port; frames of any length.
        let to = [round % 70, number, u32::MAX, 0xffff][round as usize % 4];
        let mut lie = entry.to_vec();
        lie[24..28].copy_from_slice(&to.to_le_bytes());
        lie[28..32].copy_from_slice(&u32::MAX.to_le_bytes());
        memory.write_all_at(&lie, begin + live).unwrap();
        // Seed, set and counters of cores.
        let garbage: Vec<u8> = (0..64).map(|at| (number >> (at % 24)) as u8).collect();
        memory
            .write_all_at(&garbage, begin + u64::from(number % 128) * 64)
            .unwrap();
        if round % 20 == 0 {
            site.answered(3, "");
        }
    }
}

/// The data plane was taken over: it writes entries for all ports, and breaks what it waits by.
#[test]
fn a_data_plane_that_lies_in_its_table_harms_no_later_one() {
    let site = Site::start(3);
    site.on_kernel_path();
    let status = site.instance.verb(&["status"]).unwrap();
    let processes = status["processes"].as_array().unwrap();
    let process = processes
        .iter()
        .find(|process| process["role"] == "data-plane")
        .unwrap();
    let pid = process["pid"].as_u64().unwrap();
    let (begin, len) = table_of(pid);
    let memory = File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/{pid}/mem"))
        .unwrap();
    let host_heard = || site.host.run("cat /proc/net/dev").1;
    let before = host_heard();
    let mut table = vec![0; len];
    memory.read_exact_at(&mut table, begin).unwrap();
    let live = table
        .chunks_exact(64)
        .position(|entry| entry[0] == 1 && entry[8] != 0)
        .unwrap()
        * 64;
    let entry: Vec<u8> = table[live..live + 64].to_vec();
    lie(&site, &memory, begin, (live as u64, &entry));
    assert_eq!(host_heard(), before, "no frame reaches a device of the host");
    site.instance.kill("data-plane");
    site.on_kernel_path();
    site.say("port set c1 --max-rate-to 100M");
    let shown = site.instance.verb(&["port", "show", "c0"]).unwrap();
    let wait = shown[0]["kernel-path"]["longest-wait-ns"].as_u64().unwrap();
    assert!(wait < 9_000_000, "{wait} ns: no counter of cores is broken");
}

//! Programs of others as rogues, before and behind guards: a DHCP server, a router, spoofers. What each of
//! them achieves at an open port it does not at a guarded one, and the drop is named.

use crate::policies::{Forbidden, connect, dropped_and_named, dropped_by, guarded, in_force, mac};
use crate::rig::{finish, options, reaches, v4, v6};
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::time::Duration;
use testbed::endpoint::QUICK;
use testbed::ping::reachable;
use testbed::polling::{Frame, PollingGuest};
use testbed::{Endpoint, Guest, IperfOptions, Lab, Namespace, Running, Switch, UmlGuest, iperf};

const TIMEOUT: Duration = Duration::from_secs(30);
/// Ports besides the rogue's, each of which may get what passes.
const OTHERS: u64 = 3;
/// Prefix that the rogue announces.
const PREFIX: &str = "fd00:bad:";
/// Everything that no guard lets pass, for tshark: what a DHCP server says, whatever asks for one may pass.
const BAD: &str = "udp.srcport == 67 || udp.srcport == 547 || udp.dstport == 68 || udp.dstport == 546 || stp || \
                   icmpv6.type == 134 || icmpv6.type == 137 || icmp.type == 5 || \
                   arp.src.proto_ipv4 == 10.9.0.66 || ip.src == 10.9.0.66 || ipv6.src == fd00:9::66 || \
                   eth.src == 52:54:00:00:09:66";

/// The rogue's and the victims' ports. What the second guest may be asked is limited with the guards.
fn config(rogue: &Namespace, watcher: &Namespace, is_guarded: bool) -> String {
    let tap = |netns: &Namespace| {
        format!(
            "type = \"tap\"\ninterface = \"eth0\"\nnetns = \"{}\"\n",
            netns.netns()
        )
    };
    let text = format!(
        "[[security-group]]\nname = \"iperf\"\nfrom = []\n\
         to = [{{ protocol = \"tcp\", destination-port = 5201, replies = true }}]\n\
         [[switch]]\nname = \"sw0\"\n{}{}{}{}{}{}",
        guarded("rogue", 1, ""),
        tap(rogue),
        guarded("vm1", 2, ""),
        guarded("vm2", 3, "security-groups = [\"iperf\"]"),
        guarded("watcher", 50, ""),
        tap(watcher)
    );
    let is_policy = |line: &&str| line.starts_with("guards") || line.starts_with("security-groups = ");
    let lines = text.lines().filter(|line| is_guarded || !is_policy(line));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Starts the rogue's servers, and returns a directory that they use.
fn serve(rogue: &Namespace) -> Result<(tempfile::TempDir, [Running; 2])> {
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name).display().to_string();
    let announced = format!(
        "interface eth0 {{ AdvSendAdvert on; MinRtrAdvInterval 3; MaxRtrAdvInterval 4;\nprefix {PREFIX}:/64 {{ }}; }};\n"
    );
    std::fs::write(path("radvd.conf"), announced)?;
    rogue.must("sysctl -q -w net.ipv6.conf.all.forwarding=1")?;
    let dhcp = format!(
        "dnsmasq --no-daemon --conf-file=/dev/null --port=0 --interface=eth0 --bind-interfaces --user=root \
         --dhcp-range=10.9.0.100,10.9.0.150 --dhcp-leasefile={} --pid-file=",
        path("leases")
    );
    let router = format!(
        "radvd --nodaemon --username root --config {} --pidfile {} --logmethod stderr",
        path("radvd.conf"),
        path("radvd.pid")
    );
    let servers = [rogue.start(&dhcp)?, rogue.start(&router)?];
    Ok((directory, servers))
}

/// Asks for an address once, and does not use it.
fn is_offered_an_address(guest: &Guest) -> Result<bool> {
    Ok(guest
        .run("udhcpc -i eth0 -n -q -t 2 -T 1 -s /bin/true")?
        .success())
}

fn has_announced_address(guest: &Guest) -> Result<bool> {
    Ok(guest.must("ip -6 addr show dev eth0")?.contains(PREFIX))
}

/// The cases of `scripts/send-rogue-frames`: name, guard, and frames that may pass.
fn cases() -> Result<Vec<(String, String, u64)>> {
    let output = std::process::Command::new(program()).arg("--list").output()?;
    ensure!(
        output.status.success(),
        "{output:?}: run scripts/setup --pipeline"
    );
    let case = |line: &str| {
        let mut words = line.split(' ').map(str::to_owned);
        Some((words.next()?, words.next()?, words.next()?.parse().ok()?))
    };
    let text = String::from_utf8(output.stdout)?;
    text.lines().map(|line| case(line).context("no case")).collect()
}

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/send-rogue-frames")
}

/// Frames of a capture that are of a kind, one a line.
fn captured(watcher: &Namespace, file: &str, kind: &str) -> Result<String> {
    watcher.must(&format!("tshark -r {file} -Y '{kind}' 2> /dev/null"))
}

#[test]
#[ignore = "make test-pipeline runs it"]
fn programs_as_rogues_achieve_nothing_behind_guards() -> Result<()> {
    let Some(lab) = Lab::enter("programs_as_rogues_achieve_nothing_behind_guards") else {
        return Ok(());
    };
    let (rogue, watcher) = (Namespace::new("rogue")?, Namespace::new("watcher")?);
    let switch = Switch::start(&config(&rogue, &watcher, false))?;
    let guest = |port, number| options(&switch, port, number).mac(&mac(number));
    let [vm1, vm2]: [Guest; 2] = UmlGuest::boot_all([guest("vm1", 2), guest("vm2", 3)])?
        .try_into()
        .ok()
        .context("two guests")?;
    reachable(&rogue, &v4(2), TIMEOUT)?;
    vm1.must("echo 1 > /proc/sys/net/ipv6/conf/eth0/accept_ra")?;
    let capture = switch.run_dir().join("watched.pcap").display().to_string();

    lab.note("open ports: the rogues work");
    let (_directory, servers) = serve(&rogue)?;
    let watching = watcher.start(&format!("tshark -q -i eth0 -w {capture} 2> /dev/null"))?;
    switch.wait(|| is_offered_an_address(&vm1))?;
    switch.wait(|| has_announced_address(&vm1))?;
    switch.wait(|| {
        Ok(!captured(&watcher, &capture, "icmpv6.type == 134")
            .unwrap_or_default()
            .is_empty())
    })?;
    drop(watching);

    lab.note("guarded ports: they do not");
    switch.reload(&config(&rogue, &watcher, true))?;
    in_force(&switch)?;
    vm1.must("ip -6 addr flush dev eth0 scope global")?;
    let watching = watcher.start(&format!("tshark -q -i eth0 -w {capture} 2> /dev/null"))?;
    let before = dropped_by(&switch, "rogue", "guard router")?;
    ensure!(!is_offered_an_address(&vm1)?, "it has got an address");
    ensure!(dropped_by(&switch, "rogue", "guard dhcp")? > 0);
    switch.wait(|| Ok(dropped_by(&switch, "rogue", "guard router")? > before + 1))?;
    ensure!(!has_announced_address(&vm1)?, "it has got an address");
    drop(servers);
    switch.wait_until_accounted()?;

    lab.note("spoofers");
    rogue.must("sysctl -q -w net.ipv4.ip_nonlocal_bind=1 net.ipv6.conf.all.forwarding=0")?;
    ensure!(
        rogue
            .run(&format!("arping -c 1 -w 2 -I eth0 {}", v4(2)))?
            .success()
    );
    let spoofed = format!("arping -c 2 -w 2 -I eth0 -s 10.9.0.66 {}", v4(2));
    let forbidden: &Forbidden<'_> = &[("rogue", "guard spoof", &rogue, spoofed)];
    dropped_and_named(&switch, forbidden)?;
    frames_by_hand(&lab, &switch, &rogue)?;
    drop(watching);
    let seen = captured(&watcher, &capture, BAD)?;
    ensure!(seen.is_empty(), "to another port has come:\n{seen}");
    let usual = captured(&watcher, &capture, "arp")?;
    ensure!(!usual.is_empty(), "nothing was captured");

    lab.note("what is allowed");
    reaches(&vm1, &v4(1))?;
    vm1.must(&format!("ip addr add {}/64 dev eth0", v6(2)))?;
    reachable(&vm1, &v6(50), TIMEOUT)?;
    let result = iperf::run(&vm1, &vm2, &v4(3), &IperfOptions::seconds(3))?;
    ensure!(result.worst_interval() > 1e6, "{result:?}");
    dropped_and_named(
        &switch,
        &[("to: groups iperf", "default", &vm1, connect(&v4(3), 5202))],
    )?;
    finish(switch, [vm1, vm2]).map(drop)
}

/// Frames made by scapy, one case after the other: each is dropped by its guard, and accounted for.
fn frames_by_hand(lab: &Lab, switch: &Switch, rogue: &Namespace) -> Result<()> {
    // What its kernel says by itself would be counted with them.
    rogue.must("sysctl -q -w net.ipv6.conf.eth0.disable_ipv6=1")?;
    let mut wrong = Vec::new();
    for (case, guard, passes) in cases()? {
        let origin = match guard.as_str() {
            "default" => guard,
            _ => format!("guard {guard}"),
        };
        let dropped = || dropped_by(switch, "rogue", &origin);
        let (before, delivered) = (dropped()?, switch.counters("rogue")?.delivered);
        let send = format!("{} eth0 {case}", program().display());
        let sent = rogue.start(&send)?.wait(QUICK)?;
        ensure!(sent.success(), "{send}: {sent:?}");
        switch.wait_until_accounted()?;
        let (after, counters) = (dropped()?, switch.counters("rogue")?);
        let passed = counters.delivered - delivered;
        lab.note(format!(
            "{case}: {origin}, {} dropped, {passed} delivered",
            after - before
        ));
        if after == before || passed > passes * OTHERS {
            wrong.push(format!(
                "{case}: {origin}: {} dropped, {passed} delivered",
                after - before
            ));
        }
    }
    ensure!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

/// The rogue's hardware and IPv4 address, as its guard knows them, and others.
const OWN: [u8; 6] = [0x52, 0x54, 0, 0, 9, 1];
const OTHER: [u8; 6] = [0x52, 0x54, 0, 0, 9, 0x66];
const OWN_IP: [u8; 4] = [10, 9, 0, 1];
const OTHER_IP: [u8; 4] = [10, 9, 0, 0x66];
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

fn ethernet(from: [u8; 6], kind: u16, payload: &[u8]) -> Vec<u8> {
    [&[0xff; 6], &from[..], &kind.to_be_bytes(), payload].concat()
}

fn arp(station: [u8; 6], address: [u8; 4]) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, 2];
    ethernet(
        OWN,
        0x0806,
        &[&head[..], &station, &address, &[0xff; 6], &[10, 9, 0, 2]].concat(),
    )
}

/// `fragment` is flags and offset.
fn ipv4(from: [u8; 4], protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + payload.len())
        .expect("it is short")
        .to_be_bytes();
    let [flags, offset] = fragment.to_be_bytes();
    let head = [
        0x45, 0, length[0], length[1], 0, 7, flags, offset, 64, protocol, 0, 0,
    ];
    [&head[..], &from, &[255; 4], payload].concat()
}

/// From a link-local address to all nodes.
fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).expect("it is short").to_be_bytes();
    let mut addresses = [0; 32];
    addresses[..2].copy_from_slice(&[0xfe, 0x80]);
    addresses[15] = 1;
    (addresses[16], addresses[17], addresses[31]) = (0xff, 2, 1);
    [
        &[0x60, 0, 0, 0, length[0], length[1], next, 255],
        &addresses[..],
        payload,
    ]
    .concat()
}

fn udp(source: u16, destination: u16) -> Vec<u8> {
    [
        &source.to_be_bytes()[..],
        &destination.to_be_bytes(),
        &[0, 68, 0, 0],
        &[0; 60],
    ]
    .concat()
}

/// Tags before an IPv6 packet.
fn tagged(count: usize, packet: &[u8]) -> Vec<u8> {
    let tag = |last: bool| if last { [0, 9, 0x86, 0xdd] } else { [0, 9, 0x81, 0] };
    let tags: Vec<u8> = (1..=count).flat_map(|number| tag(number == count)).collect();
    ethernet(OWN, 0x8100, &[&tags, packet].concat())
}

/// What a guest sends, and the guard that has to drop it; none has to drop the first two.
fn frames() -> Vec<(&'static str, Option<&'static str>, Vec<u8>)> {
    let ra = [&[134, 0, 0, 0, 64, 0, 7, 8][..], &[0; 8]].concat();
    // A header of eight bytes before `next`.
    let behind = |next: u8, rest: &[u8]| [&[next, 0, 1, 4, 0, 0, 0, 0][..], rest].concat();
    let fragment = |offset: u8, rest: &[u8]| [&[58, 0, 0, offset | 1, 0, 0, 0, 7][..], rest].concat();
    let of = |kind, packet: Vec<u8>| ethernet(OWN, kind, &packet);
    let (spoof, router, hidden) = (Some("spoof"), Some("router"), Some("headers-hidden"));
    vec![
        ("own ARP", None, arp(OWN, OWN_IP)),
        ("own UDP", None, of(IPV4, ipv4(OWN_IP, 17, 0, &udp(9, 9)))),
        ("ARP of another address", spoof, arp(OWN, OTHER_IP)),
        ("ARP of another station", spoof, arp(OTHER, OWN_IP)),
        (
            "another MAC address",
            spoof,
            ethernet(OTHER, IPV4, &ipv4(OWN_IP, 17, 0, &udp(9, 9))),
        ),
        (
            "another IP address",
            spoof,
            of(IPV4, ipv4(OTHER_IP, 17, 0, &udp(9, 9))),
        ),
        (
            "DHCP offer",
            Some("dhcp"),
            of(IPV4, ipv4(OWN_IP, 17, 0, &udp(67, 68))),
        ),
        (
            "DHCP offer, tiny fragment",
            Some("dhcp"),
            of(IPV4, ipv4(OWN_IP, 17, 0x2000, &udp(67, 68)[..8])),
        ),
        (
            "later fragment of UDP",
            hidden,
            of(IPV4, ipv4(OWN_IP, 17, 1, &[0; 64])),
        ),
        (
            "later fragment of ICMP",
            hidden,
            of(IPV4, ipv4(OWN_IP, 1, 1, &[0; 64])),
        ),
        (
            "redirect",
            router,
            of(IPV4, ipv4(OWN_IP, 1, 0, &[5, 1, 0, 0, 10, 9, 0, 1, 0, 0])),
        ),
        ("RA", router, of(IPV6, ipv6(58, &ra))),
        (
            "RA behind options",
            router,
            of(IPV6, ipv6(0, &behind(60, &behind(58, &ra)))),
        ),
        (
            "RA behind an unknown header",
            hidden,
            of(IPV6, ipv6(253, &behind(58, &ra))),
        ),
        (
            "RA in a first fragment",
            router,
            of(IPV6, ipv6(44, &fragment(0, &ra))),
        ),
        (
            "RA in a later fragment",
            hidden,
            of(IPV6, ipv6(44, &fragment(8, &ra))),
        ),
        ("RA in one tag", router, tagged(1, &ipv6(58, &ra))),
        ("RA in two tags", router, tagged(2, &ipv6(58, &ra))),
        ("RA in three tags", hidden, tagged(3, &ipv6(58, &ra))),
        ("RA in four tags", hidden, tagged(4, &ipv6(58, &ra))),
        ("RA in SNAP", router, {
            let snap = [&[0xaa, 0xaa, 3, 0, 0, 0, 0x86, 0xdd][..], &ipv6(58, &ra)].concat();
            ethernet(OWN, 64, &snap)
        }),
        ("no type", hidden, ethernet(OWN, 60, &[6; 60])),
        ("BPDU", Some("bpdu"), {
            let mut frame = ethernet(OWN, 38, &[0x42; 50]);
            frame[..6].copy_from_slice(&[1, 0x80, 0xc2, 0, 0, 0]);
            frame
        }),
    ]
}

#[test]
fn frames_of_a_rogue_guest_are_dropped_and_named() -> Result<()> {
    let Some(_lab) = Lab::enter("frames_of_a_rogue_guest_are_dropped_and_named") else {
        return Ok(());
    };
    let switch = Switch::start(&format!(
        "[[switch]]\nname = \"sw0\"\n{}[[switch.port]]\nname = \"other\"\n",
        guarded("rogue", 1, "")
    ))?;
    let mut guest = PollingGuest::connect(&["rogue", "other"].map(|port| switch.socket(port)), 2000)?;
    switch.wait_port("rogue", "running")?;
    switch.wait_port("other", "running")?;
    in_force(&switch)?;
    for (what, guard, frame) in frames() {
        let origin = format!("guard {}", guard.unwrap_or("spoof"));
        let dropped = || dropped_by(&switch, "rogue", &origin);
        let (before, delivered) = (dropped()?, switch.counters("rogue")?.delivered);
        ensure!(guest.send(0, &Frame::raw(&frame))?);
        guest.flush(0);
        switch
            .wait(|| {
                let counters = switch.counters("rogue")?;
                Ok(match guard {
                    None => counters.delivered > delivered,
                    Some(_) => dropped()? > before,
                })
            })
            .with_context(|| format!("{what}: {origin}"))?;
        switch.wait_until_accounted()?;
        let mut arrived = 0;
        guest.receive(1, 256, |_| arrived += 1)?;
        ensure!(
            arrived == usize::from(guard.is_none()),
            "{what}: {arrived} have arrived"
        );
    }
    drop(guest);
    finish(switch, []).map(drop)
}

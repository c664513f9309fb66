//! Policies of ports with real guests: what is allowed passes, what is forbidden is dropped and named, from
//! the first packet on and whoever dies.

use crate::rig::{finish, options, reaches, v4, v6};
use anyhow::{Context, Result, ensure};
use management::{PolicyInfo, PolicyRules};
use std::time::{Duration, Instant};
use testbed::endpoint::QUICK;
use testbed::ping::reachable;
use testbed::switch::Role;
use testbed::{Endpoint, Guest, Lab, Namespace, Output, QemuGuest, QemuOptions, Switch, UmlGuest};

/// How long ports may take to come back after a death.
const RETURN: Duration = Duration::from_secs(30);

/// A guest's port with all guards; `more` are further keys.
pub fn guarded(name: &str, number: u8, more: &str) -> String {
    format!(
        "[[switch.port]]\nname = \"{name}\"\nmac = \"{}\"\naddresses = [\"{}/24\", \"{}/64\"]\n\
         guards = [\"spoof\", \"dhcp\", \"router\", \"bpdu\"]\n{more}\n",
        mac(number),
        v4(number),
        v6(number)
    )
}

pub fn mac(number: u8) -> String {
    format!("52:54:00:00:09:{number:02x}")
}

/// `web` may be asked on port 80 and pinged by the container; `client` may ask anything but telnet.
fn policies(container: &Namespace, port: u16) -> String {
    format!(
        "[[set]]\nname = \"admins\"\naddresses = [\"{}\"]\n\
         [[acl]]\nname = \"no-telnet\"\ndefault = \"allow\"\n\
         rule = [{{ action = \"drop\", protocol = \"tcp\", destination-port = 23 }}]\n\
         [[security-group]]\nname = \"web\"\nfrom = []\nto = [\n\
         {{ protocol = \"tcp\", destination-port = {port}, replies = true }},\n\
         {{ protocol = \"icmp\", icmp-type = 8, source = \"admins\", replies = true }},\n]\n\
         [[switch]]\nname = \"sw0\"\n{}{}{}type = \"tap\"\ninterface = \"eth0\"\nnetns = \"{}\"\n",
        v4(50),
        guarded("web", 1, "security-groups = [\"web\"]"),
        guarded("client", 2, "acl-from = \"no-telnet\""),
        guarded("ct", 50, ""),
        container.netns()
    )
}

/// Ports as above, without policies.
fn open(container: &Namespace) -> String {
    let is_policy = |line: &&str| {
        ["guards", "security-groups = ", "acl-from"]
            .iter()
            .any(|key| line.starts_with(key))
    };
    let text = policies(container, 80);
    text.lines()
        .filter(|line| !is_policy(line))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// A guest whose VMM connects again when the switch returns, and one that is booted sooner.
fn boot(switch: &Switch) -> Result<(QemuGuest, Guest)> {
    let reconnect = QemuOptions {
        reconnect: true,
        ..QemuOptions::default()
    };
    let options = |port, number| options(switch, port, number).mac(&mac(number));
    let mut web = QemuGuest::start(options("web", 1), &reconnect)?;
    let client = UmlGuest::boot(options("client", 2))?;
    web.wait_ready()?;
    Ok((web, client))
}

/// Connects to a TCP port.
pub fn connect(address: &str, port: u16) -> String {
    format!("busybox nc -w 2 {address} {port} </dev/null")
}

/// Whether somebody has answered, be it that nobody listens there.
fn is_answered(output: &Output) -> bool {
    output.success() || output.stderr.contains("refused")
}

/// Waits until a host answers at a TCP port.
fn answers(from: &dyn Endpoint, address: &str, port: u16) -> Result<()> {
    let begin = Instant::now();
    while !is_answered(&from.run(&connect(address, port))?) {
        ensure!(
            begin.elapsed() < RETURN,
            "{} does not reach {address}:{port}",
            from.name()
        );
    }
    Ok(())
}

/// Waits until all lists are in force.
pub fn in_force(switch: &Switch) -> Result<()> {
    switch.wait(|| {
        let Ok(text) = switch.verb(&["policy", "list", "--json"]) else {
            return Ok(false);
        };
        let lists: Vec<PolicyInfo> = serde_json::from_str(&text)?;
        Ok(!lists.is_empty() && lists.iter().all(|list| list.state == "in force"))
    })
}

/// Packets that a rule of this origin has dropped.
pub fn dropped_by(switch: &Switch, list: &str, origin: &str) -> Result<u64> {
    let shown = switch.verb(&["policy", "show", list, "--json"])?;
    let shown: PolicyRules = serde_json::from_str(&shown)?;
    let of = shown
        .rules
        .iter()
        .filter(|rule| rule.origin == origin && rule.action == "drop");
    Ok(of.map(|rule| rule.packets).sum())
}

/// Lists with rules that drop, by origin, and what each of them has to drop.
pub type Forbidden<'a> = [(&'static str, &'static str, &'a dyn Endpoint, String)];

/// Tries at once what is forbidden: nothing of it succeeds, and the right rule has dropped it.
pub fn dropped_and_named(switch: &Switch, forbidden: &Forbidden<'_>) -> Result<()> {
    let counts = || -> Result<Vec<u64>> {
        let lists = forbidden.iter();
        lists
            .map(|(list, origin, ..)| dropped_by(switch, list, origin))
            .collect()
    };
    let before = counts()?;
    let attempts = forbidden.iter().map(|(_, _, from, command)| from.start(command));
    for (attempt, what) in attempts.collect::<Result<Vec<_>>>()?.into_iter().zip(forbidden) {
        let output = attempt.wait(QUICK)?;
        ensure!(!is_answered(&output), "{}: {}: {output:?}", what.2.name(), what.3);
    }
    for ((before, after), what) in before.iter().zip(counts()?).zip(forbidden) {
        ensure!(
            after > *before,
            "{} has dropped nothing for {}: {}",
            what.0,
            what.1,
            what.3
        );
    }
    Ok(())
}

/// Datagrams that came to a port of the guest where nobody listens.
fn unwanted(guest: &Guest) -> Result<u64> {
    let text = guest.must("grep '^Udp:' /proc/net/snmp")?;
    let count = text
        .lines()
        .nth(1)
        .and_then(|line| line.split_whitespace().nth(2));
    Ok(count.context("no line with counts")?.parse()?)
}

/// What the policies say of packets to and from `web`, whose `port` is open.
fn hold(switch: &Switch, web: &Guest, container: &Namespace, port: u16) -> Result<()> {
    in_force(switch)?;
    reachable(container, &v4(1), RETURN)?;
    answers(container, &v4(1), port)?;
    let closed = connect(&v4(1), 80 + 81 - port);
    dropped_and_named(
        switch,
        &[
            ("to: groups web", "default", container, closed),
            (
                "from: groups web",
                "default",
                web,
                format!("ping -c 1 -W 1 {}", v4(50)),
            ),
        ],
    )
}

/// What the policies say of packets from `client`.
fn hold_for_client(switch: &Switch, client: &Guest, port: u16) -> Result<()> {
    reachable(client, &v4(50), RETURN)?;
    answers(client, &v4(1), port)?;
    answers(client, &v4(50), 24)?;
    client.must(&format!("ip addr add {}/24 dev eth0", v4(77)))?;
    let spoofed = format!("ping -c 1 -W 1 -I {} {}", v4(77), v4(50));
    dropped_and_named(
        switch,
        &[
            (
                "to: groups web",
                "default",
                client,
                format!("ping -c 1 -W 1 {}", v4(1)),
            ),
            (
                "from: acl no-telnet",
                "acl no-telnet rule 1",
                client,
                connect(&v4(50), 23),
            ),
            ("client", "guard spoof", client, spoofed),
        ],
    )?;
    client.must(&format!("ip addr del {}/24 dev eth0", v4(77)))?;
    ensure!(switch.counters("client")?.dropped["policy"] > 0);
    Ok(())
}

#[test]
fn policies_hold_through_reloads_and_deaths() -> Result<()> {
    let Some(lab) = Lab::enter("policies_hold_through_reloads_and_deaths") else {
        return Ok(());
    };
    let container = Namespace::new("container")?;
    let switch = Switch::start(&open(&container))?;
    let (web, client) = boot(&switch)?;
    reachable(&client, &v4(1), RETURN)?;
    reaches(&*web, &v4(50))?;
    let knock = format!(
        "while sleep 0.02; do echo x > /dev/udp/{}/9; done 2> /dev/null",
        v4(1)
    );
    let knocking = container.start(&format!("bash -c '{knock}'"))?;
    switch.wait(|| Ok(unwanted(&web)? > 0))?;

    lab.note("a reload");
    switch.reload(&policies(&container, 80))?;
    // What was on its way to the guest when the answer came.
    web.must("sleep 0.2")?;
    let quiet = unwanted(&web)?;
    hold(&switch, &web, &container, 80)?;
    hold_for_client(&switch, &client, 80)?;
    lab.note("another port is open");
    switch.reload(&policies(&container, 81))?;
    hold(&switch, &web, &container, 81)?;
    for role in [Role::Control, Role::Driver, Role::Taps] {
        lab.note(format!("{role:?} dies"));
        let old = switch.kill(role)?;
        switch.wait_replaced(role, old)?;
        hold(&switch, &web, &container, 81)?;
    }
    hold_for_client(&switch, &client, 81)?;
    lab.note("the data plane dies");
    drop(client);
    let old = switch.kill(Role::DataPlane)?;
    switch.wait_replaced(Role::DataPlane, old)?;
    hold(&switch, &web, &container, 81)?;
    ensure!(unwanted(&web)? == quiet, "a datagram has come through");

    lab.note("a guest that lies from its first packet on");
    let liar = UmlGuest::boot(options(&switch, "client", 2).mac(&mac(3)))?;
    ensure!(!liar.run(&format!("ping -c 2 -W 1 {}", v4(50)))?.success());
    let counters = switch.counters("client")?;
    ensure!(counters.received > 0 && counters.delivered == 0, "{counters:?}");

    lab.note("open again");
    switch.reload(&open(&container))?;
    switch.wait(|| Ok(unwanted(&web)? > quiet))?;
    drop(knocking);
    finish(switch, [web.into_guest(), liar]).map(drop)
}

/// A switch with an uplink, an interface of the host and a container. From outside one may come to port 443,
/// and to no port 22 of the host.
fn outside(container: &Namespace) -> String {
    format!(
        "[[acl]]\nname = \"outside\"\ndefault = \"drop\"\nrule = [\n\
         {{ action = \"allow\", ethernet-type = \"arp\" }},\n\
         {{ action = \"allow\", protocol = \"icmp\" }},\n\
         {{ action = \"allow\", protocol = \"tcp\", destination-port = 443 }},\n]\n\
         [[acl]]\nname = \"no-ssh\"\ndefault = \"allow\"\n\
         rule = [{{ action = \"drop\", protocol = \"tcp\", destination-port = 22 }}]\n\
         [[port-policy]]\nname = \"outside\"\nguards = [\"dhcp\", \"router\"]\nacl-from = \"outside\"\n\
         [[port-policy]]\nname = \"host\"\nacl-to = \"no-ssh\"\n\
         [[switch]]\nname = \"lan\"\ntype = \"external\"\nuplink = \"up0\"\nuplink-policy = \"outside\"\n\
         host = {{ addresses = [\"{}/24\"], policy = \"host\" }}\n\
         [[switch.port]]\nname = \"ct\"\ntype = \"tap\"\ninterface = \"eth0\"\nnetns = \"{}\"\naddresses = [\"{}/24\"]\n",
        v4(60),
        container.netns(),
        v4(50)
    )
}

#[test]
fn hosts_and_uplinks_have_policies_and_commands_change_those_of_ports() -> Result<()> {
    let Some(lab) = Lab::enter("hosts_and_uplinks_have_policies_and_commands_change_those_of_ports") else {
        return Ok(());
    };
    let (container, world) = (Namespace::new("container")?, Namespace::new("world")?);
    let switch = Switch::start("")?;
    switch.host().must(&format!(
        "ip link add up0 type veth peer name eth0 netns {} && ip link set up0 up",
        world.netns()
    ))?;
    world.must(&format!(
        "ip link set eth0 up && ip addr add {}/24 dev eth0",
        v4(70)
    ))?;
    switch.reload(&outside(&container))?;
    let hold = || {
        in_force(&switch)?;
        reachable(&world, &v4(50), RETURN)?;
        reachable(&container, &v4(60), RETURN)?;
        answers(&world, &v4(50), 443)?;
        answers(&container, &v4(60), 23)?;
        dropped_and_named(
            &switch,
            &[
                (
                    "port-policy outside: from",
                    "default",
                    &world,
                    connect(&v4(50), 80),
                ),
                (
                    "port-policy host: to",
                    "acl no-ssh rule 1",
                    &container,
                    connect(&v4(60), 22),
                ),
            ],
        )
    };
    hold()?;
    ensure!(switch.counters("lan:uplink")?.dropped["policy"] > 0);
    let shown = switch.verb(&["port", "show", "lan:uplink"])?;
    ensure!(
        shown.contains("port-policy outside: guards (in force)"),
        "{shown}"
    );
    lab.note("the driver domain dies");
    for role in [Role::Driver, Role::Taps] {
        let old = switch.kill(role)?;
        switch.wait_replaced(role, old)?;
        hold()?;
    }

    lab.note("commands");
    let no_ssh = || {
        dropped_and_named(
            &switch,
            &[(
                "from: acl no-ssh",
                "acl no-ssh rule 1",
                &container,
                connect(&v4(70), 22),
            )],
        )
    };
    switch.verb(&[
        "port",
        "set",
        "ct",
        "--acl-from",
        "no-ssh",
        "--guards",
        "dhcp,bpdu",
    ])?;
    no_ssh()?;
    let shown = switch.verb(&["port", "show", "ct"])?;
    ensure!(shown.contains("guards of ct (in force)"), "{shown}");
    let old = switch.kill(Role::Control)?;
    switch.wait_replaced(Role::Control, old)?;
    in_force(&switch)?;
    no_ssh()?;
    let refused = switch
        .verb(&["port", "set", "ct", "--acl-to", "none"])
        .unwrap_err();
    ensure!(
        format!("{refused:#}").contains("there is no acl none"),
        "{refused:#}"
    );
    let refused = switch
        .verb(&["port", "set", "ct", "--guards", "spoof"])
        .unwrap_err();
    ensure!(
        format!("{refused:#}").contains("needs the port's `mac`"),
        "{refused:#}"
    );
    no_ssh()?;
    switch.verb(&["port", "set", "ct", "--no-acl-from", "--no-guards"])?;
    let shown = switch.verb(&["port", "show", "ct"])?;
    ensure!(!shown.contains("in force"), "{shown}");
    // Until the next reload, as the warning of `status` says.
    switch.verb(&["reload"])?;
    finish(switch, []).map(drop)
}

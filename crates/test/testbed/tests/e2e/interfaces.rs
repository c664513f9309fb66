//! Interfaces of the host and of containers: what a change of their settings or a restart does to them, and
//! to their users.

use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::time::Duration;
use testbed::ping::reachable;
use testbed::switch::Role;
use testbed::{Endpoint, Lab, Namespace, Switch};

/// A host and a container on one switch; `host` and `port` are further keys of each.
fn config(container: &Namespace, host: &str, port: &str) -> String {
    format!(
        "[[switch]]\nname = \"lan\"\ntype = \"internal\"\nhost = {{ addresses = [\"10.5.0.1/24\"]{host} }}\n\
         [[switch.port]]\nname = \"web\"\ntype = \"tap\"\ninterface = \"eth0\"\nnetns = \"{}\"\n\
         addresses = [\"10.5.0.80/24\"]\n{port}",
        container.netns()
    )
}

#[derive(Debug, PartialEq)]
struct Link {
    index: u64,
    mtu: u64,
    mac: String,
}

fn link(namespace: &Namespace, name: &str) -> Result<Link> {
    let text = namespace.must(&format!("ip -j link show {name}"))?;
    let links: serde_json::Value = serde_json::from_str(&text)?;
    let link = &links[0];
    Ok(Link {
        index: link["ifindex"].as_u64().context("no index")?,
        mtu: link["mtu"].as_u64().context("no MTU")?,
        mac: link["address"].as_str().context("no address")?.to_owned(),
    })
}

/// Starts an instance in a run directory that the one before had as well.
fn start(base: &Path, config: &str) -> Result<Switch> {
    let mut directory = tempfile::Builder::new();
    let directory = directory.prefix("run").rand_bytes(0).tempdir_in(base)?;
    let switch = Switch::start_at(config, directory)?;
    switch.wait_port("web", "running")?;
    switch.wait_port("lan:host", "running")?;
    Ok(switch)
}

#[test]
fn settings_change_in_place_and_routes_stay() -> Result<()> {
    let Some(_lab) = Lab::enter("settings_change_in_place_and_routes_stay") else {
        return Ok(());
    };
    let base = tempfile::tempdir()?;
    let container = Namespace::new("container")?;
    let switch = start(base.path(), &config(&container, "", ""))?;
    let host = switch.host();
    let (web, lan) = (link(&container, "eth0")?, link(host, "lan")?);
    container.must("ip route add default via 10.5.0.1")?;
    host.must("ip route add 10.6.0.0/24 via 10.5.0.80")?;
    reachable(&container, "10.5.0.1", Duration::from_secs(5))?;
    let received = switch.counters("web")?.received;
    ensure!(received > 0);

    switch.verb(&["port", "set", "web", "--mtu", "4000"])?;
    switch.wait(|| Ok(link(&container, "eth0")?.mtu == 4000))?;
    ensure!(link(&container, "eth0")? == Link { mtu: 4000, ..web });

    let host_mac = ", mtu = 3000, mac = \"02:00:00:00:00:33\"";
    let told = switch.reload(&config(
        &container,
        host_mac,
        "mtu = 2000\nmac = \"02:00:00:00:00:44\"\n",
    ))?;
    ensure!(!told.contains("replace"), "{told}");
    let is = |namespace: &Namespace, name, mtu, mac: &str| {
        let link = link(namespace, name)?;
        Ok((link.mtu, link.mac.as_str()) == (mtu, mac))
    };
    switch.wait(|| is(host, "lan", 3000, "02:00:00:00:00:33"))?;
    switch.wait(|| is(&container, "eth0", 2000, "02:00:00:00:00:44"))?;
    ensure!(link(host, "lan")?.index == lan.index && link(&container, "eth0")?.index == web.index);
    let routes = container.must("ip route")? + &host.must("ip route")?;
    ensure!(
        routes.contains("default via") && routes.contains("10.6.0.0/24"),
        "{routes}"
    );
    ensure!(
        switch.counters("web")?.received >= received,
        "it is the same port"
    );
    reachable(&container, "10.5.0.1", Duration::from_secs(5))?;

    // What cannot change in place is said before.
    let other = Namespace::new("other")?;
    let moved = config(&other, host_mac, "");
    std::fs::write(switch.run_dir().join("config.toml"), &moved)?;
    let plan = switch.verb(&["reload", "--dry-run"])?;
    ensure!(
        plan.contains("port web replaced, since netns changed: interface eth0 goes"),
        "{plan}"
    );
    ensure!(
        link(&container, "eth0")?.index == web.index,
        "nothing was done yet"
    );
    let told = switch.reload(&moved)?;
    let before = told.find("replacing port web").context("not said before")?;
    ensure!(
        told.find("port web replaced").context("not said")? > before,
        "{told}"
    );
    switch.wait(|| Ok(link(&other, "eth0").is_ok()))?;
    switch.stop()
}

#[test]
fn interfaces_keep_their_addresses_over_restarts() -> Result<()> {
    let Some(_lab) = Lab::enter("interfaces_keep_their_addresses_over_restarts") else {
        return Ok(());
    };
    let base = tempfile::tempdir()?;
    let container = Namespace::new("container")?;
    let config = config(&container, "", "");
    let macs = |switch: &Switch| {
        Ok::<_, anyhow::Error>((link(&container, "eth0")?.mac, link(switch.host(), "lan")?.mac))
    };
    let switch = start(base.path(), &config)?;
    let at_first = macs(&switch)?;
    ensure!(at_first.0 != at_first.1);
    for role in [Role::Driver, Role::Taps, Role::Control, Role::DataPlane] {
        let old = switch.kill(role)?;
        switch.wait_replaced(role, old)?;
        switch.wait_port("web", "running")?;
        ensure!(macs(&switch)? == at_first, "{role:?}");
    }
    switch.stop()?;
    ensure!(link(&container, "eth0").is_err(), "it goes with the service");
    let again = start(base.path(), &config)?;
    ensure!(macs(&again)? == at_first, "{:?}, not {at_first:?}", macs(&again)?);
    again.stop()?;

    // Another instance, with another address.
    let base = tempfile::tempdir()?;
    let other = start(base.path(), &config)?;
    ensure!(macs(&other)?.0 != at_first.0);
    other.stop()
}

#[test]
fn ports_say_where_they_are_and_uplinks_what_they_carry() -> Result<()> {
    let Some(_lab) = Lab::enter("ports_say_where_they_are_and_uplinks_what_they_carry") else {
        return Ok(());
    };
    let base = tempfile::tempdir()?;
    let container = Namespace::new("container")?;
    let text = config(&container, "", "");
    let switch = start(base.path(), &text)?;
    let host = switch.host();
    let find = |name: &str| {
        let port = switch.ports()?.into_iter().find(|port| port.name == name);
        port.with_context(|| format!("no port {name}"))
    };
    let web = find("web")?;
    ensure!(web.mac == Some(link(&container, "eth0")?.mac), "{web:?}");
    ensure!(web.netns.as_deref() == Some(container.netns()) && web.addresses == ["10.5.0.80/24"]);
    let shown = switch.verb(&["port", "show", "web"])?;
    let mac = web.mac.context("no address")?;
    for part in ["eth0", container.netns(), "10.5.0.80/24", &mac] {
        ensure!(shown.contains(part), "{part} is not in {shown}");
    }
    let list = switch.verb(&["port", "list"])?;
    let line = list
        .lines()
        .find(|line| line.starts_with("web "))
        .context("no line")?;
    for part in [
        &format!("eth0 in {}", container.netns()),
        "10.5.0.80/24",
        mac.as_str(),
    ] {
        ensure!(line.contains(part), "{part} is not in {line}");
    }
    // What users change on the host's interfaces is noticed.
    host.must("ip link set lan address 02:00:00:00:00:66")?;
    switch.wait(|| Ok(find("lan:host")?.mac.as_deref() == Some("02:00:00:00:00:66")))?;
    host.must("ip addr add 10.7.0.1/24 dev lan")?;
    switch.wait(|| Ok(find("lan:host")?.addresses == ["10.5.0.1/24", "10.7.0.1/24"]))?;

    host.must("ip link add up0 type veth peer name up1 && ip link set up0 up && ip link set up1 up")?;
    let told = switch.reload(&format!(
        "{text}[[switch]]\nname = \"out\"\ntype = \"external\"\nuplink = \"up0\"\n\
         [placement]\ndedicated-cores = [0, 9999]\n"
    ))?;
    ensure!(told.contains("warning: dedicated-cores names 9999:"), "{told}");
    ensure!(
        told.contains("[placement] changed, which takes effect when the switch is started again"),
        "{told}"
    );
    let warned = |part: &str| {
        Ok(switch
            .status()?
            .warnings
            .iter()
            .any(|warning| warning.contains(part)))
    };
    ensure!(warned("dedicated-cores names 9999:")?);
    switch.wait_port("out:uplink", "running")?;
    ensure!(!warned("carries addresses")?);
    host.must("ip addr add 10.8.0.1/24 dev up0")?;
    switch.wait(|| warned("port out:uplink: the uplink up0 carries addresses (10.8.0.1/24)"))?;
    ensure!(
        switch
            .log()
            .contains("the uplink up0 carries addresses (10.8.0.1/24)")
    );
    ensure!(
        switch
            .verb(&["reload"])?
            .contains("carries addresses (10.8.0.1/24)")
    );
    host.must("ip addr del 10.8.0.1/24 dev up0")?;
    switch.wait(|| Ok(!warned("carries addresses")?))?;
    let refused = switch.verb(&["switch", "add", "e", "--type", "external", "--uplink", "lo"]);
    ensure!(format!("{:#}", refused.unwrap_err()).contains("lo leads nowhere"));
    switch.stop()
}

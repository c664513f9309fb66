//! Flows that outlive the data plane of the product, as the real ovs-vswitchd sees them.

use crate::forwarding::{Guest, all_arrive, process};
use crate::world::World;
use std::cell::Cell;
use std::os::unix::fs::MetadataExt;

/// Packets that are sent at once.
const BURST: u64 = 25;
const GUESTS: [(&str, u32); 2] = [("vm1", 1), ("vm2", 2)];

/// A new data plane forwards by the flows of the one before: packets that ovs-vswitchd has to be asked about
/// count on no flow.
pub fn flows_outlive_the_data_plane(world: &mut World, program: std::path::PathBuf) {
    // The host's own packets would be misses.
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    world.start_product(program);
    world.start_vswitchd();
    world.vsctl("set Open_vSwitch . other_config:max-idle=600000");
    world.vsctl("add-br br0");
    for (name, _) in GUESTS {
        world.vsctl(&format!(
            "add-port br0 {name} -- set Interface {name} type=internal external_ids:vhost-user=server"
        ));
    }
    world.ofctl("del-flows br0");
    world.ofctl("add-flow br0 in_port=vm1,actions=output:vm2");
    let [mut a, mut b] = connect(world);
    a.reach(&mut b);
    burst(world, &mut a, &mut b);
    for death in 1..=2 {
        let counted = packets(world);
        kill_data_plane(world, death, counted);
        let [mut a, mut b] = connect(world);
        a.reach(&mut b);
        burst(world, &mut a, &mut b);
        burst(world, &mut a, &mut b);
        assert!(packets(world) >= counted + 2 * BURST, "no counter goes back");
    }
    // ovs-vswitchd has counted them all, and those that it was asked about.
    let counted = packets(world);
    world.appctl("revalidator/purge");
    let flows = world.ofctl("dump-flows br0");
    assert!(number(&flows, "n_packets=") >= counted, "{counted}: {flows}");
    assert_eq!(process(world, "ovs")["restarts"], 0);
    world.check_log();
}

fn connect(world: &World) -> [Guest; 2] {
    GUESTS.map(|(name, station)| Guest::connect(world, name, station))
}

/// Sends packets, which all go through the flow.
fn burst(world: &World, a: &mut Guest, b: &mut Guest) {
    // Those that were sent to see whether the guest is there.
    let before = Cell::new(packets(world));
    world.until("no packet is under way", |world| {
        let now = packets(world);
        before.replace(now) == now
    });
    all_arrive(BURST as usize, a, b);
    world.until("the flow has counted them", |world| {
        packets(world) == before.get() + BURST
    });
}

/// What the flow has counted.
fn packets(world: &World) -> u64 {
    let flows = world.appctl("dpctl/dump-flows --names");
    let flow = flows.lines().find(|line| line.contains("in_port(vm1)"));
    number(flow.unwrap_or_else(|| panic!("no flow: {flows}")), "packets:")
}

fn number(text: &str, key: &str) -> u64 {
    let rest = text.split(key).nth(1).unwrap_or_else(|| panic!("{text}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// Returns when the next one listens for guests. Until then, the flow is told with what it has counted.
fn kill_data_plane(world: &World, death: u64, counted: u64) {
    let made = || {
        GUESTS.map(|(name, _)| {
            let metadata = std::fs::metadata(world.guest_socket(name)).ok()?;
            Some((metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
        })
    };
    let old = made();
    let pid = process(world, "data-plane")["pid"].as_u64().unwrap();
    // SAFETY: plain integers; the process is one of the product under test.
    let killed = unsafe { libc::kill(i32::try_from(pid).unwrap(), libc::SIGKILL) };
    assert_eq!(killed, 0);
    world.until("the next data plane listens", |world| {
        assert!(packets(world) >= counted, "no counter goes back");
        let new = made();
        let listens = new.iter().zip(&old).all(|(new, old)| new.is_some() && new != old);
        listens && process(world, "data-plane")["restarts"] == death
    });
}

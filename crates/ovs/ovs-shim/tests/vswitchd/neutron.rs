//! Port types of Neutron, `dpdkvhostuser` and `dpdkvhostuserclient`, which the real ovs-vswitchd does not
//! know.

use crate::forwarding::{Guest, process};
use crate::world::World;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use testbed::polling::{Build, PollingGuest};

/// As os-vif names and makes them.
const SERVER: &str = "vhu0a1b2c3d-4e";
const CLIENT: &str = "vhu1a1b2c3d-4e";

pub fn types_of_neutron_are_ours(world: &mut World, program: PathBuf) {
    world.start_product(program);
    // Without it, bridges with `datapath_type=netdev` are ovs-vswitchd's own.
    world.start_vswitchd_with(&[("HYPERSWITCH_OVS_NETDEV", "claim")]);
    world.vsctl("add-br br-int -- set Bridge br-int datapath_type=netdev");
    let path = world.path("vmm.sock");
    let vmm = UnixListener::bind(&path).unwrap();
    vmm.set_nonblocking(true).unwrap();
    world.vsctl(&format!(
        "add-port br-int {SERVER} -- set Interface {SERVER} type=dpdkvhostuser mtu_request=1450 external_ids:iface-id=a"
    ));
    world.vsctl(&format!(
        "add-port br-int {CLIENT} -- set Interface {CLIENT} type=dpdkvhostuserclient options:vhost-server-path={} mtu_request=1450",
        path.display()
    ));
    let (mut a, mut b) = (connected(world), listening(world, &vmm));
    a.reach(&mut b);
    b.reach(&mut a);
    a.reach(&mut b);
    rows_are_as_they_were_written(world);
    // Both start again with what the database has.
    let pid = process(world, "ovs")["pid"].as_i64().unwrap();
    // SAFETY: plain integers; the process is one of the product under test.
    let result = unsafe { libc::kill(i32::try_from(pid).unwrap(), libc::SIGKILL) };
    assert_eq!(result, 0);
    assert_eq!(world.vswitchd_signal(), Some(libc::SIGABRT));
    world.start_vswitchd_with(&[("HYPERSWITCH_OVS_NETDEV", "claim")]);
    world.wait_until_configured();
    a.reach(&mut b);
    b.reach(&mut a);
    // The other way round, and back.
    let socket = world.path(&format!("run/ovs/{SERVER}"));
    world.vsctl(&format!("set Interface {SERVER} type=internal"));
    world.until("its socket is gone", |_| !socket.exists());
    world.vsctl(&format!("set Interface {SERVER} type=dpdkvhostuser"));
    let mut a = connected(world);
    a.reach(&mut b);
    world.vsctl(&format!("del-port {SERVER} -- del-port {CLIENT}"));
    world.until("its socket is gone again", |_| !socket.exists());
    world.check_log();
}

/// The guest of the port whose socket the switch has made.
fn connected(world: &World) -> Guest {
    let socket = world.path(&format!("run/ovs/{SERVER}"));
    world.until("the socket is there", |_| socket.exists());
    Guest::at(&socket, SERVER, 1)
}

/// The guest of the port whose VMM listens.
fn listening(world: &World, vmm: &UnixListener) -> Guest {
    let stream = std::cell::RefCell::new(None);
    world.until("the switch connects", |_| {
        *stream.borrow_mut() = vmm.accept().ok();
        stream.borrow().is_some()
    });
    let (stream, _) = stream.into_inner().unwrap();
    let ports = PollingGuest::over(Build::default(), vec![stream], 2000).unwrap();
    Guest::new(CLIENT, 2, ports)
}

fn rows_are_as_they_were_written(world: &World) {
    for (port, wanted) in [(SERVER, "dpdkvhostuser"), (CLIENT, "dpdkvhostuserclient")] {
        let columns = "type error link_state mtu";
        world.until("the port is up", |world| {
            let row = world.vsctl(&format!("get Interface {port} {columns}"));
            row == format!("{wanted}\n[]\nup\n1450")
        });
    }
    assert_eq!(world.vsctl("get Bridge br-int datapath_type"), "netdev");
    let shown = world.appctl("dpctl/show");
    assert!(shown.contains(&format!("{SERVER} (internal)")), "{shown}");
}

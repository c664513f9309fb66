//! VMMs that listen, to which the product connects.

use crate::forwarding::{Guest, all_arrive, process};
use crate::world::World;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;
use testbed::polling::{Build, PollingGuest};

/// Nobody in particular, but not root.
const OTHER_USER: u32 = 60_000;

/// A VMM of another user, in a directory that is that user's alone.
struct Vmm(UnixListener);

impl Vmm {
    fn listen(path: &Path) -> Vmm {
        let directory = path.parent().unwrap();
        let _ = std::fs::remove_dir_all(directory);
        std::fs::create_dir(directory).unwrap();
        let listener = UnixListener::bind(path).unwrap();
        listener.set_nonblocking(true).unwrap();
        for path in [path, directory] {
            chown(path, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).unwrap();
        }
        Vmm(listener)
    }

    /// The guest whose VMM was connected to.
    fn guest(&self, world: &World, name: &'static str, station: u32) -> Guest {
        let stream = std::cell::RefCell::new(None);
        world.until("the switch connects", |_| {
            *stream.borrow_mut() = self.0.accept().ok();
            stream.borrow().is_some()
        });
        let (stream, _) = stream.into_inner().unwrap();
        let ports = PollingGuest::over(Build::default(), vec![stream], 2000).unwrap();
        Guest::new(name, station, ports)
    }

    /// Nobody connects though there was time for it.
    fn is_left_alone(&self) {
        std::thread::sleep(Duration::from_millis(1500));
        assert!(self.0.accept().is_err());
    }
}

/// In both directions, over flows of ovs-vswitchd's.
fn talk(a: &mut Guest, b: &mut Guest) {
    a.reach(b);
    b.reach(a);
    a.reach(b);
}

fn link_becomes(world: &World, wanted: &str) {
    world.until(&format!("the link is {wanted}"), |world| {
        world.vsctl("get Interface vm2 link_state") == wanted
    });
}

pub fn vmms_that_listen(world: &mut World, program: PathBuf) {
    world.start_product(program);
    world.start_vswitchd();
    world.add_bridge(&["vm1", "vm2"]);
    world.vsctl("set Interface vm1 external_ids:vhost-user=server");
    let (first, second) = (world.path("vmm/1.sock"), world.path("other/2.sock"));
    let name_path = |world: &World, path: &Path| {
        let path = format!("external_ids:vhost-user-path=\"{}\"", path.display());
        world.vsctl(&format!(
            "set Interface vm2 external_ids:vhost-user=client {path}"
        ));
    };
    name_path(world, &first);
    let mut a = Guest::connect(world, "vm1", 1);
    link_becomes(world, "down");
    // The VMM may come later than the port, and again.
    for _ in 0..2 {
        let vmm = Vmm::listen(&first);
        let mut b = vmm.guest(world, "vm2", 2);
        link_becomes(world, "up");
        talk(&mut a, &mut b);
        drop((vmm, b));
        link_becomes(world, "down");
    }
    let vmm = Vmm::listen(&first);
    let mut b = vmm.guest(world, "vm2", 2);
    talk(&mut a, &mut b);
    // The connection outlives the process that made it.
    let pid = process(world, "ovs")["pid"].as_i64().unwrap();
    // SAFETY: plain integers; the process is one of the product under test.
    let result = unsafe { libc::kill(i32::try_from(pid).unwrap(), libc::SIGKILL) };
    assert_eq!(result, 0);
    assert_eq!(world.vswitchd_signal(), Some(libc::SIGABRT));
    all_arrive(100, &mut a, &mut b);
    world.start_vswitchd();
    world.wait_until_configured();
    link_becomes(world, "up");
    vmm.is_left_alone();
    talk(&mut a, &mut b);
    // Another path.
    let other = Vmm::listen(&second);
    name_path(world, &second);
    let mut b = other.guest(world, "vm2", 2);
    talk(&mut a, &mut b);
    vmm.is_left_alone();
    // The other way round.
    world.vsctl("set Interface vm2 external_ids:vhost-user=server");
    let mut b = Guest::connect(world, "vm2", 2);
    talk(&mut a, &mut b);
    other.is_left_alone();
    // And nobody.
    name_path(world, &second);
    let mut b = other.guest(world, "vm2", 2);
    assert!(!world.guest_socket("vm2").exists());
    talk(&mut a, &mut b);
    world.vsctl("remove Interface vm2 external_ids vhost-user");
    a.loses(&mut b);
    other.is_left_alone();
    world.check_log();
}

//! The switch knows the states of guests.

use crate::rig::{finish, guests, options, private};
use anyhow::{Context, Result, ensure};
use std::thread;
use std::time::Duration;
use testbed::{Endpoint, Lab, QemuGuest, QemuOptions, Switch};

/// How many of 50 looks found the guest of a port alive, which is running or wanting to.
fn alive(switch: &Switch, port: &str) -> Result<usize> {
    let mut alive = 0;
    for _ in 0..50 {
        thread::sleep(Duration::from_millis(10));
        let ports = switch.ports()?;
        let found = ports.iter().find(|info| info.name == port);
        let guest = found
            .and_then(|info| info.guest.clone())
            .context("nobody knows")?;
        alive += usize::from(!guest.starts_with("blocked"));
    }
    Ok(alive)
}

/// An idle guest is seen to be blocked, a busy one mostly not; User Mode Linux runs its programs in other
/// processes, and QEMU in one of many threads. Where a program of User Mode Linux and its kernel run on
/// different cores, each of its system calls has moments in which one has gone to sleep and the other has not
/// been woken yet.
#[test]
fn busy_guests_and_idle_ones_are_told_apart() -> Result<()> {
    let Some(lab) = Lab::enter("busy_guests_and_idle_ones_are_told_apart") else {
        return Ok(());
    };
    let switch = Switch::start(&private(&["vm1", "vm2"], ""))?;
    if !switch.status()?.vm_state.published {
        lab.note("no privilege for eBPF");
        return finish(switch, []).map(drop);
    }
    let [uml] = guests(&switch, ["vm1"])?;
    let qemu = QemuGuest::boot(options(&switch, "vm2", 2), &QemuOptions::default())?;
    for (port, guest) in [("vm1", &uml), ("vm2", &*qemu)] {
        thread::sleep(Duration::from_secs(1));
        let idle = alive(&switch, port)?;
        let work = guest.start("yes > /dev/null")?;
        thread::sleep(Duration::from_millis(500));
        let busy = alive(&switch, port)?;
        drop(work);
        guest.run("killall -9 yes")?;
        lab.note(format!(
            "{port}: of 50 looks, alive {idle} when idle, {busy} when busy"
        ));
        ensure!(
            idle < 10 && busy > 25,
            "{port}: {idle} when idle, {busy} when busy"
        );
    }
    drop(qemu);
    finish(switch, [uml]).map(drop)
}

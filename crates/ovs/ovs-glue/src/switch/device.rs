//! Changes of the ports' network devices, and of the guests behind them.
//!
//! A device that an administrator deletes is made again at once. One that goes with another namespace in
//! which it was, is treated as by the kernel's switch, which removes the port: ovs-vswitchd does not hear of
//! the device's end, and would go on looking for it there. Other than from the kernel, it hears of the port's
//! end, and of a change of a device. Then it looks at all ports, and makes the port again with a new device
//! in its own namespace; or tells in the interface's `error` why it cannot. A virtual machine's port stays in
//! any case, so that its guest stays connected.

use super::{Switch, notify};
use crate::datapath::{Datapath, DatapathId, LOCAL, PortNo};
use crate::placeholder::{DeviceState, Placeholders};
use crate::server::{Answer, Caller};
use ovs_netlink::Reply;
use ovs_netlink::family::Family;
use ovs_netlink::message::Header;
use ovs_netlink::name::Name;
use ovs_netlink::vport::Command;

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    /// Tells the data plane what became of the devices, and the devices which guests are connected; and gives
    /// the data plane those that are ports' other ends. Devices are asked only if they are ready.
    pub fn follow_devices(&mut self, are_ready: bool) {
        self.announce();
        loop {
            while are_ready && let Some((name, state)) = self.placeholders.next_change() {
                self.device_changed(&name, state);
            }
            self.give_devices();
            if !self.renew_devices() {
                return;
            }
        }
    }

    fn give_devices(&mut self) {
        while let Some((datapath, number, connected)) = self.datapath.next_carrier() {
            // It may have been removed meanwhile.
            let Some(name) = self.name_of(datapath, number) else {
                continue;
            };
            if let Err(errno) = self.placeholders.set_carrier(&name, connected) {
                log::debug!("link of '{name}': {errno}");
            }
        }
        while let Some((datapath, number)) = self.datapath.next_device() {
            let Some(name) = self.name_of(datapath, number) else {
                continue;
            };
            match self.placeholders.lend(&name) {
                Ok((index, device)) => self.datapath.attach_device(datapath, number, index, device),
                Err(errno) => log::debug!("device of '{name}': {errno}"),
            }
        }
    }

    /// Makes devices that have gone again; whether there were any.
    fn renew_devices(&mut self) -> bool {
        let mut any = false;
        while let Some(name) = self.placeholders.next_gone() {
            if let Some((id, number)) = self.port_named(&name) {
                self.device_gone(id, number, &name);
                any = true;
            }
        }
        while let Some((id, number)) = self.datapath.next_gone() {
            if let Some(name) = self.name_of(id, number) {
                self.device_gone(id, number, &name);
                any = true;
            }
        }
        any
    }

    fn port_named(&self, name: &str) -> Option<(DatapathId, PortNo)> {
        Name::new(name).and_then(|name| self.names.get(&name).copied())
    }

    fn name_of(&self, id: DatapathId, number: PortNo) -> Option<String> {
        let port = self.bridges.get(&id)?.ports.get(&number)?;
        Some(port.spec.name.clone())
    }

    fn device_gone(&mut self, id: DatapathId, number: PortNo, name: &str) {
        let bridge = self.bridges.get_mut(&id);
        let Some(port) = bridge.and_then(|bridge| bridge.ports.get_mut(&number)) else {
            return;
        };
        let is_fixed = number == LOCAL || self.datapath.has_guest(id, number);
        if port.namespace.is_some() && !is_fixed {
            log::info!(
                "port '{name}': its namespace has gone, and its device with it: ovs-vswitchd makes it again"
            );
            return self.lose_vport(id, number);
        }
        match self.placeholders.renew(name) {
            Ok(index) => {
                log::info!("port '{name}': its device was removed, and is made again");
                (port.interface, port.namespace) = (Some(index), None);
                self.datapath.renew_device(id, number);
            }
            Err(errno) => {
                log::warn!("port '{name}': its device was removed, and cannot be made again: {errno}");
                if !is_fixed {
                    self.lose_vport(id, number);
                }
            }
        }
    }

    /// Removes a port without a request, and has ovs-vswitchd notice that.
    fn lose_vport(&mut self, id: DatapathId, number: PortNo) {
        let told = self.tell_vport(id, number, Command::Delete);
        self.remove_vport(id, number);
        let told = told.and_then(|told| notify(Header::default(), Family::Vport, &Reply::Vport(told)));
        if let Ok(outcome) = told {
            let answer = Answer {
                notices: outcome.notice.into_iter().collect(),
                ..Answer::default()
            };
            self.answers.push_back((Caller::NOBODY, answer));
            self.to_announce = Some(id);
        }
    }

    /// Has ovs-vswitchd look at all ports, once it was told which one has gone.
    fn announce(&mut self) {
        let Some(id) = self.to_announce.filter(|_| self.answers.is_empty()) else {
            return;
        };
        self.to_announce = None;
        if let Some(name) = self.name_of(id, LOCAL) {
            self.placeholders.announce(&name);
        }
    }

    fn device_changed(&mut self, name: &str, state: DeviceState) {
        let Some((id, number)) = self.port_named(name) else {
            return;
        };
        let bridge = self.bridges.get_mut(&id);
        let Some(port) = bridge.and_then(|bridge| bridge.ports.get_mut(&number)) else {
            return;
        };
        port.interface = Some(state.index);
        port.namespace = state.namespace;
        if let Some(state) = state.port {
            self.datapath.set_device(id, number, state);
        }
    }
}

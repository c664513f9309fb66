//! Changes of the ports' network devices, and of the guests behind them.

use super::Switch;
use crate::datapath::Datapath;
use crate::placeholder::{DeviceState, Placeholders};
use ovs_netlink::name::Name;

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    /// Tells the data plane what became of the devices, and the devices which guests are connected; and gives the data plane those
    /// that are ports' other ends. Devices are asked only if they are ready.
    pub fn follow_devices(&mut self, are_ready: bool) {
        while are_ready && let Some((name, state)) = self.placeholders.next_change() {
            self.device_changed(&name, state);
        }
        while let Some((datapath, number, connected)) = self.datapath.next_carrier() {
            let bridge = self.bridges.get(&datapath);
            // It may have been removed meanwhile.
            let Some(port) = bridge.and_then(|bridge| bridge.ports.get(&number)) else {
                continue;
            };
            if let Err(errno) = self.placeholders.set_carrier(&port.spec.name, connected) {
                log::debug!("link of '{}': {errno}", port.spec.name);
            }
        }
        while let Some((datapath, number)) = self.datapath.next_device() {
            let bridge = self.bridges.get(&datapath);
            let Some(port) = bridge.and_then(|bridge| bridge.ports.get(&number)) else {
                continue;
            };
            match self.placeholders.lend(&port.spec.name) {
                Ok((index, device)) => self.datapath.attach_device(datapath, number, index, device),
                Err(errno) => log::debug!("device of '{}': {errno}", port.spec.name),
            }
        }
    }

    fn device_changed(&mut self, name: &str, state: DeviceState) {
        let found = Name::new(name).and_then(|name| self.names.get(&name).copied());
        let Some((id, number)) = found else { return };
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

//! TCP between two guests by the frames it goes in: MTU-sized ones with segmentation left to the guest for
//! everybody, and jumbo frames. With segmentation offload, which Open vSwitch does not offer here, `stream`
//! compares. The bridge takes no part: User Mode Linux' TAP driver does not let its offload be turned off.

use super::guests::{boot, names};
use super::{Case, Rig, stream};
use crate::Effort;
use crate::contender::{Contender, HYPERSWITCH, OVS_DPDK, Ports, with_ports};
use crate::record::Record;
use anyhow::Result;
use testbed::Endpoint;

pub const CASE: Case = Case {
    name: "stream-frames",
    about: "TCP between two User Mode Linux guests, 64 KiB per write, without segmentation offload in the guests",
    axis: "MTU",
    measures: stream::CASE.measures,
    contenders: &[HYPERSWITCH, OVS_DPDK],
    run,
};

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    for mtu in [1500, 9000] {
        let ports = Ports {
            mtu,
            ..Ports::default()
        };
        let contenders = with_ports(contenders, ports);
        let rigs = Rig::start_all(&contenders, record, names(2), |network, ports| {
            let guests = boot(network, ports)?;
            for guest in &guests {
                // A guest whose switch offers none has nothing to turn off.
                guest.run("ethtool -K eth0 tso off")?;
                guest.must("! ethtool -k eth0 | grep -q 'tcp-segmentation-offload: on'")?;
            }
            Ok(guests)
        })?;
        Rig::sweep(rigs, record, &[(mtu.to_string(), ())], |network, guests, ()| {
            stream::measure(effort, network, guests, 65_536)
        })?;
    }
    Ok(())
}

//! `hyperswitch switch ...` as requests.

use super::{Request, SwitchVerb};
use crate::cli::SwitchArgs;
use management::{ContestedMacs, HostConfig, SwitchConfig};

/// The request of a verb.
pub fn request(verb: &SwitchVerb) -> Request {
    match verb {
        SwitchVerb::Add(args) => Request::SwitchAdd { switch: config(args) },
        SwitchVerb::Del { name } => Request::SwitchDel { switch: name.clone() },
        SwitchVerb::List => Request::SwitchList,
    }
}

fn config(args: &SwitchArgs) -> SwitchConfig {
    let mut switch = SwitchConfig::new(args.name.clone(), args.kind);
    switch.uplink.clone_from(&args.uplink);
    switch.uplink_back_end = args.uplink_back_end;
    switch.uplink_fast_path = args.uplink_fast_path;
    switch.mtu = args.mtu.unwrap_or_default();
    switch.mac_ageing = args.mac_ageing.unwrap_or_default();
    switch.mac_table_size = args.mac_table_size.unwrap_or_default();
    switch.flood = !args.no_flood;
    if args.drop_contested_macs {
        switch.contested_macs = ContestedMacs::Drop;
    }
    switch.uplink_policy.clone_from(&args.uplink_policy);
    let host = HostConfig {
        interface: args.host_interface.clone(),
        addresses: args.host_addresses.clone(),
        mac: args.host_mac,
        policy: args.host_policy.clone(),
        ..HostConfig::default()
    };
    switch.host = (host != HostConfig::default()).then_some(host);
    switch
}

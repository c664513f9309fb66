//! Policies of ports, as the data plane is told of them.

use super::*;
use flow::{ACLS, Filter, Filters, GUARDS, MeterBand, NamedPolicy};
use ovs_glue::plane::Limits;

const VM1: PortId = PortId(FIRST + 1);

fn named(policies: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = policies
        .iter()
        .map(|(port, policy)| ((*port).to_owned(), (*policy).to_owned()));
    pairs.collect()
}

/// Filters of a policy, and no others.
fn of(policy: &str) -> Filters {
    let mut filters = Filters::default();
    NamedPolicy::of(policy).fill(&mut filters);
    filters
}

/// Each of the filters that the port has one after the other, until it is removed.
fn heard(world: &mut World) -> Vec<Filters> {
    let mut heard = Vec::new();
    world.plane.exchange();
    while let Ok((asked, _)) = world.peer.try_recv::<ToDataPlane>() {
        let told = match &asked.request {
            Request::PortAdd(spec) if spec.port == VM1 => {
                heard.push(spec.filters);
                Told::Done
            }
            Request::PortFilters { port: VM1, filters } => {
                heard.push(*filters);
                Told::Done
            }
            Request::FlowPut { .. } | Request::FlowDel { .. } => ended(&[]),
            Request::MeterSet { .. } | Request::MeterDel { .. } => Told::Meter(None),
            _ => Told::Done,
        };
        world.answer(&asked, told);
    }
    heard
}

fn has(filters: &Filters, policy: &str) -> bool {
    let wanted = of(policy);
    let same =
        |at: usize| filters.ingress[at] == wanted.ingress[at] && filters.egress[at] == wanted.egress[at];
    same(GUARDS) && same(ACLS)
}

#[test]
fn a_port_is_without_its_policy_at_no_time() {
    let mut world = World::new();
    world.plane.set_policies(named(&[("vm1", "web"), ("vm9", "web")]));
    world.hears_nothing();
    world.add_port(1, "vm1");
    let made = heard(&mut world);
    assert!(
        !made.is_empty() && made.iter().all(|filters| *filters == of("web")),
        "{made:?}"
    );
    // Limits come and go beside it.
    let limits = Limits {
        ingress: Some(MeterBand { rate: 5, burst: 525 }),
        ..Limits::default()
    };
    world.plane.limit_all([("vm1".to_owned(), limits)].into());
    let limited = heard(&mut world);
    assert!(limited.iter().all(|filters| has(filters, "web")), "{limited:?}");
    assert_eq!(limited.last().unwrap().ingress[0], Filter::Flows);
    // Another policy, which need not exist.
    world.plane.set_policies(named(&[("vm1", "none such")]));
    let changed = heard(&mut world);
    assert!(changed.len() == 1 && has(&changed[0], "none such") && changed[0].ingress[0] == Filter::Flows);
    world.plane.set_policies(named(&[("vm1", "none such")]));
    world.hears_nothing();
    // A new data plane, and the end of the port.
    world.lose();
    world.connect(Vec::new());
    let again = heard(&mut world);
    assert!(
        !again.is_empty() && again.iter().all(|filters| has(filters, "none such")),
        "{again:?}"
    );
    world.plane.remove_port(DATAPATH, PortNo(1));
    let removed = heard(&mut world);
    assert!(
        removed.iter().all(|filters| has(filters, "none such")),
        "{removed:?}"
    );
    // Nothing of it is left to the next port of that number.
    world.add_port(1, "vm2");
    let next = heard(&mut world);
    assert!(
        next.iter().all(|filters| *filters == Filters::default()),
        "{next:?}"
    );
    world.plane.set_policies(named(&[("vm2", "web")]));
    world.plane.set_policies(BTreeMap::new());
    assert_eq!(heard(&mut world), [of("web"), Filters::default()]);
    assert_eq!(world.plane.counters().limits_refused, 0);
}

/// A port as an earlier process left it.
fn left() -> PortInfo {
    let mut world = World::new();
    world.plane.set_policies(named(&[("vm1", "web")]));
    world.add_port(1, "vm1");
    match world.hear().request {
        Request::PortAdd(spec) => info(spec, PortCounters::default()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_port_that_was_left_keeps_its_policy_until_the_database_has_told() {
    let mut world = World::with(vec![left()]);
    world.add_port(1, "vm1");
    let kept = heard(&mut world);
    assert!(
        !kept.is_empty() && kept.iter().all(|filters| *filters == of("web")),
        "{kept:?}"
    );
    world.plane.set_policies(named(&[("vm1", "db")]));
    assert_eq!(heard(&mut world), [of("db")]);
    // One that ovs-vswitchd has not asked for yet follows the database as well.
    for (policies, wanted) in [
        (named(&[("vm1", "db")]), of("db")),
        (named(&[]), Filters::default()),
    ] {
        let mut world = World::with(vec![left()]);
        world.plane.set_policies(policies.clone());
        assert_eq!(heard(&mut world), [wanted]);
        world.add_port(1, "vm1");
        let kept = heard(&mut world);
        assert!(kept.iter().all(|filters| *filters == wanted), "{kept:?}");
    }
}

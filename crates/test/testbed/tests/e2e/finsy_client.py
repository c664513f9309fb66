"""A client of P4Runtime by finsy, as PyPI has it. Arguments: address, number of the election, what to do, P4Info and JSON."""

import asyncio
import sys
from pathlib import Path

import finsy as fy
from finsy import P4TableAction as Action
from finsy import P4TableEntry as Entry
from finsy import P4TableMatch as Match


def mac(last):
    return f"02:00:00:00:{last}"


def routes():
    """Entries of the router: 10.1/16 is at port 1, and 10.2/16 at port 2."""
    for port in (1, 2):
        own, next_hop = mac(f"00:f{port}"), mac(f"01:0{port}")
        yield Entry(
            "router_mac",
            match=Match({"std.ingress_port": port, "hdr.ethernet.dst": own}),
            action=Action("take"),
        )
        yield Entry("routes", match=Match({"hdr.ipv4.dst": f"10.{port}.0.0/16"}), action=Action("via", next_hop_id=port))
        yield Entry("next_hops", match=Match({"meta.next_hop_id": port}), action=Action("send", port=port, mac=next_hop))
        yield Entry("port_mac", match=Match({"std.egress_port": port}), action=Action("leave_as", mac=own))


async def all_of(switch, entity):
    return [found async for found in switch.read(entity)]


async def fill(switch):
    await switch.delete_all()
    await switch.insert(list(routes()))
    found = await all_of(switch, Entry("routes"))
    prefixes = sorted(prefix for entry in found for prefix in entry.match.values())
    assert prefixes == [(0x0A010000, 16), (0x0A020000, 16)], prefixes
    await switch.insert([fy.P4MulticastGroupEntry(5, replicas=[1, 2])])
    [group] = await all_of(switch, fy.P4MulticastGroupEntry())
    assert len(group.replicas) == 2, group
    await switch.delete([fy.P4MulticastGroupEntry(5)])


async def delete(switch):
    route = Entry("routes", match=Match({"hdr.ipv4.dst": "10.2.0.0/16"}))
    await switch.delete([route])
    try:
        await switch.delete([route])
    except fy.P4ClientError as error:
        assert error.is_not_found_only, error
    else:
        raise AssertionError("deleted twice")


async def idle(switch):
    """An entry of the L2 switch that no packet meets is told of."""
    await switch.delete_all()
    station = Entry(
        "smac",
        match=Match({"hdr.ethernet.src": mac("00:09"), "std.ingress_port": 1}),
        action=Action("NoAction"),
        idle_timeout_ns=200_000_000,
        metadata=b"mine",
    )
    await switch.insert([station])
    async with asyncio.timeout(20):
        async for news in switch.read_idle_timeouts():
            [found] = news.table_entry
            assert (found.table_id, found.metadata, found.idle_timeout_ns) == ("smac", b"mine", 200_000_000), found
            break
    [found] = await all_of(switch, Entry("smac", time_since_last_hit=0))
    assert found.time_since_last_hit >= 200_000_000, found
    # The next client has another program, and finsy cannot read news of tables that it does not know.
    await switch.delete([station])


async def rates(switch):
    """Rates of the limiter's entries come back as they were written."""
    await switch.delete_all()
    rates = fy.P4MeterConfig(cir=1000, cburst=10, pir=2000, pburst=20)
    flow = Entry("flows", match=Match({"port": "1"}), priority=10, action=Action("measure"))
    await switch.insert([flow])
    await switch.modify([fy.P4DirectMeterEntry(config=rates, table_entry=flow)])
    [found] = await all_of(switch, fy.P4DirectMeterEntry(table_entry=Entry("flows")))
    assert found.config == rates, found


async def main():
    address, election, task, p4info, program = sys.argv[1:]
    options = fy.SwitchOptions(p4info=Path(p4info), p4blob=Path(program), initial_election_id=int(election))
    async with fy.Switch("switch", address, options) as switch:
        assert switch.is_primary
        await globals()[task](switch)


asyncio.run(main())

"""Packets through the router by ptf, as PyPI has it: ports 1 and 2 are those of the P4 switch."""

from ptf.base_tests import BaseTest
from ptf.testutils import send_packet, simple_tcp_packet, verify_no_other_packets, verify_packet

import ptf


class Routed(BaseTest):
    """A packet is routed in either direction, and one for an unknown network is not."""

    def setUp(self):
        super().setUp()
        self.dataplane = ptf.dataplane_instance
        self.dataplane.flush()

    def runTest(self):
        for port in (1, 2):
            other = 3 - port
            addresses = {"ip_src": f"10.{port}.0.1", "ip_dst": f"10.{other}.0.1"}
            sent = simple_tcp_packet(eth_src=f"02:00:00:00:01:0{port}", eth_dst=f"02:00:00:00:00:f{port}", ip_ttl=64, **addresses)
            expected = simple_tcp_packet(
                eth_src=f"02:00:00:00:00:f{other}", eth_dst=f"02:00:00:00:01:0{other}", ip_ttl=63, **addresses
            )
            send_packet(self, port, sent)
            verify_packet(self, expected, other)
        unknown = simple_tcp_packet(eth_dst="02:00:00:00:00:f1", ip_src="10.1.0.1", ip_dst="10.9.0.1")
        send_packet(self, 1, unknown)
        verify_no_other_packets(self)

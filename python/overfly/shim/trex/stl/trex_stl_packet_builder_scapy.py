"""`trex.stl.trex_stl_packet_builder_scapy`: published ASTF profiles take two functions from it."""

from trex.utils.common import int2ip as int2ip
from trex.utils.common import ip2int as ip2int

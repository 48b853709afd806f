"""`trex.utils.common`: addresses as numbers."""

import ipaddress


def ip2int(ip: str) -> int:
    """The number of an IPv4 address."""
    return int(ipaddress.IPv4Address(ip))


def int2ip(ip: int) -> str:
    """The IPv4 address of a number."""
    return str(ipaddress.IPv4Address(ip))

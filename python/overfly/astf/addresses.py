"""Which addresses clients and servers have."""

from __future__ import annotations

import ipaddress
from typing import Any, Dict, List, Optional, Sequence, Union

from .arguments import of_type, optional
from .errors import ASTFError, ASTFErrorBadIp, ASTFErrorBadIpRange, here

Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]


def address(where: str, value: object, version: Optional[int] = None) -> Address:
    """An IPv4 or IPv6 address; only of `version` if that is given."""
    kind = f"IPv{version}" if version else "IPv4 or IPv6"
    try:
        parsed = ipaddress.ip_address(of_type(where, value, str))
    except ValueError:
        raise ASTFErrorBadIp(f"{where}: {value!r} is no {kind} address") from None
    if version not in (None, parsed.version):
        raise ASTFErrorBadIp(f"{where}: {value!r} is no {kind} address")
    return parsed


class ASTFIPGenDist:
    """A range of addresses, first and last, from which flows take the next one ("seq") or any ("rand").

    `per_core_distribution` "seq" gives each core one continuous part of the range.
    """

    def __init__(
        self, ip_range: Sequence[str], distribution: str = "seq", per_core_distribution: Optional[str] = None
    ) -> None:
        self.place = here()
        where = "ASTFIPGenDist: ip_range"
        if not isinstance(ip_range, (list, tuple)) or len(ip_range) != 2:
            raise ASTFErrorBadIpRange(f"{where} is a list of two addresses, the first and the last, not {ip_range!r:.60}")
        self.first = address(where, ip_range[0])
        self.last = address(where, ip_range[1], self.first.version)
        if int(self.first) > int(self.last):
            raise ASTFErrorBadIpRange(f"{where}: the first address, {self.first}, comes after the last, {self.last}")
        if distribution not in ("seq", "rand"):
            raise ASTFError(f'ASTFIPGenDist: distribution is "seq" or "rand", not {distribution!r:.60}')
        if per_core_distribution not in (None, "default", "seq"):
            raise ASTFError(f'ASTFIPGenDist: per_core_distribution is "seq" or "default", not {per_core_distribution!r:.60}')
        self.distribution = distribution
        self.per_core = per_core_distribution or "default"

    @property
    def ip_start(self) -> str:
        """The first address."""
        return str(self.first)

    @property
    def ip_end(self) -> str:
        """The last address."""
        return str(self.last)

    def overlaps(self, other: "ASTFIPGenDist") -> bool:
        """Whether any address is in both."""
        if self.first.version != other.first.version:
            return False
        return int(self.first) <= int(other.last) and int(other.first) <= int(self.last)


class ASTFIPGenGlobal:
    """What the second, third ... pair of links adds to the addresses of the first, once, twice ..."""

    def __init__(self, ip_offset: str = "1.0.0.0", ip_offset_server: Optional[str] = None) -> None:
        self.ip_offset = str(address("ASTFIPGenGlobal: ip_offset", ip_offset))
        server = optional("ASTFIPGenGlobal: ip_offset_server", ip_offset_server, str)
        self.ip_offset_server = self.ip_offset if server is None else str(address("ASTFIPGenGlobal: ip_offset_server", server))


class ASTFIPGen:
    """The addresses of both ends."""

    def __init__(self, dist_client: ASTFIPGenDist, dist_server: ASTFIPGenDist, glob: Optional[ASTFIPGenGlobal] = None) -> None:
        self.client = of_type("ASTFIPGen: dist_client", dist_client, ASTFIPGenDist)
        self.server = of_type("ASTFIPGen: dist_server", dist_server, ASTFIPGenDist)
        if self.client is self.server:
            raise ASTFError("ASTFIPGen: dist_client and dist_server are the same; clients and servers need addresses of their own")
        if self.client.first.version != self.server.first.version:
            raise ASTFError("ASTFIPGen: dist_client and dist_server must both be IPv4, or both IPv6")
        self.glob = ASTFIPGenGlobal() if glob is None else of_type("ASTFIPGen: glob", glob, ASTFIPGenGlobal)


class ASTFCluster:
    """An argument that published profiles may pass, and that means nothing."""


class ASTFTCPInfo:
    """What older profiles pass as `tcp_info`: taken, and means nothing. TCP is tuned with ASTFGlobalInfo."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass


def pools_of(gen: ASTFIPGen) -> List[Dict[str, Any]]:
    """The pools of both ends as they are in the JSON form, the client's first."""
    offsets = (gen.glob.ip_offset, gen.glob.ip_offset_server)
    return [
        {
            "side": side,
            "first": dist.ip_start,
            "last": dist.ip_end,
            "distribution": dist.distribution,
            "per_core": dist.per_core,
            "offset": offset,
        }
        for side, dist, offset in zip(("client", "server"), (gen.client, gen.server), offsets)
    ]

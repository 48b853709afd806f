"""Tunnels: which clients' packets travel in which outer ones."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Union

from .addresses import address
from .arguments import of_type, whole
from .errors import ASTFError, here

KINDS: Dict[Any, str] = {1: "gtpu", "gtpu": "gtpu", 2: "vlan", "vlan": "vlan", "vxlan": "vxlan"}


class TopoTunnelCtx:
    """A tunnel for the clients from `src_start` to `src_end`, with an identity of its own for each.

    The first has `initial_teid`, each next one `teid_jump` more. `tunnel_type` is 1 or "gtpu", 2 or "vlan" (with `vid`), or
    "vxlan"; the outer packet goes from `src_ip` and UDP port `sport` to `dst_ip`.
    """

    def __init__(
        self,
        src_start: Optional[str] = None,
        src_end: Optional[str] = None,
        initial_teid: int = 0,
        teid_jump: int = 0,
        sport: Optional[int] = None,
        version: int = 4,
        tunnel_type: Union[int, str] = 1,
        src_ip: Optional[str] = None,
        dst_ip: Optional[str] = None,
        activate: bool = False,
        vid: Optional[int] = None,
        **others: Any,
    ) -> None:
        where = "add_tunnel_ctx"
        self.place = here()
        if tunnel_type not in KINDS or others:
            raise ASTFError(
                f"{where}: tunnels are GTP-U (tunnel_type 1), VLAN (2) and VXLAN (\"vxlan\"); {tunnel_type!r}"
                + (f" with {', '.join(others)}" if others else "")
                + " cannot be done"
            )
        self.kind = KINDS[tunnel_type]
        self.first = address(f"{where}: src_start", src_start)
        self.last = address(f"{where}: src_end", src_end, self.first.version)
        if int(self.first) > int(self.last):
            raise ASTFError(f"{where}: src_start {self.first} comes after src_end {self.last}")
        self.activate = of_type(f"{where}: activate", activate, bool)
        self.fields: Dict[str, Any] = {"kind": self.kind, "first": str(self.first), "last": str(self.last), "active": self.activate}
        if self.kind == "vlan":
            self.fields["vlan"] = whole(f"{where}: vid", vid, 1, 4094)
            return
        if version not in (4, 6):
            raise ASTFError(f"{where}: version is 4 or 6, that of the outer addresses, not {version!r:.60}")
        most = 2**24 - 1 if self.kind == "vxlan" else 2**32 - 1
        identity = whole(f"{where}: initial_teid", initial_teid, 0, most)
        step = whole(f"{where}: teid_jump", teid_jump, 0, most)
        last_identity = identity + step * (int(self.last) - int(self.first))
        if last_identity > most:
            raise ASTFError(f"{where}: the last client's identity would be {last_identity}, and {most} is the highest")
        self.fields.update(
            identity=identity,
            identity_step=step,
            source_port=whole(f"{where}: sport", sport, 1, 65535),
            outer_source=str(address(f"{where}: src_ip", src_ip, version)),
            outer_destination=str(address(f"{where}: dst_ip", dst_ip, version)),
        )


class TopoTunnelLatency:
    """A latency probe through a tunnel: from which client, to which server."""

    def __init__(self, client_port_id: int, client_ip: str, server_ip: str) -> None:
        where = "add_tunnel_latency"
        self.fields = {
            "link_pair": whole(f"{where}: client_port_id", client_port_id, 0, 65534) // 2,
            "client": str(address(f"{where}: client_ip", client_ip)),
            "server": str(address(f"{where}: server_ip", server_ip)),
        }


class TunnelsTopo:
    """All tunnels of a run; what `get_topo()` returns."""

    def __init__(self, client: object = None, tunnel_ctxs: Optional[List[TopoTunnelCtx]] = None, tunnel_latency: Optional[List[TopoTunnelLatency]] = None) -> None:
        self.tunnel_ctxs = list(tunnel_ctxs or [])
        self.tunnel_latency = list(tunnel_latency or [])

    def add_tunnel_ctx(self, *arguments: Any, **named: Any) -> None:
        """Add a tunnel."""
        self.tunnel_ctxs.append(TopoTunnelCtx(*arguments, **named))

    def add_tunnel_ctx_obj(self, tunnel_ctx: TopoTunnelCtx) -> None:
        """Add a tunnel that was made before."""
        self.tunnel_ctxs.append(of_type("add_tunnel_ctx_obj", tunnel_ctx, TopoTunnelCtx))

    def add_tunnel_latency(self, *arguments: Any, **named: Any) -> None:
        """Add a latency probe."""
        self.tunnel_latency.append(TopoTunnelLatency(*arguments, **named))

    def add_tunnel_latency_obj(self, tunnel_latency: TopoTunnelLatency) -> None:
        """Add a latency probe that was made before."""
        self.tunnel_latency.append(of_type("add_tunnel_latency_obj", tunnel_latency, TopoTunnelLatency))

    def is_empty(self) -> bool:
        """Whether nothing was added."""
        return not self.tunnel_ctxs and not self.tunnel_latency

    def tunnels(self) -> List[Dict[str, Any]]:
        """The tunnels as they are in the JSON form. Raises if two are for one client."""
        ordered = sorted(self.tunnel_ctxs, key=lambda each: (each.first.version, int(each.first)))
        for one, two in zip(ordered, ordered[1:]):
            if one.first.version == two.first.version and int(two.first) <= int(one.last):
                raise ASTFError(f"add_tunnel_ctx: the clients from {two.first} on have a tunnel already, made at {one.place}", two.place)
        return [each.fields for each in self.tunnel_ctxs]

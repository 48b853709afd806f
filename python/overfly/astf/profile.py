"""A profile: templates, and what they have in common."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple, Union

from .addresses import ASTFIPGen, ASTFIPGenDist
from .arguments import list_of, of_type, optional, whole
from .commands import ASTFCmdDelay, ASTFCmdDelayRnd
from .errors import ASTFError, ASTFErrorMissingParam, ASTFErrorOverlapIP, here
from .program import Delay
from .templates import ASTFCapInfo, ASTFTemplate
from .tunables import ASTFGlobalInfo


class ASTFProfile:
    """Templates, captures, or both. `s_delay` and `udp_mtu` are for the captures that have none of their own."""

    def __init__(
        self,
        default_ip_gen: Optional[ASTFIPGen] = None,
        default_c_glob_info: Optional[ASTFGlobalInfo] = None,
        default_s_glob_info: Optional[ASTFGlobalInfo] = None,
        templates: Union[ASTFTemplate, List[ASTFTemplate], None] = None,
        cap_list: Union[ASTFCapInfo, List[ASTFCapInfo], None] = None,
        s_delay: Optional[Delay] = None,
        udp_mtu: Optional[int] = None,
    ) -> None:
        where = "ASTFProfile"
        self.place = here()
        if default_ip_gen is None:
            raise ASTFErrorMissingParam(where, "default_ip_gen")
        if templates is None and cap_list is None:
            raise ASTFErrorMissingParam(where, "templates", "cap_list")
        self.default_ip_gen = of_type(f"{where}: default_ip_gen", default_ip_gen, ASTFIPGen)
        self.default_c_glob_info = optional(f"{where}: default_c_glob_info", default_c_glob_info, ASTFGlobalInfo)
        self.default_s_glob_info = optional(f"{where}: default_s_glob_info", default_s_glob_info, ASTFGlobalInfo)
        self.templates = [] if templates is None else list_of(f"{where}: templates", templates, ASTFTemplate)
        captures = [] if cap_list is None else list_of(f"{where}: cap_list", cap_list, ASTFCapInfo)
        default: Dict[str, Any] = {
            "ip_gen": self.default_ip_gen,
            "s_delay": optional(f"{where}: s_delay", s_delay, (ASTFCmdDelay, ASTFCmdDelayRnd)),
            "udp_mtu": None if udp_mtu is None else whole(f"{where}: udp_mtu", udp_mtu, 43, 65535),
        }
        from_captures = [capture.template(default) for capture in captures]
        _share(captures, from_captures)
        self.templates = self.templates + from_captures
        if not self.templates:
            raise ASTFError(f"{where}: there is no template in it")
        check_together(self.templates)


def _share(captures: List[ASTFCapInfo], templates: List[ASTFTemplate]) -> None:
    """Gives templates the rates that make their bytes the percentages that were asked for; together 100 flows a second."""
    asking = [capture for capture in captures if capture.l7_percent is not None]
    if not asking:
        return
    for capture in captures:
        if capture.l7_percent is None:
            raise ASTFError("ASTFCapInfo: some captures have l7_percent, this one has not: give it to all or none", capture.place)
    total = sum(float(capture.l7_percent or 0) for capture in captures)
    if abs(total - 100) > 1e-6:
        raise ASTFError(f"ASTFCapInfo: the captures' l7_percent make {total:g} together, and must make 100", asking[0].place)
    weights = []
    for capture, template in zip(captures, templates):
        assert capture.l7_percent is not None
        weights.append(capture.l7_percent / max(1, template.client.program.payload_len))
    for template, weight in zip(templates, weights):
        template.client.cps = 100 * weight / sum(weights)


def check_together(templates: List[ASTFTemplate]) -> None:
    """Refuses client addresses of templates that overlap without being the same: which flow had a port then?"""
    ranges: Dict[Tuple[str, str, str, str], ASTFIPGenDist] = {}
    for template in templates:
        own = template.client.ip_gen.client
        key = (own.ip_start, own.ip_end, own.distribution, own.per_core)
        if key in ranges:
            continue
        for other in ranges.values():
            if own.overlaps(other):
                raise ASTFErrorOverlapIP(
                    f"the clients {own.first} to {own.last} overlap those at {other.place}, {other.first} to {other.last}: make the "
                    "ranges the same, or apart",
                    own.place,
                )
        ranges[key] = own

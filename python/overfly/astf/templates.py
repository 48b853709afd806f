"""A template: the two programs of a kind of flow, who speaks them, and how often."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Union

from .addresses import ASTFCluster, ASTFIPGen, ASTFTCPInfo, address
from .arguments import group_name, list_of, number, of_type, optional, whole
from .commands import ASTFCmdDelay, ASTFCmdDelayRnd, ASTFCmdKeepaliveMsg
from .errors import ASTFError, ASTFErrorBadParamCombination, ASTFErrorMissingParam, here
from .program import LONGEST_UNASKED_US, ASTFProgram, Delay
from .tunables import ASTFGlobalInfoPerTemplate

RATE_MOST = 1e9
LIMIT_MOST = 2**32 - 1


class ASTFAssociationRule:
    """To which flows a server template answers: a port, addresses of its own, and bytes of the first payload.

    `l7_map` is a list of offsets, or a dict with "offset" and, each as long, "value" and "mask": a flow is the template's if the
    bytes at the offsets are the values under the masks. Without values they are those of the template's client.
    """

    def __init__(
        self,
        port: int = 80,
        ip_start: Optional[str] = None,
        ip_end: Optional[str] = None,
        l7_map: Union[Sequence[int], Dict[str, Sequence[int]], None] = None,
        assoc_id: Optional[int] = None,
    ) -> None:
        self.place = here()
        self.port = whole("ASTFAssociationRule: port", port, 1, 65535)
        self.first = None if ip_start is None else address("ASTFAssociationRule: ip_start", str(ip_start))
        self.last = None if ip_end is None else address("ASTFAssociationRule: ip_end", str(ip_end))
        if (self.first is None) != (self.last is None):
            raise ASTFError("ASTFAssociationRule: give ip_start and ip_end, or neither")
        if self.first is not None and self.last is not None:
            if self.first.version != self.last.version or int(self.first) > int(self.last):
                raise ASTFError(f"ASTFAssociationRule: {self.first} to {self.last} is no range of addresses")
        self.l7_map = None if l7_map is None else self._bytes(l7_map)
        self.assoc_id = None if assoc_id is None else whole("ASTFAssociationRule: assoc_id", assoc_id, 0, 2**32 - 1)

    @staticmethod
    def _bytes(given: Union[Sequence[int], Dict[str, Sequence[int]]]) -> Dict[str, List[int]]:
        where = "ASTFAssociationRule: l7_map"
        lists = dict(given) if isinstance(given, dict) else {"offset": given}
        if "offset" not in lists or set(lists) - {"offset", "mask", "value"}:
            raise ASTFError(f'{where} has "offset" and may have "mask" and "value", not {sorted(lists)}')
        most = {"offset": 65535, "mask": 255, "value": 255}
        checked = {key: [whole(f'{where}["{key}"]', each, 0, most[key]) for each in list_of(where, values, int)] for key, values in lists.items()}
        if not checked["offset"] or len({len(values) for values in checked.values()}) != 1:
            raise ASTFError(f"{where}: offsets, masks and values must be as many, and at least one")
        return checked

    @property
    def is_port_only(self) -> bool:
        """Whether nothing but the port decides."""
        return self.first is None and self.l7_map is None


class ASTFAssociation:
    """One rule, or several any of which will do."""

    def __init__(self, rules: Union[ASTFAssociationRule, List[ASTFAssociationRule], None] = None) -> None:
        self.rules = list_of("ASTFAssociation: rules", ASTFAssociationRule() if rules is None else rules, ASTFAssociationRule)
        if not self.rules:
            raise ASTFError("ASTFAssociation: give at least one rule")

    @property
    def port(self) -> int:
        """The port of the first rule."""
        return self.rules[0].port


Assoc = Union[ASTFAssociation, ASTFAssociationRule, None]


def association(where: str, given: Assoc) -> ASTFAssociation:
    """An association, from one or from a rule; port 80 without."""
    checked = optional(where, given, (ASTFAssociation, ASTFAssociationRule))
    if isinstance(checked, ASTFAssociation):
        return checked
    return ASTFAssociation() if checked is None else ASTFAssociation(of_type(where, checked, ASTFAssociationRule))


class ASTFTCPClientTemplate:
    """The client's side, of TCP or UDP as the program is. `cps` is flows begun in a second at a multiplier of 1.

    `limit` is how many flows are begun in all, or with `cont` how many are kept open. `core_base` is the first core of the
    template's.
    """

    def __init__(
        self,
        ip_gen: Optional[ASTFIPGen] = None,
        cluster: Optional[ASTFCluster] = None,
        program: Optional[ASTFProgram] = None,
        port: int = 80,
        cps: float = 1,
        glob_info: Optional[ASTFGlobalInfoPerTemplate] = None,
        limit: Optional[int] = None,
        cont: Optional[bool] = None,
        core_base: Optional[int] = None,
        tcp_info: Optional[ASTFTCPInfo] = None,
    ) -> None:
        where = "ASTFTCPClientTemplate"
        self.place = here()
        if program is None:
            raise ASTFErrorMissingParam(where, "program")
        if ip_gen is None:
            raise ASTFErrorMissingParam(where, "ip_gen")
        optional(f"{where}: cluster", cluster, ASTFCluster)
        optional(f"{where}: tcp_info", tcp_info, ASTFTCPInfo)
        self.program = of_type(f"{where}: program", program, ASTFProgram)
        self.ip_gen = of_type(f"{where}: ip_gen", ip_gen, ASTFIPGen)
        self.port = whole(f"{where}: port", port, 1, 65535)
        self.cps = number(f"{where}: cps", cps, 0, RATE_MOST)
        self.glob_info = optional(f"{where}: glob_info", glob_info, ASTFGlobalInfoPerTemplate)
        self.limit = None if not limit else whole(f"{where}: limit", limit, 0, LIMIT_MOST)
        self.cont = bool(optional(f"{where}: cont", cont, (bool, int)))
        if self.cont and self.limit is None:
            raise ASTFError(f"{where}: cont keeps `limit` flows open: give a limit too")
        self.core_base = None if core_base is None else whole(f"{where}: core_base", core_base, 0, 65535)


class ASTFTCPServerTemplate:
    """The server's side, of TCP or UDP as the program is."""

    def __init__(
        self,
        program: Optional[ASTFProgram] = None,
        assoc: Assoc = None,
        glob_info: Optional[ASTFGlobalInfoPerTemplate] = None,
        tcp_info: Optional[ASTFTCPInfo] = None,
    ) -> None:
        where = "ASTFTCPServerTemplate"
        self.place = here()
        optional(f"{where}: tcp_info", tcp_info, ASTFTCPInfo)
        if program is None:
            raise ASTFErrorMissingParam(where, "program")
        self.program = of_type(f"{where}: program", program, ASTFProgram)
        self.assoc = association(f"{where}: assoc", assoc)
        self.glob_info = optional(f"{where}: glob_info", glob_info, ASTFGlobalInfoPerTemplate)


class ASTFTemplate:
    """Both sides. Templates with one `tg_name` are counted together."""

    def __init__(
        self,
        client_template: Optional[ASTFTCPClientTemplate] = None,
        server_template: Optional[ASTFTCPServerTemplate] = None,
        tg_name: Optional[str] = None,
    ) -> None:
        where = "ASTFTemplate"
        self.place = here()
        if client_template is None:
            raise ASTFErrorMissingParam(where, "client_template")
        if server_template is None:
            raise ASTFErrorMissingParam(where, "server_template")
        self.client = of_type(f"{where}: client_template", client_template, ASTFTCPClientTemplate)
        self.server = of_type(f"{where}: server_template", server_template, ASTFTCPServerTemplate)
        self.tg_name = group_name(where, tg_name)
        self.capture: Optional[str] = None
        if self.client.program.stream != self.server.program.stream:
            kinds = {True: "TCP (stream=True)", False: "UDP (stream=False)"}
            raise ASTFError(
                f"{where}: the client's program is for {kinds[self.client.program.stream]} and the server's for "
                f"{kinds[self.server.program.stream]}"
            )


class ASTFCapInfo:
    """A template from a capture, at a rate (`cps`) or with a share of all bytes (`l7_percent`).

    `port` or `assoc` go before the capture's own port; `s_delay` is what the server waits before each answer, and `udp_mtu` what
    datagrams are cut to.
    """

    def __init__(
        self,
        file: Optional[str] = None,
        cps: Optional[float] = None,
        assoc: Assoc = None,
        ip_gen: Optional[ASTFIPGen] = None,
        port: Optional[int] = None,
        l7_percent: Optional[float] = None,
        s_glob_info: Optional[ASTFGlobalInfoPerTemplate] = None,
        c_glob_info: Optional[ASTFGlobalInfoPerTemplate] = None,
        limit: Optional[int] = None,
        cont: Optional[bool] = None,
        tg_name: Optional[str] = None,
        s_delay: Optional[Delay] = None,
        udp_mtu: Optional[int] = None,
    ) -> None:
        where = "ASTFCapInfo"
        self.place = here()
        if file is None:
            raise ASTFErrorMissingParam(where, "file")
        if cps is not None and l7_percent is not None:
            raise ASTFErrorBadParamCombination(where, "cps", "l7_percent")
        if assoc is not None and port is not None:
            raise ASTFErrorBadParamCombination(where, "port", "assoc")
        self.file = of_type(f"{where}: file", file, str)
        self.l7_percent = None if l7_percent is None else number(f"{where}: l7_percent", l7_percent, 0, 100)
        self.cps = number(f"{where}: cps", 1 if cps is None else cps, 0, RATE_MOST)
        self.assoc: Optional[ASTFAssociation] = None if assoc is None else association(f"{where}: assoc", assoc)
        if port is not None:
            self.assoc = ASTFAssociation(ASTFAssociationRule(whole(f"{where}: port", port, 1, 65535)))
        self.ip_gen = optional(f"{where}: ip_gen", ip_gen, ASTFIPGen)
        self.s_glob_info = optional(f"{where}: s_glob_info", s_glob_info, ASTFGlobalInfoPerTemplate)
        self.c_glob_info = optional(f"{where}: c_glob_info", c_glob_info, ASTFGlobalInfoPerTemplate)
        self.limit = optional(f"{where}: limit", limit, int)
        self.cont = optional(f"{where}: cont", cont, (bool, int))
        self.tg_name = group_name(where, tg_name)
        optional(f"{where}: s_delay", s_delay, (ASTFCmdDelay, ASTFCmdDelayRnd))
        self.s_delay = s_delay
        self.udp_mtu = None if udp_mtu is None else whole(f"{where}: udp_mtu", udp_mtu, 43, 65535)

    def template(self, default: Dict[str, Any]) -> ASTFTemplate:
        """The template it stands for; `default` has the profile's `ip_gen`, `s_delay` and `udp_mtu`."""
        delay = self.s_delay if self.s_delay is not None else default["s_delay"]
        mtu = self.udp_mtu if self.udp_mtu is not None else default["udp_mtu"]
        client = ASTFProgram(file=self.file, side="c", udp_mtu=mtu, place=self.place)
        server = ASTFProgram(file=self.file, side="s", udp_mtu=mtu, s_delay=delay, place=self.place)
        assert client.flow is not None
        if not client.flow.messages:
            raise ASTFError(f"capture {self.file} carries no payload: there is nothing to send", self.place)
        keep_alive(client, server)
        assoc = self.assoc or ASTFAssociation(ASTFAssociationRule(client.flow.server_port))
        ends = ASTFTemplate(
            ASTFTCPClientTemplate(
                ip_gen=self.ip_gen or default["ip_gen"],
                program=client,
                port=assoc.port,
                cps=self.cps,
                glob_info=self.c_glob_info,
                limit=self.limit,
                cont=bool(self.cont),
            ),
            ASTFTCPServerTemplate(program=server, assoc=assoc, glob_info=self.s_glob_info),
            tg_name=self.tg_name,
        )
        ends.place = ends.client.place = ends.server.place = self.place
        ends.capture = self.file
        return ends


def keep_alive(client: ASTFProgram, server: ASTFProgram) -> None:
    """Both sides of a UDP flow bear the longest silence of either."""
    longest = max(client.longest_delay_us(), server.longest_delay_us())
    if not client.stream and longest >= LONGEST_UNASKED_US:
        for program in (client, server):
            program.commands.insert(0, ASTFCmdKeepaliveMsg(longest * 3 // 2000))
            program.labels = {name: (at + 1, place) for name, (at, place) in program.labels.items()}

"""Application flows in the words of the ASTF profiles that people have: the API's classes, under its names.

`python -m overfly.astf` checks such profiles, shows what they would send, and turns them into the JSON form (docs/astf.md).
"""

from .addresses import ASTFCluster, ASTFIPGen, ASTFIPGenDist, ASTFIPGenGlobal, ASTFTCPInfo
from .commands import (
    ASTFCmd,
    ASTFCmdCloseMsg,
    ASTFCmdConnect,
    ASTFCmdDelay,
    ASTFCmdDelayRnd,
    ASTFCmdJMPDP,
    ASTFCmdJMPNZ,
    ASTFCmdKeepaliveMsg,
    ASTFCmdNoClose,
    ASTFCmdRecv,
    ASTFCmdRecvMsg,
    ASTFCmdReset,
    ASTFCmdSend,
    ASTFCmdSetTickVar,
    ASTFCmdSetVal,
    ASTFCmdTxMode,
    ASTFCmdTxPkt,
)
from .errors import (
    ASTFError,
    ASTFErrorBadIp,
    ASTFErrorBadIpRange,
    ASTFErrorBadMac,
    ASTFErrorBadParamCombination,
    ASTFErrorMissingParam,
    ASTFErrorOverlapIP,
    ASTFErrorWrongType,
    TRexError,
)
from .profile import ASTFProfile
from .program import ASTFProgram
from .templates import (
    ASTFAssociation,
    ASTFAssociationRule,
    ASTFCapInfo,
    ASTFTCPClientTemplate,
    ASTFTCPServerTemplate,
    ASTFTemplate,
)
from .tunables import ASTFGlobalInfo, ASTFGlobalInfoPerTemplate
from .tunnels_topo import TopoTunnelCtx, TopoTunnelLatency, TunnelsTopo

__all__ = [
    "ASTFAssociation",
    "ASTFAssociationRule",
    "ASTFCapInfo",
    "ASTFCluster",
    "ASTFCmd",
    "ASTFCmdCloseMsg",
    "ASTFCmdConnect",
    "ASTFCmdDelay",
    "ASTFCmdDelayRnd",
    "ASTFCmdJMPDP",
    "ASTFCmdJMPNZ",
    "ASTFCmdKeepaliveMsg",
    "ASTFCmdNoClose",
    "ASTFCmdRecv",
    "ASTFCmdRecvMsg",
    "ASTFCmdReset",
    "ASTFCmdSend",
    "ASTFCmdSetTickVar",
    "ASTFCmdSetVal",
    "ASTFCmdTxMode",
    "ASTFCmdTxPkt",
    "ASTFError",
    "ASTFErrorBadIp",
    "ASTFErrorBadIpRange",
    "ASTFErrorBadMac",
    "ASTFErrorBadParamCombination",
    "ASTFErrorMissingParam",
    "ASTFErrorOverlapIP",
    "ASTFErrorWrongType",
    "ASTFGlobalInfo",
    "ASTFGlobalInfoPerTemplate",
    "ASTFIPGen",
    "ASTFIPGenDist",
    "ASTFIPGenGlobal",
    "ASTFProfile",
    "ASTFProgram",
    "ASTFTCPClientTemplate",
    "ASTFTCPInfo",
    "ASTFTCPServerTemplate",
    "ASTFTemplate",
    "TRexError",
    "TopoTunnelCtx",
    "TopoTunnelLatency",
    "TunnelsTopo",
]

"""`trex.astf.tunnels_topo`: the same API."""

from trex.astf.api import *  # noqa: F403

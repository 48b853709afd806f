"""`trex.astf.trex_astf_global_info`: the same API."""

from trex.astf.api import *  # noqa: F403

"""`trex_astf_lib.trex_astf_global_info`: the API under its older name."""

from trex.astf.api import *  # noqa: F403

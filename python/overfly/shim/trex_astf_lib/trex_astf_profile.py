"""`trex_astf_lib.trex_astf_profile`: the API under its older name."""

from trex.astf.api import *  # noqa: F403

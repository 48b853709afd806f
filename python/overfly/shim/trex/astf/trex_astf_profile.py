"""`trex.astf.trex_astf_profile`: the same API."""

from trex.astf.api import *  # noqa: F403

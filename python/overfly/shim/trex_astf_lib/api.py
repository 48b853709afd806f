"""`trex_astf_lib.api`: the API under its older name."""

from trex.astf.api import *  # noqa: F403

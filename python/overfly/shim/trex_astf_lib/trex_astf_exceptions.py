"""`trex_astf_lib.trex_astf_exceptions`: the API under its older name."""

from trex.astf.api import *  # noqa: F403

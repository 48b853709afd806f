"""`trex.astf.trex_astf_exceptions`: the same API."""

from trex.astf.api import *  # noqa: F403

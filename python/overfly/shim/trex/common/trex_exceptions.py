"""`trex.common.trex_exceptions`."""

from overfly.astf import TRexError as TRexError

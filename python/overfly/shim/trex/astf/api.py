"""`from trex.astf.api import *`: the API, and the modules that published profiles use without importing them."""

import base64
import collections
import hashlib
import inspect
import json
import os
import sys
import traceback

from overfly import astf as _api
from overfly.astf import *  # noqa: F403

__all__ = _api.__all__ + ["base64", "collections", "hashlib", "inspect", "json", "os", "sys", "traceback"]

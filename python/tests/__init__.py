"""Tests of the Python package: python3 -m unittest discover -s python/tests -t python."""

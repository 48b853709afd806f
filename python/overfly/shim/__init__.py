"""The names under which published profiles import the API. `overfly.astf` puts this folder on the path of a profile."""

"""A name that published profiles import from."""

"""Python beside Overfly's load generator: profiles of application flows (`overfly.astf`)."""

__version__ = "0.1.0"

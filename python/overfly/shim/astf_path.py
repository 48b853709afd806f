"""`import astf_path`: published profiles set their path with it; here it is set already."""

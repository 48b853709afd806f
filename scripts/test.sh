#!/bin/bash
# Runs every test of the workspace and closes with one line that counts them.
set -euo pipefail

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The end-to-end tests run the command as it was built for release.
status=0
cargo test --workspace --locked 2>&1 | tee "$log" || status=$?
awk '/^test result:/ { passed += $4; failed += $6; skipped += $8 }
     END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }' "$log"
exit "$status"

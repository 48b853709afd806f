#!/bin/bash
# Runs every test of the workspace and closes with one line that counts them.
set -euo pipefail

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The end-to-end tests run the command as it was built for release.
status=0
cargo test --workspace --locked --no-fail-fast 2>&1 | tee "$log" || status=$?
python3 -W error::SyntaxWarning -m unittest discover -s python/tests -t python 2>&1 | tee -a "$log" || status=$?
# Rust's harness ends each binary with a line of its counts; unittest says how many ran, and in its last line how many of them
# failed, erred or were skipped, if any.
awk '/^test result:/ { passed += $4; failed += $6; skipped += $8 }
     /^Ran [0-9]+ tests? in / { python = $2 }
     /^(OK|FAILED)( \(.*\))?$/ && python != "" {
         counts["failures"] = counts["errors"] = counts["skipped"] = 0
         gsub(/[(),=]/, " ")
         for (field = 2; field < NF; field += 2) counts[$field] = $(field + 1)
         bad = counts["failures"] + counts["errors"]
         passed += python - bad - counts["skipped"]; failed += bad; skipped += counts["skipped"]; python = ""
     }
     END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }' "$log"
exit "$status"

#!/bin/bash
# Runs every test of the workspace and closes with one line that counts them.
#
# Many tests wait for real programs and the real kernel, two at a time, on whatever machine this is. One that fails is run once more,
# alone: if it passes then, it is counted as passed and named as disturbed, so that somebody looks at it. One that fails alone, or more
# than a few that fail at first, fail the run.
set -euo pipefail

DISTURBED_MAX=5
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The end-to-end tests run the command as it was built for release.
status=0
cargo test --workspace --locked --no-fail-fast 2>&1 | tee "$log" || status=$?

# Each target that failed, as cargo names it, and its tests: `-p overfly-sockets --test errnos` NAME NAME...
mapfile -t targets < <(awk '/^error: [0-9]+ targets? failed:/ { listed = 1; next } listed && /^ +`/ { gsub(/^ +`|`$/, ""); print }' "$log")
mapfile -t names < <(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log" | sort -u)
# A target that ended without its counts has crashed, and is none of these.
counted=$(grep -c '^test result: FAILED' "$log" || true)
disturbed=()
if ((status != 0 && ${#names[@]} > 0 && ${#names[@]} <= DISTURBED_MAX && counted == ${#targets[@]})); then
    echo "${#names[@]} failed; once more, alone: ${names[*]}"
    status=0
    for target in "${targets[@]}"; do
        # shellcheck disable=SC2086 # the target's words
        cargo test --locked $target -- --exact --test-threads 1 "${names[@]}" 2>&1 | sed 's/^test result:/alone:/' | tee -a "$log" || status=$?
    done
    ((status != 0)) || disturbed=("${names[@]}")
fi

python3 -W error::SyntaxWarning -m unittest discover -s python/tests -t python 2>&1 | tee -a "$log" || status=$?
# Rust's harness ends each binary with a line of its counts; unittest says how many ran, and in its last line how many of them
# failed, erred or were skipped, if any.
awk -v disturbed="${#disturbed[@]}" '
     /^test result:/ { passed += $4; failed += $6; skipped += $8 }
     /^Ran [0-9]+ tests? in / { python = $2 }
     /^(OK|FAILED)( \(.*\))?$/ && python != "" {
         counts["failures"] = counts["errors"] = counts["skipped"] = 0
         gsub(/[(),=]/, " ")
         for (field = 2; field < NF; field += 2) counts[$field] = $(field + 1)
         bad = counts["failures"] + counts["errors"]
         passed += python - bad - counts["skipped"]; failed += bad; skipped += counts["skipped"]; python = ""
     }
     END { printf "%d passed, %d failed, %d skipped\n", passed + disturbed, failed - disturbed, skipped }' "$log"
# What to make faster first.
awk '/^ +(Running|Doc-tests) / { name = $0; sub(/^ +/, "", name); sub(/ \(.*/, "", name)
         crate = $0; sub(/.*\/deps\//, "", crate); sub(/-[0-9a-f]+\).*/, "", crate); if (name ~ /unittests/) name = name " of " crate }
     /^test result:.* finished in / { took = $NF; sub(/s$/, "", took); printf "%7.1f s  %s\n", took, name; all += took }
     END { printf "%7.1f s  all targets\n", all }' "$log" | sort -rn | head -13
for name in "${disturbed[@]}"; do
    echo "disturbed: $name failed among the others and passed alone"
done
exit "$status"

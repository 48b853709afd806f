#!/bin/bash
# Runs what the tarball holds where it was unpacked; installs the .rpm into a clean root, holds it to the same files, runs it there, erases it,
# and sees that nothing is left. See test.sh.
#
#     clean-install.sh UNPACKED RPM ROOT
set -euo pipefail
unpacked=$(realpath "$1") package=$(realpath "$2") root=$(realpath "$3")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $*" >&2
    exit 1
}
version=$(basename "$unpacked" | cut -d - -f 2)

# Its licences: every package of the bill of materials has a text.
"$unpacked/bin/overfly" --version | grep -qx "overfly $version" || fail "the tarball's command says: $("$unpacked/bin/overfly" --version)"
"$unpacked/bin/overfly" profile list | grep -q "$unpacked/.*latency.opf" || fail "the tarball's profiles are not found"
env EF_NO_FAIL=0 "$unpacked/bin/overfly" run --link "memif:@overfly-unpacked-$$" -- grep -q "$unpacked/lib/overfly/liboverfly.so" /proc/self/maps ||
    fail "the tarball's library is not loaded"
python3 - "$unpacked/share/doc/overfly" <<'END_PYTHON' || fail "the licences are not complete"
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
components = json.loads((folder / "sbom.cdx.json").read_text())["components"]
texts = (folder / "THIRD-PARTY.txt").read_text().partition("=" * 80)[2]
without = [its["name"] for its in components if f"{its['name']} {its['version']} (" not in texts]
print(f"{len(components)} packages are in the binaries, {len(without)} without the text of a licence: {without}")
sys.exit(bool(without) or len(components) < 10)
END_PYTHON

# Files with their modes, as they stand below /usr. Distributions compress manual pages.
listing() { (cd "$1" && find . ! -type d -printf '%P %m\n' | sed 's/\.1\.gz /.1 /' | sort); }
inventory() { find "$root" -xdev -printf '%P %M %U %G %s\n' | grep -v '^root/rpm' | sort; }
database=(--root "$root" --dbpath /root/rpm)

# Directories' sizes only grow: they are no part of it.
whole() { inventory | sed 's/^\(.* d[-rwxstST]* [0-9]* [0-9]*\) [0-9]*$/\1/'; }
whole > "$work/before"
listing "$root/usr" > "$work/usr-before"
# Debian has its files under other names than the .rpm asks for.
rpm "${database[@]}" --nodeps --install "$package"
listing "$root/usr" | comm -13 "$work/usr-before" - > "$work/installed"
listing "$unpacked" | diff - "$work/installed" || fail "the .rpm has other files than the tarball (<)"
rpm "${database[@]}" --nodeps --verify overfly || fail "what is installed is not what the .rpm says"
for unit in "$root"/usr/lib/systemd/system/overfly-*.service; do
    grep -q '^ExecStart=/usr/bin/overfly ' "$unit" || fail "$unit starts something else"
done
chroot "$root" /usr/bin/overfly --version | grep -qx "overfly $version" || fail "the .rpm's command does not run"
chroot "$root" /usr/bin/overfly profile list | grep -q /usr/share/overfly/profiles/latency.opf || fail "the .rpm's profiles are not found"
rpm "${database[@]}" --nodeps --upgrade --force "$package"
[ "$(rpm "${database[@]}" --query --all)" = "overfly-$version-1.$(uname -m)" ] || fail "an upgrade leaves: $(rpm "${database[@]}" --query --all)"
rpm "${database[@]}" --erase overfly
rm -rf "$root/root/rpm"
whole | diff "$work/before" - || fail "the .rpm leaves something behind"
echo "the tarball runs where it is; the .rpm was installed, run, upgraded and erased: nothing is left"

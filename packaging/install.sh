#!/bin/bash
# Installs what `make build` has built, or takes it away again.
#
#     install.sh install|uninstall
#
# PREFIX (/usr/local) is where it will be found, DESTDIR (empty) what stands before that while a package is made, BUILD
# (target/release) where it was built. Nothing is downloaded, and nothing outside DESTDIR/PREFIX is written.
set -euo pipefail
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/usr/local}
destination=${DESTDIR:-}
build=${BUILD:-${CARGO_TARGET_DIR:-target}/release}
case "$prefix" in
    /*) prefix=${prefix%/} ;;
    *) echo "PREFIX must be an absolute path, not $prefix" >&2; exit 2 ;;
esac
root=$destination$prefix

manuals=$root/share/man/man1
completions=(
    "bash $root/share/bash-completion/completions/overfly"
    "zsh $root/share/zsh/site-functions/_overfly"
    "fish $root/share/fish/vendor_completions.d/overfly.fish"
)
units=$root/lib/systemd/system
# Folders that are nobody's but ours.
ours=("$root/lib/overfly" "$root/share/overfly" "$root/share/doc/overfly")

remove() {
    rm -rf "${ours[@]}"
    rm -f "$root/bin/overfly" "$units/overfly-broker@.service" "$units/overfly-agent.service" "$manuals"/overfly.1 "$manuals"/overfly-*.1
    local entry
    for entry in "${completions[@]}"; do rm -f "${entry#* }"; done
}

case "${1:-}" in
    uninstall)
        remove
        ;;
    install)
        for file in overfly liboverfly.so; do
            [ -f "$build/$file" ] || { echo "$build/$file is missing: type \`make build\`" >&2; exit 1; }
        done
        remove # what an earlier version had and this one has not
        install -D -m 755 "$build/overfly" "$root/bin/overfly"
        install -D -m 644 "$build/liboverfly.so" "$root/lib/overfly/liboverfly.so"
        install -D -m 644 -t "$root/share/overfly/profiles" crates/profile/profiles/*.opf
        for module in $(cd python && find overfly -name '*.py' -o -name py.typed | sort); do
            install -D -m 644 "python/$module" "$root/share/overfly/python/$module"
        done
        install -D -m 644 -t "$root/share/doc/overfly" README.md CHANGELOG.md SECURITY.md LICENSE-APACHE LICENSE-MIT \
            packaging/broker.toml
        # Where README.md and messages say that they are.
        install -D -m 644 -t "$root/share/doc/overfly/docs" docs/*.md
        for folder in servers decisions; do
            install -D -m 644 -t "$root/share/doc/overfly/docs/$folder" "docs/$folder"/*.md
        done
        # Plans for the bench, and what they serve and ask for, each beside the other as in the source tree.
        install -D -m 644 -t "$root/share/overfly/cookbooks" cookbooks/*
        for folder in astf local netty nginx redis unbound; do
            for file in $(cd workloads && find "$folder" -type f -not -path '*/__pycache__/*' -not -path '*/target/*' | sort); do
                mode=644
                [ -x "workloads/$file" ] && mode=755
                install -D -m $mode "workloads/$file" "$root/share/overfly/workloads/$file"
            done
        done
        install -d -m 755 "$units" "$manuals"
        for unit in packaging/*.service; do
            sed "s|@PREFIX@|$prefix|g" "$unit" > "$units/${unit##*/}"
            chmod 644 "$units/${unit##*/}"
        done
        "$build/overfly" man "$manuals" > /dev/null
        for entry in "${completions[@]}"; do
            install -d -m 755 "$(dirname "${entry#* }")"
            "$build/overfly" completions "${entry%% *}" > "${entry#* }"
            chmod 644 "${entry#* }"
        done
        chmod 644 "$manuals"/overfly.1 "$manuals"/overfly-*.1
        ;;
    *)
        echo "usage: install.sh install|uninstall" >&2
        exit 2
        ;;
esac

#!/bin/bash
# Makes a container image of what `make build` has built: Debian with nginx and overfly, as deploy/kubernetes wants it. It comes into
# the storage of this user's containers; `buildah push NAME docker://…` brings it to a registry.
#
#     image.sh [NAME]        (overfly:VERSION)
#
# Needs root, buildah, debootstrap, and Debian's mirror. The image is of this machine's processor.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
name=${1:-overfly:$version}
umask 022

container=$(buildah from scratch)
trap 'buildah rm "$container" > /dev/null' EXIT
root=$(buildah mount "$container")
log=$(mktemp)
echo "making a Debian for $name ..."
debootstrap --variant=minbase --include=nginx-light bookworm "$root" > "$log" 2>&1 || { tail "$log"; rm "$log"; exit 1; }
rm "$log"
DESTDIR=$root PREFIX=/usr packaging/install.sh install
packaging/licences.py write "$root/usr/share/doc/overfly"
strip --strip-unneeded "$root/usr/bin/overfly" "$root/usr/lib/overfly/liboverfly.so"
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/*
buildah config --cmd '["overfly"]' --env PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    --label "org.opencontainers.image.title=overfly" --label "org.opencontainers.image.version=$version" \
    --label "org.opencontainers.image.licenses=Apache-2.0 OR MIT" "$container"
buildah umount "$container" > /dev/null
buildah commit --quiet "$container" "$name"

#!/bin/bash
# Makes the packages once more and compares them byte for byte; then installs the .deb in a clean Debian, runs nginx there as a user
# without privilege through the broker, removes the package, and sees that nothing is left. Between the two a container image is made and run.
# Needs root, and Debian's mirror.
#
#     test.sh [FOLDER]        with packages that packages.sh has made (target/packages)
set -euo pipefail
cd "$(dirname "$0")/.."

packages=$(realpath "${1:-target/packages}")
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT

packaging/packages.sh "$work/again" > /dev/null
for package in "$work"/again/*; do
    cmp "$package" "$packages/$(basename "$package")"
    echo "reproduced: $(sha256sum < "$package" | cut -c 1-16) $(basename "$package")"
done

echo "making a container image, and serving a container of it by another ..."
cargo test --quiet --locked -p overfly-tests --test kubernetes -- --exact --ignored the_image_has_what_the_manifests_start

root=$work/root
echo "making a clean Debian ..."
debootstrap --variant=minbase --include=iproute2,curl,nginx-light bookworm "$root" > "$work/log" 2>&1 || { tail "$work/log"; exit 1; }
cp "$packages"/overfly_*.deb "$root/root/overfly.deb"
install -m 755 packaging/clean-root.sh "$root/root/clean-root.sh"
# Namespaces of its own: whatever is mounted or started in there goes with them.
# It becomes the root of a mount namespace: from a mere chroot, who enters the namespace again (`overfly lab`) gets out.
unshare --mount --pid --net --uts --ipc --fork --kill-child sh -ec '
    mount --bind "$1" "$1"
    cd "$1"
    mkdir old
    pivot_root . old
    exec chroot . /bin/sh -ec "mount -t proc proc /proc; umount -l /old; rmdir /old; exec /root/clean-root.sh"' sh "$root"

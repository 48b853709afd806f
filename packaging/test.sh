#!/bin/bash
# Makes the packages once more and compares them byte for byte; makes a container image, and runs it; runs what the tarball holds, and installs
# the .rpm in a clean Debian and erases it (clean-install.sh); then plays an operator's first day there, with systemd as process 1: installs the
# .deb, starts the units of broker and agent, runs nginx as users without privilege, upgrades, removes the package, and sees that nothing is
# left (clean-root.sh).
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
debootstrap --variant=minbase --include=systemd,udev,procps,iproute2,curl,nginx-light bookworm "$root" > "$work/log" 2>&1 || { tail "$work/log"; exit 1; }

echo "the tarball, and the .rpm in that Debian ..."
tar -C "$work" -xzf "$packages"/overfly-*-linux.tar.gz
packaging/clean-install.sh "$work"/overfly-*[0-9] "$packages"/overfly-*.rpm "$root"

cp "$packages"/overfly_*.deb "$root/root/overfly.deb"
install -m 755 packaging/clean-root.sh "$root/root/clean-root.sh"
# Nothing of the kind runs in there: Debian's own server, and events of the machine's devices made once more.
ln -s /dev/null "$root/etc/systemd/system/nginx.service"
ln -s /dev/null "$root/etc/systemd/system/systemd-udev-trigger.service"
cat > "$root/etc/systemd/system/first-day.service" <<'END_UNIT'
[Unit]
Wants=multi-user.target
After=multi-user.target
SuccessAction=exit-force
FailureAction=exit-force
SuccessActionExitStatus=0
FailureActionExitStatus=1
[Service]
Type=oneshot
ExecStart=/root/clean-root.sh
StandardOutput=file:/root/output
StandardError=inherit
END_UNIT

# A control group of its own, which systemd takes for the only one.
groups=$work/groups
mkdir "$groups"
mount -t cgroup2 cgroup2 "$groups"
group=$groups/overfly-first-day-$$
mkdir "$group"
end() {
    echo 1 > "$group/cgroup.kill"
    for _ in $(seq 100); do
        find "$group" -depth -type d -exec rmdir {} + 2> /dev/null && break
        sleep 0.1
    done
    umount "$groups"
    rm -rf --one-file-system "$work"
}
trap end EXIT

echo "an operator's first day there ..."
# Namespaces of its own: whatever is mounted or started in there goes with them.
# It becomes the root of a mount namespace: from a mere chroot, who enters the namespace again gets out. Systemd looks whether there is a udev
# before it starts one: without it there are no units of devices.
status=0
(echo "$BASHPID" > "$group/cgroup.procs" && exec timeout 300 unshare --mount --pid --net --uts --ipc --cgroup --fork --kill-child sh -ec '
    mount --bind "$1" "$1"
    cd "$1"
    mkdir old
    pivot_root . old
    exec chroot . /bin/sh -ec "
        mount -t proc proc /proc
        mount -t sysfs sysfs /sys
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
        mount -t tmpfs -o mode=755 tmpfs /dev
        for name in null zero full random urandom tty; do : > /dev/\$name; mount --bind /old/dev/\$name /dev/\$name; done
        mkdir /dev/pts
        mount -t devpts -o newinstance,ptmxmode=666 devpts /dev/pts
        ln -s pts/ptmx /dev/ptmx
        mount -t tmpfs -o mode=755 tmpfs /run
        mount -t tmpfs -o mode=1777 tmpfs /tmp
        mkdir /run/udev
        : > /run/udev/control
        umount -l /old
        rmdir /old
        exec env -i container=overfly PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=first-day.service"' sh "$root") \
    < /dev/null > "$work/log" 2>&1 || status=$?
cat "$root/root/output" || cat "$work/log"
exit "$status"

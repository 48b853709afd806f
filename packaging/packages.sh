#!/bin/bash
# Makes a .deb, an .rpm (where rpmbuild is) and a tarball of what `make build` has built, into a folder.
#
#     packages.sh [FOLDER]        (target/packages)
#
# The same binaries give the same packages, byte for byte: times are SOURCE_DATE_EPOCH's, or the last commit's.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
packages=$(realpath -m "${1:-$target/packages}")
export BUILD=${BUILD:-$target/release}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
machine=$(uname -m)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export TZ=UTC LC_ALL=C
umask 022

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/stage
DESTDIR=$stage PREFIX=/usr packaging/install.sh install
packaging/licences.py write "$stage/usr/share/doc/overfly"
strip --strip-unneeded "$stage/usr/bin/overfly" "$stage/usr/lib/overfly/liboverfly.so"
mkdir -p "$packages"

settle() { # FOLDER: every time in it is that of the source
    find "$1" -depth -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}

# A tree that runs wherever it is unpacked. Its units name /usr/local.
tree=$work/overfly-$version
cp -a "$stage/usr" "$tree"
for unit in packaging/*.service; do
    sed "s|@PREFIX@|/usr/local|g" "$unit" > "$tree/lib/systemd/system/${unit##*/}"
done
settle "$tree"
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --format=gnu -cf - "overfly-$version" |
    gzip -9n > "$packages/overfly-$version-$machine-linux.tar.gz"

# Distributions compress manual pages.
find "$stage/usr/share/man" -name '*.1' -exec gzip -9n {} +

# The newest version of glibc that a symbol is asked of.
libc=$(objdump -T "$stage/usr/bin/overfly" "$stage/usr/lib/overfly/liboverfly.so" |
    grep -o 'GLIBC_2\.[0-9.]*' | sort -uV | tail -n 1 | sed 's/GLIBC_//')

deb=$work/deb
cp -a "$stage" "$deb"
# Where Debian has them.
mv "$deb/usr/share/zsh/site-functions" "$deb/usr/share/zsh/vendor-completions"
mkdir "$deb/DEBIAN"
cat > "$deb/usr/share/doc/overfly/copyright" <<END_COPYRIGHT
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: overfly

Files: *
Copyright: the authors of Overfly
License: Apache-2.0 or Expat
 LICENSE-APACHE and LICENSE-MIT in this folder have the texts. THIRD-PARTY.txt has those of the packages that the binaries
 contain, and sbom.cdx.json lists these.
END_COPYRIGHT
cat > "$deb/DEBIAN/control" <<END_CONTROL
Package: overfly
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: The authors of Overfly <overfly@localhost>
Installed-Size: $(du -sk --apparent-size --exclude=DEBIAN "$deb" | cut -f 1)
Depends: libc6 (>= $libc), libgcc-s1
Recommends: iproute2
Suggests: python3
Section: net
Priority: optional
Description: user-level TCP/IP stack for unmodified programs, load generator and bench
 Programs such as nginx run unchanged on a TCP/IP stack of their own, which receives and sends by AF_XDP, shared memory or
 a tap device. A load generator on the same stack and a bench that compares it with the kernel's come with it.
END_CONTROL
for script in postinst prerm postrm; do
    install -m 755 "packaging/deb/$script" "$deb/DEBIAN/$script"
done
(cd "$deb" && find usr -type f -print0 | sort -z | xargs -0 md5sum) > "$deb/DEBIAN/md5sums"
settle "$deb"
dpkg-deb --root-owner-group --uniform-compression -Zxz --build "$deb" \
    "$packages/overfly_${version}_$(dpkg --print-architecture).deb" > /dev/null

if command -v rpmbuild > /dev/null; then
    settle "$stage"
    rpmbuild -bb --quiet --target "$machine" \
        --define "_topdir $work/rpm" --define "_rpmdir $work/rpm/out" --define "_dbpath $work/rpm/db" \
        --define "stage $stage" --define "its_version $version" \
        --define '_buildhost localhost' --define 'use_source_date_epoch_as_buildtime 1' \
        --define 'clamp_mtime_to_source_date_epoch 1' --define '_binary_payload w9.xzdio' \
        packaging/overfly.spec
    mv "$work/rpm/out/$machine/overfly-$version-1.$machine.rpm" "$packages/"
else
    echo "no .rpm was made: rpmbuild is missing (on Debian: apt-get install rpm)" >&2
fi
(cd "$packages" && ls -l overfly*"$version"*)

#!/bin/bash
# Installs, on Debian, what the build, the quickstart and the tests call and is not there yet.
#
# With the word `named` and names: those, whatever they are for (`cargo xtask apps`).
# With the word `quickstart`, only what the quickstart needs. Over shared memory it works without root: then this says what is
# missing and installs nothing. With the word `packages`, what `make packages` and `make packages-test` need besides the build.
set -euo pipefail

purpose_asked=${1:-tests}
only_quickstart=
[ "$purpose_asked" != quickstart ] || only_quickstart=yes
if [ "$(id -u)" -ne 0 ] && [ -z "$only_quickstart" ]; then
    echo "This needs root, to make network namespaces, load an XDP program and install packages: try again with sudo." >&2
    exit 1
fi

packages=()
# The first word is the tool that shows whether the package is there; the third says who needs it besides the tests: `quickstart`,
# or `namespaces`, which is the quickstart as root; or that only packages need it.
while read -r tool package purpose; do
    case "$purpose_asked:${purpose:-tests}" in
        tests:packages) continue ;;
        tests:* | quickstart:quickstart | packages:packages) ;;
        quickstart:namespaces) [ "$(id -u)" -eq 0 ] || continue ;;
        *) continue ;;
    esac
    command -v "$tool" >/dev/null || packages+=("$package")
done <<'END'
nginx nginx-light quickstart
clang clang quickstart
cc gcc quickstart
make make quickstart
ip iproute2 namespaces
ethtool ethtool namespaces
nft nftables
iptables-nft iptables
curl curl
ping iputils-ping
valgrind valgrind
tcpdump tcpdump
tshark tshark
dpdk-testpmd dpdk-dev
haproxy haproxy
crun crun
redis-server redis-server
memcached memcached
unbound unbound
dnsperf dnsperf
memcslap libmemcached-tools
wrk wrk
pgbench postgresql-contrib
iperf3 iperf3
sshd openssh-server
ssh openssh-client
apache2 apache2
wget wget
node nodejs
python3 python3
javac openjdk-17-jdk-headless
mvn maven
openssl openssl
script bsdutils
ab apache2-utils
chromium chromium
h2load nghttp2-client
gnuplot gnuplot-nox
sockperf sockperf
npm npm
pip3 python3-pip
systemd-analyze systemd
rpmbuild rpm packages
dpkg-deb dpkg packages
objdump binutils packages
debootstrap debootstrap packages
buildah buildah packages
podman podman packages
END
[ -e /usr/include/bpf/bpf_helpers.h ] || packages+=(libbpf-dev)
[ -e /usr/include/linux/bpf.h ] || packages+=(linux-libc-dev)
if [ "$purpose_asked" = tests ]; then
    [ -e /usr/share/containers/seccomp.json ] || packages+=(golang-github-containers-common)
    [ -e /usr/share/java/hdrhistogram.jar ] || packages+=(libhdrhistogram-java)
    /usr/bin/python3 -c 'import prometheus_client' 2>/dev/null || packages+=(python3-prometheus-client)
fi

if [ "$purpose_asked" = named ]; then
    # The tool may have come otherwise: NodeSource's nodejs brings npm, and Debian's package of that conflicts with it.
    for package in "${@:2}"; do
        command -v "$package" >/dev/null || packages+=("$package")
    done
fi

if [ ${#packages[@]} -gt 0 ] && [ "$(id -u)" -ne 0 ]; then
    echo "Missing here: ${packages[*]}. On Debian: sudo apt-get install --no-install-recommends ${packages[*]}" >&2
    exit 1
elif [ ${#packages[@]} -gt 0 ]; then
    purpose="the build and the tests"
    [ -z "$only_quickstart" ] || purpose="the build and the quickstart (the tests need more: \`make test\` installs it)"
    [ "$purpose_asked" != named ] || purpose="a program that is to be run"
    echo "Installing ${packages[*]}, for $purpose" >&2
    if ! command -v apt-get >/dev/null; then
        echo "There is no apt-get here: install these by hand: ${packages[*]}" >&2
        exit 1
    fi
    # Debian starts a service that it installs, unless this file says no. Nginx is needed as a
    # program only: a server on port 80 of this machine is nobody's wish.
    policy=/usr/sbin/policy-rc.d
    made_policy=
    if [ ! -e "$policy" ]; then
        trap '[ -z "$made_policy" ] || rm -f "$policy"' EXIT
        made_policy=yes
        printf '#!/bin/sh\nexit 101\n' > "$policy"
        chmod 755 "$policy"
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get -o DPkg::Lock::Timeout=300 update -qq </dev/null
    apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "${packages[@]}" </dev/null >/dev/null
fi

if ! command -v cargo >/dev/null; then
    echo "There is no cargo on the PATH: install Rust from https://rustup.rs (under sudo, keep the PATH: sudo env \"PATH=\$PATH\" make …)." >&2
    exit 1
fi

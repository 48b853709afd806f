#!/bin/bash
# In the clean root, see test.sh.
set -euo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /dev/shm
rm -f /dev/null && mknod -m 666 /dev/null c 1 3

inventory() {
    find / -xdev \( -path /var/lib/dpkg -o -path /var/log -o -path /var/cache -o -path /root \) -prune -o -printf '%p %M\n' | sort
}
fail() { echo "FAILED: $*" >&2; exit 1; }

inventory > /root/before
dpkg --install /root/overfly.deb
overfly --version
overfly doctor || true
overfly profile list | grep -q '/share/overfly/profiles/latency.opf' || fail "the profiles are not found"

overfly lab up
mkdir -p /etc/overfly /tmp/web
printf '[[rule]]\nusers = ["www-data"]\nstacks = 4\n' > /etc/overfly/broker.toml
overfly lab exec server -- overfly broker --interface eth0 2> /tmp/broker.log &
broker=$!
for _ in $(seq 100); do grep -q 'eth0 is served' /tmp/broker.log && break; sleep 0.1; done
grep -q 'eth0 is served' /tmp/broker.log || { cat /tmp/broker.log; fail "the broker does not start"; }
cat > /tmp/web/nginx.conf <<'END_NGINX'
pid /tmp/web/pid; daemon off; worker_processes 1; error_log stderr;
events {}
http {
    access_log off;
    client_body_temp_path /tmp/web/body; proxy_temp_path /tmp/web/proxy; fastcgi_temp_path /tmp/web/fastcgi;
    uwsgi_temp_path /tmp/web/uwsgi; scgi_temp_path /tmp/web/scgi;
    server { listen 8080; location / { return 200 ok; } }
}
END_NGINX
chown -R www-data /tmp/web
overfly lab exec server -- setpriv --reuid www-data --regid www-data --clear-groups --bounding-set=-all --inh-caps=-all \
    env EF_NO_FAIL=0 overfly run --interface eth0 -- nginx -e stderr -c /tmp/web/nginx.conf &
nginx=$!
answer=
accelerated=
for _ in $(seq 100); do
    answer=$(overfly lab exec client -- curl -s --max-time 2 http://10.77.0.1:8080/ || true)
    # A peer that the neighbour table lacks yet is the kernel's: the next one is not.
    if overfly lab exec server -- overfly top -n 1 --json --interval 0.1 | grep -q '"sockets.accepts":[1-9]'; then
        accelerated=yes
        break
    fi
done
[ "$answer" = ok ] || fail "nginx does not answer"
[ -n "$accelerated" ] || { cat /tmp/broker.log; fail "nothing was accelerated"; }
kill "$nginx"; wait "$nginx" || true
kill "$broker"; wait "$broker" || fail "the broker failed: $(cat /tmp/broker.log)"
cat /tmp/broker.log
overfly lab down
rm -r /etc/overfly

dpkg --purge overfly
inventory > /root/after
diff /root/before /root/after || fail "something is left"
echo "installed, run, removed: nothing is left"

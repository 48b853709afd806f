#!/bin/bash
# An operator's first day in the clean root, with systemd as process 1: see test.sh.
set -euo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive

inventory() {
    find / -xdev \( -path /var/lib/dpkg -o -path /var/log -o -path /var/cache -o -path /root \) -prune -o -printf '%p %M\n' | sort
}
fail() {
    echo "FAILED: $*" >&2
    journalctl --boot --no-pager --lines 80 --unit 'overfly-*' --unit web.service --unit contained.service >&2 || true
    exit 1
}
eventually() { # WHAT COMMAND…
    local what=$1
    shift
    for _ in $(seq 200); do
        if "$@"; then return; fi
        sleep 0.05
    done
    fail "not in time: $what"
}
answers() { # ADDRESS
    [ "$(ip netns exec client curl -s --max-time 2 "http://$1:8080/")" = ok ]
}
# Whether this namespace's stacks have accepted at user level. A peer that the neighbour table lacks yet is the kernel's: the next one is not.
accelerated() { # ADDRESS [ip netns exec NAME]
    answers "$1" && "${@:2}" overfly top --once --json --interval 0.1 | grep -q '"sockets.accepts":[1-9]'
}
process_of() { systemctl show --property MainPID --value "$1"; }
restarts() { # UNIT COMMAND…
    local before
    before=$(process_of "$1")
    "${@:2}"
    systemctl --quiet is-active "$1" || fail "$1 is not active after: ${*:2}"
    [ "$(process_of "$1")" != "$before" ] || fail "$1 was not started again by: ${*:2}"
}
brokers() { pgrep --full ' __pod ' || true; }

# A network: the machine, a container of its and a client, at a switch that is somewhere else.
ip link set lo up
for name in switch client container; do ip netns add "$name"; done
ip -n switch link add bridge type bridge
ip -n switch link set bridge up
join() { # NAMESPACE ADDRESS
    ip -n switch link add "to-$1" type veth peer name eth0 netns "$1"
    ip -n switch link set "to-$1" master bridge up
    ip -n "$1" link set lo up
    ip -n "$1" address add "$2/24" dev eth0
    ip -n "$1" link set eth0 up
}
join client 10.77.0.2
join container 10.77.0.3
ip link add eth0 type veth peer name to-host netns switch
ip -n switch link set to-host master bridge up
ip address add 10.77.0.1/24 dev eth0
ip link set eth0 up
cat > /run/nginx.conf <<'END_NGINX'
daemon off; worker_processes 1; error_log stderr; pid /tmp/pid;
events {}
http {
    access_log off;
    client_body_temp_path /tmp/body; proxy_temp_path /tmp/proxy; fastcgi_temp_path /tmp/fastcgi;
    uwsgi_temp_path /tmp/uwsgi; scgi_temp_path /tmp/scgi;
    server { listen 8080; location / { return 200 ok; } }
}
END_NGINX
web() { # UNIT LINES…
    printf '[Service]\nExecStart=/usr/bin/overfly run --interface eth0 -- nginx -e stderr -c /run/nginx.conf\n' > "/run/systemd/system/$1.service"
    # No privilege at all.
    printf '%s\n' Environment=EF_NO_FAIL=0 CapabilityBoundingSet= NoNewPrivileges=yes PrivateTmp=yes "${@:2}" >> "/run/systemd/system/$1.service"
}
web web User=www-data
web contained User=nobody NetworkNamespacePath=/run/netns/container

inventory > /root/before
dpkg --install /root/overfly.deb
overfly --version
overfly doctor || true
overfly profile list | grep -q '/share/overfly/profiles/latency.opf' || fail "the profiles are not found"

echo "== a broker's unit =="
mkdir -p /etc/overfly
cat > /etc/overfly/broker.toml <<'END_POLICY'
[[rule]]
users = ["www-data", "nobody"]
stacks = 4
END_POLICY
overfly broker --check
# Settings, in the way of docs/operate.md.
drop_in=/etc/systemd/system/overfly-broker@eth0.service.d
mkdir "$drop_in"
cat > "$drop_in/override.conf" <<'END_DROP_IN'
[Service]
ExecStart=
ExecStart=/usr/bin/overfly broker --interface %I --metrics 127.0.0.1:9477
END_DROP_IN
systemctl daemon-reload
systemctl enable --now overfly-broker@eth0.service || fail "the broker's unit does not start"
systemctl start web.service
eventually "nginx is accelerated" accelerated 10.77.0.1
curl -s http://127.0.0.1:9477/metrics | grep 'overfly_accepts_total{interface="eth0",program="nginx"} [1-9]' || fail "Prometheus is not told"
systemctl status overfly-broker@eth0.service | grep 'Status: "Serves nginx"' || fail "the status does not say whom it serves"

echo "== a restart, an upgrade, a crash: nginx goes on =="
restarts overfly-broker@eth0.service systemctl restart overfly-broker@eth0.service
eventually "nginx is accelerated after a restart" accelerated 10.77.0.1
restarts overfly-broker@eth0.service dpkg --install /root/overfly.deb
eventually "nginx is accelerated after an upgrade" accelerated 10.77.0.1
systemctl kill --signal KILL overfly-broker@eth0.service
eventually "systemd starts the broker again" systemctl --quiet is-active overfly-broker@eth0.service
eventually "nginx answers after a crash" answers 10.77.0.1
systemctl --quiet is-active web.service || fail "nginx did not go on"
journalctl --unit overfly-broker@eth0.service --priority notice --output cat | grep -m 1 'told to stop: a program continues' || fail "the journal lacks a notice"
journalctl --unit overfly-broker@eth0.service --priority notice --output cat | grep 'eth0 is served' && fail "all lines have the same level"
systemctl stop web.service

echo "== the agent's unit =="
systemctl enable --now overfly-agent.service || fail "the agent's unit does not start"
systemctl start contained.service
eventually "the container is accelerated" accelerated 10.77.0.3 ip netns exec container
[ "$(brokers | wc -l)" = 1 ] || fail "the container has not one broker: $(brokers)"
broker=$(brokers)
systemctl status overfly-agent.service | grep 'Status: "Serves one container"' || fail "the status does not say how many it serves"
restarts overfly-agent.service systemctl restart overfly-agent.service
restarts overfly-agent.service dpkg --install /root/overfly.deb
[ "$(brokers)" = "$broker" ] || fail "the container's broker did not outlive the agent"
eventually "the container is accelerated without that agent" accelerated 10.77.0.3 ip netns exec container
systemctl restart contained.service
eventually "the next agent serves the container" accelerated 10.77.0.3 ip netns exec container
systemctl stop contained.service
gone() { [ -z "$(brokers)" ]; }
eventually "the container's broker ends" gone
journalctl --boot --output cat | grep 'Operation not permitted' && fail "a unit's sandbox is too tight"

echo "== removal =="
rm -r /etc/overfly "$drop_in"
systemctl daemon-reload
dpkg --purge overfly
if pgrep --list-name overfly; then fail "processes are left"; fi
[ ! -e /run/overfly ] || fail "/run/overfly is left: $(ls /run/overfly)"
inventory > /root/after
diff /root/before /root/after || fail "something is left"
echo "installed, run, upgraded, removed: nothing is left"

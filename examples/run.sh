#!/bin/sh

# SPDX-License-Identifier: Apache-2.0

# Serves the example cluster, and shows what two clients in two zones get for one name.
# 'make run' creates the environment and runs this.
set -eu

topodns=.venv/bin/topodns
snapshot=examples/cluster.yaml
name=memcached.shop.svc.cluster.local
in_zone_a=10.244.2.16 # a pod of the storefront on node-a2
in_zone_b=10.244.6.10 # another one, on node-b2

show() {
    for client in $in_zone_a $in_zone_b; do
        printf '\n$ topodns explain %s --client %s --snapshot %s\n' "$name" "$client" "$snapshot"
        "$topodns" explain "$name" --client "$client" --snapshot "$snapshot"
    done
    host=${udp%:*} port=${udp##*:}
    no_dig=
    command -v dig >/dev/null || no_dig="There is no dig here (on Debian: apt install bind9-dnsutils; on Fedora: dnf install bind-utils).
Without it, 'topodns explain' shows the same answers, as above."
    dig="dig @$(printf %s "$host" | tr -d '[]') -p $port +short"
    cat <<END

Serving at $udp until Ctrl-C. Ask it from another terminal:

  $dig +subnet=$in_zone_a/32 $name
  $dig +subnet=$in_zone_b/32 $name

${no_dig:+$no_dig

}This machine is no client in the cluster. So dig names a client by EDNS client subnet, as CoreDNS
would, and this server trusts loopback as a forwarder. examples/README.md has more to ask.
${http:+
The console shows who asks and gets what: http://$http/
}
END
}

follow() {
    http=
    while IFS= read -r line; do
        printf '%s\n' "$line"
        case $line in
        'listening udp '*) udp=${line##* } ;;
        'listening http '*) http=${line##* } ;;
        ready) show ;;
        'topodns: '*'port in use'*) echo "To take another port: TOPODNS_LISTEN=127.0.0.1:5353 make run" ;;
        esac
    done
}

lines=$(mktemp -u)
mkfifo "$lines"
{ rm "$lines" && follow; } <"$lines" &
exec "$topodns" serve --log-format text --snapshot "$snapshot" --trusted-forwarder 127.0.0.0/8 --trusted-forwarder ::1/128 2>"$lines"

#!/usr/bin/env bash
# Measures the container rows of the poster's table: AES-128-GCM of UDP datagrams by a service in a network namespace
# behind a veth pair, with and without AES-NI. Needs root. Prints this machine's figures beside the published ones.
#   tests/linux/container_rows.sh [PROGRAM]
set -euo pipefail
program=$(realpath "${1:-target/release/examples/container}")
skip() { echo "SKIPPED: ${0##*/}: $1"; exit 77; }
[ "$(id -u)" = 0 ] || skip "not root"
command -v ip >/dev/null || skip "ip (iproute2) is missing"
namespace=nic-offload-$$ here=vhere$$ there=vthere$$ pid=
ip netns add "$namespace" 2>/dev/null || skip "no network namespace can be made"
clean_up() {
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    wait
    ip link del "$here" 2>/dev/null || true
    ip netns del "$namespace"
}
trap clean_up EXIT
ip link add "$here" type veth peer name "$there" netns "$namespace" 2>/dev/null || skip "no veth pair can be made"
ip addr add 10.78.0.1/30 dev "$here"
ip link set "$here" up
ip -n "$namespace" addr add 10.78.0.2/30 dev "$there"
ip -n "$namespace" link set "$there" up

measure() { # what it is called, what the environment of both has
    local tries
    env ${2:+"$2"} ip netns exec "$namespace" "$program" serve 10.78.0.2:7001 & pid=$!
    for tries in $(seq 50); do
        kill -0 "$pid" 2>/dev/null || { echo "the service ended"; exit 1; }
        [ -n "$(ip netns exec "$namespace" ss -Hlun 'sport = :7001')" ] && break
        sleep 0.1
    done
    echo "$1"
    env ${2:+"$2"} "$program" ask 10.78.0.2:7001 | tee "$work/$1"
    kill "$pid"
    wait "$pid" 2>/dev/null || true
    pid=
}

work=$(mktemp -d)
trap 'clean_up; rm -rf "$work"' EXIT
measure "with AES-NI" ""
# Tells aws-lc that this processor lacks AESNI, PCLMULQDQ, VAES and VPCLMULQDQ.
measure "without AES-NI" "OPENSSL_ia32cap=~0x200000200000000:~0x60000000000"
awk 'FNR == 1 { file++; next } { sealing[file, $1] = $4; if (!($1 in seen)) { seen[$1]; order[++n] = $1 } }
    END {
        for (i = 1; i <= n; i++) if (sealing[2, order[i]] <= sealing[1, order[i]]) { print "AES-NI made no difference for " order[i] " bytes"; exit 1 }
        exit n != 6
    }' "$work/with AES-NI" "$work/without AES-NI"

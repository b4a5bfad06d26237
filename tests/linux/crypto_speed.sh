#!/usr/bin/env bash
# Compares one core's speed at ciphers, in turn: `openssl speed`, and the jobs of `lookaside --way cpu`. Prints 10^6
# bytes per second of wall-clock time, the best of three runs. On a busy machine only large ratios are meaningful. Needs
# no root.
#   tests/linux/crypto_speed.sh
# Environment: LOOKASIDE, the program (target/release/examples/lookaside by default); SECONDS_EACH, of an openssl run (1).
set -euo pipefail
lookaside=${LOOKASIDE:-target/release/examples/lookaside}
seconds=${SECONDS_EACH:-1}
command -v openssl >/dev/null || { echo "SKIPPED: ${0##*/}: openssl is missing"; exit 77; }

ours() { # transform, bytes
    "$lookaside" --way cpu --transform "$1" --size "$2" --bytes 64MiB --json | sed -n 's/.*"megabytes_per_second": *\([0-9]*\).*/\1/p'
}
theirs() { # name, bytes
    openssl speed -elapsed -seconds "$seconds" -bytes "$2" -evp "$1" 2>/dev/null | tail -1 | awk '{ sub("k", "", $NF); printf "%d\n", $NF / 1000 }'
}
best() { for _ in 1 2 3; do "$@"; done | sort -n | tail -1; }
printf '%-20s %8s %8s %8s\n' transform bytes ours openssl
for pair in aes-128-gcm:aes-128-gcm aes-256-gcm:aes-256-gcm chacha20-poly1305:chacha20-poly1305 aes-128-ccm:aes-128-ccm xts:aes-256-xts; do
    for bytes in 4096 16384; do
        printf '%-20s %8s %8s %8s\n' "${pair%:*}" "$bytes" "$(best ours "${pair%:*}" "$bytes")" "$(best theirs "${pair#*:}" "$bytes")"
    done
done

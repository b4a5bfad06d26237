#!/usr/bin/env bash
# Tests an encrypted volume on an NVMe/TCP target, over this machine's own TCP: `nvme_host --xts` writes, reads and
# verifies, and the target stores ciphertext, which `transform` decrypts like dm-crypt would. Needs no root.
#   tests/linux/volume.sh
# Environment: PROGRAMS, the folder of the programs (target/release by default).
set -euo pipefail
programs=${PROGRAMS:-target/release}
work=$(mktemp -d) pid=
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null || true; rm -rf "$work"' EXIT
fail() { echo "NOT SO: $*"; cat "$work/log"; exit 1; }

nqn=nqn.2026-01.test:volume
truncate -s 16M "$work/disk"
head -c 64 /dev/urandom >"$work/key"
head -c 64 /dev/urandom >"$work/other"
port=$((20000 + $$ % 20000))
"$programs/nvme_target" --listen "127.0.0.1:$port" --nqn $nqn --block-size 4096 --file "$work/disk" >"$work/log" 2>&1 & pid=$!
until grep -q '^ready' "$work/log"; do kill -0 "$pid" 2>/dev/null || fail "the target starts"; sleep 0.05; done
host() { "$programs/nvme_host" --connect "127.0.0.1:$port" --nqn $nqn --ddgst "$@"; }

host --xts "$work/key" verify --size 8MiB --span 8MiB || fail "what was written is read"
seq 1 20000 >"$work/text"
blocks=$((($(stat -c %s "$work/text") + 4095) / 4096))
host --xts "$work/key" write --first 100 <"$work/text"
host --xts "$work/key" read --first 100 --blocks "$blocks" | head -c "$(stat -c %s "$work/text")" | cmp - "$work/text" || fail "it is read as written"
host read --first 100 --blocks "$blocks" >"$work/raw"
! grep -q 12345 "$work/raw" || fail "without the key there is no text"
! host --xts "$work/other" read --first 100 --blocks "$blocks" | grep -q 12345 || fail "nor with another"
! grep -q 12345 "$work/disk" || fail "nor in the target's file"
"$programs/transform" "$work/disk" "$work/plain" --undo --transform xts --key "$work/key" --unit 4096 --tweak units
cmp -i $((100 * 4096)):0 -n "$(stat -c %s "$work/text")" "$work/plain" "$work/text" || fail "the file is such a volume"
echo "a volume: ciphertext at the target, text with its key"

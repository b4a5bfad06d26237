#!/usr/bin/env bash
# Tests captures of our QUIC with other programs: tshark decrypts captures of one path, and open_quic.py (cryptography,
# from PyPI) captures of several paths, whose nonces contain a path ID; each cipher, with key updates, over a wire that
# loses 1 %. Needs no root.
#   tests/linux/quic_captures.sh [MIB]        what is sent each time; 8 by default
set -euo pipefail
loopback=${QUIC_LOOPBACK:-target/release/examples/quic_loopback} mib=${1:-8}
here=$(realpath "$(dirname "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
skip() { echo "SKIPPED: $1"; }
fail() { echo "NOT SO: $1"; exit 1; }
python=$("$here/peers.sh" aioquic) || { skip "open_quic.py: $python"; python=; }
command -v tshark >/dev/null || skip "tshark is missing"

for suite in aes128-gcm aes256-gcm chacha20-poly1305; do
    for paths in 1 3; do
        "$loopback" --size "${mib}MiB" --mode quic-nic --suite $suite --paths $paths --key-update-every 100 --loss 0.01 \
            --delay 10ms --pcap "$work/wire.pcapng" >/dev/null
        if [ $paths = 1 ] && command -v tshark >/dev/null; then
            # Short-header packets in which tshark finds frames, and in which it finds no frames; and the number of
            # changes of an end's key phase.
            tshark -r "$work/wire.pcapng" -Y 'quic.header_form == 0' -T fields -e ip.src -e quic.key_phase -e quic.frame_type 2>/dev/null |
                awk -F '\t' '{ if ($3 == "") closed++; else open++; if ($1 in last && $2 != last[$1]) turns++; last[$1] = $2 }
                    END { printf "tshark: %d packets decrypted, %d not; %d times another key phase\n", open, closed, turns; exit closed > 0 || open < 1000 || turns < 4 }' ||
                fail "tshark decrypts $suite"
        fi
        [ -z "$python" ] || "$python" "$here/open_quic.py" "$work/wire.pcapng" >"$work/said" || { cat "$work/said"; fail "what was captured opens: $suite, $paths paths"; }
        [ -z "$python" ] || sed "s/^/$suite: /" "$work/said"
    done
done
[ -n "$python" ] || command -v tshark >/dev/null || exit 77
echo "done"

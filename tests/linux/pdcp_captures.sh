#!/usr/bin/env bash
# Tests captures of PDCP in GTP-U with tshark: it deciphers every PDU (NEA2), finds every MAC-I valid (NIA2), and reads
# the sent data; protected by the CPU, by jobs or by the NIC, with both lengths of sequence numbers. Needs no root.
#   tests/linux/pdcp_captures.sh [FILE]        what is sent each time; this script by default
# tshark supports neither SNOW 3G nor ZUC. Exit status 77: the test cannot run here.
set -euo pipefail
loopback=${PDCP_LOOPBACK:-target/release/examples/pdcp}
here=$(realpath "$(dirname "$0")")
file=${1:-$0}
for tool in tshark python3; do command -v $tool >/dev/null || { echo "SKIPPED: $tool is missing"; exit 77; }; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "NOT SO: $1"; exit 1; }
read_by_tshark() { # It works out COUNTs only if it follows sequence numbers.
    tshark -r "$work/frames.pcap" --enable-heuristic pdcp_nr_udp "${options[@]}" -o pdcp-nr.decipher_userplane:TRUE \
        -o 'pdcp-nr.default_ciphering_algorithm:NEA2 (AES)' -o 'pdcp-nr.default_integrity_algorithm:NIA2 (AES)' \
        -o pdcp-nr.show_user_plane_as_ip:FALSE -o pdcp-nr.check_sequence_numbers:Only-PDCP-frames "$@" 2>/dev/null
}

for mode in pdcp-cpu pdcp-jobs pdcp-nic; do
    for sn in 12 18; do
        "$loopback" "$file" --mode $mode --algorithm 2 --sn $sn --sdu 700 --pcap "$work/wire.pcapng" --keys "$work/keys" >/dev/null
        rm -f "$work/frames.pcap"
        python3 "$here/pdcp_frames.py" "$work/wire.pcapng" "$work/keys" "$work/frames.pcap" >"$work/options" || fail "$mode, $sn bits: the capture is read"
        options=()
        while read -r option; do options+=(-o "$option"); done <"$work/options"
        read_by_tshark -V >"$work/said"
        read_by_tshark -Y 'pdcp-nr.direction == 1' -T fields -e pdcp-nr.user-data |
            python3 -c 'import sys; sys.stdout.buffer.write(bytes.fromhex(sys.stdin.read().replace(":", "")))' >"$work/read"
        right=$(grep -c 'MAC: .*Matches calculated result' "$work/said" || true) all=$(grep -c 'PDU Type: Data PDU' "$work/said" || true)
        [ "$right" = "$all" ] && [ "$right" -gt 0 ] || fail "$mode, $sn bits: tshark finds $right MACs of $all right"
        cmp -s "$work/read" "$file" || fail "$mode, $sn bits: tshark reads what was sent"
        echo "$mode, $sn bits: tshark deciphered $all PDUs, and all MACs are right"
    done
done

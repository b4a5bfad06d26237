#!/usr/bin/env bash
# Compares DPDK's software drivers with ours on one core of this machine, in turn: dpdk-test-crypto-perf (openssl,
# aesni_gcm, aesni_mb) and `nicbench crypto --way cpu`; dpdk-test-compress-perf (zlib, isal) and `lookaside --transform
# deflate`. Prints 10^6 bytes per second, the best of three runs. On a busy machine only large ratios are meaningful.
# DPDK is unpacked from Debian into a separate folder; nothing is installed, and neither root nor huge pages are needed.
#   tests/linux/dpdk_perf.sh [FOLDER]     target/dpdk by default
# Environment: NICBENCH, LOOKASIDE, the programs (in target/release and its examples by default); MIRROR (Debian's own).
set -euo pipefail
export LC_ALL=C
nicbench=${NICBENCH:-target/release/nicbench} lookaside=${LOOKASIDE:-target/release/examples/lookaside}
folder=$(realpath -m "${1:-target/dpdk}")
skip() { echo "SKIPPED: ${0##*/}: $1"; exit 77; }
keys=/usr/share/keyrings/debian-archive-keyring.gpg

if [ ! -e "$folder/usr/bin/dpdk-test-crypto-perf" ]; then
    for tool in apt-get dpkg-deb; do command -v "$tool" >/dev/null || skip "$tool is missing"; done
    [ -e "$keys" ] || skip "the keys of Debian's archive are missing"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work"/apt/{lists/partial,archives/partial} "$folder"
    : >"$work/apt/status"
    echo "deb [signed-by=$keys] ${MIRROR:-http://deb.debian.org/debian} trixie main" >"$work/apt/sources.list"
    cat >"$work/apt/conf" <<CONF
Dir::Etc::sourcelist "$work/apt/sources.list";
Dir::Etc::sourceparts "-";
Dir::State "$work/apt";
Dir::State::status "$work/apt/status";
Dir::Cache "$work/apt";
APT::Architecture "amd64";
APT::Install-Recommends "false";
APT::Sandbox::User "";
Debug::NoLocking "true";
Acquire::Languages "none";
CONF
    export APT_CONFIG=$work/apt/conf
    apt-get -qq update >"$work/log" 2>&1 || { cat "$work/log"; skip "no Debian archive can be reached"; }
    apt-get -qq -y --download-only install dpdk-dev librte-meta-allpmds >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    for deb in "$work"/apt/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$folder" --keep-directory-symlink --no-same-owner --exclude='./usr/share/*'
    done
fi

libraries=$folder/usr/lib/x86_64-linux-gnu
drivers=$(echo "$libraries"/dpdk/pmds-*)
dpdk() { # program, library of the driver, device, then the program's own options
    local program=$1 driver=$2 device=$3
    shift 3
    timeout 60 "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries:$drivers" "$folder/usr/bin/$program" -l 0,1 --no-huge --no-pci \
        -m 512 --no-telemetry --log-level=4 -d "$drivers"/librte_"$driver".so.?? -d "$drivers"/librte_mempool_ring.so.?? --vdev "$device" -- "$@" 2>&1
}
crypto() { # driver, device, algorithm, bytes of a key, bytes
    dpdk dpdk-test-crypto-perf "$1" "$2" --devtype "$2" --optype aead --aead-algo "$3" --aead-op encrypt --aead-key-sz "$4" --aead-iv-sz 12 \
        --aead-aad-sz 16 --digest-sz 16 --burst-sz 32 --buffer-sz "$5" --total-ops 200000 --pool-sz 1024 --desc-nb 256 --silent --csv-friendly |
        awk -F, 'NF == 10 && $1 ~ /^[0-9]+$/ { printf "%d\n", $9 * 125 }' || true
}
compress() { # driver, device
    dpdk dpdk-test-compress-perf "$1" "$2" --driver-name "$2" --input-file "$corpus" --seg-sz 16384 --num-iter 20 --compress-level 1 \
        --huffman-enc dynamic --ptest throughput --max-num-sgl-segs 1 | awk 'NF == 6 && $2 == 1 { printf "%d\n", $5 * 125 }' || true
}
number() { sed -n 's/.*"megabytes_per_second": *\([0-9]*\).*/\1/p' | head -1; }
best() { # "-": it does not have that
    local found
    found=$(for _ in 1 2 3; do "$@"; done | sort -n | tail -1)
    echo "${found:--}"
}

printf '%-20s %6s %6s %8s %10s %9s\n' AEAD bytes ours openssl aesni_gcm aesni_mb
for row in aes-128-gcm:aes-gcm:16 aes-256-gcm:aes-gcm:32 aes-128-ccm:aes-ccm:16 chacha20-poly1305:chacha20-poly1305:32; do
    IFS=: read -r ours theirs key <<<"$row"
    for bytes in 64 512 2048; do
        mine() { "$nicbench" crypto --transform "$ours" --way cpu --size "$bytes" --bytes 16MiB --json | tr ',' '\n' | number; }
        printf '%-20s %6s %6s %8s %10s %9s\n' "$ours" "$bytes" "$(best mine)" \
            "$(best crypto crypto_openssl crypto_openssl "$theirs" "$key" "$bytes")" \
            "$(best crypto crypto_ipsec_mb crypto_aesni_gcm "$theirs" "$key" "$bytes")" \
            "$(best crypto crypto_ipsec_mb crypto_aesni_mb "$theirs" "$key" "$bytes")"
    done
done
corpus=$folder/corpus
cat Cargo.lock docs/*.md >"$corpus"
mine() { "$lookaside" "$corpus" --transform deflate --way cpu --size 16KiB --json | tr ',' '\n' | number; }
printf '\n%-20s %6s %8s %6s\n' 'DEFLATE, fast' ours zlib isal
printf '%-20s %6s %8s %6s\n' '16 KiB of text' "$(best mine)" "$(best compress compress_zlib compress_zlib)" "$(best compress compress_isal compress_isal)"

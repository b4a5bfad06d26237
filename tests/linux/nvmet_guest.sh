#!/usr/bin/env bash
# Tests nvme_host against Linux's own NVMe/TCP target, in a QEMU guest with a stock kernel: discovery, the four digest
# settings with writes that are read back and compared, the same from an emulated host whose NIC places read data and
# does the digests, a target that stops during writes and returns, and tshark's check of every PDU and digest. Needs no
# root.
#   tests/linux/nvmet_guest.sh
# Environment: NVME_HOST, the program (target/release/nvme_host by default); PORT on this machine (14470), and
# the one after it.
. "$(dirname "$0")/guest/lib.sh"
host=$(realpath -e "${NVME_HOST:-target/release/nvme_host}") port=${PORT:-14470}
control=$((port + 1)) nqn=nqn.2026-01.test:ram
boot=
clean_up() {
    [ -z "$boot" ] || kill "$boot" 2>/dev/null || true
    wait 2>/dev/null
    rm -rf "$work"
}
command -v qemu-system-x86_64 >/dev/null || { echo "SKIPPED: ${0##*/}: qemu-system-x86_64 is missing"; exit 77; }

cat >"$work/script" <<'SCRIPT'
set -euo pipefail
ip addr add 10.0.2.15/24 dev eth0
ip link set eth0 up
ip addr add 10.77.0.2/24 dev eth1
ip link set eth1 up
modprobe -a nvmet-tcp
modprobe brd rd_nr=1 rd_size=32768
nvmet=/sys/kernel/config/nvmet subsystem=/sys/kernel/config/nvmet/subsystems/$NQN
mkdir "$subsystem"
echo 1 >"$subsystem/attr_allow_any_host"
mkdir "$subsystem/namespaces/1"
echo -n /dev/ram0 >"$subsystem/namespaces/1/device_path"
echo 1 >"$subsystem/namespaces/1/enable"
mkdir $nvmet/ports/1
echo tcp >$nvmet/ports/1/addr_trtype
echo ipv4 >$nvmet/ports/1/addr_adrfam
echo 0.0.0.0 >$nvmet/ports/1/addr_traddr
echo 4420 >$nvmet/ports/1/addr_trsvcid
serve() { ln -s "$subsystem" "$nvmet/ports/1/subsystems/"; }
serve
echo "guest: serves"
# The target's log has a line for each connection, maybe repeated.
while word=$(socat -u TCP-LISTEN:4421,reuseaddr STDOUT | head -1); do
    case $word in
    away) rm -f "$nvmet/ports/1/subsystems/$NQN" ;;
    back) [ -e "$nvmet/ports/1/subsystems/$NQN" ] || serve ;;
    end) break ;;
    esac
    echo "guest: $word"
done
# Without host names, whose digits may contain any such word.
dmesg | sed 's/uuid:[0-9a-f-]*//g' | grep -iE 'nvmet.*(digest|error|unexpected|bad|failed)' | sed 's/^/complains: /' || true
echo "guest: end"
SCRIPT
"$here/guest/boot.sh" -t 480 -e "NQN=$nqn" "$work/script" \
    -netdev "user,id=n0,net=10.0.2.0/24,hostfwd=tcp:127.0.0.1:$port-10.0.2.15:4420,hostfwd=tcp:127.0.0.1:$control-10.0.2.15:4421" \
    -device virtio-net-pci,netdev=n0 -object "filter-dump,id=f0,netdev=n0,file=$work/capture" \
    -netdev "dgram,id=n1,local.type=unix,local.path=$work/guest,remote.type=unix,remote.path=$work/port" \
    -device virtio-net-pci,netdev=n1 -object "filter-dump,id=f1,netdev=n1,file=$work/capture1" >"$work/output" & boot=$!
for _ in {1..900}; do
    if grep -q '^guest: serves' "$work/output"; then break; fi
    kill -0 "$boot" 2>/dev/null || { cat "$work/output"; status=0; wait "$boot" || status=$?; boot=; exit "$((status ? status : 1))"; }
    sleep 0.2
done
grep -q '^guest: serves' "$work/output" || { cat "$work/output"; echo "NOT SO: the guest serves"; exit 1; }

tell() { # word; the guest may not be listening yet, or again, and may hear it twice
    local heard
    heard=$(grep -c "^guest: $1" "$work/output" || true)
    for _ in {1..40}; do
        (echo "$1" >"/dev/tcp/127.0.0.1/$control") 2>/dev/null || true
        for _ in {1..10}; do
            if [ "$(grep -c "^guest: $1" "$work/output")" -gt "$heard" ]; then return 0; fi
            sleep 0.1
        done
        kill -0 "$boot" 2>/dev/null || fail "the guest lives"
    done
    fail "the guest did as it was told: $1"
}
run() { timeout 120 "$host" --connect "127.0.0.1:$port" "$@"; }
emulated() { # options; what the emulated host counted is in $work/counters then
    timeout 120 "$host" --connect 10.77.0.2:4420 --dgram "$work/port" "$work/guest" --nqn "$nqn" "$@" 2>"$work/counters" ||
        { cat "$work/counters"; fail "from an emulated host: $*"; }
}
moved() { # counters of that
    local counter
    for counter in "$@"; do
        awk -v name="$counter" '$1 == name { value = $2 } END { exit !(value > 0) }' "$work/counters" ||
            { cat "$work/counters"; fail "$counter moved"; }
    done
}
fail() { echo "NOT SO: $*"; tail -20 "$work/output"; exit 1; }

echo "== discovery, identification, single blocks"
run discover >"$work/found"
grep -q "^$nqn " "$work/found" || fail "discovery finds the subsystem: $(cat "$work/found")"
run --nqn "$nqn" id | tee "$work/id"
grep -q 'Linux' "$work/id" || fail "a Linux target"
head -c 300000 /dev/urandom >"$work/data"
run --nqn "$nqn" --ddgst write --first 10 <"$work/data"
run --nqn "$nqn" --hdgst read --first 10 --blocks 586 | head -c 300000 | cmp - "$work/data" || fail "what was written is read"
for digests in "" "--hdgst" "--ddgst" "--hdgst --ddgst"; do
    echo "== verify, digests: ${digests:-none}"
    # shellcheck disable=SC2086
    run --nqn "$nqn" $digests verify --size 12MiB --span 8MiB --command 512KiB
done
for offload in none place place-check; do
    echo "== verify from an emulated host, its NIC: $offload; 0.2 % of the packets are lost, 0.2 % reordered"
    emulated --hdgst --ddgst --offload "$offload" --loss 0.002 --reorder 0.002 verify --size 12MiB --span 8MiB --command 512KiB
    case $offload in
    none) moved wire_lost ;;
    place) moved wire_lost rx_nvmeotcp_bytes ;;
    place-check) moved wire_lost rx_nvmeotcp_bytes rx_nvmeotcp_checked tx_nvmeotcp_digests ;;
    esac
done
# If a connection breaks while QEMU's user network has its buffers full, QEMU ends (an assertion in libslirp). So the
# run over the kernel's TCP has one outstanding command less per queue; the emulated host does not use that network.
for over in kernel emulated; do
    echo "== the target goes away in mid-write and comes back; over TCP of the $over host"
    workload=(--hdgst --ddgst verify --span 16MiB)
    case $over in
    kernel) run --nqn "$nqn" --depth 1 "${workload[@]}" --command 64KiB --size 48MiB >"$work/through" & verify=$! ;;
    emulated) emulated --offload place-check "${workload[@]}" --size 64MiB >"$work/through" & verify=$! ;;
    esac
    sleep 1.5
    tell away
    sleep 1
    tell back
    wait "$verify" || { cat "$work/through"; fail "verify, through a loss"; }
    cat "$work/through"
    ! grep -q ' 1 connections' "$work/through" || fail "the connection was lost and made again"
done
tell end
status=0; wait "$boot" || status=$?; boot=
[ "$status" = 0 ] || { cat "$work/output"; exit "$status"; }
! grep '^complains' "$work/output" || fail "the kernel had nothing to complain about"

opinion() { # capture, the least that must be in it
    tshark -r "$1" -d tcp.port==4420,nvme-tcp -o tcp.reassemble_out_of_order:TRUE -o nvme-tcp.check_hdgst:TRUE -o nvme-tcp.check_ddgst:TRUE \
        -T fields -e nvme-tcp.type -e nvme-tcp.hdgst.status -e nvme-tcp.ddgst.status -e _ws.malformed \
        -Y nvme-tcp >"$work/pdus" 2>/dev/null
    # A status of 1 is success.
    awk -F '\t' -v least="$2" '
        { pdus += split($1, all, ","); header += split($2, all, ","); data += split($3, all, ",")
          if (($2 $3) ~ /[^1,]/) bad++; if ($4 != "") malformed++ }
        END { printf "%d PDUs, %d header digests, %d data digests, %d bad, %d malformed\n", pdus, header, data, bad, malformed
              exit !(pdus > 10 * least && header > least && data > least && bad + malformed == 0) }' "$work/pdus" || fail "tshark agrees"
}
if command -v tshark >/dev/null; then
    echo "== tshark"
    opinion "$work/capture" 100
    opinion "$work/capture1" 50
else
    echo "SKIPPED: tshark's opinion: it is missing"
fi
echo "done"

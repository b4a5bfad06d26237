#!/usr/bin/env bash
# Boots the guest that build.sh makes in QEMU, runs a bash script in it as root, and switches it off. What the script
# prints comes out here; its exit status is this one's. 124: time was up; 125: the guest died; 77: no guest here.
#   tests/linux/guest/boot.sh [-t SECONDS] [-m MIB] [-f FILE]... [-e NAME=VALUE]... SCRIPT [QEMU-ARGUMENT...]
#     -t  time that it may take, 180 s by default       -f  a file that the script finds in its folder, /guest
#     -m  the guest's memory, 1024 MiB by default       -e  a variable of the script's environment
# The guest has no network card but those among the QEMU-ARGUMENTs, such as
#   -netdev dgram,id=n0,local.type=unix,local.path=GUEST.sock,remote.type=unix,remote.path=PORT.sock
#   -device virtio-net-pci,netdev=n0
# and sets none of them up: that is the script's part. GUEST names the folder that build.sh filled (target/guest).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
guest=${GUEST:-$here/../../../target/guest} seconds=180 memory=1024 files=() variables=()
while getopts t:m:f:e: option; do
    case $option in
    t) seconds=$OPTARG ;;
    m) memory=$OPTARG ;;
    f) files+=("$OPTARG") ;;
    e) variables+=("$OPTARG") ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
script=${1:?"boot.sh: which script?"}
shift

skip() { echo "SKIPPED: ${0##*/}: $1"; exit 77; }
command -v qemu-system-x86_64 >/dev/null || skip "qemu-system-x86_64 is missing"
[ -e "$guest/vmlinuz" ] || skip "there is no guest in $guest; build.sh makes one"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A second archive behind the first: the kernel unpacks one after the other.
mkdir -p "$work/more/guest"
cp "$script" "$work/more/guest/script"
: >"$work/more/guest/environment"
for file in "${files[@]}"; do cp "$file" "$work/more/guest/"; done
for variable in "${variables[@]}"; do
    printf '%s=%q\n' "${variable%%=*}" "${variable#*=}" >>"$work/more/guest/environment"
done
(cd "$work/more" && find guest | cpio -o -H newc -R 0:0 --quiet) | cat "$guest/initramfs" - >"$work/initramfs"

boot() {
    # Without the right to /dev/kvm, and where KVM runs no stock kernel, its instructions are interpreted.
    # no_timer_check: whether the timer ticks, the kernel asks too early where the machine is busy.
    timeout -k 5 "$seconds" qemu-system-x86_64 \
        -accel tcg,thread=multi -machine q35 -cpu max -smp 2 -m "$memory" -no-user-config -nodefaults -no-reboot \
        -display none -serial stdio -serial "file:$work/status" -device virtio-rng-pci \
        -kernel "$guest/vmlinuz" -initrd "$work/initramfs" -append "console=ttyS0 quiet no_timer_check panic=-1 oops=panic" \
        "$@" </dev/null | sed -u 's/\r$//' | tee "$work/said"
    return "${PIPESTATUS[0]}"
}

# A kernel that changes its own code on one processor while another one runs it may die of it before its first process: this
# interpreter at times shows one the other's half. That says nothing of what is to be tried.
for attempt in first second third; do
    status=0
    : >"$work/status"
    boot "$@" || status=$?
    [ "$status" = 0 ] || exit "$status"
    status=$(sed -n 's/\r$//; s/^status //p' "$work/status")
    [ -z "$status" ] || exit "$status"
    grep -q '^guest: Linux' "$work/said" && break
    echo "boot.sh: the guest died before its first process, the $attempt time"
done
echo "boot.sh: the guest died"
exit 125

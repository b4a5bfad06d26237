#!/usr/bin/env bash
# Boots the guest made by build.sh in QEMU, runs a bash script in it as root, and switches it off. The script's output
# is printed here, and its exit status is this script's. 124: the time limit was reached; 125: the guest died; 77: there
# is no guest.
#   tests/linux/guest/boot.sh [-t SECONDS] [-m MIB] [-f FILE]... [-e NAME=VALUE]... SCRIPT [QEMU-ARGUMENT...]
#     -t  time that it may take, 180 s by default       -f  a file that the script finds in its folder, /guest
#     -m  the guest's memory, 1024 MiB by default       -e  a variable of the script's environment
# The guest has no network card but those among the QEMU-ARGUMENTs, such as
#   -netdev dgram,id=n0,local.type=unix,local.path=GUEST.sock,remote.type=unix,remote.path=PORT.sock
#   -device virtio-net-pci,netdev=n0
# and sets up no card: that is the script's part. GUEST is the folder filled by build.sh (target/guest).
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
    # Without access to /dev/kvm, or if KVM cannot run a stock kernel, QEMU interprets the guest's instructions.
    # no_timer_check: on a busy machine, the kernel checks the timer before it ticks.
    timeout -k 5 "$seconds" qemu-system-x86_64 \
        -accel tcg,thread=multi -machine q35 -cpu max -smp 2 -m "$memory" -no-user-config -nodefaults -no-reboot \
        -display none -serial stdio -serial "file:$work/status" -device virtio-rng-pci \
        -kernel "$guest/vmlinuz" -initrd "$work/initramfs" -append "console=ttyS0 quiet no_timer_check panic=-1 oops=panic" \
        "$@" </dev/null | sed -u 's/\r$//' | tee "$work/said"
    return "${PIPESTATUS[0]}"
}

# A kernel that changes its own code on one processor while another runs that code may crash before its first process,
# because QEMU's interpreter sometimes shows a half-written instruction. That crash says nothing about the tested
# programs.
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

#!/usr/bin/env bash
# Makes a whole Debian root with more userland than the guest's initramfs, by debootstrap, in two forms: a folder for
# chroot, for example in a network namespace, and an ext4 image for the guest's virtio-blk.
#   tests/linux/guest/root.sh NAME [PACKAGE...]      target/roots/NAME and target/roots/NAME.ext4; done at once if up to date
# As a guest's disk: boot.sh SCRIPT -drive file=target/roots/NAME.ext4,if=none,id=root,format=raw -device virtio-blk-pci,drive=root,
# where SCRIPT begins with `mount /dev/vda /mnt` and continues with `chroot /mnt`. Further kernel modules are requested
# from build.sh by name: MODULES="cifs nf_tables" build.sh.
# Environment: SUITE (trixie), MIRROR (Debian's own).
# Exit status 77, with the reason: the root cannot be made here.
set -euo pipefail
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
here=$(cd "$(dirname "$0")" && pwd)
name=${1:?"root.sh: which name?"} suite=${SUITE:-trixie} mirror=${MIRROR:-http://deb.debian.org/debian}
shift
roots=$(realpath -m "$here/../../../target/roots")
root=$roots/$name packages=$*

skip() { echo "SKIPPED: ${0##*/}: $1"; exit 77; }
stamp=$(sha256sum <"$0")" $suite $packages"
if [ "$(cat "$root.stamp" 2>/dev/null)" = "$stamp" ]; then exit 0; fi
[ "$(id -u)" = 0 ] || skip "not root"
for tool in debootstrap chroot mke2fs; do command -v "$tool" >/dev/null || skip "$tool is missing"; done
mkdir -p "$roots"
log=$root.log
unmount() { ! mountpoint -q "$root/proc" || umount "$root/proc"; }
trap unmount EXIT
unmount
rm -rf "$root" "$root.ext4" "$root.stamp"

# In steps, because an unreachable archive is no fault, but a package that fails to install is.
debootstrap --variant=minbase "$suite" "$root" "$mirror" >"$log" 2>&1 ||
    { tail -3 "$log"; rm -rf "$root"; skip "no Debian archive can be reached, or it has no $suite"; }
cp /etc/resolv.conf "$root/etc/resolv.conf"
# Installed services are not started, because the root is no running machine.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
mount -t proc proc "$root/proc"
if [ -n "$packages" ]; then
    for step in "-o Acquire::Retries=3 --download-only" --no-download; do
        # shellcheck disable=SC2016,SC2086
        chroot "$root" sh -c '[ "$1" = --no-download ] || apt-get -qq update; apt-get -qq -y --no-install-recommends "$@"' sh $step install $packages >>"$log" 2>&1 && continue
        tail -20 "$log"
        [ "$step" = --no-download ] || skip "packages cannot be fetched"
        exit 1
    done
fi
chroot "$root" apt-get clean
unmount
rm -rf "$root"/var/lib/apt/lists/*
# Twice its size, because files are made in it.
mke2fs -q -t ext4 -d "$root" -L root "$root.ext4" "$(($(du -sm "$root" | cut -f1) * 2))M"
echo "$stamp" >"$root.stamp"
echo "a root of $suite with ${packages:-nothing more}: $(du -sm "$root" | cut -f1) MiB in $root and in $root.ext4"

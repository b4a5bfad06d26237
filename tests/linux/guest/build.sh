#!/usr/bin/env bash
# Builds a Linux guest for boot.sh from Debian packages only: a stock Debian kernel, and an initramfs with the tools
# that are peers here (curl, openssl, iperf3, nvme-cli, fio, ip, tlshd, tcpdump, python3 ...) and the modules that they
# need. Needs no root; this machine's packages stay unchanged, because apt works in a folder of its own.
#   tests/linux/guest/build.sh [FOLDER]     target/guest by default; done at once if that is up to date
# Environment: SUITE (trixie), MIRROR and SECURITY_MIRROR (Debian's own), PACKAGES (further packages), FILES (what to
# take from those, as paths without the first slash; libraries follow by themselves), MODULES (further kernel modules, by name;
# those that they need follow).
# Exit status 77, with the reason: the guest cannot be built here.
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
out=$(realpath -m "${1:-$here/../../../target/guest}")
suite=${SUITE:-trixie} mirror=${MIRROR:-http://deb.debian.org/debian}
security=${SECURITY_MIRROR:-http://deb.debian.org/debian-security}
keys=/usr/share/keyrings/debian-archive-keyring.gpg

kernel=linux-image-cloud-amd64 # Debian's smaller one: drivers for virtual machines only
packages="bash busybox-static kmod iproute2 ethtool tcpdump socat curl openssl iperf3 python3-minimal
  nvme-cli fio ktls-utils keyutils dmsetup e2fsprogs ${PACKAGES:-}"
files="usr/bin/bash usr/bin/kmod usr/bin/ip usr/sbin/ip usr/bin/ss usr/sbin/tc usr/sbin/ethtool usr/bin/tcpdump
  usr/bin/socat usr/bin/curl usr/bin/openssl usr/lib/x86_64-linux-gnu/ossl-modules usr/bin/iperf3 usr/bin/python3*
  usr/lib/python3.* usr/sbin/nvme usr/bin/fio usr/sbin/tlshd usr/bin/keyctl usr/sbin/dmsetup
  usr/sbin/mke2fs usr/sbin/e2fsck etc/protocols etc/services ${FILES:-}"
modules='/(crypto|nvme|tls|xfrm|ipv4|ipv6|sched|handshake|key|configfs|packet|vxlan|ext4|jbd2)/|/(dm-mod|dm-log-writes|dm-crypt|virtio_(net|blk|rng|console)|net_failover|failover|brd|null_blk|scsi_debug|sd_mod|veth|dummy|vxlan|geneve|af_key)\.ko'
for module in ${MODULES:-}; do modules+="|/${module//[-_]/[-_]}\\.ko"; done

skip() { echo "SKIPPED: ${0##*/}: $1"; exit 77; }
stamp=$(cat "$here/build.sh" "$here/init" | sha256sum)" $suite ${PACKAGES:-} ${FILES:-} ${MODULES:-}"
if [ "$(cat "$out/stamp" 2>/dev/null)" = "$stamp" ]; then exit 0; fi
for tool in apt-get dpkg-deb cpio depmod xz; do command -v "$tool" >/dev/null || skip "$tool is missing"; done
[ -e "$keys" ] || skip "the keys of Debian's archive are missing"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Fetches Debian's packages by an apt that is independent of this machine's.
mkdir -p "$work"/apt/{lists/partial,archives/partial} "$work/debs" "$out"
: >"$work/apt/status"
printf 'deb [signed-by=%s] %s main\n' "$keys" "$mirror $suite" "$keys" "$security $suite-security" >"$work/apt/sources.list"
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
Acquire::Retries "3";
CONF
export APT_CONFIG=$work/apt/conf
apt-get -qq update >"$work/log" 2>&1 || { cat "$work/log"; skip "no Debian archive can be reached"; }
# shellcheck disable=SC2086
apt-get -qq -y --download-only install $packages >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
image=$(apt-cache show "$kernel" | sed -n 's/^Depends:.*\(linux-image-[0-9][^ ,]*\).*/\1/p' | sed 1q)
(cd "$work/debs" && apt-get -qq download "$image" >"$work/log" 2>&1) || { cat "$work/log"; exit 1; }

# Unpacks everything as it would be installed.
stage=$work/stage
mkdir -p "$stage"/usr/{bin,sbin,lib,lib64}
for folder in bin sbin lib lib64; do ln -s "usr/$folder" "$stage/$folder"; done
for deb in "$work"/apt/archives/*.deb "$work"/debs/*.deb; do
    dpkg-deb --fsys-tarfile "$deb" |
        tar -x -C "$stage" --keep-directory-symlink --no-same-owner --exclude='./usr/share/*' --exclude='./dev/*'
done
version=$(basename "$stage"/usr/lib/modules/*)

# The requested files, and the libraries that they load.
root=$work/root
mkdir -p "$root"/usr/{bin,sbin,lib,lib64} "$root"/{proc,sys,dev,run,tmp,etc,root,var,guest}
for folder in bin sbin lib lib64; do ln -s "usr/$folder" "$root/$folder"; done
ln -s ../run "$root/var/run"
cd "$stage"
loader=$(realpath --relative-to=. lib64/ld-linux-x86-64.so.2)
take() { # a path in the stage; what a link leads to comes along
    mkdir -p "$root/$(dirname "$1")"
    cp -a "$1" "$root/$1"
    if [ -L "$1" ]; then
        local target
        target=$(readlink "$1")
        case $target in /*) target=${target#/} ;; *) target=$(realpath -m -s --relative-to=. "$(dirname "$1")/$target") ;; esac
        [ ! -e "$target" ] || [ -e "$root/$target" ] || take "$target"
    fi
}
# shellcheck disable=SC2086
for file in $files; do
    if [ -e "$file" ] || [ -L "$file" ]; then take "$file"; else echo "note: no package has $file"; fi
done
find "$root" -name __pycache__ -prune -exec rm -r {} +
# Some programs look for libraries in folders of their own, by paths that are valid only in the guest.
folders=$(find usr/lib -name '*.so*' -printf '%h\n' | sort -u | tr '\n' ':')
find "$root/usr" -type f \( -perm -u+x -o -name '*.so*' \) | while read -r file; do
    "./$loader" --inhibit-cache --library-path "$folders" --list "$file" 2>/dev/null || true
done | sed -n 's/.*=> \(usr[^ ]*\) .*/\1/p' | sort -u | while read -r library; do
    [ -e "$root/$library" ] || take "$library"
done
cp usr/bin/busybox "$root/usr/bin/"
mkdir -p "$root/$(dirname "$loader")"
cp "$loader" "$root/$loader"
ln -sf "../../$loader" "$root/usr/lib64/ld-linux-x86-64.so.2"
for tool in modprobe insmod rmmod lsmod depmod; do ln -sf ../bin/kmod "$root/usr/sbin/$tool"; done
install -m 755 "$here/init" "$root/init"
echo "root:x:0:0:root:/root:/bin/bash" >"$root/etc/passwd"
echo "root:x:0:" >"$root/etc/group"
echo "127.0.0.1 localhost" >"$root/etc/hosts"
echo "hosts: files" >"$root/etc/nsswitch.conf"
mkdir -p "$root"/etc/{nvme,ssl}
echo 6f6f6e69-6320-4f66-a66c-6f6164677565 >"$root/etc/nvme/hostid"
echo "nqn.2014-08.org.nvmexpress:uuid:$(cat "$root/etc/nvme/hostid")" >"$root/etc/nvme/hostnqn"
printf '[req]\ndistinguished_name = name\n[name]\n' >"$root/etc/ssl/openssl.cnf"
mkdir -p "$root/usr/lib/ssl"
ln -s /etc/ssl/openssl.cnf "$root/usr/lib/ssl/openssl.cnf"

# The kernel and its modules, unpacked here because the guest is slow at that.
depmod -b "$stage" "$version"
cd "usr/lib/modules/$version"
awk -F '[: ]+' -v wanted="$modules" '$1 ~ wanted { for (i = 1; i <= NF; i++) if ($i) print $i }' modules.dep |
    sort -u | while read -r module; do
    target=$root/usr/lib/modules/$version/${module%.xz}
    mkdir -p "$(dirname "$target")"
    case $module in *.xz) xz -dc "$module" >"$target" ;; *) cp "$module" "$target" ;; esac
done
cp modules.order modules.builtin modules.builtin.modinfo "$root/usr/lib/modules/$version/"
depmod -b "$root" "$version"
cp "$stage/boot/vmlinuz-$version" "$out/vmlinuz"
(cd "$root" && find . -print0 | sort -z | cpio -0 -o -H newc -R 0:0 --quiet) >"$out/initramfs"
for deb in "$work"/apt/archives/*.deb "$work"/debs/*.deb; do
    dpkg-deb -W --showformat '${Package} ${Version}\n' "$deb"
done | sort >"$out/packages"
echo "$stamp" >"$out/stamp"
echo "a guest with Linux $version: $(du -m "$out/initramfs" | cut -f1) MiB in $out"

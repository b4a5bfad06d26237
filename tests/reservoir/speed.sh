#!/usr/bin/env bash
# Measures one large file from memory to memory (tmpfs) over loopback, encrypted: the reservoir up and down over
# HTTP/1.1 and HTTP/3 with hashes at both ends, beside scp with aes128-gcm and rclone over HTTPS. With DISK, a folder on
# a disk, from and to that disk, through its cache and past it, beside the reads and writes of fio. Medians of rounds
# that take turns, so that other load of the machine affects all alike. Programs that are not installed are skipped.
# usage: [DISK=FOLDER] tests/reservoir/speed.sh PATH-OF-reservoir [MIB] [ROUNDS]
set -euo pipefail
reservoir="$1" mib="${2:-1024}" rounds="${3:-5}"
memory=/dev/shm
[ -d "$memory" ] || echo "note: no $memory, it is the disk that is measured"
TMPDIR="${DISK-$memory}"
[ -d "$TMPDIR" ] && export TMPDIR || unset TMPDIR
. "$(dirname "$0")/common.sh"
head -c "${mib}M" /dev/urandom >"$work/from/large"
served=--http3
start
ln "$work/from/large" "$work/root/large"
up() { copy "$@" "$work/from/large" "$(url up)"; rm "$work/root/up"; }
down() { copy "$@" "$(url large)" "$work/down"; rm "$work/down"; }
names=("reservoir, up" "reservoir, down" "HTTP/3, up" "HTTP/3, down")
commands=(up down "up --http3" "down --http3")
if [ -n "${DISK-}" ]; then
    cached=$server cached_port=$port
    port="" served="--http3 --direct"
    start
    direct_port=$port port=$cached_port other="$other $cached"
    directly() { port=$direct_port "$@" --direct; }
    names+=("reservoir, up, --direct" "reservoir, down, --direct")
    commands+=("directly up" "directly down")
    if command -v fio >/dev/null; then
        # As many at a time as the reservoir has streams.
        by_fio() {
            fio --name=disk --filename="$work/by-fio" --size="$((mib / 8))M" --offset_increment="$((mib / 8))M" --numjobs=8 --thread --bs=512k --ioengine=psync "$@"
        }
        by_fio --rw=write --direct=1 >/dev/null
        names+=("fio, writes, direct" "fio, writes, by the cache" "fio, reads, direct")
        commands+=("by_fio --rw=write --direct=1 --end_fsync=1" "by_fio --rw=write --direct=0 --end_fsync=1" "by_fio --rw=read --direct=1")
    else
        echo "SKIPPED: fio is not here"
    fi
fi
# Drops the cache, so that reads come from the disk.
forget() { [ -z "${DISK-}" ] || python3 -c 'import os, sys; f = os.open(sys.argv[1], os.O_RDONLY); os.fsync(f); os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)' "$work/from/large"; }
if [ -x /usr/sbin/sshd ] && command -v scp >/dev/null; then
    ssh-keygen -q -t ed25519 -N '' -f "$work/host"; ssh-keygen -q -t ed25519 -N '' -f "$work/user"
    mkdir -p /run/sshd
    /usr/sbin/sshd -D -f /dev/null -o "Subsystem=sftp internal-sftp" -o ListenAddress=127.0.0.1 -p 22022 -h "$work/host" -o "AuthorizedKeysFile=$work/user.pub" -o StrictModes=no -o UsePAM=no -o PermitRootLogin=yes >/dev/null 2>&1 & other="$other $!"
    sleep 1
    by_scp() { scp -q -P 22022 -i "$work/user" -o StrictHostKeyChecking=no -o "UserKnownHostsFile=$work/known" -o Ciphers=aes128-gcm@openssh.com "$work/from/large" "root@127.0.0.1:$work/by-scp"; rm "$work/by-scp"; }
    names+=("scp, aes128-gcm") commands+=(by_scp)
else
    echo "SKIPPED: sshd or scp is not here"
fi
if command -v rclone >/dev/null; then
    mkdir "$work/by-rclone"
    rclone serve webdav --dir-cache-time 0s --addr 127.0.0.1:18446 --cert "$work/cert.pem" --key "$work/key.pem" "$work/by-rclone" >/dev/null 2>&1 & other="$other $!"
    for _ in $(seq 100); do (: <>/dev/tcp/127.0.0.1/18446) 2>/dev/null && break; sleep 0.05; done
    by_rclone() { rclone copy --ca-cert "$work/cert.pem" --webdav-url https://localhost:18446 "$work/from/large" :webdav:; rm "$work/by-rclone/large"; }
    names+=("rclone, HTTPS (WebDAV)") commands+=(by_rclone)
else
    echo "SKIPPED: rclone is not here"
fi
for _ in $(seq "$rounds"); do
    for at in "${!commands[@]}"; do
        forget
        began="$(date +%s%N)"
        ${commands[$at]} >/dev/null 2>"$work/said" || { cat "$work/said"; echo "${names[$at]} failed"; exit 1; }
        echo "$(($(date +%s%N) - began))" >>"$work/took-$at"
    done
done
echo "$mib MiB, medians of $rounds:"
for at in "${!commands[@]}"; do
    sort -n "$work/took-$at" | awk -v name="${names[$at]}" -v mib="$mib" '{ all[NR] = $1 } END {
        printf "%-28s %6.2f Gb/s (%.2f to %.2f)\n", name, mib * 8.388608e6 / all[int((NR + 1) / 2)], mib * 8.388608e6 / all[NR], mib * 8.388608e6 / all[1] }'
done

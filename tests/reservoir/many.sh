#!/usr/bin/env bash
# Tests trees of many small files, up and down, in packs, with odd names and with entries that cannot be copied; files
# that arrived before a kill are not sent again. Prints the files per second, beside tar and rsync over ssh if
# installed, and rclone for 10000 files or more.
# usage: tests/reservoir/many.sh PATH-OF-reservoir [FILES]
set -euo pipefail
reservoir="$1" files="${2:-20000}"
. "$(dirname "$0")/common.sh"
tree="$work/from/tree"
mkdir -p "$tree"
python3 - "$tree" "$files" <<'PY'
import os, sys
tree, files = sys.argv[1].encode(), int(sys.argv[2])
block = os.urandom(1 << 20)
for number in range(files):
    folder = tree + b"/%03d" % (number // 1000)
    os.makedirs(folder, exist_ok=True)
    with open(folder + b"/%06d" % number, "wb") as file:
        at = number * 997 % (len(block) - 4096)
        file.write(block[at : at + 4096])
for odd in [b"-", b"...", b" ", b"a\nb", b"\xff\xfe", b"100%", b"a\\b", b"?#&=", b"'\"", "ü".encode(), b"x" * 255]:
    with open(tree + b"/" + odd, "wb") as file:
        file.write(odd)
PY
seconds() { awk -v n="$1" 'BEGIN { printf "%.2f s", n / 1e9 }'; }
timed() { # what, command
    local what="$1" began; shift
    began="$(date +%s%N)"
    "$@" >"$work/out" 2>&1 || { cat "$work/out"; echo "$what failed"; exit 1; }
    took=$(($(date +%s%N) - began))
    echo "$what: $(seconds "$took"), $(awk -v n="$took" -v f="$files" 'BEGIN { printf "%.0f", f / (n / 1e9) }') files/s"
}
start
timed "up, in packs" copy --json "$work/from/tree" "$(url '')"
diff -r "$tree" "$work/root/tree"
[ -z "$(find "$work/root" -name '.reservoir-*')" ] || { echo "hidden files are left"; exit 1; }
timed "down, in packs" copy --json "$(url tree/)" "$work/back"
diff -r "$tree" "$work/back"
timed "up again, nothing to do" copy --json --sync size-time "$work/from/tree" "$(url '')"
grep -q '"copied":0' "$work/out" || { cat "$work/out"; exit 1; }
# One file is changed without a change of size and time: only its hash shows that.
odd="$tree/000/000007"
cp -p "$odd" "$work/before"
printf 'another' | dd of="$odd" conv=notrunc status=none
touch -r "$work/before" "$odd"
copy --json --sync size-time "$odd" "$(url tree/000/)" | grep -q '"present":1'
copy --json --sync hash "$odd" "$(url tree/000/)" | grep -q '"copied":1'
copy --json --sync hash "$odd" "$(url tree/000/)" | grep -q '"present":1'
copy --json --sync hash "$(url tree/000/000007)" "$work/back/000/" | grep -q '"copied":1'
diff -r "$tree" "$work/root/tree"
# Entries that cannot be copied are reported, and the rest arrives.
rm -rf "$work/root/tree"
mkdir -p "$work/root/tree/000/000005"
status=0; copy --json "$tree" "$(url '')" >"$work/out" || status=$?
[ "$status" = 3 ] && grep -q '000005' "$work/out" || { cat "$work/out"; echo "status $status"; exit 1; }
[ "$(find "$work/root/tree" -type f -printf x | wc -c)" = $((files + 11 - 1)) ]
# Killed and resumed.
rm -rf "$work/root/tree"
"$reservoir" copy --cacert "$work/cert.pem" --rate 20M "$tree" "$(url '')" >/dev/null 2>&1 & other=$!
# When some files have arrived, and long before all have.
until [ "$(find "$work/root/tree" -type f ! -name '.*' 2>/dev/null | head -100 | wc -l)" = 100 ]; do
    kill -0 "$other" || { echo "the copy ended before it was killed"; exit 1; }
    sleep 0.05
done
kill -9 "$other"; wait "$other" 2>/dev/null || true; other=""
copy --json --resume "$tree" "$(url '')" >"$work/out"
diff -r "$tree" "$work/root/tree"
echo "  after a kill: $(sed -E 's/.*"copied":([0-9]*).*"present":([0-9]*).*/\1 files sent, \2 were there/' "$work/out")"
[ -z "$(find "$work/root" -name '.reservoir-*' | head -1)" ] || echo "  hidden files of the kill: $(find "$work/root" -name '.reservoir-*' | wc -l)"

if [ -x /usr/sbin/sshd ] && command -v ssh >/dev/null; then
    ssh-keygen -q -t ed25519 -N '' -f "$work/host"; ssh-keygen -q -t ed25519 -N '' -f "$work/user"
    mkdir -p /run/sshd "$work/there"
    /usr/sbin/sshd -D -f /dev/null -o ListenAddress=127.0.0.1 -p 22022 -h "$work/host" -o "AuthorizedKeysFile=$work/user.pub" -o StrictModes=no -o UsePAM=no -o PermitRootLogin=yes >/dev/null 2>&1 & other=$!
    sleep 1
    ssh="ssh -q -p 22022 -i $work/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=$work/known -o Ciphers=aes128-gcm@openssh.com"
    over_ssh() { tar -C "$work/from" -c tree | $ssh root@127.0.0.1 "tar -C '$work/there' -x"; }
    timed "tar over ssh" over_ssh
    rm -rf "$work/there/tree"
    if command -v rsync >/dev/null; then timed "rsync over ssh" rsync -a -e "$ssh" "$tree" "root@127.0.0.1:$work/there/"; else echo "SKIPPED: rsync is not here"; fi
    kill "$other"; wait "$other" 2>/dev/null || true; other=""
else
    echo "SKIPPED: sshd or ssh is not here"
fi
if [ "$files" -lt 10000 ]; then :
elif command -v rclone >/dev/null; then
    mkdir "$work/by-rclone"
    rclone serve webdav --addr 127.0.0.1:18446 --cert "$work/cert.pem" --key "$work/key.pem" "$work/by-rclone" >/dev/null 2>&1 & other=$!
    for _ in $(seq 100); do (: <>/dev/tcp/127.0.0.1/18446) 2>/dev/null && break; sleep 0.05; done
    timed "rclone over HTTPS (WebDAV, 8 transfers)" rclone copy --transfers 8 --ca-cert "$work/cert.pem" --webdav-url https://localhost:18446 "$tree" :webdav:tree
    kill "$other"; wait "$other" 2>/dev/null || true; other=""
else
    echo "SKIPPED: rclone is not here"
fi
echo "all as it should be"

#!/usr/bin/env bash
# Tests compressed files with other programs: gzip, zlib (by python3) and lz4 read our files, and we read theirs; either
# reports a flipped bit. Needs no root.
#   tests/linux/transform_peers.sh
# Environment: TRANSFORM, the program (target/release/transform by default).
set -euo pipefail
transform=${TRANSFORM:-target/release/transform}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "NOT SO: $*"; exit 1; }

# Text, data that is compressed already, and an empty file.
cat Cargo.lock docs/*.md >"$work/text"
head -c 3000000 /dev/urandom >"$work/noise"
: >"$work/empty"

# The format's name, the program that reads our FROM into TO, and the one that writes FROM into TO.
both_ways() {
    local name=$1 reads=$2 writes=$3 file
    for file in text noise empty; do
        "$transform" "$work/$file" "$work/ours" --transform "$name" || fail "$name: $file is compressed"
        $reads "$work/ours" "$work/back" || fail "$name: its own program reads our $file"
        cmp "$work/$file" "$work/back" || fail "$name: what it reads of our $file is the file"
        $writes "$work/$file" "$work/theirs"
        "$transform" "$work/theirs" "$work/back" --transform "$name" --undo || fail "$name: we read its $file"
        cmp "$work/$file" "$work/back" || fail "$name: what we read of its $file is the file"
    done
    # One bit in the middle of their file.
    $writes "$work/text" "$work/theirs"
    local at=$(($(stat -c %s "$work/theirs") / 2)) byte
    byte=$(od -An -tu1 -j "$at" -N 1 "$work/theirs")
    printf "\\x$(printf %x $((byte ^ 4)))" | dd of="$work/theirs" bs=1 seek="$at" conv=notrunc status=none
    ! "$transform" "$work/theirs" "$work/back" --transform "$name" --undo 2>/dev/null || fail "$name: damage is found"
    echo "$name: both ways"
}
gunzips() { gzip -dc <"$1" >"$2"; }
gzips() { gzip -c <"$1" >"$2"; }
unlz4s() { lz4 -dcq <"$1" >"$2"; }
lz4s() { lz4 -cq <"$1" >"$2"; }
inflates() { python3 -c 'import sys, zlib; sys.stdout.buffer.write(zlib.decompress(open(sys.argv[1], "rb").read()))' "$1" >"$2"; }
deflates() { python3 -c 'import sys, zlib; sys.stdout.buffer.write(zlib.compress(open(sys.argv[1], "rb").read()))' "$1" >"$2"; }
peer() { # program, name, who reads, who writes
    if command -v "$1" >/dev/null; then both_ways "$2" "$3" "$4"; else echo "SKIPPED: $2: $1 is missing"; fi
}
peer gzip gzip gunzips gzips
peer lz4 lz4 unlz4s lz4s
peer python3 zlib inflates deflates

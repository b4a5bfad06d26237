#!/usr/bin/env bash
# Tests a copy striped over two servers of one folder: an upload, where both write one large file, and a download, where
# streams read it from both.
# usage: tests/reservoir/stripe.sh PATH-OF-reservoir
set -euo pipefail
reservoir="$1"
. "$(dirname "$0")/common.sh"
for number in $(seq 12); do head -c 3000000 /dev/urandom >"$work/from/$number"; done
head -c 60000000 /dev/urandom >"$work/from/large"
served=--log
start
first=$server first_port=$port
mv "$work/log" "$work/first" && port=""
# The first server's log stays open under its new name.
start
other=$first
if copy --stripe "localhost:$first_port" "$work/from/" "$(url tree/)" 2>/dev/null; then echo "one token goes to two servers"; exit 1; fi
both="$port $first_port"
several "$both" --block 1MiB --stripe "localhost:$first_port" "$work/from/" "$(url tree/)"
diff -r "$work/from" "$work/root/tree"
[ -z "$(find "$work/root" -name '.reservoir-*')" ] || { echo "hidden files are left"; exit 1; }
several "$both" --block 1MiB --stripe "localhost:$first_port" "$(url tree/)" "$work/back"
diff -r "$work/from" "$work/back"
for log in first log; do
    for request in "PUT /tree/" "PUT /tree/large" "GET /tree/large"; do
        count="$(grep -c "$request" "$work/$log")"
        echo "$request at the server of $log: $count"
        [ "$count" -ge 5 ] || { echo "one server does all"; exit 1; }
    done
done
if several "$both" --stripe "localhost:$first_port" "$(url tree/1)" "$(url x)" 2>/dev/null; then echo "a copy between servers is striped"; exit 1; fi
echo "all as it should be"

#!/usr/bin/env bash
# Kills copies with SIGKILL at random, at either end, until they are done: no byte may be wrong.
# usage: tests/reservoir/kills.sh PATH-OF-reservoir [KILLS]
set -euo pipefail
reservoir="$1" kills="${2:-10}"
. "$(dirname "$0")/common.sh"
head -c 60000000 /dev/urandom >"$work/from/a"
head -c 5000001 /dev/urandom >"$work/from/b"
start
done_kills=0 round=0 whole=0
while [ "$done_kills" -lt "$kills" ]; do
    round=$((round + 1))
    # Uploads and downloads in turn, slow enough that a kill happens during the work.
    if [ $((round % 2)) = 0 ]; then from="$work/from/" to="$(url "up-$whole/")" there="$work/root/up-$whole"
    else from="$(url down/)" to="$work/down-$whole/" there="$work/down-$whole"; fi
    [ -e "$work/root/down" ] || cp -r "$work/from" "$work/root/down"
    for attempt in $(seq 100); do
        # The function `copy` is not used here, because its shell would be killed instead of the client.
        "$reservoir" copy --cacert "$work/cert.pem" --block 1MiB --streams 4 --rate 2G --resume --json "$from" "$to" >"$work/out" 2>&1 &
        client=$!
        # From 0 to 0.3 seconds.
        sleep "0.$(printf %03d $((RANDOM % 300)))"
        if [ "$attempt" -lt 5 ] && kill -0 "$client" 2>/dev/null; then
            if [ $((RANDOM % 2)) = 0 ]; then
                kill -9 "$client"
            else
                kill -9 "$server"; wait "$server" 2>/dev/null || true
                start
                # The client retries by itself, or is stopped and resumed.
                [ $((RANDOM % 2)) = 0 ] || kill -9 "$client" 2>/dev/null || true
            fi
            done_kills=$((done_kills + 1))
        fi
        if wait "$client" 2>/dev/null; then break; fi
    done
    # A kill between naming a file and the end of its journal leaves the journal.
    diff -r -x '.reservoir-*.journal' "$work/from" "$there" || { cat "$work/out"; exit 1; }
    whole=$((whole + 1))
    # The server may still work for a client that was killed.
    rm -rf "$there" 2>/dev/null || { sleep 1; rm -rf "$there"; }
done
echo "$done_kills kills, $whole copies, no byte wrong"

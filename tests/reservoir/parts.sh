#!/usr/bin/env bash
# Tests a copy in parts: of many files, and of one large file copied by several parts at once; one part is selected by a
# scheduler's variable.
# usage: tests/reservoir/parts.sh PATH-OF-reservoir
set -euo pipefail
reservoir="$1"
. "$(dirname "$0")/common.sh"
head -c 40000000 /dev/urandom >"$work/from/large"
for number in $(seq 20); do head -c $((number * 1000)) /dev/urandom >"$work/from/$number"; done
start
plan="$work/plan.jsonl"
"$reservoir" plan --cacert "$work/cert.pem" --block 1MiB --parts 4 "$work/from/" "$(url parts/)" >"$plan"
[ "$(grep -c /large "$plan")" -ge 4 ] || { echo "the large file is not cut"; exit 1; }
for part in 1 2 3; do copy --plan "$plan" --part "$part" & done
wait -n; wait -n; wait -n
[ ! -e "$work/root/parts/large" ] || { echo "a file shows before all parts are done"; exit 1; }
HQ_TASK_ID=3 copy --plan "$plan" --part auto
diff -r "$work/from" "$work/root/parts"
# A part that runs again does nothing.
copy --json --plan "$plan" --part 2 | grep -q '"bytes":0'
# Downloads, with whole files.
"$reservoir" plan --cacert "$work/cert.pem" --parts 3 "$(url parts/)" "$work/back" >"$plan"
for part in 1 2 3; do copy --plan "$plan" --part "$part"; done
diff -r "$work/from" "$work/back"
echo "parts make the whole"

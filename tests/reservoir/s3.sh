#!/usr/bin/env bash
# Tests `reservoir copy` to and from buckets of S3 servers: moto (PyPI), and versitygw (Go), which stores objects as
# files. Single requests, parts, parts resumed after a kill, folders, ranges, odd names; SHA-256 is equal each time. A
# server that cannot be installed is skipped.
# usage: tests/reservoir/s3.sh PATH-OF-reservoir [SERVERS]        SERVERS: "moto versitygw" by default
set -euo pipefail
ran=0 reservoir="$1" servers=" ${2:-moto versitygw} "
here="$(realpath "$(dirname "$0")")"
. "$here/common.sh"
peers="$(realpath -m "$here/../../target/peers")"
mkdir -p "$peers"
export AWS_ACCESS_KEY_ID=AKIDEXAMPLE AWS_SECRET_ACCESS_KEY=a-secret-of-tests AWS_REGION=us-east-1
head -c 30000000 /dev/urandom >"$work/from/large"
head -c 1000 /dev/urandom >"$work/from/sm all%+&?#"
: >"$work/from/empty"
mkdir "$work/from/folder"
head -c 70000 /dev/urandom >"$work/from/folder/\"quoted\" ü'"

ready() { # port
    for _ in $(seq 200); do (: <>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return 0; sleep 0.05; done
    cat "$work/log"; echo "$2 does not start"; exit 1
}
bucket() { copy --s3-endpoint "https://localhost:18445" "$@"; }
# Amazon's own programs usually create buckets; here a signed request does.
make_bucket() { curl -sS --fail-with-body --cacert "$work/cert.pem" --aws-sigv4 "aws:amz:us-east-1:s3" -u "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY" -H "x-amz-content-sha256: UNSIGNED-PAYLOAD" -X PUT "https://localhost:18445/bucket"; }

came() { # whether a part of what is killed is there
    local id
    signed() { curl -sS --cacert "$work/cert.pem" --aws-sigv4 "aws:amz:us-east-1:s3" -u "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY" -H "x-amz-content-sha256: UNSIGNED-PAYLOAD" "$@"; }
    id=$(signed "https://localhost:18445/bucket?uploads=" | grep -o '<UploadId>[^<]*' | tail -1 | cut -d'>' -f2) && [ -n "$id" ] &&
        signed "https://localhost:18445/bucket/killed?uploadId=$id" | grep -q '<PartNumber>'
}

with() { # name: what a server has to do
    echo "-- $1"
    ran=$((ran + 1))
    ready 18445 "$1"
    make_bucket
    bucket --block 8MiB "$work/from" s3://bucket/
    bucket --block 1MiB s3://bucket/from/ "$work/back-$1"
    diff -r "$work/from" "$work/back-$1"
    bucket --json --sync size s3://bucket/from/ "$work/back-$1" | grep -q '"present":4'
    bucket --json --block 8MiB --resume "$work/from/large" s3://bucket/from/large | grep -q '"present":1'
    # Parts that arrived before a kill are not sent again.
    rm -f "$work/out"
    # Run directly, because a signal to a function's shell would leave its child running.
    "$reservoir" copy --cacert "$work/cert.pem" --s3-endpoint https://localhost:18445 --block 8MiB --streams 1 --rate 30M --resume "$work/from/large" s3://bucket/killed >"$work/out" 2>&1 & other=$!
    # Until the server has a part.
    for _ in $(seq 300); do came && break; sleep 0.1; done
    kill -9 "$other"; wait "$other" 2>/dev/null || true; other=""
    bucket --json --block 8MiB --resume "$work/from/large" s3://bucket/killed >"$work/out" || { cat "$work/out" "$work/log"; exit 1; }
    grep -qE '"resumed":[1-9]' "$work/out" || { cat "$work/out"; echo "what came before a kill is sent again"; exit 1; }
    bucket s3://bucket/killed "$work/killed-$1" && same "$work/from/large" "$work/killed-$1"
    # From a reservoir to a bucket and back, through the client.
    start
    copy "$work/from/large" "$(url large)"
    bucket --block 8MiB "$(url large)" s3://bucket/relayed
    bucket --block 8MiB s3://bucket/relayed "$(url returned)"
    same "$work/from/large" "$work/root/returned"
    kill "$server"; wait "$server" || true
    # Unsupported requests are reported.
    touch "$work/$(printf 'not\377text')"
    if bucket "$work/$(printf 'not\377text')" s3://bucket/ >"$work/out" 2>&1; then echo "a name that is no key is taken"; exit 1; fi
    grep -q "cannot be asked for" "$work/out" || { cat "$work/out"; exit 1; }
    if bucket --block 1MiB "$work/from/large" s3://bucket/x >"$work/out" 2>&1; then echo "parts that are too small are taken"; exit 1; fi
    grep -q "choose another --block" "$work/out"
    if bucket s3://bucket/none "$work/none" >"$work/out" 2>&1; then echo "a key that is not there is copied"; exit 1; fi
    if AWS_SECRET_ACCESS_KEY=another bucket --retries 0 s3://bucket/from/large "$work/x" >/dev/null 2>&1 && [ "$1" = versitygw ]; then
        echo "a wrong secret is let in"; exit 1
    fi
}

wanted() { [[ "$servers" == *" $1 "* ]]; }
if ! wanted moto; then :
elif [ -x "$peers/moto/bin/moto_server" ] || { command -v python3 >/dev/null && python3 -m venv "$peers/moto" &&
    timeout 300 "$peers/moto/bin/pip" install -q "moto[server,s3]==5.2.5"; } >/dev/null 2>&1; then
    "$peers/moto/bin/moto_server" -H localhost -p 18445 -c "$work/cert.pem" -k "$work/key.pem" >"$work/log" 2>&1 & other_server=$!
    trap 'kill "$other_server" 2>/dev/null || true; clean' EXIT
    with moto
    kill "$other_server"; wait "$other_server" 2>/dev/null || true
else
    echo "SKIPPED: moto cannot be installed here (python3, pip)"
fi

if ! wanted versitygw; then :
elif [ -x "$peers/versitygw" ] || { command -v go >/dev/null &&
    GOBIN="$peers" timeout 600 go install github.com/versity/versitygw/cmd/versitygw@v1.8.0; } >/dev/null 2>&1; then
    mkdir "$work/store"
    "$peers/versitygw" --access "$AWS_ACCESS_KEY_ID" --secret "$AWS_SECRET_ACCESS_KEY" --port 127.0.0.1:18445 --cert "$work/cert.pem" --key "$work/key.pem" \
        posix "$work/store" >"$work/log" 2>&1 & other_server=$!
    trap 'kill "$other_server" 2>/dev/null || true; clean' EXIT
    with versitygw
    same "$work/from/large" "$work/store/bucket/from/large"
    kill "$other_server"; wait "$other_server" 2>/dev/null || true
else
    echo "SKIPPED: versitygw cannot be installed here (Go)"
fi
[ "$ran" -gt 0 ] || { echo "SKIPPED: s3.sh: no server can be installed here"; exit 77; }
echo "all as it should be, of $ran servers"

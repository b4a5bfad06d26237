# Shared code of the scripts here: a certificate, tokens, a server; to be sourced. `reservoir` is the program, `work` a
# temporary folder.
work="$(mktemp -d)"
server="" other=""
clean() {
    for process in $server $other; do kill "$process" 2>/dev/null || true; done
    rm -rf "$work"
}
trap clean EXIT
mkdir "$work/root" "$work/from"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
    -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout "$work/key.pem" -out "$work/cert.pem" 2>/dev/null
export RESERVOIR_TOKEN=a-token-of-tests
hash="$(printf %s "$RESERVOIR_TOKEN" | sha256sum | cut -d' ' -f1)"
printf '[[token]]\nname = "tests"\nsha256 = "%s"\nrights = ["read", "write"]\n' "$hash" >"$work/tokens.toml"

start() { # begins to serve at a port of the system's choice, or the one that it had
    : >"$work/told"
    "$reservoir" serve --listen "127.0.0.1:${port:-0}" --root "$work/root" --cert "$work/cert.pem" --key "$work/key.pem" \
        --tokens "$work/tokens.toml" ${served-} >"$work/told" 2>>"$work/log" &
    server=$!
    for _ in $(seq 100); do
        port="$(sed -n 's/.*:\([0-9]*\)\/$/\1/p' "$work/told")"
        [ -z "$port" ] || return 0
        sleep 0.05
    done
    echo "the server does not start"; cat "$work/log"; exit 1
}
copy() { "$reservoir" copy --cacert "$work/cert.pem" "$@"; }
several() { # the same for servers at these ports, each with the token
    printf "localhost:%s $RESERVOIR_TOKEN\n" $1 >"$work/hosts"
    copy --token-file "$work/hosts" "${@:2}"
}
url() { echo "https://localhost:$port/$1"; }
same() { cmp "$1" "$2" || { echo "$1 and $2 differ"; exit 1; }; }

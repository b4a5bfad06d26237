#!/bin/sh
# Makes the files in this directory, anew: see README.md. Needs OpenSSL 3.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

cat > ca.cnf <<'END'
[ca]
default_ca = test
[test]
database = index.txt
new_certs_dir = .
rand_serial = yes
default_md = default
policy = any
unique_subject = no
[any]
commonName = supplied
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = DNS:localhost, DNS:server.nic-offload.test, IP:127.0.0.1, IP:::1, IP:10.0.0.1, IP:10.0.0.2
END
: > index.txt
dates='-startdate 20200101000000Z -enddate 21200101000000Z'

make() { # suffix of the files' names, options of openssl genpkey
    suffix=$1
    shift
    openssl genpkey "$@" -out ca.key
    openssl req -new -key ca.key -subj "/CN=nic-offload test authority$suffix" -out ca.csr
    # shellcheck disable=SC2086 # two options each
    openssl ca -config ca.cnf -batch -notext -selfsign -keyfile ca.key -in ca.csr -extensions authority $dates -out "ca$suffix.pem"

    openssl genpkey "$@" -out "server$suffix.key"
    openssl req -new -key "server$suffix.key" -subj '/CN=server.nic-offload.test' -out server.csr
    # shellcheck disable=SC2086
    openssl ca -config ca.cnf -batch -notext -keyfile ca.key -cert "ca$suffix.pem" -in server.csr -extensions server $dates \
        -out "server$suffix.pem"
    openssl verify -CAfile "ca$suffix.pem" "server$suffix.pem"
    cp "server$suffix.pem" "server$suffix.key" "$here"
}
make '' -algorithm ed25519
make -p256 -algorithm EC -pkeyopt ec_paramgen_curve:P-256
cat ca.pem ca-p256.pem >"$here/ca.pem"

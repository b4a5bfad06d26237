#!/bin/sh
# Makes ca.pem, server.pem and server.key in this directory, anew: see README.md. Needs OpenSSL 3.
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

openssl genpkey -algorithm ed25519 -out ca.key
openssl req -new -key ca.key -subj '/CN=nic-offload test authority' -out ca.csr
# shellcheck disable=SC2086 # two options each
openssl ca -config ca.cnf -batch -notext -selfsign -keyfile ca.key -in ca.csr -extensions authority $dates -out ca.pem

openssl genpkey -algorithm ed25519 -out server.key
openssl req -new -key server.key -subj '/CN=server.nic-offload.test' -out server.csr
# shellcheck disable=SC2086
openssl ca -config ca.cnf -batch -notext -keyfile ca.key -cert ca.pem -in server.csr -extensions server $dates -out server.pem

openssl verify -CAfile ca.pem server.pem
cp ca.pem server.pem server.key "$here"

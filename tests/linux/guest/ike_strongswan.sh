# The functions that ike_guest.sh calls for a strongSwan with the root /mnt/SIDE, in the network namespace SIDE: start,
# version, connection, up, down, children, log.
strongswan_start() { # side
    local root=/mnt/$1
    mkdir -p "$root"/etc/ike/{x509,x509ca,private}
    tar -C "$root/etc/ike/x509ca" -xf certificates.tar ca.pem
    tar -C "$root/etc/ike/x509" -xf certificates.tar "$1.pem"
    tar -C "$root/etc/ike/private" -xf certificates.tar "$1.key"
    cat >"$root/etc/ike/strongswan.conf" <<'CONF'
charon-systemd {
  load = random nonce openssl kdf sha2 hmac gcm aes pem pkcs1 pkcs8 pubkey x509 constraints kernel-netlink socket-default vici
  journal { default = -1 }
  filelog { log { path = /var/log/ike
    default = 1
    flush_line = yes } }
  retransmit_timeout = 2
  retransmit_tries = 2
  plugins { vici { socket = unix:///run/vici } }
}
CONF
    rm -f "$root/run/vici"
    ip netns exec "$1" chroot "$root" env STRONGSWAN_CONF=/etc/ike/strongswan.conf /usr/sbin/charon-systemd >>"$1.out" 2>&1 &
    daemon_pid=$! # what is in between replaces itself: the daemon has this number
    for attempt in $(seq 200); do [ -S "$root/run/vici" ] && return 0; sleep 0.1; done
    cat "$1.out"; return 1
}
strongswan_swanctl() { # side, words
    local side=$1; shift
    ip netns exec "$side" chroot "/mnt/$side" env SWANCTL_DIR=/etc/ike swanctl "$@" --uri unix:///run/vici
}
strongswan_version() { strongswan_swanctl "$1" --version | head -1; }
strongswan_connection() { # side, other side, its address, the other's, mode, suite, ESN, authentication, when keys change
    local auth kind=psk suite bits=32
    [ "${3#*:}" = "$3" ] || bits=128
    case $6 in
    aes128) suite=aes128gcm16 ;;
    aes256) suite=aes256gcm16 ;;
    chacha20) suite=chacha20poly1305 ;;
    esac
    [ "$8" = psk ] || kind=pubkey
    cat >"/mnt/$1/etc/ike/swanctl.conf" <<CONF
connections { c { version = 2
  local_addrs = $3
  remote_addrs = $4
  proposals = aes256gcm16-prfsha256-x25519
  dpd_delay = 5s
  encap = $in_udp
  send_cert = always # Libreswan does not ask for it
  local { auth = $kind
    $([ $kind = psk ] || echo "certs = $1.pem")
    id = $1.test }
  remote { auth = $kind
    $([ $kind = psk ] || echo "cacerts = ca.pem")
    id = $2.test }
  children { c { mode = $5
    esp_proposals = $suite-x25519-$([ "$7" = esn ] && echo esn || echo noesn)
    rekey_time = ${9:-1h}
    life_time = 2h
    local_ts = $3/$bits
    remote_ts = $4/$bits } } } }
secrets { ike-1 { secret = swordfishswordfishswordfish } }
CONF
    strongswan_swanctl "$1" --load-all --noprompt --file /etc/ike/swanctl.conf >"$1.loaded" 2>&1 || { cat "$1.loaded"; return 1; }
}
strongswan_up() { strongswan_swanctl "$1" --initiate --child c >"$1.up" 2>&1 || { cat "$1.up"; return 1; }; }
strongswan_down() { strongswan_swanctl "$1" --terminate --ike c >/dev/null 2>&1; }
strongswan_children() { grep -o 'CHILD_SA c{[0-9]*} established' "/mnt/$1/var/log/ike" | sort -u | wc -l; }
strongswan_log() { tail -n "$2" "/mnt/$1/var/log/ike"; }

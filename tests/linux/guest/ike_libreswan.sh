# The functions that ike_guest.sh calls for a Libreswan with the root /mnt/SIDE, in the network namespace SIDE: start,
# version, connection, up, down, children, log.
libreswan_ipsec() { # side, words
    local side=$1; shift
    ip netns exec "$side" chroot "/mnt/$side" /usr/sbin/ipsec "$@"
}
libreswan_start() { # side
    local root=/mnt/$1
    mkdir -p "$root/run/pluto" "$root/etc/ipsec.d"
    printf 'config setup\n\tlogfile=/var/log/ike\n\tplutodebug=none\n\tuniqueids=yes\ninclude /etc/ipsec.d/*.conf\n' >"$root/etc/ipsec.conf"
    echo '@host.test @peer.test : PSK "swordfishswordfishswordfish"' >"$root/etc/ipsec.secrets"
    if [ ! -e "$root/etc/nss-is-there" ]; then
        tar -C "$root/tmp" -xf certificates.tar "$1.p12" ca.pem
        libreswan_ipsec "$1" initnss >>"$1.out" 2>&1
        chroot "$root" pk12util -i "/tmp/$1.p12" -d sql:/var/lib/ipsec/nss -W "" >>"$1.out" 2>&1
        chroot "$root" certutil -A -a -i /tmp/ca.pem -d sql:/var/lib/ipsec/nss -n authority -t CT,, >>"$1.out" 2>&1
        : >"$root/etc/nss-is-there"
    fi
    rm -f "$root"/run/pluto/pluto.*
    ip netns exec "$1" chroot "$root" /usr/libexec/ipsec/pluto --config /etc/ipsec.conf --nofork >>"$1.out" 2>&1 &
    daemon_pid=$! # what is in between replaces itself: the daemon has this number
    for attempt in $(seq 200); do [ -S "$root/run/pluto/pluto.ctl" ] && break; sleep 0.1; done
    libreswan_ipsec "$1" listen >>"$1.out" 2>&1 || { cat "$1.out"; return 1; }
}
libreswan_version() { libreswan_ipsec "$1" --version | head -1; }
libreswan_connection() { # side, other side, its address, the other's, mode, suite, ESN, authentication, when keys change
    local auth suite lifetime=2h margin=9m
    case $6 in
    aes128) suite=aes_gcm128 ;;
    aes256) suite=aes_gcm256 ;;
    chacha20) suite=chacha20_poly1305 ;;
    esac
    [ "$8" = psk ] && auth="authby=secret" || auth="authby=ecdsa
	leftcert=$1"
    [ -z "${9:-}" ] || { lifetime=$((${9%s} + 20))s margin=20s; }
    cat >"/mnt/$1/etc/ipsec.d/c.conf" <<CONF
conn c
	left=$3
	leftid=@$1.test
	right=$4
	rightid=@$2.test
	$auth
	keyexchange=ikev2
	ike=aes_gcm256-sha2_256-dh31
	esp=$suite
	esn=$([ "$7" = esn ] && echo yes || echo no)
	type=$5
	salifetime=$lifetime
	rekeymargin=$margin
	rekeyfuzz=0%
	dpddelay=5
	retransmit-timeout=10s
	encapsulation=$([ $in_udp = yes ] && echo yes || echo auto)
	auto=ignore
CONF
    libreswan_ipsec "$1" delete c >/dev/null 2>&1 || true
    libreswan_ipsec "$1" add c >"$1.loaded" 2>&1 || { cat "$1.loaded"; return 1; }
}
libreswan_up() { ip netns exec "$1" timeout 30 chroot "/mnt/$1" /usr/sbin/ipsec up c >"$1.up" 2>&1 || { cat "$1.up"; return 1; }; }
libreswan_down() { libreswan_ipsec "$1" down c >/dev/null 2>&1; }
libreswan_children() { grep -c 'established Child SA\|IPsec SA established\|rekeyed Child SA' "/mnt/$1/var/log/ike"; }
libreswan_log() { tail -n "$2" "/mnt/$1/var/log/ike"; }

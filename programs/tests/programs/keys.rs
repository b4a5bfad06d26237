//! `udp_echo` with a key file: no key sends twice with the same number, whatever the file's name.

use crate::signals::{ServingProgram, WHO_HAS};
use crate::{ProgramFolder, refused};
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

/// Returns a key file that encrypts answers under one key and accepts questions in clear text.
fn keys(key: u8) -> String {
    format!(
        "state add src 10.77.0.1 dst 10.77.0.2 proto esp spi 0x1001 reqid 1 mode transport \
         aead rfc4106(gcm(aes)) 0x{} 128\n\
         policy add src 10.77.0.1 dst 10.77.0.2 dir out tmpl proto esp reqid 1 mode transport\n\
         policy setdefault in accept out accept\n",
        format!("{key:02x}").repeat(20)
    )
}

/// Starts the program, sends a datagram, and ends the program. Returns the IV of the answer.
fn iv(folder: &ProgramFolder, arguments: &[&str]) -> u64 {
    let far = UnixDatagram::bind(folder.path("far")).unwrap();
    far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let wire = ["--dgram", "near", "far"];
    let mut echo = ServingProgram::start(folder, "udp_echo", &[&wire[..], arguments].concat());
    let send = |frame: &[u8]| far.send_to(frame, folder.path("near")).unwrap();
    send(&WHO_HAS);
    let iv = loop {
        let mut frame = [0; 2048];
        let length = far.recv(&mut frame).unwrap();
        match ([frame[12], frame[13]], frame[21], frame[23]) {
            ([8, 6], 1, _) => {
                let mut answer = WHO_HAS;
                answer[..6].copy_from_slice(&frame[6..12]);
                answer[21] = 2;
                answer[32..38].copy_from_slice(&frame[22..28]);
                send(&answer);
            }
            ([8, 6], 2, _) => {
                let macs = [&frame[6..12], &WHO_HAS[6..12]].concat();
                send(&[&macs[..], &QUESTION].concat());
            }
            // RFC 4303 2, RFC 4106 3.1: SPI and sequence number precede the IV.
            ([8, 0], _, 50) if length > 50 => break u64::from_be_bytes(frame[42..50].try_into().unwrap()),
            _ => {}
        }
    };
    echo.end("TERM");
    drop(far);
    fs::remove_file(folder.path("far")).unwrap();
    iv
}

#[test]
fn numbers_go_on_under_every_name_of_a_key_file() {
    let folder = ProgramFolder::new("key-names");
    let keys_path = folder.write("keys", &keys(7));
    assert_eq!(iv(&folder, &["--keys", "keys"]), 1);
    symlink(&keys_path, folder.path("soft")).unwrap();
    fs::hard_link(&keys_path, folder.path("hard")).unwrap();
    fs::copy(&keys_path, folder.path("copy")).unwrap();
    folder.write("elsewhere/edited", &format!("# the same key\n{}", keys(7)));
    let names = ["keys", "soft", "hard", "copy", "elsewhere/edited"];
    let mut ivs = names.map(|name| iv(&folder, &["--keys", name])).to_vec();
    // Numbers are stored by key, so neither links, copies nor edits of the file may start them anew.
    fs::rename(&keys_path, folder.path("renamed")).unwrap();
    ivs.push(iv(&folder, &["--keys", "renamed"]));
    assert!(ivs.is_sorted_by(|one, next| one < next) && ivs[0] > 1, "{ivs:?}");
    folder.write("other", &keys(8));
    assert_eq!(iv(&folder, &["--keys", "other"]), 1, "another key");
    assert!(folder.path("state/nic-offload/numbers").exists() && !folder.path("keys.numbers").exists());
}

#[test]
fn keys_in_use_or_of_unknown_age_are_refused() {
    let folder = ProgramFolder::new("keys-refused");
    let keys_path = folder.write("keys", &keys(7));
    fs::hard_link(&keys_path, folder.path("hard")).unwrap();
    let _guest = UnixDatagram::bind(folder.path("far")).unwrap();
    let arguments = ["--dgram", "near", "far", "--keys", "keys", "--state", "numbers"];
    let mut echo = ServingProgram::start(&folder, "udp_echo", &arguments);
    let with = |file| ["--dgram", "near2", "far2", "--state", "numbers", "--keys", file];
    let said = refused(&folder, "udp_echo", &with("hard"));
    assert!(said.contains("another process uses this key and salt"), "{said}");
    echo.end("TERM");
    folder.write("twice", &(keys(6) + &keys(6).lines().next().unwrap().replace("0x1001", "0x2001")));
    let said = refused(&folder, "udp_echo", &with("twice"));
    assert!(said.contains("this key and salt were used before"), "{said}");
    // The file is older than the store, and the store has no entry of its key.
    let old = fs::File::create(folder.write("old", &keys(9))).unwrap();
    fs::write(folder.path("old"), keys(9)).unwrap();
    old.set_modified(std::time::SystemTime::now() - Duration::from_secs(86_400)).unwrap();
    let said = refused(&folder, "udp_echo", &with("old"));
    assert!(said.contains("SA 0x1001: ") && said.contains("start with --new-keys"), "{said}");
    fs::remove_file(folder.path("far")).unwrap();
    assert_eq!(iv(&folder, &["--keys", "old", "--state", "numbers", "--new-keys"]), 1);
    assert!(iv(&folder, &["--keys", "old", "--state", "numbers"]) > 1, "it is known now");
    fs::write(folder.path("numbers/numbers"), "damaged").unwrap();
    let said = refused(&folder, "udp_echo", &with("old"));
    assert!(said.contains("numbers/numbers: line 1 is damaged"), "{said}");
    let said = refused(&folder, "udp_echo", &["--dgram", "near2", "far2", "--keys", "old", "--state", "old"]);
    assert!(said.contains("old/numbers: "), "{said}");
}

/// IPv4 and UDP from 10.77.0.2 to port 7 of 10.77.0.1, with four bytes and without a UDP checksum (RFC 768).
#[rustfmt::skip]
const QUESTION: [u8; 34] = [
    8, 0,
    0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0x26, 0x31, 10, 77, 0, 2, 10, 77, 0, 1,
    0x13, 0x88, 0, 7, 0, 12, 0, 0,
    b'e', b'c', b'h', b'o',
];

//! The programs as users run them: errors are reported in one line and by the exit status, and never damage a file.
//!
//! `console`: programs without a writable output; `keys`: ESP numbers continue under every name of a key file;
//! `signals`: programs that a signal ends; `switch`: a switching program; `timeline`: reader of `--trace` files.

mod console;
mod keys;
mod signals;
mod switch;
mod timeline;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

#[test]
fn input_files_are_never_overwritten() {
    let folder = ProgramFolder::new("inputs");
    // The keys are valid, so that a run is not refused for another reason.
    let precious = key_file("");
    let input = folder.write("x.pcapng", &precious);
    folder.write("x-tcp.pcapng", &precious);
    folder.write("keys", &precious);
    folder.write("site/sub/page", &precious);
    symlink(&input, folder.path("link")).unwrap();
    fs::hard_link(folder.path("site/sub/page"), folder.path("page")).unwrap();
    symlink(folder.path("site/new"), folder.path("dangling")).unwrap();
    // This wire cannot be opened. A refused file must be reported before the wire is tried.
    let wire = ["--dgram", "none/a", "b"];
    let with = |more: &[&'static str]| [&wire[..], more].concat();
    let behind_a_wire = [
        ("https_server", with(&["site", "--pcap", "site/sub/page"])),
        ("https_server", with(&["site", "--trace", "page"])),
        ("https_server", with(&["site", "--pcap", "dangling"])),
        ("https_server", with(&["site", "--keys", "keys", "--trace", "keys"])),
        ("h3_server", with(&["site", "--pcap", "page"])),
        ("h3_server", with(&["site", "--pcap", "new", "--trace", "new"])),
        ("tap_server", with(&["site", "--trace", "page"])),
        ("udp_echo", with(&["--keys", "keys", "--trace", "keys"])),
        ("udp_echo", with(&["--keys", "keys", "--key-changes", "x.pcapng", "--trace", "link"])),
        ("udp_echo", with(&["--keys", "keys", "--trace", "keys.numbers"])),
        ("udp_echo", with(&["--keys", "keys", "--state", ".", "--trace", "numbers"])),
        ("nvme_target", with(&["--file", "x.pcapng", "--trace", "link"])),
        ("nvme_target", with(&["--file", "x.pcapng", "--trace", "x.pcapng.identity"])),
        ("nvme_host", with(&["--keys", "keys", "--trace", "keys", "id"])),
        ("https_client", with(&["--cacert", "x.pcapng", "--pcap", "link", "http://10.0.0.1/"])),
        ("https_client", with(&["--out", "new", "--trace", "new", "http://10.0.0.1/"])),
    ];
    let cases: [(&str, &[&str]); 8] = [
        ("ktls_loopback", &["x.pcapng", "--mode", "tcp", "--pcap", "x.pcapng"]),
        ("ktls_loopback", &["x-tcp.pcapng", "--pcap", "x.pcapng"]),
        ("ktls_loopback", &["x.pcapng", "--mode", "tcp,tcp", "--pcap", "link"]),
        ("ktls_loopback", &["--size", "1", "--mode", "tcp", "--out", "link", "--pcap", "x.pcapng"]),
        ("ipsec_loopback", &["x.pcapng", "--out", "link"]),
        ("ipsec_loopback", &["--size", "1", "--keys", "keys", "--out", "keys"]),
        ("https_server", &["site", "--pcap", "site/sub/page"]),
        ("https_server", &["site", "--pcap", "page"]),
    ];
    let behind_a_wire = behind_a_wire.iter().map(|(name, arguments)| (*name, &arguments[..]));
    for (name, arguments) in cases.into_iter().chain(behind_a_wire) {
        let said = refused(&folder, name, arguments);
        assert!(said.contains("is to be"), "{name} {arguments:?}: {said}");
    }
    // Neither an input nor a new file may be left changed by a refused run.
    for name in ["x.pcapng", "x-tcp.pcapng", "keys", "site/sub/page"] {
        assert_eq!(fs::read_to_string(folder.path(name)).unwrap(), precious, "{name}");
    }
    for name in ["new", "site/new", "keys.numbers", "numbers", "x.pcapng.identity"] {
        assert!(!folder.path(name).exists(), "{name}");
    }
}

#[test]
fn errors_are_one_line_that_names_the_fault() {
    let folder = ProgramFolder::new("wrong");
    fs::create_dir(folder.path("empty")).unwrap();
    folder.write("file", "text");
    folder.write("ca.bin", "no PEM");
    let client = ["--dgram", "a", "b", "https://10.0.0.1/"];
    let with = |more: &[&'static str]| [&client[..], more].concat();
    let cases: [(&str, Vec<&str>, &str); 38] = [
        ("https_server", vec!["empty"], "empty: has no files to fetch"),
        ("https_server", vec!["none"], "none: No such file"),
        ("https_server", vec!["file"], "file: Not a directory"),
        ("https_server", vec!["--dgram", "a", "b", "none"], "none: No such file"),
        ("https_server", vec!["--dgram", "a", "b", "file"], "file: Not a directory"),
        ("https_server", vec!["--pin", "12"], "'--pin <SHA256>'"),
        ("https_client", vec!["http://10.0.0.1/"], "the wire needs an end"),
        ("https_client", with(&["--range", "foo"]), "bytes=0-99"),
        ("https_client", with(&["--cacert", "ca.bin"]), "ca.bin: holds no certificate in PEM form"),
        ("https_client", with(&["--cacert", "none"]), "none: "),
        ("https_client", with(&["--keys", "file", "--key-changes", "file"]), "--key-changes and --mirror are for"),
        ("ktls_loopback", vec!["none"], "none: "),
        ("ktls_loopback", vec!["file", "--tls", "1.2", "--padding", "64"], "TLS 1.2"),
        ("ktls_loopback", vec!["file", "--suite", "rot13"], "chacha20-poly1305"),
        ("nvme_target", vec!["--listen", "nowhere"], "'--listen <ADDR>'"),
        ("nvme_target", vec!["--request", "5461"], "'--request <SIZE>': a multiple of 4"),
        ("nvme_target", vec!["--request", "5GiB"], "'--request <SIZE>': a multiple of 4"),
        ("nvme_target", vec!["--data-pdu", "1KiB"], "'--data-pdu <SIZE>': a multiple of 4"),
        ("nvme_target", vec!["--threads", "100000"], "'--threads <THREADS>'"),
        ("nvme_target", vec!["--host", "friend"], "'--host <NQN>'"),
        ("nvme_target", vec!["--memory", "1MiB", "--loss", "0.1"], "the wire needs an end"),
        ("nvme_target", vec!["--memory", "1MiB", "--cpu"], "--tap"),
        ("nvme_target", vec!["--memory", "1MiB", "--dgram", "none/a", "b"], "none/a: "),
        ("nvme_target", vec!["--memory", "1MiB", "--trace", "new"], "show an emulated host"),
        ("nvme_host", vec!["--trace", "new", "id"], "show an emulated host"),
        ("nvme_loopback", vec!["--size", "0"], "1 byte at least"),
        ("nvme_loopback", vec!["--mode", "cpu", "--trace", "none/x"], "none/x: "),
        ("nvme_host", vec!["--connect", "nowhere"], "'--connect <ADDR>'"),
        ("nvme_host", vec!["--queues", "0", "read"], "'--queues <QUEUES>'"),
        ("nvme_host", vec!["--hostid", "12345", "read"], "'--hostid <UUID>': no UUID"),
        ("nvme_host", vec!["--loss", "0.1", "read"], "the wire needs an end"),
        ("nvme_host", vec!["--offload", "place", "read"], "--tap"),
        ("nvme_host", vec!["--dgram", "a", "b", "--offload", "emulate", "read"], "--offload emulate"),
        ("tap_server", vec!["empty"], "the wire needs an end"),
        ("h3_server", vec!["empty"], "the wire needs an end"),
        ("resync_story", vec!["--lose", "999"], "--lose 999: the story has 26 packets"),
        ("resync_story", vec!["--lose", "4"], "packet 4 cannot be both"),
        ("resync_story", vec!["--records", "100", "--record-size", "16384"], "more than the limit of 200"),
    ];
    for (name, arguments, expected) in cases {
        let said = refused(&folder, name, &arguments);
        assert!(said.contains(expected), "{name} {arguments:?}: {said}");
    }
}

#[test]
fn refused_run_leaves_no_file_behind() {
    let folder = ProgramFolder::new("trace");
    folder.write("keys", "state add nowhere");
    folder.write("ca.bin", "no PEM");
    folder.write("site/page", "a page");
    let cases: [(&str, &[&str]); 7] = [
        ("ktls_loopback", &["--size", "1", "--ipv6", "--mtu", "600", "--out", "new", "--pcap", "new.pcapng"]),
        ("ipsec_loopback", &["--size", "1", "--keys", "keys", "--out", "new", "--pcap", "new.pcapng"]),
        ("https_server", &["site", "--stream", "nowhere/port", "--pcap", "new.pcapng"]),
        ("h3_server", &["site", "--stream", "nowhere/port", "--pcap", "new.pcapng", "--trace", "new"]),
        ("udp_echo", &["--stream", "port", "--keys", "keys", "--trace", "new"]),
        ("nvme_target", &["--dgram", "a", "b", "--trace", "new"]),
        ("https_client", &["--dgram", "a", "b", "--cacert", "ca.bin", "--pcap", "new.pcapng", "https://10.0.0.1/"]),
    ];
    for (name, arguments) in cases {
        refused(&folder, name, arguments);
        // Three entries are the inputs; any further one was left behind.
        let left: Vec<_> = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 3, "{name} {arguments:?}: {left:?}");
    }
}

#[test]
fn the_server_tells_its_pin_and_everything_is_fetched() {
    let folder = ProgramFolder::new("pin");
    folder.write("site/page", "a page");
    folder.write("site/deep/er/page", "another");
    let output = run(&folder, "https_server", &["site", "--connections", "1"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let pin = text.lines().next().and_then(|line| line.rsplit(' ').next()).unwrap();
    // The second column of a row is the number of requests.
    let requests = |mode: &str| {
        let row = text.lines().find(|line| line.starts_with(&format!("{mode} "))).unwrap();
        row.split_whitespace().nth(1).unwrap().to_string()
    };
    for mode in ["http", "https-cpu", "https-nic"] {
        assert_eq!(requests(mode), "8", "two files, each whole and in three ranges: {text}");
    }
    assert!(text.contains("Costs are mostly noise"), "{text}");
    let with = |pin: &str| run(&folder, "https_server", &["site", "--mode", "https-nic", "--pin", pin]).status.code();
    assert_eq!(with(pin), Some(0));
    assert_eq!(with(&"0".repeat(64)), Some(1), "another certificate is refused");
}

#[test]
fn loopback_reports_its_choices_and_warns_of_noise() {
    let folder = ProgramFolder::new("loopback");
    folder.write("file", &"text".repeat(50_000));
    let chosen =
        ["--tls", "1.2", "--suite", "chacha20-poly1305", "--resync", "core-hint", "--transmit-resync", "next-record"];
    let output = run(&folder, "ktls_loopback", &[&["file", "--json", "--loss", "0.01"], &chosen[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let facts = String::from_utf8(output.stdout).unwrap();
    for fact in [r#""tls":"1.2""#, r#""suite":"chacha20-poly1305""#, r#""resync":"core-hint""#, r#""padding":"1""#] {
        assert!(facts.contains(fact), "{fact}: {facts}");
    }
    assert_eq!(facts.matches(r#""sha256_ok":true"#).count(), 3, "{facts}");
    let output = run(&folder, "ktls_loopback", &["file", "--padding", "1000", "--out", "copy"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Costs are mostly noise"), "{text}");
    assert_eq!(fs::read(folder.path("copy")).unwrap(), fs::read(folder.path("file")).unwrap());
}

#[test]
fn keys_of_no_use_are_refused_before_anything_is_sent() {
    let folder = ProgramFolder::new("keys");
    let twice = key_file("") + &key_file("").replace("reqid 1", "reqid 2");
    folder.write("twice", &twice);
    folder
        .write("receives-twice", &(key_file("") + &key_file("").lines().next().unwrap().replace("reqid 1", "reqid 2")));
    folder.write("none", "");
    folder.write("plain", "policy setdefault in accept out accept");
    folder.write("ipv6", &key_file("").replace("10.0.0.", "fd00::"));
    folder.write(
        "port",
        &key_file("").replace("dir out", "proto tcp sport 80 dir out").replace("dir in", "proto tcp dport 80 dir in"),
    );
    let cases = [
        ("twice", "this SA or policy exists already: delete it first"),
        ("receives-twice", "this SA or policy exists already: delete it first"),
        ("none", "none: no policy has TCP between 10.0.0.1 port 4433 and 10.0.0.2 protected"),
        ("plain", "plain: no policy"),
        ("ipv6", "ipv6: no policy"),
        ("port", "port: no policy"),
    ];
    for (file, expected) in cases {
        let said = refused(&folder, "ipsec_loopback", &["--size", "1", "--keys", file]);
        // The keys are tried before any byte is sent, so each case must end with an error.
        assert!(said.contains(expected), "{file}: {said}");
    }
}

#[test]
fn offload_that_is_refused_and_sas_that_end_are_not_passed_over() {
    let folder = ProgramFolder::new("refused");
    folder.write("window", &key_file("replay-window 100"));
    folder.write("limits", &key_file("limit packet-soft 3 limit packet-hard 5"));
    let with = |file, mode| {
        let output = run(&folder, "ipsec_loopback", &["--size", "100KiB", "--json", "--keys", file, "--mode", mode]);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    // Software has a window of 100 packets, so only full packet offload is refused.
    assert_eq!(with("window", "plain,esp-cpu,esp-crypto"), (Some(0), String::new()), "the window is the hosts'");
    let (status, said) = with("window", "esp-packet");
    assert_eq!(status, Some(0), "{said}");
    let refused = |host, spi| {
        format!(
            "ipsec_loopback: esp-packet: {host}: SA {spi}: the device has no replay window of 100 packets; \
             software has to do it\n"
        )
    };
    assert_eq!(said, refused("server", "0x1002") + &refused("client", "0x1001"));
    let (status, said) = with("limits", "esp-cpu");
    assert_eq!((status, said.lines().count()), (Some(1), 1), "{said}");
    for counter in ["XfrmOutNoStates ", "ipsec_sa_hard_limits "] {
        assert!(said.contains(counter), "{counter}: {said}");
    }
}

/// Returns SAs between 10.0.0.1 and 10.0.0.2 in both directions, and policies that require them.
fn key_file(more: &str) -> String {
    let one = |source, destination, spi: &str, direction| {
        format!(
            "state add src {source} dst {destination} proto esp spi {spi} reqid 1 mode transport {more} \
             aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f1011{} 128\n\
             policy add src {source} dst {destination} dir {direction} tmpl proto esp reqid 1 mode transport\n",
            &spi[2..]
        )
    };
    one("10.0.0.1", "10.0.0.2", "0x1001", "out") + &one("10.0.0.2", "10.0.0.1", "0x1002", "in")
}

#[test]
fn disks_are_found_used_and_kept() {
    let folder = ProgramFolder::new("nvme");
    folder.write("disk", &"x".repeat(4 << 20));
    let (target, address) = TargetProcess::start(&folder, &["--file", "disk", "--direct", "--block-size", "512"]);
    let host = |arguments: &[&str]| run(&folder, "nvme_host", &[&["--connect", &address], arguments].concat());
    let said = |arguments: &[&str]| {
        let output = host(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let failed = |arguments: &[&str], expected: &str| {
        let output = host(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains(expected), "{arguments:?}: {said}");
    };
    let found = format!("nqn.2026-01.example:disk {}\n", address.replace(':', " "));
    assert_eq!(said(&["discover"]), found);
    assert_eq!(said(&["--nqn", "nqn.2026-01.example:disk", "discover"]), found);
    assert_eq!(said(&["--nqn", "nqn.2026-01.example:none", "discover"]), "");
    assert!(said(&["id"]).contains("1: 8192 blocks of 512 bytes"));
    assert_eq!(said(&["read", "--first", "8190", "--blocks", "2"]), "x".repeat(1024));
    // The sum of these arguments overflows 64 bits, which must not become a small range.
    failed(&["read", "--first", "18446744073709551615", "--blocks", "5"], "8192 blocks");
    // Small commands to neighbouring blocks of one page, many at a time.
    let verified = said(&["--queues", "4", "verify", "--size", "4MiB", "--span", "256KiB", "--command", "2KiB"]);
    assert!(verified.starts_with("verified: "), "{verified}");
    assert!(
        refused(&folder, "nvme_target", &["--listen", "127.0.0.1:0", "--file", "disk"])
            .contains("disk: it is served already")
    );
    drop(target);
}

#[test]
fn control_characters_of_a_target_are_escaped() {
    let folder = ProgramFolder::new("nvme-hostile");
    let name = "nqn.2026-01.example:\u{1b}]0;x\u{7}\u{9b}2J";
    let (target, address) = TargetProcess::start(&folder, &["--memory", "1MiB", "--nqn", name]);
    for (arguments, times) in [(&["discover"][..], 1), (&["id"], 1), (&["--nqn", name, "id"], 1)] {
        let output = run(&folder, "nvme_host", &[&["--connect", &address], arguments].concat());
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(said.matches(r"nqn.2026-01.example:\u{1b}]0;x\u{7}\u{9b}2J").count(), times, "{said:?}");
        // Control characters in a target's names must not reach the terminal.
        assert!(said.chars().all(|said| said == '\n' || !said.is_control()), "{said:?}");
    }
    drop(target);
}

/// An `nvme_target`, killed on drop.
struct TargetProcess(std::process::Child);

impl TargetProcess {
    /// Starts the target and returns its address too.
    fn start(folder: &ProgramFolder, arguments: &[&str]) -> (TargetProcess, String) {
        let mut command = program(folder, "nvme_target");
        command.args(["--listen", "127.0.0.1:0"]).args(arguments).stdout(Stdio::piped());
        let mut target = TargetProcess(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(target.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("ready ").unwrap_or_else(|| panic!("{line:?}")).to_owned();
        (target, address)
    }
}

impl Drop for TargetProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program that must exit with status 2, and returns its single line of error.
fn refused(folder: &ProgramFolder, name: &str, arguments: &[&str]) -> String {
    let output = run(folder, name, arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{name} {arguments:?}: {said}");
    assert!(said.starts_with(&format!("{name}: ")) && said.lines().count() == 1, "{name} {arguments:?}: {said}");
    said
}

fn run(folder: &ProgramFolder, name: &str, arguments: &[&str]) -> Output {
    program(folder, name).args(arguments).output().unwrap()
}

/// Returns a command that runs in `folder` and keeps its permanent files there. Cargo puts programs in the folder above
/// this test's, and examples beside it in `examples`.
fn program(folder: &ProgramFolder, name: &str) -> Command {
    let here = std::env::current_exe().unwrap();
    let built = here.parent().and_then(Path::parent).unwrap();
    let mut places = [built.join(name), built.join("examples").join(name)].into_iter();
    let program = places.find(|place| place.exists());
    let program = program.unwrap_or_else(|| panic!("{name} is not built: `cargo test --workspace` builds it"));
    let mut command = Command::new(program);
    command.current_dir(&folder.0).env("XDG_STATE_HOME", folder.path("state"));
    command
}

struct ProgramFolder(PathBuf);

impl ProgramFolder {
    fn new(name: &str) -> ProgramFolder {
        let path = std::env::temp_dir().join(format!("nic-offload-programs-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        ProgramFolder(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for ProgramFolder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

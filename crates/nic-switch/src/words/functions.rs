//! Parser of function configuration: lines of `ip link set ... vf` and `devlink` (iproute2).

use super::line::{LineWords, ParseError, ParseProblem};
use super::value;
use crate::action::Police;
use crate::function::FunctionConfig;
use crate::matching::Mac;
use crate::port::Vport;
use crate::switch::SwitchMode;

/// The changes from a file of such lines.
///
/// ```
/// use nic_switch::{FunctionChange, FunctionConfig, FunctionFile, Mac, SwitchMode, Vport};
///
/// let text = "ip link set p0 vf 3 mac 02:00:00:00:00:03 vlan 7 trust on max_tx_rate 100\n\
///             ip link set dev pf0vf3 mtu 1416   # the representor's MTU is the function's\n\
///             devlink dev eswitch set pci/0000:01:00.0 mode switchdev\n";
/// let file = FunctionFile::parse("functions", text)?;
/// let mut config = FunctionConfig::new(Mac::default());
/// for change in &file.changes {
///     match change {
///         FunctionChange::Function(port, words) if *port == Vport::Virtual(3) => words.apply(&mut config),
///         FunctionChange::Function(..) => unreachable!("no line is about another"),
///         FunctionChange::Mode(mode) => assert_eq!(*mode, SwitchMode::Switchdev),
///     }
/// }
/// assert_eq!((config.mac, config.vlan, config.mtu), (Mac([2, 0, 0, 0, 0, 3]), Some(7), 1416));
/// assert!(config.spoof_check && config.trust, "unnamed options are unchanged");
/// # Ok::<(), nic_switch::ParseError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionFile {
    /// Changes, in the order of the lines.
    pub changes: Vec<FunctionChange>,
}

/// The change of one line.
///
/// See [`FunctionFile`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionChange {
    /// Changes the configuration of a function.
    Function(Vport, FunctionOptions),
    /// Sets the forwarding mode.
    Mode(SwitchMode),
}

/// The changed options of a function; `None` leaves an option unchanged.
///
/// See [`FunctionFile`] for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionOptions {
    /// Ethernet address.
    pub mac: Option<Mac>,
    /// VLAN id; 0 removes the VLAN.
    pub vlan: Option<u16>,
    /// Whether frames with other source addresses are dropped.
    pub spoof_check: Option<bool>,
    /// Whether the function is trusted.
    pub trust: Option<bool>,
    /// Transmit limit in 10^6 bits per second; 0 removes the limit.
    pub max_rate: Option<u32>,
    /// Longest packet delivered to the function.
    pub mtu: Option<u16>,
}

impl FunctionOptions {
    /// Applies the changed options to `config`.
    pub fn apply(&self, config: &mut FunctionConfig) {
        config.mac = self.mac.unwrap_or(config.mac);
        config.spoof_check = self.spoof_check.unwrap_or(config.spoof_check);
        config.trust = self.trust.unwrap_or(config.trust);
        config.mtu = self.mtu.unwrap_or(config.mtu);
        if let Some(vlan) = self.vlan {
            config.vlan = (vlan != 0).then_some(vlan);
        }
        if let Some(rate) = self.max_rate {
            let police = Police { rate: u64::from(rate) * BYTES_A_MEGABIT, burst: BURST };
            config.rate = (rate != 0).then_some(police);
        }
    }
}

impl FunctionFile {
    /// Parses `text`; errors refer to it as `file`.
    ///
    /// # Errors
    /// At the first word that is wrong or missing.
    pub fn parse(file: &str, text: &str) -> Result<FunctionFile, ParseError> {
        let mut changes = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let mut words = LineWords::new(file, number + 1, line);
            if words.peek().is_some() {
                changes.push(self::line(&mut words)?);
            }
        }
        Ok(FunctionFile { changes })
    }
}

fn line(words: &mut LineWords<'_>) -> Result<FunctionChange, ParseError> {
    match words.expect("ip")? {
        "ip" => link(words),
        "devlink" => devlink(words),
        _ => Err(words.wrong(ParseProblem::Expected("ip or devlink"))),
    }
}

/// Parses `ip link set [dev] p0 vf N ...` and `ip link set [dev] pf0vfN mtu M`.
fn link(words: &mut LineWords<'_>) -> Result<FunctionChange, ParseError> {
    words.expect_word("link")?;
    words.expect_word("set")?;
    words.take_if("dev");
    let device = port(words)?;
    let mut said = FunctionOptions::default();
    // Options of a virtual function are set through the uplink; on a function's own device only the MTU can be set.
    if device != Vport::Uplink {
        words.expect_word("mtu")?;
        said.mtu = Some(words.value("an MTU", value::number)?);
        end(words)?;
        return Ok(FunctionChange::Function(device, said));
    }
    words.expect_word("vf")?;
    let number = words.value("the number of a virtual function, 0 to 255", |word| {
        value::number::<u16>(word).filter(|number| *number < Vport::FUNCTIONS)
    })?;
    while let Some(word) = words.take() {
        match word {
            "mac" => words.once(&mut said.mac, MAC, mac)?,
            "vlan" => words.once(&mut said.vlan, "a VLAN, or 0 for none", |word| {
                value::number::<u16>(word).filter(|id| *id < LAST_VLAN)
            })?,
            "spoofchk" => words.once(&mut said.spoof_check, "on or off", switched)?,
            "trust" => words.once(&mut said.trust, "on or off", switched)?,
            "max_tx_rate" | "rate" => words.once(&mut said.max_rate, "10^6 bits a second, or 0", value::number)?,
            _ => return Err(words.wrong(ParseProblem::Expected("mac, vlan, spoofchk, trust or max_tx_rate"))),
        }
    }
    // A line without an option is incomplete.
    if said == FunctionOptions::default() {
        words.expect("mac, vlan, spoofchk, trust or max_tx_rate")?;
    }
    Ok(FunctionChange::Function(Vport::Virtual(number), said))
}

/// Parses `devlink dev eswitch set DEVICE mode M` and `devlink port function set PORT hw_addr A`.
fn devlink(words: &mut LineWords<'_>) -> Result<FunctionChange, ParseError> {
    let change = match words.expect("dev or port")? {
        "dev" => {
            words.expect_word("eswitch")?;
            words.expect_word("set")?;
            words.expect("the device, which may be called anything")?;
            words.expect_word("mode")?;
            FunctionChange::Mode(words.value("legacy or switchdev", |word| match word {
                "legacy" => Some(SwitchMode::Legacy),
                "switchdev" => Some(SwitchMode::Switchdev),
                _ => None,
            })?)
        }
        "port" => {
            words.expect_word("function")?;
            words.expect_word("set")?;
            let port = port(words)?;
            words.expect_word("hw_addr")?;
            let mac = Some(words.value(MAC, mac)?);
            FunctionChange::Function(port, FunctionOptions { mac, ..FunctionOptions::default() })
        }
        _ => return Err(words.wrong(ParseProblem::Expected("dev or port"))),
    };
    end(words)?;
    Ok(change)
}

fn port(words: &mut LineWords<'_>) -> Result<Vport, ParseError> {
    words.value("a port of the switch: name p0, pf0hpf, pf0vfN or card0", |word| word.parse().ok())
}

fn end(words: &mut LineWords<'_>) -> Result<(), ParseError> {
    match words.take() {
        None => Ok(()),
        Some(_) => Err(words.wrong(ParseProblem::Expected("the line's end"))),
    }
}

/// Parses a unicast address.
fn mac(word: &str) -> Option<Mac> {
    // A function has one address, so a mask is refused.
    let ether = value::ether(word).filter(|ether| ether.mask() == Mac([0xff; 6]) && !word.contains('/'))?;
    Some(ether.address()).filter(|mac| !mac.is_multicast())
}

fn switched(word: &str) -> Option<bool> {
    match word {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

const MAC: &str = "the Ethernet address of one station";
/// 4095 is reserved (IEEE 802.1Q 9.6).
const LAST_VLAN: u16 = 4095;
const BYTES_A_MEGABIT: u64 = 125_000;
/// Burst that a function may send above its rate, in bytes.
const BURST: u32 = 128 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<FunctionChange, String> {
        FunctionFile::parse("f", text).map(|file| file.changes[0]).map_err(|error| error.to_string())
    }

    #[test]
    fn words_equal_iproute2s() {
        let function = |change| match change {
            Ok(FunctionChange::Function(port, words)) => (port, words),
            other => panic!("{other:?}"),
        };
        let limited = FunctionOptions { max_rate: Some(0), spoof_check: Some(false), ..FunctionOptions::default() };
        assert_eq!(function(read("ip link set dev p0 vf 0 spoofchk off max_tx_rate 0")), (Vport::Virtual(0), limited));
        let (port, words) = function(read("devlink port function set pf0vf255 hw_addr 2:0:0:0:0:1"));
        assert_eq!((port, words.mac), (Vport::Virtual(255), Some(Mac([2, 0, 0, 0, 0, 1]))));
        let mut config = FunctionConfig::new(Mac::default());
        function(read("ip link set p0 vf 1 vlan 5 max_tx_rate 8")).1.apply(&mut config);
        assert_eq!((config.vlan, config.rate), (Some(5), Some(Police { rate: 1_000_000, burst: BURST })));
        function(read("ip link set p0 vf 1 vlan 0 max_tx_rate 0")).1.apply(&mut config);
        assert_eq!((config.vlan, config.rate, config.spoof_check), (None, None, true));
    }

    #[test]
    fn errors_point_at_the_word() {
        let cases = [
            (
                "ip link set p0 vf 256 mac 2:0:0:0:0:1",
                "f:1:19: `256` is not the number of a virtual function, 0 to 255",
            ),
            ("ip link set p0 vf 1 mac 1:0:0:0:0:1", "f:1:25: `1:0:0:0:0:1` is not the Ethernet address of one station"),
            (
                "ip link set p0 vf 1 mac 2:0:0:0:0:1/8",
                "f:1:25: `2:0:0:0:0:1/8` is not the Ethernet address of one station",
            ),
            ("ip link set p0 vf 1 trust on trust on", "f:1:30: `trust` is there a second time: say it once"),
            (
                "ip link set p0 vf 1",
                "f:1:20: the line ends where there should be mac, vlan, spoofchk, trust or max_tx_rate",
            ),
            ("ip link set pf0vf1 mtu 1416 up", "f:1:29: `up` is not the line's end"),
            ("devlink dev eswitch set pci/0 mode on", "f:1:36: `on` is not legacy or switchdev"),
            ("ifconfig", "f:1:1: `ifconfig` is not ip or devlink"),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text), Err(expected.to_string()), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_words_parse_or_fail_with_their_position(words in prop::collection::vec(prop_oneof![
            prop::sample::select(vec!["ip", "link", "set", "dev", "p0", "vf", "1", "mac", "2:0:0:0:0:1", "vlan", "trust", "on",
                "spoofchk", "off", "max_tx_rate", "mtu", "pf0vf1", "devlink", "port", "function", "hw_addr", "eswitch", "mode",
                "legacy", "#"]).prop_map(String::from),
            "[ -~]{0,6}",
        ], 0..16)) {
            let text = words.join(" ");
            if let Err(error) = FunctionFile::parse("f", &text) {
                prop_assert_eq!(error.line, 1);
                let rest: String = text.chars().skip(error.column - 1).collect();
                prop_assert!(rest.escape_debug().to_string().starts_with(&error.word), "{} in {}", error, text);
            }
        }
    }
}

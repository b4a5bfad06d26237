//! Rules and functions from one file: lines of `tc`, `ip link set ... vf` and `devlink`.
//!
//! The file is complete: a reload replaces everything from the previous version.

use nic_sim::switch::{
    Change, Device, FunctionChange, FunctionConfig, FunctionFile, Rule, RuleAction, RuleFile, Switch, SwitchConfig,
    SwitchMode, TunnelDevice, TunnelSet, Vport,
};
use offload_api::SaParams;
use offload_testbed::overlay::inner_mtu;
use std::path::Path;

/// The parsed file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// The mode of the switch: by rules or by learned addresses.
    pub mode: SwitchMode,
    /// Settings of functions, in the file's order.
    functions: Vec<FunctionChange>,
    /// All rules.
    pub rules: Vec<Rule>,
}

impl Setup {
    /// Reads a file.
    ///
    /// # Errors Text with the file's name and the line.
    pub fn read(path: &Path) -> Result<Setup, String> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
        Setup::parse(&name, &text)
    }

    fn parse(name: &str, text: &str) -> Result<Setup, String> {
        // Both parsers see empty lines in place of each other's, so that line numbers in errors are right.
        let lines_of = |is_rules: bool| -> String {
            let own = |line: &&str| (line.split_whitespace().next() == Some("tc")) == is_rules;
            text.lines().map(|line| Some(line).filter(own).unwrap_or_default().to_owned() + "\n").collect()
        };
        let functions = FunctionFile::parse(name, &lines_of(false)).map_err(|error| error.to_string())?.changes;
        let changes = RuleFile::parse(name, &lines_of(true)).map_err(|error| error.to_string())?.changes;
        let mode = functions.iter().rev().find_map(|change| match change {
            FunctionChange::Mode(mode) => Some(*mode),
            FunctionChange::Function(..) => None,
        });
        let mode = mode.unwrap_or(SwitchMode::Switchdev);
        // The rules are tried on a switch of their own, because only here a refusal can name the file and the rule.
        let mut tried = Switch::new(SwitchConfig::default());
        tried.set_mode(SwitchMode::Switchdev);
        let mut rules = Vec::new();
        for change in changes {
            let text = change.to_string();
            let about = |what: &str| format!("{name}: `{text}`: the file lists all rules: leave out {what}");
            // A reload replaces all rules, so a deletion in the file would have no meaning.
            if matches!(change, Change::Delete(_)) {
                return Err(about("deletions"));
            }
            tried.change(core::slice::from_ref(&change)).map_err(|error| format!("{name}: `{text}`: {error}"))?;
            if let Change::Add(rule) | Change::Replace(rule) = change {
                rules.push(rule);
            }
            if tried.rules().count() < rules.len() {
                return Err(about("the one that this replaces"));
            }
        }
        if mode == SwitchMode::Legacy && !rules.is_empty() {
            return Err(format!("{name}: in legacy mode there are no rules: leave them out, or the mode"));
        }
        Ok(Setup { mode, functions, rules })
    }

    /// Returns the configuration of a function, based on `usual`.
    pub fn function(&self, port: Vport, usual: FunctionConfig) -> FunctionConfig {
        let mut config = usual;
        for change in &self.functions {
            match change {
                FunctionChange::Function(at, words) if *at == port => words.apply(&mut config),
                FunctionChange::Function(..) | FunctionChange::Mode(_) => {}
            }
        }
        config
    }

    /// Returns the tunnels that rules redirect to, with the headers that rules set for them.
    pub fn wrapped(&self) -> impl Iterator<Item = (TunnelDevice, TunnelSet)> + '_ {
        self.rules.iter().flat_map(|rule| {
            let mut set = None;
            rule.actions.iter().filter_map(move |action| match action {
                RuleAction::TunnelSet(new) => {
                    set = Some(*new);
                    None
                }
                RuleAction::Redirect(Device::Tunnel(device)) | RuleAction::Mirror(Device::Tunnel(device)) => {
                    Some((*device, set?))
                }
                _ => None,
            })
        })
    }

    /// Returns the tunnels that rules redirect to or match on.
    pub fn tunnels(&self) -> Vec<TunnelDevice> {
        let about = self.rules.iter().filter_map(|rule| match rule.device {
            Device::Tunnel(device) => Some(device),
            Device::Port(_) => None,
        });
        let mut all: Vec<TunnelDevice> = self.wrapped().map(|(device, _)| device).chain(about).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns the MTU inside all tunnels, or inside `device`, if packets on the wire have `mtu` bytes. `sas_of`
    /// returns the SAs of a network.
    pub fn mtu<'a>(
        &self,
        device: Option<TunnelDevice>,
        mtu: u16,
        sas_of: impl Fn(TunnelDevice, Option<u32>) -> Vec<&'a SaParams>,
    ) -> u16 {
        let wrapped = self.wrapped().filter(|(to, _)| device.is_none_or(|device| device == *to));
        let longest = wrapped.map(|(to, set)| {
            let protected = sas_of(to, set.key).into_iter().map(|sa| inner_mtu(to.kind, &set, Some(sa), mtu)).min();
            protected.unwrap_or_else(|| inner_mtu(to.kind, &set, None, mtu))
        });
        longest.min().unwrap_or(mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nic_sim::switch::Mac;
    use offload_api::{Direction, EspKey, EspSuite};

    const TEXT: &str = "# two tenants\n\
        ip link set p0 vf 1 mac 02:00:00:00:09:09 vlan 7\n\
        \n\
        tc filter add dev pf0vf0 ingress prio 1 flower action tunnel_key set src_ip 192.0.2.1 dst_ip 192.0.2.2 id 5 nocsum \
        action mirred egress redirect dev vxlan0\n\
        tc filter add dev geneve1 ingress prio 1 flower action drop\n";

    #[test]
    fn lines_go_to_their_readers_and_errors_name_their_lines() {
        let setup = Setup::parse("f", TEXT).unwrap();
        assert_eq!((setup.mode, setup.rules.len()), (SwitchMode::Switchdev, 2));
        let function = |number| setup.function(Vport::Virtual(number), FunctionConfig::new(Mac([2; 6])));
        assert_eq!((function(1).mac, function(1).vlan), (Mac([2, 0, 0, 0, 9, 9]), Some(7)));
        assert_eq!(function(0), FunctionConfig::new(Mac([2; 6])));
        assert_eq!(setup.tunnels().iter().map(ToString::to_string).collect::<Vec<_>>(), ["vxlan0", "geneve1"]);
        let refused = |text: &str| Setup::parse("f", text).unwrap_err();
        assert!(
            refused("\n\ntc filter add dev eth0 ingress").starts_with("f:3:19: "),
            "{}",
            refused("\n\ntc filter add dev eth0 ingress")
        );
        assert!(refused("\nip link add vxlan0").starts_with("f:2:9: "), "{}", refused("\nip link add vxlan0"));
        assert!(refused("tc filter del dev p0 ingress").contains("leave out deletions"));
        let twice = |verb: &str| {
            format!(
                "tc filter add dev p0 ingress prio 1 flower action drop\ntc filter {verb} dev p0 ingress prio 1 flower action pass"
            )
        };
        assert!(refused(&twice("add")).contains("action pass`: there is such a rule"), "{}", refused(&twice("add")));
        assert!(refused(&twice("replace")).contains("leave out the one that this replaces"));
        let legacy = "devlink dev eswitch set nic0 mode legacy\n";
        assert!(refused(&(legacy.to_owned() + TEXT)).contains("legacy"));
        assert_eq!(Setup::parse("f", legacy).unwrap().mode, SwitchMode::Legacy);
    }

    #[test]
    fn machine_mtu_leaves_room_for_tunnels_and_esp() {
        let setup = Setup::parse("f", TEXT).unwrap();
        assert_eq!(setup.mtu(None, 1500, |_, _| Vec::new()), 1450);
        let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
        let sa = SaParams::new(Direction::Transmit, 0x1000, [192, 0, 2, 1].into(), [192, 0, 2, 2].into(), key);
        assert_eq!(setup.mtu(None, 1500, |_, key| if key == Some(5) { vec![&sa] } else { Vec::new() }), 1416);
        assert_eq!(Setup::default().mtu(None, 9000, |_, _| Vec::new()), 9000, "nothing is wrapped");
    }
}

//! Labels of fields and options for axes and tables: in words, with the unit.

use super::Relation;

/// Returns a field of runs in words with its unit. An unknown field keeps its name.
pub(crate) fn field(field: &str) -> String {
    if let Some(relation) = Relation::parse(field) {
        let (words, _) = words_and_unit(relation.field);
        let (line, more) = (relation.line, if relation.less() { "less" } else { "more" });
        return format!("{words}: how many times {more} than {line}");
    }
    match words_and_unit(field) {
        (words, "") => words,
        (words, unit) => format!("{words}, {unit}"),
    }
}

fn words_and_unit(field: &str) -> (String, &'static str) {
    // The outer name has the words and the unit; the inner name only adds a detail.
    let (name, part) = field.split_once('.').unwrap_or((field, ""));
    if let Some((_, words, unit)) = FIELDS.iter().find(|(known, _, _)| *known == name) {
        let words = match part {
            "" | "total" => (*words).to_string(),
            "p50" => format!("{words}, median"),
            "p999" => format!("{words}, 99.9th percentile"),
            part => match part.strip_prefix('p').filter(|digits| digits.parse::<u8>().is_ok()) {
                Some(digits) => format!("{words}, {digits}th percentile"),
                None => format!("{words}, {part}"),
            },
        };
        return (words, unit);
    }
    match name {
        "counters" => (part.into(), ""),
        "dma_bytes" => (format!("bytes over PCIe, {part}"), ""),
        _ => (field.into(), ""),
    }
}

/// Returns an option of the horizontal axis in words with its unit. An unknown option keeps its name.
pub(crate) fn option(option: &str) -> String {
    let known = OPTIONS.iter().find(|(known, _)| *known == option);
    known.map_or_else(|| option.replace('-', " "), |(_, words)| (*words).into())
}

/// Fields, their labels and units.
const FIELDS: [(&str, &str, &str); 36] = [
    ("goodput_gbps", "goodput", "Gb/s"),
    ("slowest_gbps", "goodput of the slowest stream", "Gb/s"),
    ("fastest_gbps", "goodput of the fastest stream", "Gb/s"),
    ("average_gbps", "goodput, the start included", "Gb/s"),
    ("steady_gbps", "goodput without the start", "Gb/s"),
    ("peak_gbps", "goodput of the best second", "Gb/s"),
    ("seconds_to_90", "time to 90 % of the best second", "s"),
    ("fairness", "fairness (Jain's index; 1: all streams alike)", ""),
    ("seconds", "time to the last byte", "s"),
    ("bytes", "user data that arrived", "bytes"),
    ("packets", "packets sent, both ways", ""),
    ("tx_host_ns_per_byte", "CPU time of the sending host", "ns a byte"),
    ("rx_host_ns_per_byte", "CPU time of the receiving host", "ns a byte"),
    ("device_ns_per_byte", "CPU time of both emulated NICs", "ns a byte"),
    ("requests_per_second", "requests per second", ""),
    ("latency_us", "latency", "us"),
    ("server_us_per_request", "CPU time of the server", "us a request"),
    ("client_us_per_request", "CPU time of the client", "us a request"),
    ("iops", "commands per second", ""),
    ("host_us_per_operation", "CPU time of the NVMe/TCP host", "us a command"),
    ("target_us_per_operation", "CPU time of the target", "us a command"),
    ("copy_crc_share", "copies and CRC, of the host's CPU time", "%"),
    ("placed_share", "data placed by the NIC, of all (1: all of it)", ""),
    ("gbps", "what one core does", "Gb/s"),
    ("ns_per_byte", "CPU time", "ns a byte"),
    ("ns_per_packet", "CPU time", "ns a packet"),
    ("tx_ns_per_packet", "CPU time of the sending host", "ns a packet"),
    ("rx_ns_per_packet", "CPU time of the receiving host", "ns a packet"),
    ("tx_packets_per_cpu_second", "packets that a second of the sender's CPU time sends", ""),
    ("rx_packets_per_cpu_second", "packets that a second of the receiver's CPU time takes in", ""),
    ("full", "records that the NIC opened in full", "%"),
    ("partial", "records that the NIC opened in part", "%"),
    ("none", "records that the NIC did not open", "%"),
    ("dumped", "payload that the sending NIC read again, of all", "%"),
    ("descriptors", "descriptors for going on after retransmissions, of payload", "%"),
    ("retransmitted", "segments sent again", ""),
];

/// Options and their labels.
const OPTIONS: [(&str, &str); 17] = [
    ("loss", "share of packets lost"),
    ("burst-loss", "share of packets lost, in bursts"),
    ("reorder", "share of packets held back"),
    ("duplicate", "share of packets that arrive twice"),
    ("corrupt", "share of packets with a bit flipped"),
    ("mark", "share of packets marked (ECN)"),
    ("share", "share of packets"),
    ("record-size", "content of a TLS record, bytes"),
    ("message-size", "bytes handed over at once"),
    ("file-size", "file, bytes"),
    ("block-size", "command, bytes"),
    ("packet-size", "IP packet, bytes"),
    ("depth", "commands under way"),
    ("mtu", "MTU, bytes"),
    ("delay", "one-way delay"),
    ("round-trip", "round trip"),
    ("window", "memory for a connection's received data"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::Sweep;

    #[test]
    fn a_field_has_its_part_and_a_relation_its_line() {
        assert_eq!(field("latency_us.p99"), "latency, 99th percentile, us");
        assert_eq!(field("latency_us.max"), "latency, max, us");
        let relation = field("server_us_per_request, times less than tls-cpu");
        assert_eq!(relation, "CPU time of the server: how many times less than tls-cpu");
        assert_eq!(field("nobody.knows"), "nobody.knows");
        assert_eq!(option("queues"), "queues");
    }

    #[test]
    fn every_drawn_field_has_a_label() {
        for text in [include_str!("../../sweeps/quick.toml"), include_str!("../../sweeps/published.toml")] {
            for study in Sweep::parse(text).unwrap().studies {
                for name in &study.plot.y {
                    assert_ne!(field(name), *name, "{}", study.name);
                }
            }
        }
    }

    #[test]
    fn fields_and_options_have_words() {
        assert_eq!(field("tx_host_ns_per_byte.total"), "CPU time of the sending host, ns a byte");
        assert_eq!(field("counters.tx_tls_ooo"), "tx_tls_ooo");
        assert_eq!(option("loss"), "share of packets lost");
    }
}

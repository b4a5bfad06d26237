//! Facts as text: a table with a row for each run, the counters that moved, and the savings of offload.

use crate::facts::Run;
use core::fmt::Write;
use std::collections::{BTreeMap, BTreeSet};

/// Returns a table with a row for each run: goodput, host cost per byte in both directions, device cost, packets, DMA
/// by purpose.
///
/// ```
/// assert!(offload_bench_tls::table::runs(&[]).contains("mode"));
/// ```
pub fn runs(runs: &[Run]) -> String {
    let purposes: BTreeSet<&str> = runs
        .iter()
        .flat_map(|run| run.dma_bytes.iter())
        .filter(|(_, bytes)| **bytes > 0)
        .map(|(name, _)| &name[..])
        .collect();
    // Most runs have no digests, and an empty column would only take space.
    let with_crc = runs.iter().any(|run| run.tx_host_ns_per_byte.crc.max(run.rx_host_ns_per_byte.crc) > 0.0);
    let mut rows = vec![heading(&purposes, with_crc)];
    rows.extend(runs.iter().map(|run| row(run, &purposes, with_crc)));
    align(&rows) + CAPTION
}

/// Returns a table with the cost of a packet in each run, regardless of direction.
///
/// ```
/// assert!(offload_bench_tls::table::per_packet(&[]).contains("mode"));
/// ```
pub fn per_packet(runs: &[Run]) -> String {
    let mut rows = vec![["mode", "bytes", "tx", "rx", "device"].map(String::from).to_vec()];
    for run in runs {
        let bytes = run.bytes as f64 / run.packets.max(1) as f64;
        let costs = [run.tx_host_ns_per_byte.total, run.rx_host_ns_per_byte.total, run.device_ns_per_byte];
        let mut row = vec![run.mode.clone(), format!("{bytes:.0}")];
        row.extend(costs.map(|cost| format!("{:.0}", cost * bytes)));
        rows.push(row);
    }
    align(&rows) + "a packet on the wire, acknowledgements included: bytes of user data, and CPU time in nanoseconds\n"
}

/// Returns a table with one row a run: mode, goodput in Gb/s, CPU time per byte of the sending and of the receiving host in
/// nanoseconds. After a mode in software, a column shows by which factor both hosts together spend less. After `tcp` and `tls-cpu`,
/// another column shows the share of the cost of TLS that is left.
///
/// ```
/// assert_eq!(offload_bench_tls::table::short(&[]).lines().last(), Some("mode    Gb/s sending receiving"));
/// ```
pub fn short(runs: &[Run]) -> String {
    let mut rows =
        vec![["mode", "goodput Gb/s", "host ns/B sending", "host ns/B receiving"].map(String::from).to_vec()];
    rows.extend(runs.iter().map(|run| {
        let costs = [run.tx_host_ns_per_byte.total, run.rx_host_ns_per_byte.total];
        let [sending, receiving] = costs.map(|cost| if run.bytes > 0 { format!("{cost:.3}") } else { "-".into() });
        vec![run.mode.clone(), format!("{:.1}", run.goodput_gbps), sending, receiving]
    }));
    add_factor(&mut rows, runs.iter().map(|run| ((), &run.mode[..], run.host_ns_per_byte())));
    add_cost_left(&mut rows, runs);
    align(&rows)
}

/// Adds a column to the rows of `runs`: the remaining share of the CPU time that TLS in software adds to plain TCP.
fn add_cost_left(rows: &mut [Vec<String>], runs: &[Run]) {
    let cost = |mode| runs.iter().find(|run| run.mode == mode && run.bytes > 0).map(Run::host_ns_per_byte);
    let (Some(tcp), Some(cpu)) = (cost("tcp"), cost("tls-cpu")) else { return };
    // On a busy machine TLS can seem to cost nothing; a share of that cost would be meaningless.
    let is_shown = |run: &Run| cpu > tcp && run.bytes > 0 && run.mode.starts_with("tls-") && run.mode != "tls-cpu";
    let share = |run: &Run| format!("{:.0} %", 100.0 * (run.host_ns_per_byte() - tcp) / (cpu - tcp));
    let cells = runs.iter().map(|run| if is_shown(run) { share(run) } else { String::new() });
    rows.iter_mut().zip(core::iter::once("TLS cost left".into()).chain(cells)).for_each(|(row, cell)| row.push(cell));
}

/// Adds a column to `rows`, which begin with the heading: the factor by which each later run costs less than the
/// CPU's run. `runs` has the setting, mode and cost of each row; only runs of the same setting are compared. Without a
/// mode `cpu` or `..-cpu` there is no such column.
///
/// ```
/// let mut rows = [["mode", "cost"], ["tls-cpu", "6"], ["tls-nic", "2"]].map(|row| row.map(String::from).to_vec());
/// offload_bench_tls::table::add_factor(&mut rows, [((), "tls-cpu", 6.0), ((), "tls-nic", 2.0)]);
/// assert_eq!((&rows[0][2][..], &rows[2][2][..]), ("less than tls-cpu", "3.0x"));
/// ```
pub fn add_factor<'a, S: PartialEq>(rows: &mut [Vec<String>], runs: impl IntoIterator<Item = (S, &'a str, f64)>) {
    let runs: Vec<_> = runs.into_iter().collect();
    let is_cpu = |(_, mode, cost): &&(S, &str, f64)| (*mode == "cpu" || mode.ends_with("-cpu")) && *cost > 0.0;
    let Some((_, mode, _)) = runs.iter().find(is_cpu) else { return };
    let mut cells = vec![format!("less than {mode}")];
    cells.extend(runs.iter().enumerate().map(|(at, (setting, _, cost))| {
        // Only an earlier run of the same setting is a reference.
        let software = runs[..at].iter().filter(is_cpu).find(|run| run.0 == *setting);
        let factor = software.filter(|_| *cost > 0.0).map(|software| format!("{:.1}x", software.2 / cost));
        factor.unwrap_or_default()
    }));
    rows.iter_mut().zip(cells).for_each(|(row, cell)| row.push(cell));
}

const CAPTION: &str = "tx, rx: CPU time of the sending and of the receiving host, nanoseconds per byte; device: that of \
                       both devices; dma: bytes over PCIe, K: 1024, M: 1024 K\n";

/// Returns the counters that moved in any of the runs, with a line per counter and a column per run, given as label and
/// counters. Both ends are summed. A note explains the counters of TLS.
///
/// ```
/// let counters = [("tx_packets".to_owned(), 725)].into();
/// let text = offload_bench_tls::table::counters([("tcp", &counters)]);
/// assert_eq!(text, "counter    tcp\ntx_packets 725\n");
/// ```
pub fn counters<'a>(runs: impl IntoIterator<Item = (&'a str, &'a BTreeMap<String, u64>)>) -> String {
    let runs: Vec<_> = runs.into_iter().collect();
    let names: BTreeSet<&String> = runs.iter().flat_map(|(_, counters)| counters.keys()).collect();
    let has_tls = names.iter().any(|name| name.starts_with("Tls"));
    let mut rows = vec![core::iter::once("counter").chain(runs.iter().map(|run| run.0)).map(String::from).collect()];
    for name in names {
        let values = runs.iter().map(|(_, counters)| counters.get(name).copied().unwrap_or(0).to_string());
        rows.push(core::iter::once(name.clone()).chain(values).collect());
    }
    align(&rows) + if has_tls { TLS_COUNTERS } else { "" }
}

const TLS_COUNTERS: &str = "TlsTxSw, TlsRxSw: directions handled in software: each one at its start, and those that came \
                            back from a NIC.\nTlsTxDevice, TlsRxDevice: directions handed to a NIC. With a NIC, software opens \
                            the records that\ncame before the NIC had the keys (ready, a ticket), and those the NIC lost.\n";

/// Returns a note about TCP timeouts, if there were any, because they decide the goodput over a bad wire.
///
/// ```
/// assert_eq!(offload_bench_tls::table::timeouts(&[]), "");
/// ```
pub fn timeouts(runs: &[Run]) -> String {
    let count = |run: &Run| run.counters.get("TcpExtTCPTimeouts").copied().unwrap_or(0);
    if runs.iter().all(|run| count(run) == 0) {
        return String::new();
    }
    let counts: Vec<String> = runs.iter().map(|run| format!("{} {}", run.mode, count(run))).collect();
    format!(
        "TCP timeouts, each of 200 ms or more without progress: {}. They decide the goodput, more than TLS does.\n\
         The modes send streams of different lengths, so one seed loses different packets in each. Compare several seeds.\n",
        counts.join(", ")
    )
}

/// Compares `tls-nic` with `tls-cpu` in two lines, one a host. Returns an empty string unless `tcp`, `tls-cpu` and `tls-nic` were run.
///
/// ```
/// assert_eq!(offload_bench_tls::table::saved(&[]), "");
/// ```
pub fn saved(runs: &[Run]) -> String {
    let Some([tcp, cpu, nic]) = all_three(runs) else { return String::new() };
    let mut text = String::new();
    for (name, of) in SIDES {
        let (tcp, cpu, nic) = (of(tcp), of(cpu), of(nic));
        // A ratio below one is hard to read, so the text says which of both is larger.
        let (factor, change) = if nic <= cpu {
            (cpu / nic.max(f64::MIN_POSITIVE), "lower")
        } else {
            (nic / cpu.max(f64::MIN_POSITIVE), "higher")
        };
        let (software, offloaded) = (cpu - tcp, nic - tcp);
        let _ = writeln!(
            text,
            "{name}: TLS adds {software:.3} ns/B in software, {offloaded:.3} with the NIC. Total host cost: {factor:.1}x {change}.",
        );
    }
    text
}

/// Returns a warning if costs per byte are not reliable: too few bytes were moved, or TLS seems to cost less than
/// nothing.
///
/// ```
/// assert_eq!(offload_bench_tls::table::noise(&[]), "");
/// ```
pub fn noise(runs: &[Run]) -> &'static str {
    let fewest = runs.iter().map(|run| run.bytes).min().unwrap_or(u64::MAX);
    let compared = all_three(runs).map(|runs| SIDES.map(|(_, of)| runs.map(of)));
    noise_in(fewest, compared.as_ref().map_or(&[], |sides| &sides[..]))
}

/// Returns the warning of [`noise`] for costs of at least `fewest` bytes, each a host's costs without TLS, with TLS in
/// software, and by the NIC.
///
/// ```
/// use offload_bench_tls::table::noise_in;
///
/// assert_eq!(noise_in(1 << 30, &[[0.1, 0.3, 0.2]]), "");
/// assert!(noise_in(1 << 30, &[[0.1, 0.3, 0.05]]).contains("too busy"));
/// ```
pub fn noise_in(fewest: u64, costs: &[[f64; 3]]) -> &'static str {
    if fewest < ENOUGH_BYTES {
        "Costs are mostly noise: less than 16 MiB were sent. Send more.\n"
    } else if costs.iter().any(|[plain, software, nic]| software.min(*nic) < *plain) {
        "TLS cannot cost less than nothing: this machine is too busy to measure. Try again, or send more.\n"
    } else {
        ""
    }
}

/// Returns `tcp`, `tls-cpu` and `tls-nic`, if all were run and moved data.
fn all_three(runs: &[Run]) -> Option<[&Run; 3]> {
    let find = |mode: &str| runs.iter().find(|run| run.mode == mode && run.bytes > 0);
    Some([find("tcp")?, find("tls-cpu")?, find("tls-nic")?])
}

/// Returns the total cost of a byte for a host.
type CostOf = fn(&Run) -> f64;

/// The two hosts.
const SIDES: [(&str, CostOf); 2] =
    [("Sending", |run| run.tx_host_ns_per_byte.total), ("Receiving", |run| run.rx_host_ns_per_byte.total)];
/// Least number of bytes for which costs per byte are reliable.
const ENOUGH_BYTES: u64 = 16 << 20;

fn heading(purposes: &BTreeSet<&str>, with_crc: bool) -> Vec<String> {
    let mut cells: Vec<String> = ["mode", "Gb/s"].map(String::from).into();
    for side in ["tx", "rx"] {
        cells.extend(["stack", "copy", "framing", "crypto"].map(|work| format!("{side} {work}")));
        cells.extend(with_crc.then(|| format!("{side} crc")));
        cells.push(format!("{side} total"));
    }
    cells.extend(["device", "packets"].map(String::from));
    cells.extend(purposes.iter().map(|purpose| format!("dma {}", abbreviated(purpose))));
    cells
}

/// Returns a DMA purpose with abbreviated words.
fn abbreviated(purpose: &str) -> String {
    let words = purpose.split('_').map(|word| match word {
        "descriptors" => "desc",
        "parameters" => "param",
        "completions" => "compl",
        other => other,
    });
    words.collect::<Vec<_>>().join(" ")
}

fn row(run: &Run, purposes: &BTreeSet<&str>, with_crc: bool) -> Vec<String> {
    let mut cells = vec![run.mode.clone(), format!("{:.2}", run.goodput_gbps)];
    for cost in [run.tx_host_ns_per_byte, run.rx_host_ns_per_byte] {
        let crc = with_crc.then_some(cost.crc);
        let parts = [cost.stack, cost.copy, cost.framing, cost.crypto].into_iter().chain(crc).chain([cost.total]);
        cells.extend(parts.map(|value| format!("{value:.3}")));
    }
    cells.extend([format!("{:.3}", run.device_ns_per_byte), run.packets.to_string()]);
    cells.extend(purposes.iter().map(|purpose| short_bytes(run.dma_bytes.get(*purpose).copied().unwrap_or(0))));
    cells
}

/// Returns a number of bytes with a binary prefix, precise enough that a small number does not look like zero.
fn short_bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes}"),
        1024..102_400 => format!("{:.1}K", bytes as f64 / 1024.0),
        _ => format!("{:.1}M", bytes as f64 / (1 << 20) as f64),
    }
}

/// Formats rows, the first of which is the heading. Columns are as wide as their widest cell; words of a heading are
/// stacked and end on a common line.
///
/// ```
/// let rows = [["streams", "goodput Gb/s"], ["8", "93.7"]].map(|row| row.map(String::from).to_vec());
/// assert_eq!(offload_bench_tls::table::align(&rows), "        goodput\nstreams    Gb/s\n8          93.7\n");
/// ```
///
/// # Panics
/// If a row has not as many cells as the heading.
pub fn align(rows: &[Vec<String>]) -> String {
    let Some((heading, body)) = rows.split_first() else { return String::new() };
    let words: Vec<Vec<&str>> = heading.iter().map(|cell| cell.split(' ').collect()).collect();
    let height = words.iter().map(Vec::len).max().unwrap_or(0);
    // Words of a heading stand above each other, which keeps columns narrow.
    let mut lines: Vec<Vec<&str>> = (0..height)
        .map(|line| {
            words.iter().map(|words| (line + words.len()).checked_sub(height).map_or("", |at| words[at])).collect()
        })
        .collect();
    lines.extend(body.iter().map(|row| row.iter().map(String::as_str).collect()));
    // A heading's cells are padded at the top, so that all headings end on the same line.
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        for (column, cell) in line.iter().enumerate() {
            let _ = match column {
                0 => write!(text, "{cell:<width$}", width = widths[0]),
                _ => write!(text, " {cell:>width$}", width = widths[column]),
            };
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::HostCost;

    fn run(mode: &str, crypto: f64) -> Run {
        let cost = HostCost { stack: 0.1, copy: 0.0, framing: 0.0, crypto, crc: 0.0, total: 0.1 + crypto };
        Run {
            mode: mode.into(),
            bytes: 1 << 20,
            sha256_ok: true,
            goodput_gbps: 12.345,
            tx_host_ns_per_byte: cost,
            rx_host_ns_per_byte: cost,
            device_ns_per_byte: 0.5,
            packets: 725,
            counters: BTreeMap::from([("tx_packets".into(), 725)]),
            dma_bytes: BTreeMap::from([("tx_payload".into(), 1 << 20), ("tx_resync".into(), 0)]),
        }
    }

    #[test]
    fn every_line_of_the_table_has_every_column() {
        let text = runs(&[run("tcp", 0.0), run("tls-cpu", 0.1), run("tls-nic", 0.0)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 7);
        assert!(text.contains("1.0M") && text.contains("12.35") && !text.contains("resync"), "{text}");
        assert!(lines[2].starts_with("mode") && lines[3].starts_with("tcp"), "{text}");
        assert_eq!(lines[3].split_whitespace().count(), 15, "{text}");
        // A run with digests gets two more columns.
        let mut digested = run("tcp", 0.0);
        digested.rx_host_ns_per_byte.crc = 0.25;
        let text = runs(&[digested]);
        assert!(text.contains("0.250") && text.lines().any(|line| line.split_whitespace().count() == 17), "{text}");
    }

    #[test]
    fn savings_are_reported_for_both_hosts_and_noise_is_flagged() {
        let runs = [run("tcp", 0.0), run("tls-cpu", 0.1), run("tls-nic", 0.0)];
        let text = saved(&runs);
        assert_eq!(text.lines().count(), 2);
        let expected = "Sending: TLS adds 0.100 ns/B in software, 0.000 with the NIC. Total host cost: 2.0x lower.\n";
        assert!(text.starts_with(expected), "{text}");
        let row = short(&[run("tcp", 0.0), run("tls-cpu", 0.1), run("tls-nic", 0.02)]);
        assert!(row.lines().last().is_some_and(|row| row.ends_with("1.7x 20 %")), "{row}");
        assert!(noise(&runs).contains("less than 16 MiB"));
        let long = |nic| {
            [("tcp", 0.0), ("tls-cpu", 0.1), ("tls-nic", nic)]
                .map(|(mode, crypto)| Run { bytes: 1 << 30, ..run(mode, crypto) })
        };
        assert_eq!(noise(&long(0.0)), "");
        assert!(noise(&long(-0.01)).contains("less than nothing"));
    }

    #[test]
    fn timeouts_are_told_for_every_run_if_there_was_any() {
        let mut runs = [run("tcp", 0.0), run("tls-nic", 0.0)];
        assert_eq!(timeouts(&runs), "");
        runs[1].counters.insert("TcpExtTCPTimeouts".into(), 3);
        assert!(timeouts(&runs).contains("progress: tcp 0, tls-nic 3."), "{}", timeouts(&runs));
    }

    #[test]
    fn counters_stand_side_by_side() {
        let runs = [run("tcp", 0.0), run("tls-cpu", 0.1)];
        let text = counters(runs.iter().map(|run| (&run.mode[..], &run.counters)));
        assert_eq!(text.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>(), ["tx_packets", "725", "725"]);
    }
}

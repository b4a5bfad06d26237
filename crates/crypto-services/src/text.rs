//! Formats results as text tables.

use crate::published::{ROWS, fpga_line};
use crate::study::{RunOutcome, Study};
use crate::{CostOrigin, Fabric, FabricError, Graph, Packet, PacketArrival, Service, ServiceCosts};
use core::fmt::Write;

/// Formats a run: delays by packet size, misses, area and instances.
///
/// ```
/// use crypto_services::{Fixed, TrafficLoad, Study, Suite, TransformDirection, text};
///
/// let study = Study::new(Suite::Aes128Gcm.graph(TransformDirection::Apply));
/// let load: Vec<_> = TrafficLoad::Steady.arrivals(1, 1e8, 0.1).collect();
/// let table = text::describe_run(&study, &study.run(&load, &mut Fixed)?);
/// assert!(table.contains("1464") && table.contains("0 of 10 windows missed"));
/// # Ok::<(), crypto_services::FabricError>(())
/// ```
pub fn describe_run(study: &Study, outcome: &RunOutcome) -> String {
    let mut text = format!("{:>6} {:>9} {:>8} {:>9} {:>9}\n", "bytes", "packets", "Gb/s", "p50 us", "p99 us");
    for size in &outcome.sizes {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:>6} {:>9} {:>8.3} {:>9.1} {:>9.1}",
            size.bytes,
            size.packets,
            size.bits_a_second / 1e9,
            size.p50_ns / 1e3,
            size.p99_ns / 1e3
        );
    }
    let instances: Vec<String> =
        outcome.instances.iter().map(|(service, count)| format!("{count} {}", service.name())).collect();
    // Refused changes are counted separately, because they show a lack of area.
    let done = outcome.changes.iter().filter(|change| change.done).count();
    let _ = write!(
        text,
        "{} of {} windows missed a p99 of {:.0} us; mean area {:.2} of {}; {done} changes, {} without area; {} packets refused\n\
         at the end: {}\n",
        outcome.missed,
        outcome.windows.len(),
        study.target_ns / 1e3,
        outcome.mean_area(study),
        study.fabric.area,
        outcome.changes.len() - done,
        outcome.refused,
        instances.join(", "),
    );
    text
}

/// Formats how the area for a load changes if the cost of one service is halved or doubled, and where the cost comes
/// from.
///
/// ```
/// use crypto_services::{TrafficLoad, Study, Suite, TransformDirection, text};
///
/// let study = Study::new(Suite::Aes128Gcm.graph(TransformDirection::Apply));
/// let load: Vec<_> = TrafficLoad::Steady.arrivals(1, 1e9, 0.1).collect();
/// assert!(text::sensitivity(&study, &load).contains("assumed"));
/// ```
pub fn sensitivity(study: &Study, load: &[PacketArrival]) -> String {
    let with = |costs: ServiceCosts| {
        let mut study = study.clone();
        study.fabric.costs = costs;
        study.area_for(load)
    };
    let shown = |area: Option<f64>| area.map_or("too much".to_owned(), |area| format!("{area:.1}"));
    let now = study.fabric.costs.clone();
    let mut text = format!(
        "area needed for the load: {}\n{:<16} {:>9} {:>10} {:>10}\n",
        shown(with(now.clone())),
        "service",
        "ns/block",
        "if half",
        "if double"
    );
    for step in study.graph.steps() {
        let (service, cost) = (step.service, now.get(step.service));
        let origin = if cost.origin == CostOrigin::Fitted { "fitted" } else { "assumed" };
        let _ = writeln!(
            text,
            "{:<16} {:>9.1} {:>10} {:>10}  {origin}",
            service.name(),
            cost.block_ns,
            shown(with(now.clone().scaled(service, 0.5))),
            shown(with(now.clone().scaled(service, 2.0)))
        );
    }
    text
}

/// Formats the poster's table: a line fitted to its first and last rows, compared with the four rows between, the time
/// of a single packet in the chain, and the effect of more AES instances.
///
/// # Errors
/// [`FabricError::Area`], which does not occur with the graph of a suite.
///
/// ```
/// let table = crypto_services::text::poster()?;
/// assert!(table.contains("29.16") && table.contains("GHASH"));
/// # Ok::<(), crypto_services::FabricError>(())
/// ```
pub fn poster() -> Result<String, FabricError> {
    let graph = crate::Suite::Aes128Gcm.graph(crate::TransformDirection::Apply);
    let mut text = format!(
        "{:>6} {:>10} {:>10} {:>10} {:>11} {:>10} {:>10}\n",
        "bytes", "FPGA us", "line us", "chain us", "container", "reduction", "by AES-NI"
    );
    for row in ROWS {
        let _ = writeln!(
            text,
            "{:>6} {:>10.2} {:>10.2} {:>10.2} {:>11.2} {:>8.1} % {:>10}",
            row.bytes,
            row.fpga,
            fpga_line().micros(row.bytes),
            // The line's fixed part (transfers, network) is not modelled by the chain.
            fpga_line().fixed_us + idle_time_ns(&graph, row.bytes, 1)? / 1e3,
            row.container,
            100.0 * row.reduction(),
            format!("{:.1} times", row.slowdown())
        );
    }
    text.push_str(
        "line: fitted on the rows for 64 and 1,464 bytes alone; chain: the line's fixed part and the chain's services, of which only AES is fitted\n\
         the poster claims reductions of 88.5 to 97.3 %; most of the time saved is the container's network stack: AES-NI alone takes a 9th to a 31st of\n\
         the FPGA's time\n\n",
    );
    let _ = writeln!(text, "{:>6} {:>10} {:>12}", "AES", "Gb/s", "1464 B, us");
    for instances in [1, 2, 4, 5, 8] {
        let block = |service: Service| service.cost().block_ns;
        // With enough AES instances, GHASH becomes the bottleneck.
        let slowest = (block(Service::Aes128) / f64::from(instances)).max(block(Service::Ghash));
        let bound = if block(Service::Ghash) >= block(Service::Aes128) / f64::from(instances) {
            "  GHASH is the limit"
        } else {
            ""
        };
        let _ = writeln!(
            text,
            "{instances:>6} {:>10.2} {:>12.2}{bound}",
            128.0 / slowest,
            fpga_line().fixed_us + idle_time_ns(&graph, 1464, instances)? / 1e3
        );
    }
    Ok(text)
}

/// Returns the time in ns of a packet of a known flow in an idle fabric.
fn idle_time_ns(graph: &Graph, bytes: u32, aes: u32) -> Result<f64, FabricError> {
    let mut fabric = Fabric::new(crate::FabricConfig::default());
    let chain = fabric.add_chain(graph.clone(), 1)?;
    fabric.set_up(Service::Aes128, aes)?;
    let mut sojourn = 0.0;
    // The first packet causes the expansion of the flow's key.
    for (name, at) in [(0, 0.0), (1, 1e9)] {
        fabric.offer(at, Packet { chain, flow: 0, bytes, name })?;
        fabric.advance(at + 1e8);
        sojourn = fabric.poll().map_or(0.0, |departed| departed.sojourn_ns());
    }
    Ok(sojourn)
}

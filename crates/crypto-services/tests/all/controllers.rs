//! Controllers on various loads.

use crypto_services::{
    FabricError, Fixed, Goal, Hysteresis, PacketArrival, Predictive, RunOutcome, Service, Study, Suite, TrafficLoad,
    TransformDirection,
};

const SEED: u64 = 20261125;

fn study() -> Study {
    Study::new(Suite::Aes128Gcm.graph(TransformDirection::Apply))
}

fn predictive(study: &Study) -> Predictive {
    Predictive::new(Goal::new(study.target_ns, study.fabric.area))
}

fn run(study: &Study, load: &[PacketArrival]) -> RunOutcome {
    study.run(load, &mut predictive(study)).unwrap()
}

/// At most two changes of a service within ten dwell times.
#[test]
fn constant_load_causes_few_changes() {
    let study = study();
    let goal = Goal::new(study.target_ns, study.fabric.area);
    let seconds = (2.0 * study.window_ns + 40.0 * goal.dwell as f64 * study.control_ns) / 1e9;
    for load in [TrafficLoad::Steady, TrafficLoad::Imix] {
        for rate in [3e8, 6e8, 9e8, 1e9, 1.5e9, 2e9, 2.5e9, 3e9, 3.3e9] {
            let packets: Vec<PacketArrival> = load.arrivals(SEED, rate, seconds).collect();
            let outcome = run(&study, &packets);
            let most = most_changes(&study, &goal, &outcome);
            assert!(most <= 2, "{} {rate}: {most}: {:?}", load.name(), outcome.changes);
            assert!(outcome.missed <= 2, "{} {rate}: {} windows", load.name(), outcome.missed);
            assert_eq!(outcome.departed + outcome.refused, packets.len() as u64);
        }
    }
}

#[test]
fn controllers_keep_the_area_and_lose_no_packet() {
    let mut study = study();
    // Less than the load needs, so that every controller reaches the limit.
    study.fabric.area = 6.0;
    let load: Vec<PacketArrival> = TrafficLoad::Bursty.arrivals(SEED, 2e9, 1.2).collect();
    for controller in
        [&mut Fixed as &mut dyn crypto_services::Controller, &mut Hysteresis::new(0.9, 0.3), &mut predictive(&study)]
    {
        let outcome = study.run(&load, controller).unwrap();
        assert_eq!(outcome.departed + outcome.refused, load.len() as u64, "{}", controller.name());
        assert!(outcome.mean_area(&study) <= 6.0 + 1e-6);
    }
}

#[test]
fn decision_interval_does_not_lose_packets() {
    let load: Vec<PacketArrival> = TrafficLoad::Steady.arrivals(SEED, 1e8, 0.05).collect();
    for control_ns in [3e6, 4e7, 7e7, 1e5 / 3.0] {
        let study = Study { control_ns, ..study() };
        let outcome = study.run(&load, &mut Fixed).unwrap();
        assert_eq!(outcome.departed + outcome.refused, load.len() as u64, "{control_ns}");
        assert!(outcome.windows.iter().all(|window| window.instances == [1; 4]), "{control_ns}");
        assert!((outcome.mean_area(&study) - study.area_of(&[])).abs() < 1e-6, "{control_ns}");
    }
}

#[test]
fn invalid_rate_gives_no_packets() {
    for load in TrafficLoad::ALL {
        for rate in [0.0, -1e9, f64::NAN, f64::INFINITY] {
            assert_eq!(load.arrivals(SEED, rate, 1.0).next(), None, "{} {rate}", load.name());
        }
    }
}

#[test]
fn service_gets_the_rest_of_the_area() {
    let mut study = study();
    study.fabric.area = 5.5;
    let load: Vec<PacketArrival> = TrafficLoad::Steady.arrivals(SEED, 3e9, 0.2).collect();
    let outcome = run(&study, &load);
    assert!(outcome.mean_area(&study) > 5.0, "{} {:?}", outcome.mean_area(&study), outcome.instances);
}

#[test]
fn slow_packets_do_not_take_all_area() {
    // A single packet exceeds this target with any number of instances.
    let study = Study { target_ns: 10_000.0, ..Study::new("aes-128:serial".parse().unwrap()) };
    let load: Vec<PacketArrival> = TrafficLoad::Steady.arrivals(SEED, 1e9, 0.2).collect();
    let outcome = run(&study, &load);
    assert_eq!(outcome.refused, 0);
    assert!((3.0..12.0).contains(&outcome.mean_area(&study)), "{:?}", outcome.instances);
}

#[test]
fn optimum_does_not_depend_on_spare_area() {
    let load: Vec<PacketArrival> = TrafficLoad::Steady.arrivals(SEED, 1e9, 0.05).collect();
    let of = |area: f64| {
        let mut study = study();
        study.fabric.area = area;
        study.optimum(&load)
    };
    assert_eq!(of(20_000.0), of(64.0));
    assert!(matches!(of(2.0), Err(FabricError::Area { .. })));
}

/// Runs the load under the controller. Returns the outcome, the ratio to the optimal area, and the windows missed by
/// the best fixed chain of the same area.
fn beside_the_optimum(load: &[PacketArrival]) -> (RunOutcome, f64, usize, String) {
    let study = study();
    let outcome = run(&study, load);
    let optimum = study.optimum(load).unwrap();
    let (area, ratio) = (outcome.mean_area(&study), outcome.area_seconds / optimum.area_seconds);
    let growth = study.growth(1464);
    // Areas differ by tenths, and a run starts with one instance of each service.
    let fixed = growth.iter().rev().find(|step| study.area_of(step) <= 1.01 * area).unwrap();
    let by_fixed = study.run_from(load, &mut Fixed, fixed).unwrap();
    let told = format!(
        "area {area:.2} optimum {:.2} ratio {ratio:.3} missed {} of {} (optimum {}), {} changes; fixed area {:.2} missed {}",
        area / ratio,
        outcome.missed,
        outcome.windows.len(),
        optimum.missed,
        outcome.changes.len(),
        study.area_of(fixed),
        by_fixed.missed
    );
    (outcome, ratio, by_fixed.missed, told)
}

#[test]
fn predictive_area_is_near_the_optimum() {
    for load in
        [TrafficLoad::Bursty, TrafficLoad::OnOff, TrafficLoad::Imix, TrafficLoad::WebSearch, TrafficLoad::DataMining]
    {
        let packets: Vec<PacketArrival> = load.arrivals(SEED, 1e9, 1.0).collect();
        let (outcome, ratio, by_fixed, told) = beside_the_optimum(&packets);
        println!("{:12} {told}", load.name());
        assert!(ratio < 1.1, "{} {told}", load.name());
        // IMIX is constant, so a fixed chain is as good.
        assert!(outcome.missed <= by_fixed.max(2), "{} {told}", load.name());
    }
}

#[test]
#[ignore = "prints the table of docs/microservices.md, which takes minutes"]
fn table_of_the_book() {
    for rate in [6e8, 1e9, 2e9] {
        for (load, seed) in TrafficLoad::ALL.into_iter().flat_map(|load| [(load, 1), (load, 2)]) {
            let packets: Vec<PacketArrival> = load.arrivals(seed, rate, 4.0).collect();
            println!("{:.1} Gb/s {:12} {seed}: {}", rate / 1e9, load.name(), beside_the_optimum(&packets).3);
        }
    }
}

/// Returns the most changes of one service in any ten dwell times, without the first windows, in which services grow
/// from one instance.
fn most_changes(study: &Study, goal: &Goal, outcome: &RunOutcome) -> usize {
    let span_ns = 10.0 * goal.dwell as f64 * study.control_ns;
    let mut by_service = std::collections::HashMap::<Service, Vec<f64>>::new();
    for change in outcome.changes.iter().filter(|change| change.at_ns > 2.0 * study.window_ns) {
        by_service.entry(change.decision.service).or_default().push(change.at_ns);
    }
    let within = |times: &Vec<f64>| {
        let from = |first: &f64| times.iter().filter(|at| (*first..*first + span_ns).contains(at)).count();
        times.iter().map(from).max().unwrap_or(0)
    };
    by_service.values().map(within).max().unwrap_or(0)
}

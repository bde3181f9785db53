//! A small part of the simulation, the same each time: `holdfast sim` runs more of it, and other seeds.

use holdfast_tests::servers::servers;
use simulation::lane::Servers;
use simulation::run::{Plan, Report, run};

fn simulate(plan: Plan) -> Report {
    let servers = Servers { database_url: servers().database_url.clone(), redis_url: servers().redis_url.clone() };
    let report = run(&servers, plan, false, |_| {}).expect("the simulation runs");
    if let Some(failure) = report.failures.first() {
        let steps = failure.log.join("\n");
        panic!(
            "{steps}\n{:?}\nagain: holdfast sim --seed {} --history {}",
            failure.violations, plan.seed, failure.history
        );
    }
    report
}

/// I1 to I6, whatever breaks: the oracle is in `tests/simulation/src/oracle.rs`, the audit beside it.
#[test]
fn nothing_is_lost_or_sold_twice_whatever_breaks() {
    let report = simulate(Plan { seed: 20_250_410, first: 0, histories: 30, lanes: 2 });
    assert_eq!(report.histories, 30);
    assert!(report.holds > 30 && report.sold > 5, "the workload sells: {report:?}");
    assert!(report.faults.values().sum::<u64>() > 50, "things break: {report:?}");
}

/// The same with many more histories, for a machine that has a few minutes.
#[test]
#[ignore = "some minutes: ./dev test --all"]
fn nothing_is_lost_or_sold_twice_in_a_thousand_histories() {
    let report = simulate(Plan { seed: 7, first: 0, histories: 1_000, lanes: 4 });
    let points: std::collections::HashSet<_> = report.faults.keys().map(|(point, _)| *point).collect();
    let all = domain::flow::FaultPoint::ALL.len();
    assert!(points.len() * 4 > all * 3, "things break at {} of {all} points only: {points:?}", points.len());
}

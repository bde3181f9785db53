//! Under load nothing is ever equal between the stores: that is motion, and no finding.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use domain::flow::audit::{AuditPlan, audit};
use domain::flow::unhold::cancel_reservation;
use domain::flow::{Access, Stores};
use domain::reservation::CancelReason;
use holdfast_tests::audit::settles_within;
use holdfast_tests::sale::{Sale, SalePlan, pay};
use holdfast_tests::stores::TestStores;
use holdfast_tests::worker::RunningWorker;

const BUYERS: usize = 12;
const BUSY_FOR: Duration = Duration::from_secs(20);
const AUDITS_MIN: u64 = 3;

/// A buyer who holds what he can get, and then pays, cancels or forgets it, again and again.
async fn a_buyer(stores: Stores, sale: Sale, number: usize, (stop, held): (Arc<AtomicBool>, Arc<AtomicU64>)) {
    let rows = ["A", "B", "C", "D"];
    let mut turn = number;
    while !stop.load(Ordering::Relaxed) {
        turn += 7;
        let row = rows[turn % rows.len()];
        let column = turn / 3 % 100 + 1;
        let (first, second) = (format!("{row}-{column}"), format!("{row}-{}", column % 100 + 1));
        let buyer = format!("buyer-{number}");
        let Ok(hold) = sale.hold(&stores, &buyer, &[&first, &second]).await else { continue };
        held.fetch_add(1, Ordering::Relaxed);
        match turn % 4 {
            0 if turn.is_multiple_of(3) => {
                let _paid = pay(&stores, hold.id, "tok_ok").await;
            }
            1 => {
                let _paid = pay(&stores, hold.id, "tok_decline").await;
            }
            2 => {
                let _over = cancel_reservation(&stores, &Access::Any, hold.id, CancelReason::User).await;
            }
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_only_motion_is_no_finding_however_busy_the_house_is() {
    let test = TestStores::start().await;
    let worker = RunningWorker::start(&test);
    let rows = [("B1", "A", 100), ("B1", "B", 100), ("B1", "C", 100), ("B1", "D", 100)];
    let sale = Sale::open(&test.stores, SalePlan::of_rows(&rows).ttl_ms(1_500).window_ms(4_000)).await;
    settles_within(&test, Duration::from_secs(20)).await;
    let (stop, held) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let buyers: Vec<_> = (0..BUYERS)
        .map(|number| {
            let signs = (Arc::clone(&stop), Arc::clone(&held));
            tokio::spawn(a_buyer(test.stores.clone(), sale.clone(), number, signs))
        })
        .collect();
    let auditor = test.another_process();
    let gateways = workers::gateways(&auditor);
    let (began, mut audits, mut in_motion) = (Instant::now(), 0, 0);
    while began.elapsed() < BUSY_FOR || audits < AUDITS_MIN {
        let plan = AuditPlan { page: 100, ..AuditPlan::default() };
        let report = audit(&auditor, &gateways, &plan, &|_, _| {}).await.unwrap();
        assert!(report.findings.is_empty(), "audit {audits}: {:#?}", report.findings);
        assert_eq!(report.skipped, Vec::<String>::new());
        in_motion += report.in_motion;
        audits += 1;
        assert!(began.elapsed() < 8 * BUSY_FOR, "{audits} audits took {:?}", began.elapsed());
    }
    stop.store(true, Ordering::Relaxed);
    for buyer in buyers {
        buyer.await.unwrap();
    }
    assert!(held.load(Ordering::Relaxed) > 100, "the house was not busy");
    assert!(in_motion > 0, "in {audits} audits nothing ever moved");
    settles_within(&test, Duration::from_secs(30)).await;
    worker.stop().await;
}

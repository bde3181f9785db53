//! The audit: a healthy installation has no findings, however busy it is; each kind of breakage, made behind the
//! engine's back, is named exactly; what can be mended is mended by the flows.

mod breakage;
mod command;
mod money;
mod motion;

use std::collections::BTreeSet;
use std::time::Duration;

use domain::flow::audit::finding::{Finding, FindingCode, Severity};
use domain::flow::audit::{AuditPlan, AuditReport, Verdict, audit, repair};
use domain::flow::block_seats::{BlockOrder, block_seats};
use domain::flow::expire_reservations::expire_reservations;
use domain::flow::finalize_payment::{PaymentProgress, finalize_payment};
use domain::flow::open_event::open_event;
use domain::flow::warm_up::warm_up;
use domain::id::{PaymentId, ReservationId};
use domain::payment::PaymentStatus;
use domain::reservation::Reservation;
use domain::store::pg::claims::Blocking;
use holdfast_tests::sale::{Sale, SalePlan, pay};
use holdfast_tests::stores::TestStores;

/// A house that is sold in part: `A-1` and `A-2` are sold, `B-1` is held, `C-1` is blocked.
pub struct House {
    pub test: TestStores,
    pub sale: Sale,
    pub sold: ReservationId,
    pub paid: PaymentId,
    pub held: Reservation,
}

impl House {
    pub async fn open() -> Self {
        let test = TestStores::start().await;
        let stores = &test.stores;
        warm_up(stores).await.unwrap();
        let sale = Sale::open(stores, SalePlan::default()).await;
        let sold = sale.hold(stores, "anna", &["A-1", "A-2"]).await.unwrap().id;
        let paid = pay(stores, sold, "tok_ok").await.unwrap().id;
        let held = sale.hold(stores, "berta", &["B-1"]).await.unwrap();
        let order = BlockOrder {
            event: sale.event,
            seats: vec![sale.seat("C-1")],
            blocking: Blocking::Block,
            actor: "key:test".to_owned(),
            reason: "the camera stands here".to_owned(),
        };
        block_seats(stores, order).await.unwrap();
        open_event(stores, sale.event).await.unwrap();
        let house = Self { test, sale, sold, paid, held };
        house.finalize(paid).await;
        house.forget_jobs().await;
        // The sweep would look at the event once more, and find nothing to do.
        expire_reservations(&house.test.stores, &[ReservationId(house.sale.event.0)]).await.unwrap();
        assert_eq!(house.codes().await, [] as [&str; 0], "the house is sound to begin with");
        house
    }

    /// What a worker does with a payment.
    pub async fn finalize(&self, payment: PaymentId) -> PaymentStatus {
        let gateways = workers::gateways(&self.test.stores);
        match finalize_payment(&self.test.stores, &gateways, payment).await.unwrap() {
            PaymentProgress::Ended(status) => status,
            other => panic!("{other:?}"),
        }
    }

    /// The jobs whose work the test has done itself.
    pub async fn forget_jobs(&self) {
        let stem = self.test.settings.redis_prefix.replace(':', "-");
        let queues = self.test.keys().await.into_iter().filter(|key| key.starts_with(&stem));
        self.redis(redis::cmd("DEL").arg("nothing").arg(queues.collect::<Vec<_>>())).await;
    }

    /// Breaks Postgres behind the engine's back.
    pub async fn sql(&self, statement: &str) {
        let done = sqlx::query(sqlx::AssertSqlSafe(statement.to_owned())).execute(&self.test.sql).await.unwrap();
        assert!(done.rows_affected() > 0, "{statement}");
    }

    /// Breaks Redis behind the engine's back.
    pub async fn redis(&self, command: &redis::Cmd) {
        let _: redis::Value = command.query_async(&mut self.test.redis().await).await.unwrap();
    }

    /// A seat's key.
    pub fn key(&self, row: &str, column: &str) -> String {
        self.test.key(&format!("seat:{}:B1:{column}:{row}", self.sale.sheet.event.date_key))
    }

    /// A key of the queues.
    pub fn queue_key(&self, rest: &str) -> String {
        format!("{}{rest}", self.test.settings.redis_prefix.replace(':', "-"))
    }

    /// The id of a seat, for SQL.
    pub fn seat(&self, name: &str) -> i64 {
        self.sale.sheet.map.resolve(&self.sale.seat(name)).unwrap().id.0
    }

    pub async fn look(&self) -> AuditReport {
        look(&self.test).await
    }

    /// The codes that are found, each once.
    pub async fn codes(&self) -> Vec<&'static str> {
        codes(&self.look().await)
    }

    /// What is found, all of one code; nothing else is.
    pub async fn only(&self, code: FindingCode) -> Finding {
        let report = self.look().await;
        assert_eq!(codes(&report), [code.as_str()], "{:#?}", report.findings);
        report.findings[0].clone()
    }

    /// Repairs, and says what is left.
    pub async fn mend(&self) -> Vec<&'static str> {
        let report = self.look().await;
        for repaired in repair(&self.test.stores, &report.findings).await {
            assert_eq!(repaired.failure, None, "{:?}", repaired.repair);
        }
        self.codes().await
    }
}

/// An audit that is not patient: in these tests nothing moves.
pub async fn look(test: &TestStores) -> AuditReport {
    let plan = AuditPlan { patience: Duration::from_millis(150), page: 10, ..AuditPlan::default() };
    audit(&test.stores, &workers::gateways(&test.stores), &plan, &|_, _| {}).await.unwrap()
}

pub fn codes(report: &AuditReport) -> Vec<&'static str> {
    let codes: BTreeSet<&str> = report.counts.keys().map(|(_, code)| code.as_str()).collect();
    codes.into_iter().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_where_nothing_was_ever_opened_is_clean() {
    let test = TestStores::start().await;
    let report = look(&test).await;
    assert_eq!((report.verdict(), report.skipped.len()), (Verdict::Clean, 0), "{:?}", report.findings);
    Sale::draft(&test.stores, SalePlan::default()).await;
    assert_eq!(look(&test).await.verdict(), Verdict::Clean);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_house_that_is_sold_in_part_is_looked_at_whole_and_clean() {
    let house = House::open().await;
    let report = house.look().await;
    assert_eq!(report.verdict(), Verdict::Clean);
    let at = report.looked_at;
    assert_eq!((at.events, at.blocks, at.seats), (1, 1, 30));
    assert_eq!((at.claims, at.reservations, at.payments, at.asked, at.deadlines), (4, 2, 1, 1, 1));
    // Over, and tidied up, it is clean as well.
    house.test.advance(700_000);
    expire_reservations(&house.test.stores, &[house.held.id]).await.unwrap();
    assert_eq!(house.codes().await, [] as [&str; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_goes_on_without_redis_and_says_so() {
    let house = House::open().await;
    let stores = house.test.a_process_without_redis();
    let plan = AuditPlan { patience: Duration::from_millis(150), ..AuditPlan::default() };
    let gateways = workers::gateways(&stores);
    let report = audit(&stores, &gateways, &plan, &|_, _| {}).await.unwrap();
    assert_eq!(report.verdict(), Verdict::Clean, "{:?}", report.findings);
    assert_eq!(report.skipped.len(), 2, "{:?}", report.skipped);
    assert_eq!((report.looked_at.seats, report.looked_at.claims), (0, 4));
    house.sql("UPDATE reservations SET amount = amount + 1 WHERE status = 'PENDING'").await;
    let report = audit(&stores, &gateways, &plan, &|_, _| {}).await.unwrap();
    assert_eq!((codes(&report), report.verdict()), (vec!["reservation_seats_differ"], Verdict::Broken));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_redis_is_one_finding_and_drift() {
    let house = House::open().await;
    house.test.lose_redis().await;
    let report = house.look().await;
    assert_eq!((codes(&report), report.verdict()), (vec!["redis_lost"], Verdict::Drift), "{:?}", report.findings);
    assert_eq!(report.findings[0].severity, Severity::Drift);
    assert_eq!(house.mend().await, [] as [&str; 0]);
    assert_eq!(house.sale.bucket_status(&house.test, "A-1").await.as_deref(), Some("sold"));
}

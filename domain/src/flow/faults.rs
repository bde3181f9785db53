//! Where tests and the simulation make a flow stop: at a named point between two writes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// A named point between two writes, where a crash must do no harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FaultPoint {
    /// place_hold: the gate is taken, nothing else written.
    HoldGateTaken,
    /// place_hold: deadline registered, not committed.
    HoldDeadlineRegistered,
    /// place_hold: committed; Redis shows the short gate.
    HoldCommitted,
    /// place_hold: shown in Redis; the index has it come due when the gate would have opened.
    HoldShown,
    /// unhold: Redis expects it, not committed.
    CancelMarked,
    /// unhold: cancelled in Postgres, Redis still shows it held.
    CancelCommitted,
    /// unhold: extended in Postgres, Redis still has the old deadline.
    ExtendCommitted,
    /// start_payment: Redis expects it, not committed.
    PaymentMarked,
    /// start_payment: committed, the job is not queued.
    PaymentCommitted,
    /// finalize_payment: the provider has answered, nothing is written.
    PaymentAuthorized,
    /// finalize_payment: the seats are committed, nothing captured.
    PaymentSeatsCommitted,
    /// finalize_payment: the provider has answered to the capture, nothing is written.
    PaymentCaptured,
    /// finalize_payment: confirmed in Postgres, Redis shows it held.
    PaymentConfirmed,
    /// finalize_payment: the capture was refused and the seats are free in Postgres, Redis shows them held.
    PaymentFailed,
    /// finalize_payment: the provider has given late money back, nothing is written.
    PaymentRefunded,
    /// finalize_payment: parked in Postgres, Redis shows what was before.
    PaymentParked,
    /// show_reservations: Postgres is read, Redis not written: whoever goes on late writes what was.
    ShowRead,
    /// read_block: Redis and Postgres are compared, nothing is written.
    HealRead,
    /// expire_reservations: cancelled in Postgres, Redis still shows it held.
    ExpiryCommitted,
    /// show_reservations: shown in Redis, still in the index.
    ExpiryShown,
    /// block_seats: Redis expects it, not committed.
    BlockMarked,
    /// block_seats: committed, Redis shows the seats as before.
    BlockCommitted,
    /// block_seats: shown, the job is not queued.
    BlockShown,
    /// start_sale: committed, the job is not queued.
    SaleStarted,
    /// open_event: some blocks are written.
    OpenHalfWritten,
    /// warm_up: a page of deadlines is read, not written.
    WarmUpPageRead,
    /// warm_up: some pages are written.
    WarmUpHalfDone,
}

impl FaultPoint {
    /// Every point, for tests that crash at each.
    pub const ALL: [Self; 27] = [
        Self::HoldGateTaken,
        Self::HoldDeadlineRegistered,
        Self::HoldCommitted,
        Self::HoldShown,
        Self::CancelMarked,
        Self::CancelCommitted,
        Self::ExtendCommitted,
        Self::PaymentMarked,
        Self::PaymentCommitted,
        Self::PaymentAuthorized,
        Self::PaymentSeatsCommitted,
        Self::PaymentCaptured,
        Self::PaymentConfirmed,
        Self::PaymentFailed,
        Self::PaymentRefunded,
        Self::PaymentParked,
        Self::ShowRead,
        Self::HealRead,
        Self::ExpiryCommitted,
        Self::ExpiryShown,
        Self::BlockMarked,
        Self::BlockCommitted,
        Self::BlockShown,
        Self::SaleStarted,
        Self::OpenHalfWritten,
        Self::WarmUpPageRead,
        Self::WarmUpHalfDone,
    ];
}

/// What is done at a point, before the flow goes on.
pub type AtPoint = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where tests make a flow stop. Production sets none.
#[derive(Clone, Default)]
pub struct Faults(Option<Arc<dyn Fn(FaultPoint) -> AtPoint + Send + Sync>>);

impl Faults {
    /// Crashes wherever `crash` says so: the flow goes no further, as if its process had died there. Its caller drops
    /// it after a while.
    #[must_use]
    pub fn crash_where(crash: impl Fn(FaultPoint) -> bool + Send + Sync + 'static) -> Self {
        Self::at_each(
            move |point| {
                if crash(point) { Box::pin(std::future::pending()) } else { Box::pin(std::future::ready(())) }
            },
        )
    }

    /// At each point the flow goes on once what `act` returns has ended: at once, after something was broken, after
    /// other flows have run for a while (a process that was stopped), or never.
    #[must_use]
    pub fn at_each(act: impl Fn(FaultPoint) -> AtPoint + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(act)))
    }

    pub(crate) async fn pass(&self, point: FaultPoint) {
        if let Some(act) = &self.0 {
            act(point).await;
        }
    }
}

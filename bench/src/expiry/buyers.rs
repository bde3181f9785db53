//! Next buyers: each wants one seat the moment its holder's deadline has come, and asks until it has it.

use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::json;
use tokio::task::JoinSet;

use super::Run;
use crate::client::{Connection, post};
use crate::ear::now_us;
use crate::seed::PendingSeat;
use crate::table::Lateness;

/// Attempts before a buyer gives up.
const ATTEMPTS_MAX: usize = 10_000;

/// The attempts that succeeded: when they were sent, and how many of them were the buyer's first.
pub struct Attempts {
    pub lateness: Lateness,
    pub first: usize,
}

/// Sends the buyers. The future gives the attempts, and when their answers came.
pub fn send(run: &Run) -> impl Future<Output = Result<(Attempts, Lateness)>> + use<> {
    let mut buyers = JoinSet::new();
    for (number, seat) in run.wanted.iter().cloned().enumerate() {
        let (addr, key, event) = (run.engine.addr.clone(), run.engine.key.clone(), run.event);
        buyers.spawn(async move {
            let request = hold(&key, event, number, &seat);
            buy(&addr, &request, seat.deadline_ms * 1_000).await
        });
    }
    async move {
        let mut attempts = Attempts { lateness: Lateness::new()?, first: 0 };
        let mut answered = Lateness::new()?;
        while let Some(bought) = buyers.join_next().await {
            let (sent_us, answered_us, tries) = bought??;
            attempts.lateness.record(sent_us)?;
            answered.record(answered_us)?;
            attempts.first += usize::from(tries == 1);
        }
        Ok((attempts, answered))
    }
}

fn hold(key: &str, event: uuid::Uuid, number: usize, seat: &PendingSeat) -> Vec<u8> {
    let wanted = json!({ "block": seat.block, "row": seat.row_label, "column": seat.column_label });
    let body = json!({ "seats": [wanted], "buyer": format!("next-{number}") }).to_string();
    post(&format!("/v1/events/{event}/reservations"), key, "application/json", &body)
}

/// Returns when the successful attempt was sent and answered, after the deadline, and how many it took.
async fn buy(addr: &str, request: &[u8], deadline_us: i64) -> Result<(i64, i64, usize)> {
    let mut connection = Connection::open(addr).await?;
    let early_us = u64::try_from(deadline_us - now_us() - 2_000).unwrap_or(0);
    tokio::time::sleep(Duration::from_micros(early_us)).await;
    while now_us() < deadline_us {
        tokio::task::yield_now().await;
    }
    for attempt in 1..=ATTEMPTS_MAX {
        let sent_us = now_us();
        let answer = connection.send(request).await?;
        match answer.status {
            201 => return Ok((sent_us - deadline_us, now_us() - deadline_us, attempt)),
            409 => tokio::time::sleep(Duration::from_millis(1)).await,
            other => bail!("{other}: {}", String::from_utf8_lossy(answer.body)),
        }
    }
    bail!("a buyer gave up")
}

//! The workloads, closed loop: each client sends its next request when the last is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use hdrhistogram::Histogram;
use serde_json::json;

use crate::client::{Connection, get, post};
use crate::engine::{Engine, Event};
use crate::say;

/// What a workload came to.
pub struct Figures {
    /// Good answers per second.
    pub rate: f64,
    good: u64,
    other: u64,
    micros: Histogram<u64>,
}

impl Figures {
    /// Prints the figures in a line.
    pub fn print(&self, name: &str) {
        let ms = |quantile| Duration::from_micros(self.micros.value_at_quantile(quantile)).as_secs_f64() * 1_000.0;
        say(&format!(
            "{name}: {:.0}/s ({} good, {} other), p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms",
            self.rate,
            self.good,
            self.other,
            ms(0.5),
            ms(0.99),
            ms(0.999)
        ));
    }
}

async fn closed_loop<F>(addr: &str, clients: usize, span: Duration, wanted: u16, next: F) -> Result<Figures>
where
    F: Fn() -> Option<Vec<u8>> + Send + Sync + 'static,
{
    let next = Arc::new(next);
    let begun = Instant::now();
    let mut running = Vec::new();
    for _ in 0..clients {
        let (addr, next) = (addr.to_owned(), Arc::clone(&next));
        running.push(tokio::spawn(async move {
            let mut connection = Connection::open(&addr).await?;
            let mut micros = Histogram::<u64>::new(3)?;
            let (mut good, mut other) = (0, 0);
            while begun.elapsed() < span {
                let Some(request) = next() else { break };
                let sent = Instant::now();
                let status = connection.send(&request).await?.status;
                micros.record(u64::try_from(sent.elapsed().as_micros()).unwrap_or(u64::MAX))?;
                if status == wanted { good += 1 } else { other += 1 }
            }
            anyhow::Ok((good, other, micros))
        }));
    }
    let mut figures = Figures { rate: 0.0, good: 0, other: 0, micros: Histogram::new(3)? };
    for client in running {
        let (good, other, micros) = client.await??;
        figures.good += good;
        figures.other += other;
        figures.micros.add(&micros)?;
    }
    figures.rate = f64::from(u32::try_from(figures.good)?) / begun.elapsed().as_secs_f64();
    Ok(figures)
}

/// Holds of one seat each, every seat once.
pub async fn hold(engine: &Engine, event: &Event, clients: usize, span: Duration) -> Result<Figures> {
    let path = format!("/v1/events/{}/reservations", event.id);
    let (key, blocks, per_block) = (engine.key.clone(), event.blocks, event.seats_per_block);
    let taken = AtomicUsize::new(0);
    let figures = closed_loop(&engine.addr, clients, span, 201, move || {
        let number = taken.fetch_add(1, Ordering::Relaxed);
        // Neighbouring requests fall into different blocks.
        let (block, place) = (number % blocks + 1, number / blocks);
        if place >= per_block {
            return None;
        }
        let seat = json!({ "block": block.to_string(), "row": (place / 10 + 1).to_string(), "column": (place % 10 + 1).to_string() });
        let body = json!({ "seats": [seat], "buyer": format!("buyer-{number}") }).to_string();
        Some(post(&path, &key, "application/json", &body))
    });
    figures.await
}

/// Reads of one block.
pub async fn read_block(engine: &Engine, event: &Event, clients: usize, span: Duration) -> Result<Figures> {
    let request = get(&format!("/v1/events/{}/blocks/1/seats", event.id));
    closed_loop(&engine.addr, clients, span, 200, move || Some(request.clone())).await
}

/// Reads every block once, so that all are in the mirror.
pub async fn read_all_blocks(engine: &Engine, event: &Event) -> Result<()> {
    let mut connection = Connection::open(&engine.addr).await?;
    for block in 1..=event.blocks {
        let answer = connection.send(&get(&format!("/v1/events/{}/blocks/{block}/seats", event.id))).await?;
        if answer.status != 200 {
            bail!("block {block}: {}", answer.status);
        }
    }
    Ok(())
}

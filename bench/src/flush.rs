//! Redis loses everything under load, on the demo stadium: how long until every seat is right again, and what buyers
//! and readers see meanwhile.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use domain::demo::{demo_prices, stadium};
use domain::flow::warm_up::{WarmUpError, warm_up};
use domain::runtime::clock::system_ms;
use serde_json::json;
use sqlx::PgPool;
use tokio::time::sleep;
use uuid::Uuid;

use crate::compare::{Comparison, Depth, blocks, compare_block, compare_event};
use crate::engine::Engine;
use crate::load::{Counts, Field, Kind, Load, Sample, count};
use crate::seed::{self, Pending, Place};
use crate::{compare, say, table};

/// Arguments of `bench flush`.
#[derive(Debug, Clone, Copy, Args)]
pub struct FlushArgs {
    /// A line of JSON instead of tables
    #[arg(long)]
    json: bool,
    /// How often Redis is flushed
    #[arg(long, default_value_t = 3)]
    times: u32,
}

/// Load before the flush, and after all is right again.
const AROUND: Duration = Duration::from_secs(2);
/// How long it may take.
const LIMIT: Duration = Duration::from_secs(120);
/// A line for so many ms.
const SLICE_MS: u128 = 100;

/// Measures, and prints what it found.
///
/// # Errors
/// The engine does not start, or Redis is not right in two minutes.
pub async fn run(args: FlushArgs) -> Result<()> {
    for _ in 0..args.times {
        once(args).await?;
    }
    Ok(())
}

async fn once(args: FlushArgs) -> Result<()> {
    let mut engine = Engine::start().await?;
    let pool = seed::connect(engine.database_url()).await?;
    let event = open_stadium(&mut engine).await?;
    let field = sell(&engine, &pool, event).await?;
    let seats = field.free.len() + field.shown.len();
    let before = compare_event(&pool, engine.redis_url(), event, Depth::Deadlines).await?;
    if !before.is_right() {
        bail!("Redis is not right before it begins: {before:?}");
    }
    let load = Load::start(&engine, field);
    sleep(AROUND).await;
    let flushed = Instant::now();
    let mut redis = compare::connect(engine.redis_url()).await?;
    let () = redis::cmd("FLUSHALL").query_async(&mut redis).await?;
    let right_after = until_right(&pool, &engine, event, flushed).await?;
    sleep(AROUND).await;
    let samples = load.end().await?;
    sleep(Duration::from_secs(6)).await;
    let after = compare_event(&pool, engine.redis_url(), event, Depth::Deadlines).await?;
    report(args.json, seats, (flushed, right_after), &samples, after);
    if !after.is_right() {
        bail!("Redis is not right at the end: {after:?}");
    }
    engine.stop()
}

async fn open_stadium(engine: &mut Engine) -> Result<Uuid> {
    let mut csv = String::from("block,row,column,category,neighbours\n");
    for block in stadium().blocks {
        for seat in block.seats {
            let (block, row, column) = (block.block.as_str(), seat.row.as_str(), seat.column.as_str());
            csv.push_str(&format!("{block},{row},{column},{},-\n", seat.category));
        }
    }
    Ok(engine.open_event_of(&csv, &json!(demo_prices().stadium)).await?.parse()?)
}

/// Of each ten seats three are sold, two held for an hour, two are for the load, and three stay available.
async fn sell(engine: &Engine, pool: &PgPool, event: Uuid) -> Result<Field> {
    let places = seed::places(pool, event).await?;
    let count = i64::try_from(places.len())?;
    let from_ms = system_ms() + 3_600_000;
    seed::hold_by_sql(pool, Pending { event, first: 0, count, from_ms, span_ms: 600_000 }).await?;
    for statement in [
        "DELETE FROM seat_claims WHERE event_id = $1 AND seat_id % 10 >= 5",
        "DELETE FROM reservations r WHERE event_id = $1
         AND NOT EXISTS (SELECT FROM seat_claims c WHERE c.event_id = $1 AND c.reservation_id = r.id)",
        "UPDATE reservations r SET status = 'CONFIRMED', ended_at = now() FROM seat_claims c
         WHERE r.event_id = $1 AND c.event_id = $1 AND c.reservation_id = r.id AND c.seat_id % 10 < 3",
        "UPDATE seat_claims SET state = 'sold', expires_at = NULL WHERE event_id = $1 AND seat_id % 10 < 3",
    ] {
        sqlx::query(statement).bind(event).execute(pool).await?;
    }
    let stores = engine.stores()?;
    while let Err(error) = warm_up(&stores).await {
        match error {
            WarmUpError::Elsewhere => sleep(Duration::from_millis(50)).await,
            other => return Err(other.into()),
        }
    }
    engine.settle()?;
    let digits: Vec<i64> = sqlx::query_scalar(
        "SELECT s.id % 10 FROM seats s JOIN blocks b ON b.id = s.block_id JOIN events e ON e.venue_id = s.venue_id
         WHERE e.id = $1 ORDER BY b.ordinal, s.ordinal",
    )
    .bind(event)
    .fetch_all(pool)
    .await?;
    let mut field = Field {
        event: event.to_string(),
        free: Vec::new(),
        taken: Vec::new(),
        shown: HashMap::new(),
        blocks: Vec::new(),
    };
    for (place, digit) in places.into_iter().zip(digits) {
        let Place { block, row_label, column_label } = place.clone();
        if field.blocks.last() != Some(&block) {
            field.blocks.push(block.clone());
        }
        let shown = match digit {
            0..3 => "sold",
            3..5 => "held",
            5..7 => {
                field.free.push(place);
                continue;
            }
            _ => "available",
        };
        if digit < 5 {
            field.taken.push(place);
        }
        field.shown.insert((block, row_label, column_label), shown);
    }
    Ok(field)
}

/// Looks at every block until all are right at one look, a block that is wrong twice.
async fn until_right(pool: &PgPool, engine: &Engine, event: Uuid, flushed: Instant) -> Result<Duration> {
    let mut redis = compare::connect(engine.redis_url()).await?;
    let blocks = blocks(pool, event).await?;
    let mut wrong = blocks.clone();
    let mut last_mended = Duration::ZERO;
    while flushed.elapsed() < LIMIT {
        let mut still = Vec::new();
        for block in wrong {
            let mut found = compare_block(pool, &mut redis, (event, block), Depth::Picture).await?;
            if !found.is_right() {
                found = compare_block(pool, &mut redis, (event, block), Depth::Picture).await?;
            }
            if found.is_right() { last_mended = flushed.elapsed() } else { still.push(block) }
        }
        if still.is_empty() {
            // Right one by one; are they right together?
            for &block in &blocks {
                let is_right = async |redis: &mut _| {
                    anyhow::Ok(compare_block(pool, redis, (event, block), Depth::Picture).await?.is_right())
                };
                if !is_right(&mut redis).await? && !is_right(&mut redis).await? {
                    still.push(block);
                }
            }
            if still.is_empty() {
                return Ok(last_mended);
            }
        }
        wrong = still;
        sleep(Duration::from_millis(20)).await;
    }
    bail!("{} blocks are not right after two minutes", wrong.len())
}

fn report(
    as_json: bool,
    seats: usize,
    (flushed, right_after): (Instant, Duration),
    samples: &[Sample],
    after: Comparison,
) {
    let kinds = [("holds", Kind::Hold), ("holds of taken seats", Kind::Thief), ("reads", Kind::Read)];
    let during = |sample: &&Sample| sample.sent + sample.took >= flushed && sample.sent <= flushed + right_after;
    if as_json {
        let of = |kind| {
            let Counts { right, refused, wrong, errors, slowest } = count(samples.iter().filter(during), kind);
            json!({ "right": right, "refused": refused, "wrong": wrong, "errors": errors,
                    "slowest_ms": slowest.as_secs_f64() * 1_000.0 })
        };
        let line = json!({
            "run": "flush", "seats": seats, "right_after_ms": right_after.as_secs_f64() * 1_000.0,
            "holds": of(Kind::Hold), "thieves": of(Kind::Thief), "reads": of(Kind::Read), "load": table::load(),
        });
        say(&line.to_string());
        return;
    }
    say(&format!(
        "\nFLUSHALL under load, {seats} seats: every block right again after {:.0} ms; at the end {} of {} seats differ ({})",
        right_after.as_secs_f64() * 1_000.0,
        after.absent + after.wrong,
        after.seats,
        table::load()
    ));
    for (name, kind) in kinds {
        for (when, counts) in [
            ("before", count(samples.iter().filter(|sample| sample.sent + sample.took < flushed), kind)),
            ("until right", count(samples.iter().filter(during), kind)),
            ("after", count(samples.iter().filter(|sample| sample.sent > flushed + right_after), kind)),
        ] {
            say(&format!("  {name:<22} {when:<12} {}", line_of(counts)));
        }
    }
    let slice = |sample: &Sample| sample.sent.saturating_duration_since(flushed).as_millis() / SLICE_MS;
    say("  by 100 ms after the flush, where anything was not as it should be:");
    for number in 0..=right_after.as_millis() / SLICE_MS {
        let here = || samples.iter().filter(|sample| sample.sent >= flushed && slice(sample) == number);
        for (name, kind) in kinds {
            let counts = count(here(), kind);
            if counts.refused + counts.wrong + counts.errors > 0 {
                say(&format!("  {:>5} ms {name:<22} {}", number * SLICE_MS, line_of(counts)));
            }
        }
    }
}

fn line_of(counts: Counts) -> String {
    let Counts { right, refused, wrong, errors, slowest } = counts;
    let slowest = slowest.as_secs_f64() * 1_000.0;
    format!("{right} right, {refused} refused without need, {wrong} wrong, {errors} errors, slowest {slowest:.0} ms")
}

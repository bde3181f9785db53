//! The block mirror without HTTP: what one core gives in this process, unchanged and while seats change, beside what
//! reading Redis itself gives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use api::mirror::BlockMirror;
use clap::Parser;
use domain::event::EventRules;
use domain::flow::event_book::EventSheet;
use domain::flow::import_venue::{ImportMode, VenueFile, import_venue};
use domain::flow::open_event::open_event;
use domain::flow::place_hold::{HoldRequest, place_hold};
use domain::flow::read_block::read_block;
use domain::flow::set_up_event::{EventPlan, create_event, start_sale};
use domain::flow::{Answered, Stores};
use domain::id::Buyer;
use domain::import::MapFormat;
use domain::runtime::clock::Clock;
use domain::runtime::settings::StoreSettings;
use domain::seat::SeatRef;
use holdfast::services::{Services, ServicesConfig};

/// Reads between two looks at the clock.
const BATCH: u64 = 256;

#[derive(Parser)]
struct Connection {
    #[command(flatten)]
    stores: StoreSettings,
}

/// Measures, and prints what it found.
///
/// # Errors
/// A server does not start, or a flow fails.
pub async fn run(seats: usize, span: Duration) -> Result<()> {
    let services = Services::start(ServicesConfig::test())?;
    let urls = ["bench", "--database-url", services.database_url(), "--redis-url", services.redis_url()];
    let stores = Stores::connect(&Connection::try_parse_from(urls)?.stores, Clock::default())?;
    stores.pg.migrate().await?;
    let sheet = put_on_sale(&stores, seats).await?;
    let (event, block) = (sheet.event.id, sheet.map.blocks()[0].block.clone());
    let mirror = BlockMirror::new(stores.clone());
    while !mirror.follows(event, &block) {
        mirror.block(event, &block).await?;
        tokio::task::yield_now().await;
    }
    let bytes = mirror.block(event, &block).await?.json.len();
    crate::say(&format!("a block of {seats} seats is {bytes} bytes"));

    let unchanged = count(span, async || Ok(mirror.block(event, &block).await.map(|_view| ())?)).await?;
    crate::say(&format!("mirror, unchanged: {unchanged:.0} reads/s on one core"));

    let (ended, holds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let changing = std::thread::spawn({
        let (stores, sheet, ended, holds) =
            (stores.clone(), Arc::clone(&sheet), Arc::clone(&ended), Arc::clone(&holds));
        let runtime = tokio::runtime::Handle::current();
        move || runtime.block_on(change_seats(&stores, &sheet, &ended, &holds))
    });
    let mut bodies = 0_u64;
    let mut last = String::new();
    let changed = count(span, async || {
        let view = mirror.block(event, &block).await?;
        if view.etag != last {
            last.clone_from(&view.etag);
            bodies += 1;
        }
        Ok(())
    })
    .await?;
    ended.store(true, Ordering::Relaxed);
    let ended = tokio::task::spawn_blocking(move || changing.join()).await?;
    ended.map_err(|_| anyhow::anyhow!("the holds panicked"))??;
    let seconds = span.as_secs_f64();
    crate::say(&format!(
        "mirror, while {:.0} holds/s change it: {changed:.0} reads/s, {:.0} new bodies/s",
        holds.load(Ordering::Relaxed) as f64 / seconds,
        bodies as f64 / seconds,
    ));

    let place = &sheet.map.blocks()[0];
    let filled = count(span, async || Ok(read_block(&stores, &sheet, place).await.map(|_reading| ())?)).await?;
    crate::say(&format!("reading Redis itself, one after the other: {filled:.0} reads/s"));
    Ok(())
}

/// How often something can be done in a second, one after the other.
async fn count(span: Duration, mut work: impl AsyncFnMut() -> Result<()>) -> Result<f64> {
    let (began, mut done) = (Instant::now(), 0_u64);
    while began.elapsed() < span {
        for _ in 0..BATCH {
            work().await?;
        }
        done += BATCH;
        tokio::task::yield_now().await;
    }
    Ok(done as f64 / began.elapsed().as_secs_f64())
}

async fn put_on_sale(stores: &Stores, seats: usize) -> Result<Arc<EventSheet>> {
    let mut csv = String::from("block,row,column,category,neighbours\n");
    for seat in 0..seats {
        csv.push_str(&format!("101,{},{},Infield,-\n", seat / 20 + 1, seat % 20 + 1));
    }
    let file = VenueFile {
        format: MapFormat::Csv,
        name: "bench".to_owned(),
        time_zone: "Asia/Seoul".to_owned(),
        bytes: csv.into_bytes(),
        mode: ImportMode::Store,
    };
    let venue = import_venue(stores, file).await?.venue.context("nothing was imported")?;
    let plan = EventPlan {
        venue: venue.id,
        title: "bench".to_owned(),
        starts_at: "2030-05-01T18:30".to_owned(),
        sales_open_at: None,
        sales_close_at: None,
        currency: "KRW".parse()?,
        prices: BTreeMap::from([("Infield".to_owned(), 55_000)]),
        rules: EventRules {
            // So short that seats are free again by themselves, without a worker.
            hold_ttl_ms: 1_000,
            payment_window_ms: 300_000,
            extensions_max: 0,
            seats_per_reservation_max: 8,
            seats_per_buyer_max: None,
        },
    };
    let event = create_event(stores, plan).await?.id;
    start_sale(stores, event).await?;
    open_event(stores, event).await?;
    stores.book.fresh_sheet(event).await?.context("the event is gone")
}

/// Holds seat after seat, round and round; a hold dies after a second.
async fn change_seats(stores: &Stores, sheet: &EventSheet, ended: &AtomicBool, holds: &AtomicU64) -> Result<()> {
    let buyer = Buyer::parse("bench")?;
    for seat in sheet.map.seats().iter().cycle() {
        if ended.load(Ordering::Relaxed) {
            break;
        }
        let seats = vec![SeatRef::Id(seat.id)];
        let request = HoldRequest { event: sheet.event.id, buyer: buyer.clone(), seats, idempotency: None };
        if let Ok(Answered::New(_)) = place_hold(stores, request).await {
            holds.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

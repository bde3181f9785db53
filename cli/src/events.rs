//! `holdfast events …`: makes, lists, opens and closes events.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use domain::event::{Event, EventRules, EventStatus};
use domain::flow::Stores;
use domain::flow::set_up_event::{EventPlan, SetUpEventError, create_event, end_sale, start_sale};
use domain::id::EventId;
use domain::money::Currency;
use domain::runtime::settings::StoreSettings;
use domain::time::rfc3339_ms;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::output::{CommandError, OutputArgs, end, print};
use crate::runtime::{block_on, open_stores};

/// Arguments of `holdfast events`.
#[derive(Debug, Args)]
pub struct EventsArgs {
    #[command(flatten)]
    stores: StoreSettings,
    #[command(flatten)]
    output: OutputArgs,
    #[command(subcommand)]
    command: EventsCommand,
}

#[derive(Debug, Subcommand)]
enum EventsCommand {
    /// Make an event, as a draft.
    #[command(
        after_help = "Example:\n  holdfast events create --venue 0190… --title 'Opening day' --starts-at 2026-05-01T18:30 \\\n    \
                            --currency KRW --price Premium=55000 --price Outfield=12000"
    )]
    Create(CreateArgs),
    /// List events, oldest first.
    List,
    /// Put an event on sale: a worker writes its seats to Redis, and this waits for it.
    Open {
        /// The event's id
        event: EventId,
        /// Do not wait
        #[arg(long)]
        no_wait: bool,
    },
    /// End an event's sale. What is held may still be paid for.
    Close {
        /// The event's id
        event: EventId,
    },
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// The venue's id
    #[arg(long)]
    venue: domain::id::VenueId,
    /// What people read
    #[arg(long)]
    title: String,
    /// When it starts, by the venue's wall clock (2026-05-01T18:30) or as an instant (2026-05-01T18:30:00+09:00)
    #[arg(long)]
    starts_at: String,
    /// When holds begin, in the same form
    #[arg(long)]
    sales_open_at: Option<String>,
    /// When holds end, in the same form
    #[arg(long)]
    sales_close_at: Option<String>,
    /// ISO 4217 code
    #[arg(long)]
    currency: Currency,
    /// A category's price in minor units, as CATEGORY=AMOUNT; once for each category
    #[arg(long = "price", required = true, value_parser = parse_price)]
    prices: Vec<(String, i64)>,
    /// How long a hold lasts
    #[arg(long, default_value_t = 600)]
    hold_ttl_seconds: i64,
    /// How long a payment may take
    #[arg(long, default_value_t = 300)]
    payment_window_seconds: i64,
    /// How often a buyer may extend a hold
    #[arg(long, default_value_t = 0)]
    extensions_max: i32,
    /// Seats in one reservation
    #[arg(long, default_value_t = 8)]
    seats_per_reservation_max: i32,
    /// Seats of one buyer together
    #[arg(long)]
    seats_per_buyer_max: Option<i32>,
}

fn parse_price(text: &str) -> Result<(String, i64), String> {
    let (category, amount) = text.rsplit_once('=').ok_or("write CATEGORY=AMOUNT")?;
    let amount = amount.parse().map_err(|_| "the amount is a whole number of minor units")?;
    Ok((category.to_owned(), amount))
}

/// Runs `holdfast events …`.
#[must_use]
pub fn run(args: &EventsArgs) -> ExitCode {
    end(block_on(events(args)))
}

async fn events(args: &EventsArgs) -> Result<(), CommandError> {
    let stores = open_stores(&args.stores).await?;
    let event = match &args.command {
        EventsCommand::Create(create) => create_event(&stores, create.plan()).await,
        EventsCommand::List => return list(&stores, args.output).await,
        EventsCommand::Open { event, no_wait: true } => start_sale(&stores, *event).await,
        EventsCommand::Open { event, no_wait: false } => match start_sale(&stores, *event).await {
            Ok(started) => return watch_opening(&stores, started, args.output).await,
            Err(error) => Err(error),
        },
        EventsCommand::Close { event } => end_sale(&stores, *event).await,
    };
    let event = event.map_err(explain)?;
    Ok(print(args.output, &event_json(&event), &event_line(&event))?)
}

impl CreateArgs {
    fn plan(&self) -> EventPlan {
        EventPlan {
            venue: self.venue,
            title: self.title.clone(),
            starts_at: self.starts_at.clone(),
            sales_open_at: self.sales_open_at.clone(),
            sales_close_at: self.sales_close_at.clone(),
            currency: self.currency,
            prices: self.prices.iter().cloned().collect::<BTreeMap<_, _>>(),
            rules: EventRules {
                hold_ttl_ms: self.hold_ttl_seconds.saturating_mul(1_000),
                payment_window_ms: self.payment_window_seconds.saturating_mul(1_000),
                extensions_max: self.extensions_max,
                seats_per_reservation_max: self.seats_per_reservation_max,
                seats_per_buyer_max: self.seats_per_buyer_max,
            },
        }
    }
}

fn explain(error: SetUpEventError) -> CommandError {
    match error {
        SetUpEventError::Invalid(faults) => {
            let lines: Vec<String> = faults.iter().map(|fault| format!("{}: {}", fault.field, fault.message)).collect();
            CommandError::Usage(lines.join("\nholdfast: "))
        }
        SetUpEventError::NotFound => {
            CommandError::Usage("there is no such event: see `holdfast events list`".to_owned())
        }
        other => other.into(),
    }
}

async fn list(stores: &Stores, output: OutputArgs) -> Result<(), CommandError> {
    const PAGE: i64 = 200;
    let mut events: Vec<Event> = Vec::new();
    loop {
        let page = stores.pg.list_events(events.last().map(|event| event.id), PAGE).await?;
        let is_last = i64::try_from(page.len()).unwrap_or(PAGE) < PAGE;
        events.extend(page);
        if is_last {
            break;
        }
    }
    let mut text = String::new();
    for event in &events {
        writeln!(text, "{}", event_line(event))?;
    }
    Ok(print(output, &events.iter().map(event_json).collect(), &text)?)
}

async fn watch_opening(stores: &Stores, mut event: Event, output: OutputArgs) -> Result<(), CommandError> {
    const LOOK_EVERY: Duration = Duration::from_millis(100);
    let bar = ProgressBar::new(u64::try_from(event.blocks_total).unwrap_or(0));
    if let Ok(style) = ProgressStyle::with_template("{msg} {bar:40} {pos}/{len} blocks, {elapsed}") {
        bar.set_style(style);
    }
    bar.set_message("a worker writes the seats to Redis");
    while event.status == EventStatus::Preparing {
        tokio::time::sleep(LOOK_EVERY).await;
        event = stores.pg.find_event(event.id).await?.ok_or_else(|| explain(SetUpEventError::NotFound))?;
        bar.set_position(u64::try_from(event.blocks_prepared).unwrap_or(0));
    }
    bar.finish_and_clear();
    Ok(print(output, &event_json(&event), &event_line(&event))?)
}

fn event_line(event: &Event) -> String {
    format!("{}  {:9}  {}  {}", event.id, event.status.as_str(), event.starts_at.local, event.title)
}

fn event_json(event: &Event) -> Value {
    json!({
        "id": event.id, "venue": event.venue, "title": event.title, "date_key": event.date_key,
        "starts_at": rfc3339_ms(event.starts_at.at), "status": event.status.as_str(),
        "currency": event.currency, "prices": event.prices,
        "progress": { "blocks_prepared": event.blocks_prepared, "blocks": event.blocks_total },
    })
}

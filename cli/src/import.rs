//! `holdfast import`: imports a venue from a file.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use domain::flow::import_venue::{ImportMode, ImportVenueError, VenueFile, import_venue};
use domain::import::MapFormat;
use domain::runtime::settings::StoreSettings;
use serde_json::json;

use crate::output::{CommandError, OutputArgs, end, print, tell};
use crate::runtime::{block_on, open_stores};

/// Arguments of `holdfast import`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast import house.csv --name 'City Hall' --time-zone Asia/Seoul\n  \
                        holdfast import chart.json --format seatsio --name Arena --time-zone Europe/Berlin --dry-run")]
pub struct ImportArgs {
    /// The file: our CSV, a seats.io chart, or a pretix seating plan
    file: PathBuf,
    /// Its format [default: csv for a name that ends in .csv]
    #[arg(long)]
    format: Option<MapFormat>,
    /// The venue's name: the same name is the same venue
    #[arg(long)]
    name: String,
    /// The venue's IANA time zone, such as Asia/Seoul
    #[arg(long)]
    time_zone: String,
    /// Look only: store nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    stores: StoreSettings,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `holdfast import`.
#[must_use]
pub fn run(args: &ImportArgs) -> ExitCode {
    end(block_on(import(args)))
}

async fn import(args: &ImportArgs) -> Result<(), CommandError> {
    let is_csv = args.file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv"));
    let format = args.format.or_else(|| is_csv.then_some(MapFormat::Csv));
    let format = format.ok_or_else(|| CommandError::Usage("say --format csv, seatsio or pretix".to_owned()))?;
    let bytes = std::fs::read(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    let stores = open_stores(&args.stores).await?;
    let mode = if args.dry_run { ImportMode::DryRun } else { ImportMode::Store };
    let file = VenueFile { format, name: args.name.clone(), time_zone: args.time_zone.clone(), bytes, mode };
    let import = match import_venue(&stores, file).await {
        Ok(import) => import,
        Err(ImportVenueError::Faults(faults)) => {
            for fault in &faults.faults {
                tell(&format!("{}: {fault}", args.file.display()));
            }
            let count = faults.faults.len() + faults.more;
            return Err(CommandError::Failed(anyhow::anyhow!("nothing is imported: the file has {count} faults")));
        }
        Err(error @ ImportVenueError::InUse { .. }) => {
            if let ImportVenueError::InUse { taken, .. } = &error {
                for seat in taken {
                    tell(&seat.to_string());
                }
            }
            return Err(error.into());
        }
        Err(error) => return Err(error.into()),
    };
    for warning in &import.warnings {
        tell(&format!("warning: {warning}"));
    }
    for skipped in &import.skipped {
        tell(&format!("skipped: {} at {}: {}", skipped.kind, skipped.path, skipped.reason));
    }
    let venue = import.venue.as_ref().map(|venue| venue.id.to_string());
    let (blocks, seats) = (import.map.blocks.len(), import.map.seat_count());
    let data = json!({
        "venue": venue, "blocks": blocks, "seats": seats, "changed": import.is_changed,
        "categories": import.map.categories.iter().map(|category| &category.category).collect::<Vec<_>>(),
        "skipped": import.skipped.len(), "warnings": import.warnings,
    });
    let what = match (&venue, import.is_changed) {
        (None, _) => "would import".to_owned(),
        (Some(id), true) => format!("imported venue {id}:"),
        (Some(id), false) => format!("nothing changed in venue {id}:"),
    };
    Ok(print(args.output, &data, &format!("{what} {blocks} blocks, {seats} seats"))?)
}

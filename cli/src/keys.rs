//! `holdfast keys …`: makes, lists and revokes API keys.

use std::fmt::Write as _;
use std::process::ExitCode;

use ::api::auth::new_api_key;
use clap::{Args, Subcommand, ValueEnum};
use domain::id::ApiKeyId;
use domain::store::pg::api_keys::KeyScope;
use domain::time::rfc3339_ms;
use serde_json::json;

use crate::output::{CommandError, OutputArgs, end, print};
use crate::runtime::{DatabaseArgs, block_on};

/// Arguments of `holdfast keys`.
#[derive(Debug, Args)]
pub struct KeysArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Make a key. It is shown once, and kept only as a hash.
    #[command(after_help = "Example:\n  holdfast keys create --scope sales --name 'web shop'")]
    Create {
        /// What it may do: admin sets up venues and events, sales reserves for any buyer, ops sees the operators' listener
        #[arg(long)]
        scope: ScopeArg,
        /// What it is for
        #[arg(long, value_parser = parse_name)]
        name: String,
    },
    /// List all keys, without their secrets.
    List,
    /// Revoke a key: within seconds nobody can use it.
    Revoke {
        /// Its id, as `keys list` shows it
        id: String,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ScopeArg {
    Admin,
    Sales,
    Ops,
}

impl From<ScopeArg> for KeyScope {
    fn from(scope: ScopeArg) -> Self {
        match scope {
            ScopeArg::Admin => Self::Admin,
            ScopeArg::Sales => Self::Sales,
            ScopeArg::Ops => Self::Ops,
        }
    }
}

fn parse_name(name: &str) -> Result<String, String> {
    let name = name.trim();
    if name.is_empty() || name.chars().count() > 200 {
        return Err("a name has 1 to 200 characters".to_owned());
    }
    Ok(name.to_owned())
}

/// Runs `holdfast keys …`.
#[must_use]
pub fn run(args: &KeysArgs) -> ExitCode {
    end(block_on(keys(args)))
}

async fn keys(args: &KeysArgs) -> Result<(), CommandError> {
    let pg = args.database.connect()?;
    match &args.command {
        KeysCommand::Create { scope, name } => {
            let (key, hash) = new_api_key();
            let scope = KeyScope::from(*scope);
            let id = pg.insert_api_key(name, scope, &hash).await?;
            let data = json!({ "id": id, "key": key, "scope": scope.as_str(), "name": name });
            Ok(print(args.output, &data, &format!("{key}\nThis is shown once. Its id is {id}."))?)
        }
        KeysCommand::List => {
            let keys = pg.list_api_keys().await?;
            let rows = keys.iter().map(|key| {
                json!({
                    "id": key.id, "name": key.name, "scope": key.scope.as_str(),
                    "created_at": rfc3339_ms(key.created_at), "revoked_at": key.revoked_at.map(rfc3339_ms),
                })
            });
            let mut text = String::new();
            for key in &keys {
                let state = if key.revoked_at.is_some() { "revoked" } else { "live" };
                writeln!(text, "{}  {:5}  {:7}  {}", key.id, key.scope.as_str(), state, key.name)?;
            }
            Ok(print(args.output, &rows.collect(), &text)?)
        }
        KeysCommand::Revoke { id } => {
            let id: ApiKeyId = id.parse().map_err(|_| CommandError::Usage(format!("{id} is not a key's id")))?;
            if !pg.revoke_api_key(id).await? {
                return Err(CommandError::Usage(format!("there is no live key {id}: see `holdfast keys list`")));
            }
            Ok(print(args.output, &json!({ "id": id, "revoked": true }), "revoked")?)
        }
    }
}

//! The pure model of the simulation does what the engine does, on real stores, operation by operation: otherwise its
//! millions of histories would prove something else.

use holdfast_tests::servers::servers;
use simulation::conform::{Installation, conform};

/// Histories in a test; `conform SEED HISTORIES` runs more.
const HISTORIES: u64 = 150;

#[tokio::test(flavor = "multi_thread")]
async fn the_model_and_the_engine_answer_and_keep_the_same() {
    let installation = Installation::start(&servers().database_url, &servers().redis_url).await;
    let compared = conform(&installation, 7, 0, HISTORIES).await;
    installation.end().await;
    let operations = compared.unwrap_or_else(|difference| panic!("{difference}"));
    assert!(operations > HISTORIES * 10, "{operations} operations are too few to mean much");
}

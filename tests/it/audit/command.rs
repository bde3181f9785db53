//! `holdfast audit` as an operator and a program run it.

use std::process::{Command, Output};

use redis::cmd;
use serde_json::Value;

use super::House;

const BINARY: &str = env!("CARGO_BIN_EXE_holdfast-under-test");

fn run(house: &House, arguments: &[&str]) -> Output {
    let settings = &house.test.settings;
    Command::new(BINARY)
        .arg("audit")
        .args(["--patience", "150"])
        .args(arguments)
        .env("DATABASE_URL", &settings.database_url)
        .env("REDIS_URL", &settings.redis_url)
        .env("HOLDFAST_REDIS_PREFIX", &settings.redis_prefix)
        .output()
        .unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_exit_code_and_document_tell_what_is_broken_and_what_is_left() {
    let house = House::open().await;
    let clean = run(&house, &["--json"]);
    assert_eq!(clean.status.code(), Some(0), "{clean:?}");
    let document = json(&clean);
    assert_eq!((&document["verdict"], &document["complete"]), (&"clean".into(), &true.into()), "{document}");
    assert_eq!(document["findings"].as_array().unwrap().len(), 0);

    house.redis(cmd("DEL").arg(house.key("A", "1"))).await;
    let broken = run(&house, &["--json", "--event", &house.sale.event.to_string()]);
    assert_eq!(broken.status.code(), Some(3), "{broken:?}");
    let document = json(&broken);
    assert_eq!(document["verdict"], "broken");
    let finding = &document["findings"][0];
    for field in ["code", "invariant", "severity", "event", "block", "detail", "remedy"] {
        assert!(finding[field].is_string(), "{field}: {finding}");
    }
    assert_eq!((&finding["code"], &finding["invariant"]), (&"bucket_absent".into(), &"I6".into()));
    assert_eq!((&finding["block"], &finding["row"], &finding["column"]), (&"B1".into(), &"A".into(), &"1".into()));
    assert_eq!(document["counts"]["bucket_absent"], 1);
    let text = run(&house, &[]);
    assert_eq!(text.status.code(), Some(3));
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("bucket_absent") && text.contains("holdfast audit --repair"), "{text}");

    let repaired = run(&house, &["--json", "--repair"]);
    assert_eq!(repaired.status.code(), Some(0), "{repaired:?}");
    let document = json(&repaired);
    assert_eq!((&document["verdict"], &document["before"]["verdict"]), (&"clean".into(), &"broken".into()));
    assert_eq!(document["repaired"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_says_what_it_could_not_look_at() {
    let mut house = House::open().await;
    let redis_url = house.test.settings.redis_url.clone();
    house.test.settings.redis_url = "redis://127.0.0.1:1".to_owned();
    let output = run(&house, &["--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let document = json(&output);
    assert_eq!((&document["verdict"], &document["complete"]), (&"clean".into(), &false.into()));
    assert!(document["skipped"][0].as_str().unwrap().contains("Redis"), "{document}");
    house.test.settings.redis_url = redis_url;
    let unknown = run(&house, &["--event", "0190b0c4-0000-7000-8000-000000000001"]);
    assert_eq!(unknown.status.code(), Some(1), "{unknown:?}");
}

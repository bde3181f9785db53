//! Rules about the repository's own text that no compiler checks. Each test names the files that break its rule.

#![expect(clippy::unwrap_used, reason = "a step that fails is the test's failure")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Paths and texts of the files that git knows or would add, without generated ones and without binary ones.
fn files() -> Vec<(String, String)> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let listed = String::from_utf8(listed.stdout).unwrap();
    let generated = |path: &str| {
        path == "Cargo.lock"
            || path.starts_with(".sqlx/")
            || path.starts_with("web/dist/")
            || path.ends_with("openapi.json")
    };
    let files: Vec<(String, String)> = listed
        .split('\0')
        .filter(|path| !path.is_empty() && !generated(path))
        .filter_map(|path| Some((path.to_owned(), fs::read_to_string(root().join(path)).ok()?)))
        .collect();
    assert!(files.iter().any(|(path, _)| path == "cli/tests/tidy.rs"), "git lists no files of ours");
    files
}

fn has_extension(path: &str, extensions: &[&str]) -> bool {
    Path::new(path).extension().is_some_and(|found| extensions.iter().any(|it| found.eq_ignore_ascii_case(it)))
}

fn is_code(path: &str) -> bool {
    let is_script = path == "dev" || path == ".ci/run";
    is_script || has_extension(path, &["rs", "sql", "lua", "py", "sh", "js", "ts", "tsx", "css"])
}

/// `path:line: text` of every line of a chosen file in which `wrong` sees a fault.
fn faulty_lines(chosen: impl Fn(&str) -> bool, wrong: impl Fn(&str) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, text) in files().iter().filter(|(path, _)| chosen(path)) {
        let lines = text.lines().enumerate().filter(|(_, line)| wrong(line));
        faults.extend(lines.map(|(index, line)| format!("{path}:{}: {}", index + 1, line.trim())));
    }
    faults
}

fn assert_none(rule: &str, faults: &[String]) {
    assert!(faults.is_empty(), "{rule}:\n{}", faults.join("\n"));
}

#[test]
fn no_code_file_is_longer_than_500_lines() {
    let long: Vec<String> = files()
        .iter()
        .filter(|(path, _)| is_code(path))
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > 500)
        .map(|(path, lines)| format!("{path}: {lines} lines"))
        .collect();
    assert_none("split these", &long);
}

#[test]
fn nothing_names_the_machine_it_was_written_on() {
    // Put together here, so that this file does not name them either. A home folder that exists nowhere is no name.
    let folders = ["/ro", "/wo", "/ho", "/Us"].into_iter().zip(["ot/", "rk/", "me/", "ers/"]);
    let folders: Vec<String> = folders.map(|(front, back)| format!("{front}{back}")).collect();
    let allowed = ["/home/linuxbrew/"];
    let names = |line: &str| {
        let mut line = line.to_owned();
        for allowed in allowed {
            line = line.replace(allowed, "");
        }
        folders.iter().any(|folder| {
            line.match_indices(folder.as_str()).any(|(at, _)| {
                let before = line[..at].chars().next_back();
                before.is_none_or(|it| !(it.is_alphanumeric() || matches!(it, '.' | '_' | '-' | '}' | '$')))
            })
        })
    };
    assert_none("machine paths", &faulty_lines(|path| path != "cli/tests/tidy.rs", names));
}

#[test]
fn nothing_is_left_undone() {
    let words: Vec<String> = [("TO", "DO"), ("FIX", "ME"), ("XX", "X"), ("todo", "!("), ("unimplemented", "!(")]
        .map(|(front, back)| format!("{front}{back}"))
        .to_vec();
    let undone = |line: &str| {
        words.iter().any(|word| {
            line.match_indices(word.as_str()).any(|(at, _)| {
                let next = line[at + word.len()..].chars().next();
                let before = line[..at].chars().next_back();
                let is_word = |it: char| it.is_alphanumeric() || it == '_';
                !before.is_some_and(is_word) && (word.ends_with('(') || !next.is_some_and(is_word))
            })
        })
    };
    assert_none("finish these", &faulty_lines(is_code, undone));
}

#[test]
fn lints_are_expected_with_a_reason_never_allowed() {
    let attribute = format!("{}[allow(", "#");
    let inner = format!("{}![allow(", "#");
    let allows = |line: &str| line.contains(&attribute) || line.contains(&inner);
    assert_none("use #[expect(lint, reason = \"…\")]", &faulty_lines(|path| has_extension(path, &["rs"]), allows));
    let mut bare = Vec::new();
    for (path, text) in files().iter().filter(|(path, _)| has_extension(path, &["rs"])) {
        let opening = format!("{}[expect(", "#");
        for (at, _) in text.match_indices(&opening) {
            let end = text[at..].find(")]").map_or(text.len(), |end| at + end);
            if !text[at..end].contains("reason") {
                bare.push(format!("{path}: {}", &text[at..end]));
            }
        }
    }
    assert_none("an expectation needs its reason", &bare);
}

#[test]
fn modules_have_names_that_say_something() {
    let banned = ["mod.rs", "utils.rs", "util.rs", "common.rs", "helpers.rs", "manager.rs", "service.rs", "types.rs"];
    let bad: Vec<String> = files()
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| Path::new(path).file_name().is_some_and(|name| banned.iter().any(|it| name == *it)))
        .collect();
    assert_none("name these after what is in them", &bad);
}

#[test]
fn the_api_and_the_workers_contain_no_sql_and_do_not_know_each_other() {
    for (package, forbidden) in [("api", ["sqlx", "redis", "workers"]), ("workers", ["sqlx", "redis", "api"])] {
        let manifest = fs::read_to_string(root().join(package).join("Cargo.toml")).unwrap();
        let (_, dependencies) = manifest.split_once("[dependencies]").unwrap();
        let dependencies = dependencies.split("\n[").next().unwrap();
        let found: Vec<String> = dependencies
            .lines()
            .filter_map(|line| line.split(['.', ' ', '=']).next())
            .filter(|name| forbidden.contains(name))
            .map(|name| format!("{package} depends on {name}"))
            .collect();
        assert_none("only the domain's stores and flows may", &found);
    }
}

#[test]
fn every_script_for_redis_begins_with_its_contract() {
    let missing: Vec<String> = files()
        .iter()
        .filter(|(path, _)| has_extension(path, &["lua"]))
        .flat_map(|(path, text)| {
            let header: String = text.lines().take_while(|line| line.starts_with("--")).collect();
            ["KEYS", "ARGV", "eturns"]
                .into_iter()
                .filter(move |word| !header.contains(word))
                .map(move |word| format!("{path}: the comment on top does not tell {word}"))
        })
        .collect();
    assert_none("KEYS, ARGV and what it returns", &missing);
}

#[test]
fn text_is_utf8_with_unix_line_ends_and_a_last_newline() {
    let texts = |path: &str| {
        is_code(path)
            || has_extension(path, &["md", "toml", "yml", "yaml", "json", "html"])
            || path.starts_with("LICENSE")
    };
    let bad: Vec<String> = files()
        .into_iter()
        .filter(|(path, _)| texts(path) && !path.contains("fixtures/") && !path.contains("snapshots/"))
        .filter(|(_, text)| !text.is_empty() && (text.contains('\r') || !text.ends_with('\n')))
        .map(|(path, _)| path)
        .collect();
    assert_none("end lines with \\n", &bad);
}

#[test]
fn every_test_that_the_readme_names_is_there() {
    let files = files();
    let readme = &files.iter().find(|(path, _)| path == "README.md").unwrap().1;
    let table = readme.split("## What it guarantees").nth(1).unwrap().split("\n## ").next().unwrap();
    let named: Vec<&str> =
        table.split('`').skip(1).step_by(2).filter(|name| name.contains('_') && !name.contains(' ')).collect();
    assert!(named.len() >= 7, "the guarantees name their tests");
    let is_there = |name: &str| files.iter().any(|(_, text)| text.contains(&format!("fn {name}()")));
    let missing: Vec<String> = named.into_iter().filter(|name| !is_there(name)).map(str::to_owned).collect();
    assert_none("README.md names tests that are not there", &missing);
}

//! `weir apply`, `weir rollback` and `weir history`.

use crate::control::{self, NO_BODY, request, say};
use crate::out;
use std::path::Path;
use weir_cli::{ChangeOptions, Expected, Instance};
use weir_control::api::{Answer, FileText, RollbackRequest};
use weir_control::config::Config;
use weir_control::engine::{Apply, HistoryReport};

pub fn apply(file: &Path, expect: Option<u64>, options: ChangeOptions) -> anyhow::Result<()> {
    let ChangeOptions { instance, break_connections, json } = options;
    let (file, text) = if control::is_stdin(file) {
        (control::STDIN.to_owned(), control::stdin_text()?)
    } else {
        (file.display().to_string(), Config::text(file)?)
    };
    let body = Apply { file, text, break_connections, expect };
    let answer: Answer = request(instance, "POST", "/v1/apply", Some(&body))?;
    say(&answer, json)
}

pub fn rollback(
    number: Option<u64>,
    expected: Expected,
    options: ChangeOptions,
) -> anyhow::Result<()> {
    let ChangeOptions { instance, break_connections, json } = options;
    let body = RollbackRequest { number, break_connections };
    let path = expected.of("/v1/rollback");
    let answer: Answer = request(instance, "POST", &path, Some(&body))?;
    say(&answer, json)
}

pub fn show(instance: Instance, number: Option<u64>, json: bool) -> anyhow::Result<()> {
    if let Some(number) = number {
        let path = format!("/v1/history/{number}");
        let file: FileText = request(instance, "GET", &path, NO_BODY)?;
        return out::report(&file, json, || &file.text);
    }
    let report: HistoryReport = request(instance, "GET", "/v1/history", NO_BODY)?;
    out::report(&report, json, || weir_watch::history(&report))
}

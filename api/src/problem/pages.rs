//! `/problems` and `/problems/{code}`: the table of errors for people to read, or as JSON for programs.

use std::fmt::Write as _;

use axum::extract::Path;
use axum::http::{HeaderMap, header};
use axum::response::{Html, IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Problem, ProblemCode, ProblemEntry};

/// What a code means.
#[derive(Debug, Serialize, ToSchema)]
pub struct ProblemExplanation {
    /// The code.
    #[schema(example = "seat_unavailable")]
    code: &'static str,
    /// Its title.
    #[schema(example = "A seat is not available")]
    title: &'static str,
    /// The HTTP status it comes with.
    #[schema(example = 409)]
    status: u16,
    /// Whether the same request, sent again unchanged, may succeed.
    retryable: bool,
    /// What has happened.
    description: &'static str,
    /// What to do about it.
    remedy: &'static str,
}

/// Every code of this API.
#[derive(Debug, Serialize, ToSchema)]
pub struct ProblemIndex {
    /// The codes, each explained.
    problems: Vec<ProblemExplanation>,
}

impl From<ProblemEntry> for ProblemExplanation {
    fn from(entry: ProblemEntry) -> Self {
        Self {
            code: entry.code,
            title: entry.title,
            status: entry.status.as_u16(),
            retryable: entry.retryable,
            description: entry.description,
            remedy: entry.remedy,
        }
    }
}

/// Every error code of this API, with its meaning and remedy.
#[utoipa::path(get, path = "/problems", tag = "Reference", responses(
    (status = 200, description = "The table of errors", content(
        (ProblemIndex = "application/json"), (String = "text/html")))))]
pub async fn list_problems(headers: HeaderMap) -> Response {
    if wants_html(&headers) {
        let mut rows = String::new();
        for code in ProblemCode::ALL {
            let entry = code.entry();
            let _ = write!(
                rows,
                "<tr><td><a href=\"/problems/{code}\"><code>{code}</code></a></td><td>{status}</td><td>{title}</td></tr>",
                code = entry.code,
                status = entry.status.as_u16(),
                title = entry.title,
            );
        }
        return page(
            "Problems",
            &format!("<h1>Problems</h1><table><tr><th>Code</th><th>Status</th><th>Meaning</th></tr>{rows}</table>"),
        );
    }
    axum::Json(ProblemIndex { problems: ProblemCode::ALL.iter().map(|code| code.entry().into()).collect() })
        .into_response()
}

/// What one error code means and what to do about it: where a problem's `type` leads.
#[utoipa::path(get, path = "/problems/{code}", tag = "Reference",
    params(("code" = String, Path, description = "The code", example = "seat_unavailable", max_length = 64)),
    responses(
        (status = 200, description = "The explanation", content(
            (ProblemExplanation = "application/json"), (String = "text/html"))),
        (status = 404, description = "`not_found`: there is no such code")))]
pub async fn explain_problem(Path(code): Path<String>, headers: HeaderMap) -> Result<Response, Problem> {
    let entry = ProblemCode::parse(&code).ok_or_else(|| Problem::no_such("code"))?.entry();
    if !wants_html(&headers) {
        return Ok(axum::Json(ProblemExplanation::from(entry)).into_response());
    }
    let retry = if entry.retryable { "may succeed" } else { "will fail again" };
    let body = format!(
        "<p><a href=\"/problems\">All problems</a></p><h1>{title}</h1><p><code>{code}</code>, status {status}. \
         The same request, sent again unchanged, {retry}.</p><h2>What has happened</h2><p>{description}</p>\
         <h2>What to do</h2><p>{remedy}</p>",
        title = entry.title,
        code = entry.code,
        status = entry.status.as_u16(),
        description = escape(entry.description),
        remedy = escape(entry.remedy),
    );
    Ok(page(entry.title, &body))
}

/// Whether the caller is a browser: it names HTML itself, not only as part of `*/*`.
fn wants_html(headers: &HeaderMap) -> bool {
    headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).is_some_and(|accept| accept.contains("text/html"))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn page(title: &str, body: &str) -> Response {
    const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:3rem auto;padding:0 1rem}\
        td,th{text-align:left;padding:.25rem 1rem .25rem 0}code{font-family:ui-monospace,monospace}";
    Html(format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style><body>{body}</body></html>"
    ))
    .into_response()
}

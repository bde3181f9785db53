//! The API's description, made from the code: `/openapi.json`, and Swagger UI at `/docs`, both without a network.
//!
//! Handlers describe what is their own. What every endpoint has (problems, the request id, the server's time) is added
//! here, once, so that it cannot be forgotten.

use axum::Router;
use axum::http::header;
use axum::routing::get;
use bytes::Bytes;
use serde_json::{Map, Value, json};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_swagger_ui::{Config, SwaggerUi};

use crate::app::App;
use crate::problem::{Conflict, FieldError, PROBLEM_JSON, ProblemDocument};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Holdfast",
        description = "Seats: read them, hold them, pay for them.\n\nErrors are `application/problem+json` (RFC 9457) with a stable `code`; each is explained at `/problems/{code}`. Times are RFC 3339 in UTC with milliseconds, money is in minor units, ids are opaque strings. Unknown fields and parameters are refused.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    servers((url = "/")),
    tags(
        (name = "Reservations", description = "Holding seats, and what becomes of the hold"),
        (name = "Payments", description = "Taking money for a reservation"),
        (name = "Seats", description = "Which seats are available"),
        (name = "Events", description = "What people attend"),
        (name = "Venues", description = "Fixed places"),
        (name = "Buyers", description = "Buyers without an account"),
        (name = "Reference", description = "The clock, the errors"),
    ),
    components(schemas(ProblemDocument<'static>, Conflict, FieldError)),
    modifiers(&Credentials),
)]
struct Frame;

struct Credentials;

impl Modify for Credentials {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let components = openapi.components.get_or_insert_default();
        let bearer = |format: &str, description: &str| {
            SecurityScheme::Http(
                HttpBuilder::new()
                    .scheme(HttpAuthScheme::Bearer)
                    .bearer_format(format)
                    .description(Some(description))
                    .build(),
            )
        };
        let key = "`hf_…`, made by `holdfast keys create`. Scope admin sets up venues and events, scope sales reserves and pays for any buyer.";
        let token = "A JWT of the shop's whose `sub` is the buyer, or one from `POST /v1/buyers`.";
        components.add_security_scheme("api_key", bearer("hf_…", key));
        components.add_security_scheme("buyer_token", bearer("JWT", token));
    }
}

/// The description before any route is added.
pub fn frame() -> utoipa::openapi::OpenApi {
    let mut frame = Frame::openapi();
    env!("CARGO_PKG_VERSION").clone_into(&mut frame.info.version);
    frame
}

/// The document as `GET /openapi.json` serves it.
pub fn document() -> Value {
    complete(&crate::routes::table().split_for_parts().1)
}

/// Serves the description and its page.
pub(crate) fn mount(router: Router<App>, description: &utoipa::openapi::OpenApi) -> Router<App> {
    let document = Bytes::from(complete(description).to_string());
    let serve = async move || ([(header::CONTENT_TYPE, "application/json")], document);
    let page = SwaggerUi::new("/docs").config(Config::from("/openapi.json").validator_url("none"));
    router.route("/openapi.json", get(serve)).merge(page)
}

/// The whole description: what handlers say, and what holds for every endpoint.
pub fn complete(description: &utoipa::openapi::OpenApi) -> Value {
    let mut document = serde_json::to_value(description).unwrap_or_default();
    for schema in ["NewEvent", "EventPatch"] {
        // utoipa has no attribute for the number of an object's members.
        let prices = &mut document["components"]["schemas"][schema]["properties"]["prices"];
        prices["minProperties"] = json!(1);
        prices["maxProperties"] = json!(domain::venue::VENUE_CATEGORIES_MAX);
    }
    let Some(paths) = document.get_mut("paths").and_then(Value::as_object_mut) else { return document };
    for (path, item) in paths {
        let Some(operations) = item.as_object_mut() else { continue };
        for operation in operations.values_mut().filter_map(Value::as_object_mut) {
            complete_operation(path, operation);
        }
    }
    document
}

fn complete_operation(path: &str, operation: &mut Map<String, Value>) {
    let has_body = operation.contains_key("requestBody");
    let is_command = path.ends_with("/open") || path.ends_with("/close") || path.ends_with("/extend");
    let parameters = operation.get("parameters").and_then(Value::as_array).map_or(0, Vec::len);
    let json_body = operation.get("requestBody").is_some_and(|body| body["content"].get("application/json").is_some());
    let mut general: Vec<(&str, &str)> = vec![
        ("401", "`unauthorized`: no credentials where some are needed, or wrong ones anywhere"),
        ("429", "`rate_limited`"),
        ("500", "`internal`"),
        ("503", "`degraded`, `overloaded` or `timed_out`"),
    ];
    if path.contains('{') {
        general.push(("404", "`not_found`: there is no such thing, or it is not the caller's"));
    }
    if has_body || is_command || parameters > 0 || path == "/v1/buyers" {
        general.push(("422", "`validation_failed`"));
    }
    if has_body || is_command || path == "/v1/buyers" {
        general.push(("408", "`request_timeout`: the body did not arrive in time"));
        general.push(("413", "`payload_too_large`"));
    }
    if json_body {
        general.push(("415", "`unsupported_media_type`"));
    }
    let responses = operation.entry("responses").or_insert_with(|| json!({}));
    let Some(responses) = responses.as_object_mut() else { return };
    for (status, text) in general {
        responses.entry(status).or_insert_with(|| json!({ "description": text }));
    }
    for (status, response) in responses.iter_mut() {
        complete_response(status, response);
    }
}

fn complete_response(status: &str, response: &mut Value) {
    if status >= "400" {
        response["content"] = json!({ PROBLEM_JSON: { "schema": { "$ref": "#/components/schemas/Problem" } } });
    }
    let header = |text: &str, schema: Value| json!({ "description": text, "required": true, "schema": schema });
    response["headers"]["X-Request-Id"] =
        header("The request's id: the caller's own, or a new one", json!({ "type": "string", "maxLength": 128 }));
    response["headers"]["Server-Time"] =
        header("The server's clock, in milliseconds since 1970", json!({ "type": "integer", "format": "int64" }));
    if matches!(status, "429" | "503") {
        response["headers"]["Retry-After"] =
            header("Seconds to wait, at least 1", json!({ "type": "integer", "minimum": 1 }));
    }
    if status == "401" {
        response["headers"]["WWW-Authenticate"] = header("How to authenticate", json!({ "type": "string" }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Value {
        complete(crate::routes::table().get_openapi())
    }

    #[test]
    fn every_endpoint_of_the_contract_is_described() {
        let document = document();
        for (method, path) in [
            ("get", "/v1/time"),
            ("post", "/v1/buyers"),
            ("post", "/v1/venues/import"),
            ("get", "/v1/venues"),
            ("get", "/v1/venues/{id}"),
            ("get", "/v1/venues/{id}/map"),
            ("post", "/v1/events"),
            ("get", "/v1/events"),
            ("get", "/v1/events/{id}"),
            ("patch", "/v1/events/{id}"),
            ("post", "/v1/events/{id}/open"),
            ("post", "/v1/events/{id}/close"),
            ("get", "/v1/events/{id}/blocks"),
            ("get", "/v1/events/{id}/blocks/{block}/seats"),
            ("post", "/v1/events/{id}/seats/block"),
            ("post", "/v1/events/{id}/seats/unblock"),
            ("post", "/v1/events/{id}/reservations"),
            ("get", "/v1/reservations"),
            ("get", "/v1/reservations/{id}"),
            ("delete", "/v1/reservations/{id}"),
            ("post", "/v1/reservations/{id}/extend"),
            ("post", "/v1/reservations/{id}/payments"),
            ("get", "/v1/payments/{id}"),
            ("get", "/problems/{code}"),
        ] {
            assert!(document["paths"][path][method]["operationId"].is_string(), "{method} {path}");
        }
    }

    #[test]
    fn every_error_is_described_as_a_problem_and_every_answer_with_its_headers() {
        let document = document();
        let mut seen = 0;
        for (path, item) in document["paths"].as_object().unwrap() {
            for operation in item.as_object().unwrap().values() {
                for (status, response) in operation["responses"].as_object().unwrap() {
                    seen += 1;
                    assert!(response["headers"]["X-Request-Id"].is_object(), "{path} {status}");
                    if status.as_str() >= "400" {
                        assert!(response["content"][PROBLEM_JSON].is_object(), "{path} {status}");
                    }
                }
            }
        }
        assert!(seen > 100, "{seen}");
        assert!(document["components"]["schemas"]["Problem"]["properties"]["conflicts"].is_object());
    }

    #[test]
    fn every_schema_that_is_referred_to_exists() {
        let document = document();
        let text = document.to_string();
        for part in text.split("#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
    }

    #[test]
    fn limits_are_in_the_schema() {
        let schemas = &document()["components"]["schemas"];
        assert_eq!(schemas["HoldBody"]["properties"]["seats"]["maxItems"], 100);
        assert_eq!(schemas["NewEvent"]["properties"]["title"]["maxLength"], 200);
        assert_eq!(schemas["NewEvent"]["additionalProperties"], false);
    }
}

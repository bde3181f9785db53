//! Query strings and path parameters.

use axum::extract::{FromRequestParts, Path as AxumPath, Query as AxumQuery};
use axum::http::request::Parts;
use garde::Validate;
use serde::de::DeserializeOwned;

use super::json::report_errors;
use crate::problem::{Problem, ProblemCode};

/// A query string of type `T`, validated. Unknown parameters are refused where `T` denies them.
#[derive(Debug)]
pub struct Query<T>(pub T);

impl<S, T> FromRequestParts<S> for Query<T>
where
    S: Sync,
    T: DeserializeOwned + Validate<Context = ()>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let AxumQuery(value) =
            AxumQuery::<T>::try_from_uri(&parts.uri).map_err(|rejection| refusal(&rejection.body_text()))?;
        value.validate().map_err(|report| Problem::invalid_all(report_errors(&report)))?;
        Ok(Self(value))
    }
}

/// axum prefixes what serde said, which may name the parameter: `Failed to deserialize query string: limit: invalid …`.
fn refusal(text: &str) -> Problem {
    let message = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(text);
    match message.split_once(": ") {
        Some((path, rest)) if !path.contains(' ') => Problem::invalid(path, rest.replace("field", "parameter")),
        _ => match message.split('`').nth(1) {
            Some(path) if message.starts_with("unknown field") || message.starts_with("missing field") => {
                Problem::invalid(path, message.replace("field", "parameter"))
            }
            _ => Problem::invalid("", message),
        },
    }
}

/// Path parameters of type `T`. Ids are opaque to callers, so one that cannot be an id is simply not found.
#[derive(Debug)]
pub struct Path<T>(pub T);

impl<S, T> FromRequestParts<S> for Path<T>
where
    S: Send + Sync,
    T: DeserializeOwned + Send,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match AxumPath::<T>::from_request_parts(parts, state).await {
            Ok(AxumPath(value)) => Ok(Self(value)),
            Err(rejection) if rejection.status().is_client_error() => Err(Problem::new(ProblemCode::NotFound)),
            Err(rejection) => Err(Problem::internal(&rejection)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;
    use serde::Deserialize;

    #[derive(Debug, Deserialize, Validate)]
    #[serde(deny_unknown_fields)]
    struct Page {
        #[garde(inner(range(min = 1, max = 200)))]
        limit: Option<u32>,
    }

    async fn query(uri: &str) -> Result<Option<u32>, (String, String)> {
        let (mut parts, ()) = Request::builder().uri(uri).body(()).unwrap().into_parts();
        match Query::<Page>::from_request_parts(&mut parts, &()).await {
            Ok(Query(page)) => Ok(page.limit),
            Err(problem) => Err((problem.places()[0].path.clone(), problem.places()[0].message.clone())),
        }
    }

    #[tokio::test]
    async fn a_bad_parameter_is_named() {
        assert_eq!(query("/x?limit=7").await, Ok(Some(7)));
        assert_eq!(query("/x").await, Ok(None));
        for uri in ["/x?limit=0", "/x?limit=201", "/x?limit=seven", "/x?limit=-1"] {
            assert_eq!(query(uri).await.unwrap_err().0, "limit", "{uri}");
        }
        let (path, message) = query("/x?limti=7").await.unwrap_err();
        assert_eq!(path, "limti");
        assert!(message.contains("unknown parameter"), "{message}");
    }
}

//! Routes of files and batches.

use std::sync::Arc;

use axum::Router as Routes;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, FromRequest as _, Multipart, Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, Response, Uri, header};
use axum::routing::{get, post};
use serde_json::{Value, json};

use super::api::Family;
use super::batches::Batches;
use super::problem::Problem;
use super::{Gateway, body};

/// Entries of a page where the client does not say, and most that it may ask for.
const PAGE: (usize, usize) = (20, 10_000);
/// Largest body that describes a batch.
const MAX_BODY: usize = 256 * 1024;

type Shared = State<Arc<Gateway>>;

/// The routes with those of files and batches.
pub fn add(routes: Routes<Arc<Gateway>>) -> Routes<Arc<Gateway>> {
    // Files have a limit of their own, and are never held in memory.
    let files = Routes::new().route("/v1/files", post(upload).get(files)).layer(DefaultBodyLimit::disable());
    routes
        .merge(files)
        .route("/v1/files/{id}", get(file).delete(delete_file))
        .route("/v1/files/{id}/content", get(content))
        .route("/v1/batches", post(create).get(batches))
        .route("/v1/batches/{id}", get(batch))
        .route("/v1/batches/{id}/cancel", post(cancel))
}

/// The batches, and whose they are.
fn enter<'g>(gateway: &'g Gateway, headers: &HeaderMap) -> Result<(&'g Batches, String), Problem> {
    let tenant = gateway.tenant(headers)?.map_or_else(String::new, |tenant| tenant.as_str().to_owned());
    let off = || Problem::not_found("unknown_path", "this gateway serves no files and batches (batches is off)");
    Ok((gateway.batches.as_ref().ok_or_else(off)?, tenant))
}

fn answer(outcome: Result<Value, Problem>) -> Response<Body> {
    match outcome {
        Ok(value) => {
            let mut response = Response::new(Body::from(value.to_string()));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(problem) => problem.response(Family::OpenAi),
    }
}

async fn upload(State(gateway): Shared, request: Request) -> Response<Body> {
    let taken = async {
        let (batches, tenant) = enter(&gateway, request.headers())?;
        let form = Multipart::from_request(request, &()).await;
        let form = form.map_err(|error| Problem::invalid(format!("the body is no form with a file: {error}")))?;
        batches.files.upload(&tenant, form).await
    };
    answer(taken.await)
}

async fn files(State(gateway): Shared, headers: HeaderMap, uri: Uri) -> Response<Body> {
    let listed = async {
        let (batches, tenant) = enter(&gateway, &headers)?;
        page(batches.files.list(&tenant).await?, &uri)
    };
    answer(listed.await)
}

async fn file(State(gateway): Shared, Path(id): Path<String>, headers: HeaderMap) -> Response<Body> {
    let shown = async {
        let (batches, tenant) = enter(&gateway, &headers)?;
        batches.files.show(&tenant, &id).await
    };
    answer(shown.await)
}

async fn delete_file(State(gateway): Shared, Path(id): Path<String>, headers: HeaderMap) -> Response<Body> {
    let deleted = async {
        let (batches, tenant) = enter(&gateway, &headers)?;
        batches.files.delete(&tenant, &id).await
    };
    answer(deleted.await)
}

async fn content(State(gateway): Shared, Path(id): Path<String>, headers: HeaderMap) -> Response<Body> {
    let read = async {
        let (batches, tenant) = enter(&gateway, &headers)?;
        batches.files.content(&tenant, &id).await
    };
    read.await.unwrap_or_else(|problem: Problem| problem.response(Family::OpenAi))
}

async fn create(State(gateway): Shared, request: Request) -> Response<Body> {
    let (parts, given) = request.into_parts();
    let created = async {
        let (batches, tenant) = enter(&gateway, &parts.headers)?;
        let given = body::read(&parts.headers, given, MAX_BODY).await?;
        batches.create(&tenant, &given).await
    };
    answer(created.await)
}

async fn batches(State(gateway): Shared, headers: HeaderMap, uri: Uri) -> Response<Body> {
    let listed = async {
        let (batches, tenant) = enter(&gateway, &headers)?;
        page(batches.list(&tenant).await?, &uri)
    };
    answer(listed.await)
}

async fn batch(State(gateway): Shared, Path(id): Path<String>, headers: HeaderMap) -> Response<Body> {
    let shown = async {
        let (batches, tenant) = enter(&gateway, &headers)?;
        batches.show(&tenant, &id).await
    };
    answer(shown.await)
}

async fn cancel(State(gateway): Shared, Path(id): Path<String>, headers: HeaderMap) -> Response<Body> {
    let cancelled = async {
        let (batches, tenant) = enter(&gateway, &headers)?;
        batches.cancel(&tenant, &id).await
    };
    answer(cancelled.await)
}

/// One page of a list: `limit` entries behind the one whose id is `after`.
fn page(all: Vec<Value>, uri: &Uri) -> Result<Value, Problem> {
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let (mut limit, mut after) = (PAGE.0, None);
    for (key, value) in pairs {
        match key {
            "after" => after = Some(value),
            "limit" => {
                let parsed = value.parse().ok().filter(|limit| (1..=PAGE.1).contains(limit));
                limit = parsed
                    .ok_or_else(|| Problem::invalid(format!("limit is {value:?}; allowed is 1 to {}", PAGE.1)))?;
            }
            _ => {}
        }
    }
    let start = match after {
        None => 0,
        Some(after) => match all.iter().position(|entry| entry["id"] == after) {
            Some(at) => at + 1,
            None => return Err(Problem::invalid(format!("there is nothing of the id {after:?} (after)"))),
        },
    };
    let has_more = all.len() - start > limit;
    let data: Vec<Value> = all.into_iter().skip(start).take(limit).collect();
    let id = |entry: Option<&Value>| entry.map(|entry| entry["id"].clone());
    let (first, last) = (id(data.first()), id(data.last()));
    Ok(json!({"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_in_pages() {
        let all = || ["c", "b", "a"].map(|id| json!({"id": id})).to_vec();
        let at = |query: &str| page(all(), &format!("/v1/files{query}").parse().expect("a URI"));
        let ids = |page: &Value| -> Vec<String> {
            page["data"].as_array().expect("a list").iter().map(|entry| entry["id"].to_string()).collect()
        };
        let first = at("?limit=2").expect("valid");
        assert_eq!((ids(&first).len(), &first["last_id"], &first["has_more"]), (2, &"b".into(), &true.into()));
        let second = at("?after=b&limit=2").expect("valid");
        assert_eq!((ids(&second), &second["has_more"]), (vec!["\"a\"".to_owned()], &false.into()));
        assert_eq!(ids(&at("").expect("valid")).len(), 3);
        assert!(at("?limit=0").is_err() && at("?after=x").is_err());
        assert_eq!(ids(&page(Vec::new(), &"/v1/files".parse().expect("a URI")).expect("valid")).len(), 0);
    }
}

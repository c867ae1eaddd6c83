//! Routes of files and batches.

use std::sync::Arc;

use axum::Router as Routes;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, FromRequest as _, Multipart, Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, Response, Uri, header};
use axum::routing::{get, post};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::api::Family;
use super::batches::Batches;
use super::problem::Problem;
use super::{Gateway, body};

/// Most entries of a page.
const MAX_PAGE: usize = 10_000;
/// Entries of a page of files and of batches where the client does not say, as OpenAI's API has them.
const FILES_PAGE: usize = MAX_PAGE;
const BATCHES_PAGE: usize = 20;

/// Parameters of lists.
const LIMIT: &str = "limit";
const AFTER: &str = "after";
const PURPOSE: &str = "purpose";
const ORDER: &str = "order";

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
        let asked = Asked::read(&uri, &[LIMIT, AFTER, PURPOSE, ORDER], FILES_PAGE)?;
        asked.page(batches.files.list(&tenant).await?)
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
        let asked = Asked::read(&uri, &[LIMIT, AFTER], BATCHES_PAGE)?;
        asked.page(batches.list(&tenant).await?)
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

/// What a list is asked for.
#[derive(Debug)]
struct Asked {
    limit: usize,
    after: Option<String>,
    purpose: Option<String>,
    order: Order,
}

/// Which entries come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Oldest,
    Newest,
}

impl Asked {
    /// Reads what a list is asked for that takes these parameters, and as many entries a page where none says it.
    fn read(uri: &Uri, takes: &[&str], limit: usize) -> Result<Self, Problem> {
        let mut asked = Self { limit, after: None, purpose: None, order: Order::Newest };
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = value.replace('+', " ");
            let value = percent_decode_str(&value).decode_utf8_lossy().into_owned();
            match takes.iter().find(|known| **known == key).copied() {
                Some(AFTER) => asked.after = Some(value),
                Some(PURPOSE) => asked.purpose = Some(value),
                Some(ORDER) => {
                    asked.order = match value.as_str() {
                        "asc" => Order::Oldest,
                        "desc" => Order::Newest,
                        _ => return Err(Problem::invalid(format!("order is {value:?}; allowed are asc and desc"))),
                    }
                }
                Some(LIMIT) => {
                    let limit = value.parse().ok().filter(|limit| (1..=MAX_PAGE).contains(limit));
                    let wrong = || Problem::invalid(format!("limit is {value:?}; allowed is 1 to {MAX_PAGE}"));
                    asked.limit = limit.ok_or_else(wrong)?;
                }
                // What is not done here is refused rather than left out.
                _ => {
                    let takes = takes.join(", ");
                    return Err(Problem::invalid(format!("the list has no parameter {key:?}; it has {takes}")));
                }
            }
        }
        Ok(asked)
    }

    /// One page of a list whose newest entry is the first: `limit` entries behind the one whose id is `after`.
    fn page(self, mut all: Vec<Value>) -> Result<Value, Problem> {
        if let Some(purpose) = &self.purpose {
            all.retain(|entry| entry["purpose"] == *purpose);
        }
        if self.order == Order::Oldest {
            all.reverse();
        }
        let start = match &self.after {
            None => 0,
            Some(after) => match all.iter().position(|entry| entry["id"] == *after) {
                Some(at) => at + 1,
                None => return Err(Problem::invalid(format!("there is nothing of the id {after:?} (after)"))),
            },
        };
        let has_more = all.len() - start > self.limit;
        let data: Vec<Value> = all.into_iter().skip(start).take(self.limit).collect();
        let id = |entry: Option<&Value>| entry.map(|entry| entry["id"].clone());
        let (first, last) = (id(data.first()), id(data.last()));
        Ok(json!({"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_in_pages() {
        let all = || ["c", "b", "a"].map(|id| json!({"id": id})).to_vec();
        let read = |query: &str| {
            let uri = format!("/v1/batches{query}").parse().expect("a URI");
            Asked::read(&uri, &[LIMIT, AFTER], BATCHES_PAGE)
        };
        let at = |query: &str| read(query)?.page(all());
        let ids = |page: &Value| -> Vec<String> {
            page["data"].as_array().expect("a list").iter().map(|entry| entry["id"].to_string()).collect()
        };
        let first = at("?limit=2").expect("valid");
        assert_eq!((ids(&first).len(), &first["last_id"], &first["has_more"]), (2, &"b".into(), &true.into()));
        let second = at("?after=b&limit=2").expect("valid");
        assert_eq!((ids(&second), &second["has_more"]), (vec!["\"a\"".to_owned()], &false.into()));
        assert_eq!(ids(&at("").expect("valid")).len(), 3);
        assert!(at("?limit=0").is_err() && at("?after=x").is_err());
        assert_eq!(ids(&read("").and_then(|asked| asked.page(Vec::new())).expect("valid")).len(), 0);
    }
}

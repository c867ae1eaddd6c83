//! `/v1/files`: files of batches, in the object store.

use std::collections::HashMap;
use std::time::UNIX_EPOCH;

use axum::body::Body;
use axum::extract::multipart::{Field, Multipart, MultipartError};
use axum::http::{HeaderValue, Response, StatusCode, header};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use super::pace;
use super::problem::Problem;
use crate::nats::objects::{ObjectInfo, ObjectReader, Objects, ObjectsError};

/// The one purpose that files have here.
const PURPOSE: &str = "batch";
/// What files that batches write are for.
const OUTPUT: &str = "batch_output";
/// Longest name that a client may give a file, in bytes.
const MAX_NAME: usize = 512;
/// Bytes that are between a client and the object store.
const PIPE: usize = 1024 * 1024;
/// Longest text that a field of a form may hold, in bytes.
const MAX_TEXT: usize = 64;
/// How the fields begin by which OpenAI's API lets a file go earlier.
const EXPIRY: &str = "expires_after";

/// The files, each of one tenant; that of nobody is the empty name.
#[derive(Debug, Clone)]
pub struct Files {
    objects: Objects,
    max: u64,
}

impl Files {
    /// Files of at most `max` bytes in this store.
    pub fn new(objects: Objects, max: u64) -> Self {
        Self { objects, max }
    }

    /// Takes a file that a client uploads.
    pub async fn upload(&self, tenant: &str, form: Multipart) -> Result<Value, Problem> {
        let mut stored = None;
        match self.read(tenant, form, &mut stored).await {
            Ok(id) => Ok(shown(&self.info(tenant, &id).await?)),
            Err(problem) => {
                if let Some(id) = stored {
                    self.objects.delete(&id).await.map_err(Problem::from)?;
                }
                Err(problem)
            }
        }
    }

    /// Reads a form. Its file is `stored` as soon as it is, whatever is wrong with what follows.
    async fn read(&self, tenant: &str, mut form: Multipart, stored: &mut Option<String>) -> Result<String, Problem> {
        let mut purpose = None;
        while let Some(field) = form.next_field().await.map_err(|error| unreadable(&error))? {
            match field.name() {
                Some("purpose") => purpose = Some(text(field).await?),
                Some("file") if stored.is_none() => *stored = Some(self.take(tenant, field).await?),
                Some("file") => return Err(Problem::invalid("the form holds two files")),
                // What is not done here is refused rather than left out.
                Some(name) if name.starts_with(EXPIRY) => {
                    let message = format!("{EXPIRY} is not offered: all files are kept files_max_age");
                    return Err(Problem::invalid(message));
                }
                name => {
                    let name: String = name.unwrap_or_default().chars().take(MAX_TEXT).collect();
                    let message = format!("the form holds a field {name:?}; a file has \"file\" and \"purpose\"");
                    return Err(Problem::invalid(message));
                }
            }
        }
        let problem = match (stored.as_ref(), purpose.as_deref()) {
            (Some(id), Some(PURPOSE)) => return Ok(id.clone()),
            (None, _) => "the form holds no field \"file\"".to_owned(),
            (_, None) => "the form holds no field \"purpose\"".to_owned(),
            (_, Some(other)) => format!("the purpose is {other:?}; there is only {PURPOSE:?}"),
        };
        Err(Problem::invalid(problem))
    }

    /// Stores what comes of a field as it comes. Returns the file's id.
    async fn take(&self, tenant: &str, mut field: Field<'_>) -> Result<String, Problem> {
        let id = format!("file-{}", uuid::Uuid::now_v7().simple());
        let name = field.file_name().unwrap_or("batch.jsonl").to_owned();
        if name.len() > MAX_NAME || name.chars().any(char::is_control) {
            return Err(Problem::invalid(format!(
                "a file's name is at most {MAX_NAME} bytes without control characters"
            )));
        }
        let (mut into, out) = tokio::io::duplex(PIPE);
        let pour = async move {
            let mut size = 0;
            loop {
                let piece = field.chunk().await.map_err(|error| unreadable(&error))?;
                let Some(piece) = piece else { return into.shutdown().await.map_err(|error| broken(&error)) };
                size += piece.len() as u64;
                if size > self.max {
                    let message =
                        format!("the file is larger than the {} bytes that this gateway takes (max_file)", self.max);
                    return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", message));
                }
                into.write_all(&piece).await.map_err(|error| broken(&error))?;
            }
        };
        let put = self.objects.put(&id, metadata(tenant, &name, PURPOSE), out);
        // A reader that is gone fails the writer: whichever is wrong first is told.
        let (poured, put) = tokio::join!(pour, put);
        if let Err(problem) = poured {
            // What came of it reads as a whole file.
            self.objects.delete(&id).await.map_err(Problem::from)?;
            return Err(problem);
        }
        put?;
        Ok(id)
    }

    /// Stores a file that a batch has written, in place of an earlier one of the same id.
    pub async fn write(
        &self,
        tenant: &str,
        id: &str,
        name: &str,
        bytes: impl tokio::io::AsyncRead + Unpin,
    ) -> Result<u64, ObjectsError> {
        self.objects.put(id, metadata(tenant, name, OUTPUT), bytes).await
    }

    /// Deletes a file without asking whose it is.
    pub async fn drop_file(&self, id: &str) -> Result<(), ObjectsError> {
        self.objects.delete(id).await
    }

    /// A file to be read without asking whose it is.
    pub async fn open(&self, id: &str) -> Result<ObjectReader, ObjectsError> {
        self.objects.open(id).await
    }

    async fn info(&self, tenant: &str, id: &str) -> Result<ObjectInfo, Problem> {
        let found = match self.objects.info(id).await {
            Ok(info) => Some(info).filter(|info| is_of(info, tenant)),
            Err(ObjectsError::Missing) => None,
            Err(error) => return Err(error.into()),
        };
        found.ok_or_else(|| Problem::not_found("unknown_file", format!("there is no file {id:?}, or no longer")))
    }

    /// Whether a tenant has this file.
    pub async fn has(&self, tenant: &str, id: &str) -> Result<(), Problem> {
        self.info(tenant, id).await.map(drop)
    }

    /// What is known of a file.
    pub async fn show(&self, tenant: &str, id: &str) -> Result<Value, Problem> {
        Ok(shown(&self.info(tenant, id).await?))
    }

    /// Its bytes, as they come.
    pub async fn content(&self, tenant: &str, id: &str) -> Result<Response<Body>, Problem> {
        let info = self.info(tenant, id).await?;
        let reader = self.objects.open(id).await?;
        let pieces = futures_util::stream::unfold(Some(reader), |reader| async {
            let mut reader = reader?;
            match reader.next().await {
                Ok(piece) if piece.is_empty() => None,
                Ok(piece) => Some((Ok(piece), Some(reader))),
                // The client has a part of it by then; that its connection breaks tells that it is not all.
                Err(error) => Some((Err::<Bytes, _>(error), None)),
            }
        });
        let mut response = Response::new(Body::from_stream(pieces));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(header::CONTENT_LENGTH, info.size.into());
        Ok(response)
    }

    /// Deletes a file.
    pub async fn delete(&self, tenant: &str, id: &str) -> Result<Value, Problem> {
        self.info(tenant, id).await?;
        self.objects.delete(id).await?;
        Ok(json!({"id": id, "object": "file", "deleted": true}))
    }

    /// A tenant's files, the newest first.
    pub async fn list(&self, tenant: &str) -> Result<Vec<Value>, Problem> {
        let mut all = self.objects.list().await?;
        all.retain(|info| is_of(info, tenant));
        all.sort_by(|a, b| b.modified.cmp(&a.modified).then_with(|| b.name.cmp(&a.name)));
        Ok(all.iter().map(shown).collect())
    }
}

/// What is told where a form can't be read to its end.
pub fn unreadable(error: &MultipartError) -> Problem {
    pace::unreadable("the form with the file can't be read", error)
}

/// The text of a field.
async fn text(mut field: Field<'_>) -> Result<String, Problem> {
    let mut bytes = Vec::new();
    while let Some(piece) = field.chunk().await.map_err(|error| unreadable(&error))? {
        bytes.extend_from_slice(&piece);
        if bytes.len() > MAX_TEXT {
            return Err(Problem::invalid(format!("a field of the form is longer than {MAX_TEXT} bytes")));
        }
    }
    String::from_utf8(bytes).map_err(|_| Problem::invalid("a field of the form is no UTF-8"))
}

fn broken(error: &std::io::Error) -> Problem {
    Problem::unavailable("file_store", format!("the file could not be stored: {error}"))
}

fn metadata(tenant: &str, name: &str, purpose: &str) -> HashMap<String, String> {
    let pairs = [("tenant", tenant), ("filename", name), ("purpose", purpose)];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn is_of(info: &ObjectInfo, tenant: &str) -> bool {
    info.metadata.get("tenant").map_or("", String::as_str) == tenant
}

fn shown(info: &ObjectInfo) -> Value {
    let told = |key: &str| info.metadata.get(key).cloned().unwrap_or_default();
    json!({
        "id": info.name, "object": "file", "bytes": info.size, "purpose": told("purpose"), "filename": told("filename"),
        "created_at": info.modified.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(), "status": "processed",
    })
}

impl From<ObjectsError> for Problem {
    fn from(error: ObjectsError) -> Self {
        match error {
            ObjectsError::Missing => Self::not_found("unknown_file", "there is no such file, or no longer"),
            ObjectsError::Unreachable { .. } => Self::unavailable("file_store", error.to_string()),
        }
    }
}

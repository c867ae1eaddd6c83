//! JSON Schemas (draft 2020-12) of every JSON message, generated from the types.

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};

/// File name and text of each schema, sorted by name.
pub fn all() -> Vec<(&'static str, String)> {
    vec![
        ("drain.json", of::<super::drain::DrainAnswer>("A worker's answer on {ns}.worker.{worker}.drain")),
        ("error.json", of::<super::reply::ErrorBody>("An error's payload on the reply stream")),
        ("finished.json", of::<super::event::Finished>("Payload of the lifecycle event finished")),
        (
            "kv.json",
            of::<super::kv::KvEvents>("What a rank's prefix cache holds more or less, on {ns}.kv.{worker}.{r}"),
        ),
        ("load.json", of::<super::load::LoadReport>("A worker's load report on {ns}.load.{worker}")),
        ("pin.json", of::<super::pin::PinValue>("A pin in the bucket {ns}_pins")),
        (
            "registration.json",
            of::<super::registration::Registration>("A worker's registration in the bucket {ns}_workers"),
        ),
    ]
}

fn of<T: JsonSchema>(title: &str) -> String {
    let settings = SchemaSettings::draft2020_12();
    let mut schema = SchemaGenerator::new(settings).into_root_schema_for::<T>();
    schema.insert("title".into(), title.into());
    let mut text = serde_json::to_string_pretty(&schema).expect("a schema is plain JSON");
    text.push('\n');
    text
}

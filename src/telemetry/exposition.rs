//! The page of figures that is scraped, in the format that is asked for.

use axum::http::{HeaderMap, HeaderName, header};
use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::registry::Registry;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The registry's page: OpenMetrics for whoever asks for it, as Prometheus does, else the text format of old, since what reads
/// that alone would stumble over the other.
pub fn page(registry: &Registry, asked: &HeaderMap) -> ([(HeaderName, &'static str); 1], String) {
    let accepted = asked.get_all(header::ACCEPT).into_iter().filter_map(|accept| accept.to_str().ok());
    let open_metrics = accepted.into_iter().any(|accept| accept.contains("application/openmetrics-text"));
    let mut page = String::new();
    let (kind, written) = match open_metrics {
        true => (OPEN_METRICS, text::encode(&mut page, registry)),
        false => (PLAIN, prometheus_text::encode(&mut page, registry)),
    };
    written.expect("writing to a string cannot fail");
    ([(header::CONTENT_TYPE, kind)], page)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[test]
    fn each_gets_the_format_that_it_asks_for() {
        let mut registry = Registry::default();
        registry.register("seen", "What was seen", <Counter>::default());
        let (kind, plain) = page(&registry, &HeaderMap::new());
        assert_eq!((kind[0].1, plain.contains("# EOF")), (PLAIN, false));
        let mut asked = HeaderMap::new();
        asked.append(header::ACCEPT, HeaderValue::from_static("text/html;q=0.1"));
        asked.append(header::ACCEPT, HeaderValue::from_static("application/openmetrics-text;version=1.0.0,*/*;q=0.1"));
        let (kind, open) = page(&registry, &asked);
        assert_eq!((kind[0].1, open.ends_with("# EOF\n")), (OPEN_METRICS, true));
    }
}

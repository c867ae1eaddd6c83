//! Messages of workers and values of buckets: what is read keeps the rules, and reads the same once it is written again.

use rankpin::core::hash::PinKey;
use rankpin::core::id::MAX_RANKS;
use rankpin::wire::Encoding;
use rankpin::wire::event::{Event, MAX_ERROR_TEXT_BYTES};
use rankpin::wire::load::{LoadReport, MAX_LOAD_BYTES};
use rankpin::wire::pin::PinValue;
use rankpin::wire::registration::Registration;
use rankpin::wire::reply;

use super::head_and_payload;

const ENCODINGS: [Encoding; 2] = [Encoding::Json, Encoding::MessagePack];

/// A registration under the key that it names, and under another.
pub fn registration(data: &[u8]) {
    assert!(Registration::parse("somebody else", data).is_err());
    let Ok(read) = Encoding::Json.decode::<Registration>(data) else {
        assert!(Registration::parse("w", data).is_err());
        return;
    };
    let spec = Registration::parse(&read.worker, data);
    let Ok(spec) = spec else { return };
    assert!(spec.ranks.size() >= 1 && u32::from(spec.ranks.start().0) + spec.ranks.size() <= MAX_RANKS);
    assert!(!spec.models.is_empty() && spec.models.is_sorted() && spec.weight.is_finite() && spec.weight > 0.0);
    assert_ne!(spec.max_inflight, Some(0));
    for encoding in ENCODINGS {
        let again = encoding.decode::<Registration>(&encoding.encode(&read)).expect("what was read can be written");
        // A weight may lose its last bit on its way through decimal digits.
        assert!((again.weight / read.weight - 1.0).abs() < 1e-9);
        assert_eq!(Registration { weight: 1.0, ..again }, Registration { weight: 1.0, ..read.clone() });
    }
}

/// A load report in either encoding.
pub fn load(data: &[u8]) {
    for encoding in ENCODINGS {
        let Ok(report) = LoadReport::parse(encoding, data) else { continue };
        assert!(data.len() <= MAX_LOAD_BYTES && report.ranks.len() <= MAX_RANKS as usize);
        let read: LoadReport = encoding.decode(data).expect("it was read before");
        for other in ENCODINGS {
            assert_eq!(LoadReport::parse(other, &other.encode(&read)).as_ref(), Ok(&report));
        }
    }
}

/// A pin under the key that it belongs to, and under another.
pub fn pin(data: &[u8]) {
    assert!(PinValue::parse(PinKey::of("somebody", "else", "here"), data).is_err());
    let Ok(value) = Encoding::Json.decode::<PinValue>(data) else { return };
    let key = PinKey::of(&value.tenant, &value.model, &value.session);
    let Ok(pin) = PinValue::parse(key, data) else { return };
    assert_eq!(PinKey::parse(&key.to_string()), Some(key));
    assert_eq!(pin.placement.rank.map(|rank| rank.0), value.dp_rank);
    if value.encode().len() <= rankpin::wire::pin::MAX_PIN_BYTES {
        assert_eq!(PinValue::parse(key, &value.encode()), Ok(pin));
    }
}

/// An event: lines of headers, an empty line, a payload.
pub fn event(data: &[u8]) {
    let (headers, payload) = head_and_payload(data);
    let pairs = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    match Event::read(pairs, payload) {
        Ok(Event::Rejected(rejection)) => {
            assert!(rejection.code.len() <= MAX_ERROR_TEXT_BYTES);
            assert!(rejection.message.len() <= 2 * MAX_ERROR_TEXT_BYTES);
        }
        Ok(Event::Finished(finished)) => {
            for encoding in ENCODINGS {
                assert_eq!(encoding.decode(&encoding.encode(&finished)).as_ref(), Ok(&finished));
            }
        }
        Ok(Event::Accepted | Event::Progress) => {}
        Err(error) => assert!(error.to_string().len() <= 8 * MAX_ERROR_TEXT_BYTES),
    }
    let _ = reply::error_message(payload);
}

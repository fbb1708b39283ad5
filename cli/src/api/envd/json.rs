//! How protocol buffers stand in JSON, where that is not what serde does by itself: bytes as base64, 64-bit
//! numbers as texts, times as RFC 3339.
//!
//! Source: <https://protobuf.dev/programming-guides/json/>.

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const CONFIG: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, CONFIG);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, CONFIG);

/// Bytes; in JSON a text in base64. Either alphabet is read, with padding or without.
#[derive(Clone, Debug, Default, PartialEq, Eq, utoipa::ToSchema)]
#[schema(value_type = String, format = Byte)]
pub(super) struct Base64(pub(super) Bytes);

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let engine = match text.contains(['-', '_']) {
            true => URL_SAFE,
            false => STANDARD,
        };
        let bytes = engine.decode(&text).map_err(de::Error::custom)?;
        Ok(Self(bytes.into()))
    }
}

/// A 64-bit number; in JSON a text.
pub(super) fn number_as_text<S: Serializer>(
    number: &u64,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}

/// A time as RFC 3339; one that is none in a calendar is the year 1970.
pub(super) fn time(secs: i64, nanos: u32) -> String {
    let nanos = i32::try_from(nanos).unwrap_or(0);
    Timestamp::new(secs, nanos)
        .unwrap_or(Timestamp::UNIX_EPOCH)
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Vec<u8>> {
        let json = serde_json::Value::from(text);
        let read: Result<Base64, _> = serde_json::from_value(json);
        read.ok().map(|bytes| bytes.0.to_vec())
    }

    #[test]
    fn every_form_of_base64_is_read_and_one_written() {
        for text in ["++//AQ==", "++//AQ", "--__AQ==", "--__AQ"] {
            assert_eq!(read(text).unwrap(), [0xfb, 0xef, 0xff, 1], "{text}");
        }
        assert!(read("").unwrap().is_empty());
        for wrong in ["A", "%", "++__", "AA=A"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        let bytes = Base64(Bytes::from_static(&[0xfb, 0xef, 0xff, 1]));
        assert_eq!(serde_json::to_string(&bytes).unwrap(), "\"++//AQ==\"");
    }

    #[test]
    fn times_are_rfc_3339_whatever_a_sandbox_says() {
        assert_eq!(time(0, 0), "1970-01-01T00:00:00Z");
        assert_eq!(time(1_700_000_000, 5), "2023-11-14T22:13:20.000000005Z");
        assert_eq!(time(-1, 0), "1969-12-31T23:59:59Z");
        assert_eq!(time(i64::MAX, 0), "1970-01-01T00:00:00Z");
        assert_eq!(time(0, u32::MAX), "1970-01-01T00:00:00Z");
    }
}

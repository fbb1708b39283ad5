//! Settings of a store, kept in `meta` (docs/format.md): the table of them is [`SETTINGS`].

use serde::Serialize;
use thiserror::Error;

use super::Store;
use crate::catalog::{Catalog, CatalogError};
use crate::change::{Change, Row};
use crate::hash::Hashing;

/// What the value of a setting is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// 1 or 0: `on` or `off`.
    Switch,
    /// Bytes a second; 0: `off`.
    Rate,
}

/// A setting of a store.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is for.
    pub meaning: &'static str,
    /// Its name in `meta`.
    key: &'static str,
    kind: Kind,
    /// What it is if nobody sets it.
    default: u64,
}

/// Every setting of a store.
pub const SETTINGS: [Setting; 2] = [DEDUP, HASH_RATE];

/// Whether equal objects are stored once.
const DEDUP: Setting = Setting {
    name: "dedup",
    meaning: "store equal contents of snapshots once (needs hash-rate)",
    key: "dedup",
    kind: Kind::Switch,
    default: 1,
};

/// How fast frozen contents are hashed in the background.
const HASH_RATE: Setting = Setting {
    name: "hash-rate",
    meaning: "how much of the contents of snapshots is hashed in a second, in the background",
    key: "hash_rate",
    kind: Kind::Rate,
    default: 64 << 20,
};

/// A setting with its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SettingInfo {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its value as a number: bytes, bytes a second, or 1 for on and 0 for off.
    pub value: u64,
    /// Its value as it is typed and shown.
    pub text: String,
    /// Nobody has set it: this is the default.
    pub is_default: bool,
    /// What it is for.
    pub meaning: &'static str,
}

/// Why a setting was not read or changed.
#[derive(Debug, Error)]
pub enum SettingError {
    /// There is no such setting.
    #[error("there is no setting '{name}'")]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The value is none that the setting can have.
    #[error("'{value}' is no value of '{name}': {expected}")]
    Value {
        /// The setting.
        name: &'static str,
        /// What was given.
        value: String,
        /// What it can be.
        expected: &'static str,
    },
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

impl Setting {
    fn named(name: &str) -> Result<&'static Self, SettingError> {
        let found = SETTINGS.iter().find(|setting| setting.name == name);
        found.ok_or_else(|| SettingError::Unknown {
            name: name.to_owned(),
        })
    }

    /// What it is in a store.
    fn of(&self, catalog: &Catalog) -> Result<u64, CatalogError> {
        Ok(catalog.setting(self.key)?.unwrap_or(self.default))
    }

    fn info(&self, catalog: &Catalog) -> Result<SettingInfo, CatalogError> {
        let set = catalog.setting(self.key)?;
        let value = set.unwrap_or(self.default);
        Ok(SettingInfo {
            name: self.name,
            value,
            text: self.kind.text(value),
            is_default: set.is_none(),
            meaning: self.meaning,
        })
    }

    fn parse(&self, text: &str) -> Result<u64, SettingError> {
        self.kind.parse(text).ok_or_else(|| SettingError::Value {
            name: self.name,
            value: text.to_owned(),
            expected: self.kind.expected(),
        })
    }
}

impl Kind {
    fn expected(self) -> &'static str {
        match self {
            Self::Switch => "it is on or off",
            Self::Rate => "it is a number of bytes a second, as 64M or 1G, or off",
        }
    }

    fn parse(self, text: &str) -> Option<u64> {
        match (self, text) {
            (_, "off") => Some(0),
            (Self::Switch, "on" | "1") => Some(1),
            (Self::Switch, "0") => Some(0),
            (Self::Switch, _) => None,
            (Self::Rate, text) => parse_size(text),
        }
    }

    fn text(self, value: u64) -> String {
        match (self, value) {
            (_, 0) => "off".to_owned(),
            (Self::Switch, _) => "on".to_owned(),
            (Self::Rate, value) => size_text(value),
        }
    }
}

/// Units of sizes, each with the power of two that it stands for.
const UNITS: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

/// A number of bytes as it is typed: `4096`, `64M`, `1GiB`. At most what the catalog can hold.
fn parse_size(text: &str) -> Option<u64> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let unit = match unit.strip_suffix("iB") {
        Some("") => return None,
        Some(letter) => letter,
        None => unit,
    };
    let shift = match UNITS.iter().find(|(letter, _)| unit == letter.to_string()) {
        Some(&(_, shift)) => shift,
        None if unit.is_empty() || unit == "B" => 0,
        None => return None,
    };
    let bytes = number.checked_mul(1 << shift)?;
    (bytes <= i64::MAX.unsigned_abs()).then_some(bytes)
}

/// The shortest that [`parse_size`] reads as this.
fn size_text(bytes: u64) -> String {
    for (letter, shift) in UNITS {
        if bytes != 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{letter}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// How contents are hashed in a store that is being opened.
pub(super) fn hashing(catalog: &Catalog) -> Result<Hashing, CatalogError> {
    Ok(Hashing::new(
        HASH_RATE.of(catalog)?,
        DEDUP.of(catalog)? != 0,
    ))
}

impl Store {
    /// Every setting, or one.
    ///
    /// # Errors
    /// [`SettingError`].
    pub fn settings(&self, name: Option<&str>) -> Result<Vec<SettingInfo>, SettingError> {
        let wanted = match name {
            Some(name) => std::slice::from_ref(Setting::named(name)?),
            None => &SETTINGS,
        };
        let infos = wanted.iter().map(|one| one.info(&self.core.catalog));
        Ok(infos.collect::<Result<_, _>>()?)
    }

    /// Sets a setting, or takes back that it was; it counts at once.
    ///
    /// # Errors
    /// [`SettingError`]; it is what it was then.
    pub fn set(&self, name: &str, value: Option<&str>) -> Result<SettingInfo, SettingError> {
        let setting = Setting::named(name)?;
        let value = value.map(|text| setting.parse(text)).transpose()?;
        let row = Row::PutSetting {
            key: setting.key,
            // What was parsed fits.
            value: value.map(|value| i64::try_from(value).unwrap_or(i64::MAX)),
        };
        self.core.catalog.apply(&Change::from(row))?;
        let info = setting.info(&self.core.catalog)?;
        match setting.key {
            key if key == DEDUP.key => self.core.hashing.set(None, Some(info.value != 0)),
            key if key == HASH_RATE.key => self.core.hashing.set(Some(info.value), None),
            _ => {}
        }
        Ok(info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_they_are_shown() {
        for (text, bytes) in [
            ("1", 1),
            ("64M", 64 << 20),
            ("1G", 1 << 30),
            ("1025K", 1025 << 10),
        ] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
            assert_eq!(size_text(bytes), text);
        }
        assert_eq!(parse_size("2MiB"), Some(2 << 20));
        assert_eq!(parse_size("12B"), Some(12));
        for wrong in [
            "",
            "M",
            "-1",
            "1.5G",
            "1X",
            "1iB",
            "9000000T",
            "99999999999999999999",
        ] {
            assert_eq!(parse_size(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn each_setting_takes_what_it_shows_and_nothing_else() {
        for setting in &SETTINGS {
            let text = setting.kind.text(setting.default);
            assert_eq!(setting.parse(&text).unwrap(), setting.default, "{text}");
            assert_eq!(setting.parse("off").unwrap(), 0);
            assert!(setting.parse("perhaps").is_err());
            assert_eq!(Setting::named(setting.name).unwrap().key, setting.key);
        }
        assert!(matches!(
            Setting::named("none"),
            Err(SettingError::Unknown { .. })
        ));
        assert!(DEDUP.parse("2").is_err());
    }

    #[test]
    fn what_is_set_counts_after_opening_again_until_it_is_taken_back() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("store");
        Store::init(&dir).unwrap();
        let store = Store::open(&dir).unwrap();
        let rate = |store: &Store| store.settings(Some("hash-rate")).unwrap().remove(0);
        assert!(rate(&store).is_default);
        assert_eq!(store.set("hash-rate", Some("1M")).unwrap().value, 1 << 20);
        assert!(store.set("hash-rate", Some("fast")).is_err());
        drop(store);
        let store = Store::open(&dir).unwrap();
        assert_eq!(
            (rate(&store).value, rate(&store).is_default),
            (1 << 20, false)
        );
        store.set("hash-rate", None).unwrap();
        assert_eq!(rate(&store).text, "64M");
        assert_eq!(store.settings(None).unwrap().len(), SETTINGS.len());
    }
}

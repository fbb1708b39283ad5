//! Settings of a store, kept in `meta` (docs/format.md): the table of them is [`SETTINGS`].

use thiserror::Error;

use super::Store;
use crate::catalog::{Catalog, CatalogError};
use crate::change::{Change, Row};
use crate::contents::ContentsError;
use crate::hash::Hashing;
use crate::units;

/// What the value of a setting is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// 1 or 0: `on` or `off`.
    Switch,
    /// Bytes a second; 0: `off`.
    Rate,
    /// Bytes; 0: `off`.
    Size,
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
pub const SETTINGS: [Setting; 3] = [DEDUP, HASH_RATE, MIN_FREE];

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

/// How much of the disk has to stay free.
const MIN_FREE: Setting = Setting {
    name: "min-free",
    meaning: "free space of the disk below which nothing is added and no snapshot taken (1 %, at most 256M)",
    key: "min_free",
    kind: Kind::Size,
    // Nobody has set it: the disk says how much that is.
    default: 0,
};

/// A setting with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// The disk does not say how large it is.
    #[error(transparent)]
    Disk(#[from] ContentsError),
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
            Self::Size => "it is a number of bytes, as 64M or 1G, or off",
        }
    }

    fn parse(self, text: &str) -> Option<u64> {
        match (self, text) {
            (_, "off") => Some(0),
            (Self::Switch, "on" | "1") => Some(1),
            (Self::Switch, "0") => Some(0),
            (Self::Switch, _) => None,
            (Self::Rate | Self::Size, text) => units::bytes(text).ok(),
        }
    }

    fn text(self, value: u64) -> String {
        match (self, value) {
            (_, 0) => "off".to_owned(),
            (Self::Switch, _) => "on".to_owned(),
            (Self::Rate | Self::Size, value) => units::text(value),
        }
    }
}

/// What has to stay free of the disk of a store that is being opened, if somebody said so.
pub(super) fn min_free(catalog: &Catalog) -> Result<Option<u64>, CatalogError> {
    catalog.setting(MIN_FREE.key)
}

/// How contents are hashed in a store that is being opened.
pub(super) fn hashing(catalog: &Catalog, crashed: bool) -> Result<Hashing, CatalogError> {
    Ok(Hashing::new(
        HASH_RATE.of(catalog)?,
        DEDUP.of(catalog)? != 0,
        crashed,
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
        let infos = wanted.iter().map(|one| self.setting(one));
        infos.collect()
    }

    fn setting(&self, setting: &Setting) -> Result<SettingInfo, SettingError> {
        let mut info = setting.info(&self.core.catalog)?;
        if setting.key == MIN_FREE.key && info.is_default {
            info.value = self.core.room.left()?.min_free;
            info.text = units::text(info.value);
        }
        Ok(info)
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
        if setting.key == MIN_FREE.key {
            self.core.room.set_min_free(value);
        }
        let info = self.setting(setting)?;
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

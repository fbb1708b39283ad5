//! Checksums: rows against objects, and each in itself. Contents are not read.

use super::object;
use super::report::{CheckReport, Problem};
use crate::catalog::CatalogError;
use crate::catalog::check::Inspection;
use crate::contents::Checksum;

/// Looks at every checksum.
pub(super) fn check(catalog: &Inspection, report: &mut CheckReport) -> Result<(), CatalogError> {
    for id in catalog.hashed_wrongly()? {
        report.found(Problem::ObjectHashed { object: object(id) });
    }
    catalog.checksums(&mut |id, digest, blocks| {
        let sound = Checksum::decode(blocks).is_some_and(|sum| sum.digest() == digest);
        if !sound {
            report.found(Problem::Checksum { object: object(id) });
        }
    })
}

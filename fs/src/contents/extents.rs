//! The extents of one file as a layer sees them, in memory. Pure: no I/O.
//!
//! Invariant: segments are disjoint and not empty; what no segment covers is a hole that no layer
//! wrote. The segments of the live layer are exactly its rows in the catalog, which is why
//! [`ExtentMap::claim`] can answer with the rows to change.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::catalog::ExtentRow;
use crate::change::{BLOCK_END, Change, Row};
use crate::id::{Ino, LayerId, ObjectId};

/// A run of blocks with one origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// First block after the run.
    pub(crate) end: u64,
    /// Layer that wrote it.
    pub(crate) layer: LayerId,
    /// Object that holds it; none for a hole made on purpose.
    pub(crate) object: Option<ObjectId>,
}

/// Extents of one file, in blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExtentMap {
    segments: BTreeMap<u64, Segment>,
    /// The newest layer that has an object for this file, and that object.
    newest: Option<(LayerId, ObjectId)>,
}

impl ExtentMap {
    /// Adds a row of an older layer: it shows only where no newer one covers it. Returns whether
    /// still older rows can matter.
    pub(crate) fn fill(&mut self, row: ExtentRow) -> bool {
        let mut at = row.start;
        let mut gaps = Vec::new();
        for (&start, segment) in self.overlapping(row.start..row.end) {
            if at < start {
                gaps.push(at..start);
            }
            at = segment.end;
        }
        if at < row.end {
            gaps.push(at..row.end);
        }
        for gap in gaps {
            let segment = Segment {
                end: gap.end,
                layer: row.layer,
                object: row.object,
            };
            self.segments.insert(gap.start, segment);
        }
        if let Some(object) = row.object
            && self.newest.is_none_or(|(layer, _)| layer < row.layer)
        {
            self.newest = Some((row.layer, object));
        }
        // The usual base, one object for the whole file, ends the search.
        !(row.start == 0 && row.end == BLOCK_END)
    }

    /// The single object that serves the whole file, if there is one.
    pub(crate) fn single_object(&self) -> Option<(LayerId, ObjectId)> {
        let (&start, segment) = self.segments.first_key_value()?;
        (start == 0 && segment.end == BLOCK_END)
            .then(|| segment.object.map(|object| (segment.layer, object)))?
    }

    /// The object that `layer` itself has for this file.
    pub(crate) fn object_of(&self, layer: LayerId) -> Option<ObjectId> {
        self.newest
            .filter(|&(newest, _)| newest == layer)
            .map(|(_, object)| object)
    }

    /// Runs that cover `range` without gaps: blocks and their segment, none for a hole nobody
    /// wrote. One at a time: whoever looks for the next data of a long file wants the first few.
    pub(crate) fn runs(
        &self,
        range: Range<u64>,
    ) -> impl Iterator<Item = (Range<u64>, Option<Segment>)> {
        let Range { start: mut at, end } = range;
        let mut segments = self.overlapping(range).peekable();
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let run = match segments.peek() {
                Some(&(&start, _)) if at < start => (at..start, None),
                Some(&(_, segment)) => {
                    let run = (at..segment.end.min(end), Some(*segment));
                    segments.next();
                    run
                }
                None => (at..end, None),
            };
            at = run.0.end;
            Some(run)
        })
    }

    /// Parts of `range` that `layer`'s own object does not serve.
    pub(crate) fn unowned(&self, range: Range<u64>, layer: LayerId) -> Vec<Range<u64>> {
        let mut parts: Vec<Range<u64>> = Vec::new();
        for (run, segment) in self.runs(range) {
            if segment.is_some_and(|s| s.layer == layer && s.object.is_some()) {
                continue;
            }
            match parts.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => parts.push(run),
            }
        }
        parts
    }

    /// Gives `range` to `layer`, served by `object` or a hole, and adds the rows that say so.
    pub(crate) fn claim(
        &mut self,
        range: Range<u64>,
        layer: LayerId,
        object: Option<ObjectId>,
        ino: Ino,
        change: &mut Change,
    ) {
        let Range { mut start, mut end } = range;
        debug_assert!(start < end && end <= BLOCK_END, "claim of {start}..{end}");
        let touched: Vec<(u64, Segment)> = self
            .overlapping(start.saturating_sub(1)..end.saturating_add(1).min(BLOCK_END))
            .map(|(&start, &segment)| (start, segment))
            .collect();
        for (old_start, old) in touched {
            let own = old.layer == layer;
            if own && old.object == object {
                // Overlapping or adjacent and alike: one row serves both.
                self.segments.remove(&old_start);
                if old_start >= range.start {
                    change.push(Row::DropExtent {
                        ino,
                        layer,
                        start: old_start,
                    });
                }
                start = start.min(old_start);
                end = end.max(old.end);
                continue;
            }
            if old.end <= range.start || old_start >= range.end {
                continue;
            }
            self.segments.remove(&old_start);
            if own && old_start >= range.start {
                change.push(Row::DropExtent {
                    ino,
                    layer,
                    start: old_start,
                });
            }
            let parts = [
                (old_start, old.end.min(range.start)),
                (old_start.max(range.end), old.end),
            ];
            for (part_start, part_end) in parts {
                if part_start < part_end {
                    self.segments.insert(
                        part_start,
                        Segment {
                            end: part_end,
                            ..old
                        },
                    );
                    if own {
                        change.push(Row::PutExtent {
                            ino,
                            layer,
                            start: part_start,
                            end: part_end,
                            object: old.object,
                        });
                    }
                }
            }
        }
        self.segments.insert(start, Segment { end, layer, object });
        if let Some(object) = object {
            self.newest = Some((layer, object));
        }
        change.push(Row::PutExtent {
            ino,
            layer,
            start,
            end,
            object,
        });
    }

    fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = (&u64, &Segment)> {
        let first = self
            .segments
            .range(..=range.start)
            .next_back()
            .filter(|(_, segment)| segment.end > range.start)
            .map_or(range.start, |(&start, _)| start);
        self.segments.range(first..range.end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INO: Ino = Ino(7);

    /// Rows as the catalog would hold them after the change.
    fn apply(rows: &mut BTreeMap<(LayerId, u64), (u64, Option<ObjectId>)>, change: &Change) {
        for row in change.rows() {
            match *row {
                Row::PutExtent {
                    layer,
                    start,
                    end,
                    object,
                    ..
                } => {
                    rows.insert((layer, start), (end, object));
                }
                Row::DropExtent { layer, start, .. } => {
                    rows.remove(&(layer, start))
                        .expect("only rows that exist are dropped");
                }
                _ => unreachable!(),
            }
        }
    }

    proptest! {
        #[test]
        fn claims_agree_with_a_block_array_and_with_reloading_the_rows(
            claims in prop::collection::vec((0_u64..24, 1_u64..12, any::<bool>(), any::<bool>()), 1..40)
        ) {
            let mut model: Vec<Option<(LayerId, Option<ObjectId>)>> = vec![None; 40];
            let mut map = ExtentMap::default();
            let mut rows = BTreeMap::new();
            let mut layer = LayerId(1);
            for (start, len, hole, freeze) in claims {
                if freeze {
                    layer.0 += 1;
                }
                let object = (!hole).then_some(ObjectId(layer.0 * 10));
                let mut change = Change::new();
                map.claim(start..start + len, layer, object, INO, &mut change);
                apply(&mut rows, &change);
                for block in start..start + len {
                    model[usize::try_from(block).unwrap()] = Some((layer, object));
                }
                for (run, segment) in map.runs(0..40) {
                    for block in run {
                        prop_assert_eq!(
                            segment.map(|s| (s.layer, s.object)),
                            model[usize::try_from(block).unwrap()]
                        );
                    }
                }
                let mut reloaded = ExtentMap::default();
                for ((layer, start), (end, object)) in rows.iter().rev() {
                    reloaded.fill(ExtentRow { layer: *layer, start: *start, end: *end, object: *object });
                }
                prop_assert!(reloaded.runs(0..40).eq(map.runs(0..40)));
                for part in map.unowned(0..40, layer) {
                    for block in part {
                        let at = model[usize::try_from(block).unwrap()];
                        prop_assert!(!matches!(at, Some((l, Some(_))) if l == layer));
                    }
                }
            }
        }
    }

    #[test]
    fn sequential_claims_of_one_layer_stay_one_row() {
        let mut map = ExtentMap::default();
        let mut rows = BTreeMap::new();
        for block in 0..100 {
            let mut change = Change::new();
            map.claim(
                block..block + 1,
                LayerId(3),
                Some(ObjectId(1)),
                INO,
                &mut change,
            );
            apply(&mut rows, &change);
        }
        assert_eq!(rows.len(), 1);
        let mut change = Change::new();
        map.claim(
            100..BLOCK_END,
            LayerId(3),
            Some(ObjectId(1)),
            INO,
            &mut change,
        );
        apply(&mut rows, &change);
        assert_eq!(map.single_object(), Some((LayerId(3), ObjectId(1))));
        assert_eq!(map.object_of(LayerId(3)), Some(ObjectId(1)));
        assert_eq!(map.object_of(LayerId(2)), None);
    }
}

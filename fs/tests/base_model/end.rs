//! Looking at everything, and opening the store anew.

use floe_fs::Store;

use super::run::{Shown, World};
use super::state::{Id, ROOT};
use crate::common::ensure;

impl World {
    /// Looks at everything in one view.
    pub fn compare(&mut self, at: usize) -> Result<(), String> {
        let mut todo: Vec<(Vec<String>, Id)> = vec![(Vec::new(), ROOT)];
        while let Some((path, id)) = todo.pop() {
            if self.shown[at].state.kind(&self.base, id) != 'd' {
                self.read(at, &path, id)?;
                continue;
            }
            self.list(at, &path, id)?;
            let entries = self.shown[at].state.entries(&mut self.base, &self.host, id);
            for (name, id) in entries.unwrap_or_default() {
                let mut path = path.clone();
                path.push(name);
                todo.push((path, id));
            }
        }
        Ok(())
    }

    pub fn compare_all(&mut self) -> Result<(), String> {
        (0..self.shown.len()).try_for_each(|at| self.compare(at))
    }

    pub fn check(&self) -> Result<(), String> {
        let report = self.store().check().map_err(|error| error.to_string())?;
        ensure!(report.is_clean(), "{:?}", report.problems);
        Ok(())
    }

    pub fn reopen(&mut self) -> Result<(), String> {
        let snapshots: Vec<_> = self.shown.iter().map(|s| s.view.target().clone()).collect();
        let states: Vec<_> = std::mem::take(&mut self.shown);
        let store = self.store.take().unwrap();
        let kept: Vec<_> = states
            .into_iter()
            .map(|s| (s.state, s.workspace, s.view))
            .collect();
        let mut again = Vec::new();
        for (state, workspace, view) in kept {
            store.close_view(&view);
            again.push((state, workspace));
        }
        drop(store);
        let store = Store::open(&self.path).map_err(|error| error.to_string())?;
        for ((state, workspace), target) in again.into_iter().zip(snapshots) {
            let view = match (&workspace, target) {
                (Some(workspace), _) => store.open_live(workspace).unwrap(),
                (None, floe_fs::ViewTarget::Frozen(id)) => store.open_frozen(&id).unwrap(),
                (None, other) => return Err(format!("{other:?} is no snapshot")),
            };
            self.shown.push(Shown {
                state,
                view,
                workspace,
            });
        }
        self.store = Some(store);
        Ok(())
    }
}

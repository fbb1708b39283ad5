//! The engine's model: a plain tree in memory, and random operations on both. model.rs compares the
//! states, diff_model.rs their differences.

#![allow(dead_code, reason = "each test program uses some of it")]

pub mod acl;
pub mod bytes;
pub mod compare;
pub mod contents;
pub mod diff;
pub mod kept;
pub mod op;
pub mod run;
pub mod tree;
pub mod world;

pub(crate) use crate::common::ensure;
use op::{Step, furniture};
use world::World;

/// What was found wrong.
pub type Outcome = Result<(), String>;

/// A world after the steps, with something in it to begin with if it is furnished.
pub fn world_after(furnished: bool, steps: &[Step]) -> Result<World, String> {
    let mut world = World::new()?;
    if furnished {
        for each in furniture() {
            run::step(&mut world, &each).map_err(|error| format!("furniture {each:?}: {error}"))?;
        }
    }
    for (number, each) in steps.iter().enumerate() {
        run::step(&mut world, each).map_err(|error| format!("step {number} {each:?}: {error}"))?;
    }
    Ok(world)
}

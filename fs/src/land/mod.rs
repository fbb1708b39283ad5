//! Landing: what a workspace changed is brought to where it came from.

pub(crate) mod host;

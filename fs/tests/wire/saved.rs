//! Going on where another connection was saved.

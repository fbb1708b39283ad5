//! `floe_guest::fuzzing::agent` says what is tried and what must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: floe_fuzz::begin("agent", floe_guest::fuzzing::seeds),
    |data: &[u8]| floe_guest::fuzzing::agent(data)
);

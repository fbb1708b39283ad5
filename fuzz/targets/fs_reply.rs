//! `floe_vmm::fuzzing::fs_reply` says what is tried and what must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: floe_fuzz::begin("fs_reply", floe_vmm::fuzzing::seeds),
    |data: &[u8]| floe_vmm::fuzzing::fs_reply(data)
);

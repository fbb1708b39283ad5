//! `floe_vmm::fuzzing::vsock` says what is tried and what must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: floe_fuzz::begin("vsock", floe_vmm::fuzzing::seeds),
    |data: &[u8]| floe_vmm::fuzzing::vsock(data)
);

//! The transport against a driver that does everything wrong.

use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::devices::virtio::rng::Rng;
use crate::devices::virtio::testing::{Driver, SIZE, line};

const NEEDS_RESET: u32 = 64;

#[test]
fn a_driver_finds_the_device_and_its_features() {
    let mut driver = Driver::new(Rng);
    assert_eq!(driver.reg(0), 0x7472_6976);
    assert_eq!(driver.reg(4), 2);
    assert_eq!(driver.reg(8), 4);
    driver.set(0x14, 1);
    assert_eq!(driver.reg(0x10), 1, "version 1");
    driver.set(0x14, 2);
    assert_eq!(driver.reg(0x10), 0);
    assert_eq!(driver.reg(0x34), 64);
    driver.set(0x30, 1);
    assert_eq!(driver.reg(0x34), 0, "there is no second queue");
    assert_eq!(driver.reg(0xb0), u32::MAX, "no shared memory");
}

#[test]
fn a_status_out_of_order_is_not_taken() {
    let mut driver = Driver::new(Rng);
    for wrong in [2, 4, 8, 15, 64, 0xffff_ff00] {
        driver.set(0x70, wrong);
        assert_eq!(driver.reg(0x70), 0, "{wrong:#x}");
    }
    driver.set(0x70, 1);
    driver.set(0x70, 1 | 4);
    driver.set(0x70, 1 | 8);
    assert_eq!(driver.reg(0x70), 1);
    driver.set(0x70, 3);
    driver.set(0x70, 11);
    assert_eq!(
        driver.reg(0x70),
        3,
        "without version 1 no features are good"
    );
}

#[test]
fn features_that_were_not_offered_are_refused() {
    let mut driver = Driver::new(Rng);
    driver.negotiate(1 << 5);
    assert_eq!(driver.reg(0x70), 3);
    driver.negotiate(0);
    assert_eq!(driver.reg(0x70), 11);
    driver.set(0x20, u32::MAX);
    driver.set_queue(0);
    driver.set(0x70, 15);
    assert_eq!(
        driver.reg(0x70),
        15,
        "features are closed after FEATURES_OK"
    );
}

#[test]
fn queues_change_only_between_features_ok_and_driver_ok() {
    let mut driver = Driver::new(Rng);
    driver.set_queue(0);
    assert_eq!(driver.reg(0x44), 0);
    driver.start(0);
    assert_eq!(driver.reg(0x70), 15);
    let before = driver.transport.save();
    driver.set(0x38, 1);
    driver.set(0x80, 0xdead_0000);
    driver.set(0xa4, 0xffff_ffff);
    driver.set(0x44, 2);
    assert_eq!(driver.transport.save(), before);
}

#[test]
fn a_queue_that_cannot_be_stops_the_device_until_reset() {
    // (register, value): a misaligned table, a ring outside of memory, one at 0, odd sizes.
    let wrongs = [
        (0x80, 0x10_0001),
        (0x84, 0xffff_ffff),
        (0x90, 0x3200_0000),
        (0x90, 0),
        (0xa0, 0x1fff_fff8),
        (0xa4, 1),
        (0x38, 0),
        (0x38, 3),
        (0x38, 128),
        (0x38, 0x1_0010),
    ];
    for (register, value) in wrongs {
        let mut driver = Driver::new(Rng);
        driver.negotiate(0);
        driver.set_queue(0);
        driver.set(0x44, 0);
        driver.set(register, value);
        driver.set(0x44, 1);
        driver.set(0x70, 15);
        assert_eq!(
            driver.reg(0x70) & NEEDS_RESET,
            NEEDS_RESET,
            "{register:#x} = {value:#x}"
        );
        assert_eq!(driver.reg(0x60), 2, "the driver is told");
        driver.notify(0);
        driver.start(0);
        assert_eq!(driver.reg(0x70), 15, "a reset heals");
        assert!(driver.fault().is_none());
    }
}

#[test]
fn malformed_chains_stop_the_device() {
    let ram = 32u64 << 20;
    type Case = (&'static str, fn(&mut Driver<Rng>, u64));
    let cases: [Case; 8] = [
        ("index past the table", |d, _| d.offer(0, SIZE)),
        ("head far away", |d, _| d.offer(0, u16::MAX)),
        ("loop", |d, _| {
            d.descriptor(0, 0, (0x30_0000, 1), 1, 0);
            d.offer(0, 0);
        }),
        ("next past the table", |d, _| {
            d.descriptor(0, 0, (0x30_0000, 1), 1, 99);
            d.offer(0, 0);
        }),
        ("outside of memory", |d, ram| {
            d.add(0, &[(ram - 1, 2, true)]);
        }),
        ("wraps", |d, _| {
            d.add(0, &[(u64::MAX - 1, 16, true)]);
        }),
        ("read after write", |d, _| {
            d.add(0, &[(0x30_0000, 1, true), (0x30_0000, 1, false)]);
        }),
        ("indirect table of odd length", |d, _| {
            d.descriptor(0, 0, (0x30_0000, 17), 4, 0);
            d.offer(0, 0);
        }),
    ];
    for (name, case) in cases {
        let mut driver = Driver::new(Rng);
        driver.start(0);
        case(&mut driver, ram);
        driver.notify(0);
        let fault = driver.fault();
        assert!(fault.is_some(), "{name}");
        assert_eq!(driver.reg(0x70) & NEEDS_RESET, NEEDS_RESET, "{name}");
        assert!(driver.used(0).is_empty(), "{name}");
    }
}

#[test]
fn an_available_index_that_jumps_stops_the_device() {
    let mut driver = Driver::new(Rng);
    driver.start(0);
    driver.write(Driver::<Rng>::avail(0) + 2, &1000u16.to_le_bytes());
    driver.notify(0);
    assert!(driver.fault().unwrap().contains("claims more entries"));
}

#[test]
fn an_indirect_chain_is_served() {
    let mut driver = Driver::new(Rng);
    driver.start(1 << 28);
    let (table, data) = (driver.buffer(32), driver.buffer(64));
    for (at, (len, flags, next)) in [(8u32, 3u16, 1u16), (4, 2, 0)].into_iter().enumerate() {
        let mut bytes = data.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        driver.write(table + at as u64 * 16, &bytes);
    }
    driver.descriptor(0, 0, (table, 32), 4, 0);
    driver.offer(0, 0);
    driver.notify(0);
    assert_eq!(driver.used(0), [(0, 12)]);
}

#[test]
fn with_event_index_the_driver_is_told_when_it_wants() {
    let mut driver = Driver::new(Rng);
    driver.start(1 << 29);
    let at = driver.buffer(8);
    // The driver wants to hear of the second used entry: its wish is behind the available ring.
    let wish = Driver::<Rng>::avail(0) + 4 + u64::from(SIZE) * 2;
    driver.write(wish, &1u16.to_le_bytes());
    driver.add(0, &[(at, 8, true)]);
    driver.notify(0);
    assert_eq!(driver.reg(0x60), 0);
    driver.add(0, &[(at, 8, true)]);
    driver.notify(0);
    assert_eq!(driver.reg(0x60), 1);
    driver.set(0x64, 1);
    assert_eq!(driver.reg(0x60), 0);
}

#[test]
fn a_saved_device_goes_on_where_it_was() {
    let mut driver = Driver::new(Rng);
    driver.start(0);
    let at = driver.buffer(8);
    driver.add(0, &[(at, 8, true)]);
    driver.notify(0);
    assert_eq!(driver.used(0).len(), 1);
    driver.add(0, &[(at, 4, true)]);
    // Saved before the notification is seen.
    let state = driver.transport.save();
    let mut second = Transport::new(Rng, driver.memory.clone(), line());
    second.restore(state.clone()).unwrap();
    assert_eq!(second.save(), state);
    driver.transport = second;
    driver.transport.kick();
    assert_eq!(driver.used(0), [], "whoever restores is not confined yet");
    driver.kick();
    assert_eq!(driver.used(0), [(1, 4)]);
}

#[test]
fn a_saved_device_that_does_not_fit_is_refused() {
    let mut driver = Driver::new(Rng);
    driver.start(0);
    let good = driver.transport.save();
    let mut fresh = Transport::new(Rng, driver.memory.clone(), line());
    let untouched = fresh.save();
    let mut refused = |change: fn(&mut TransportState<_>)| {
        let mut state = good.clone();
        change(&mut state);
        let error = fresh.restore(state).unwrap_err();
        assert_eq!(fresh.save(), untouched);
        error
    };
    assert_eq!(refused(|s| s.queues.clear()), RestoreError::OtherQueues);
    assert_eq!(
        refused(|s| s.queues[0].max_size = 32),
        RestoreError::OtherQueues
    );
    assert!(matches!(
        refused(|s| s.driver_features = 1),
        RestoreError::Features { .. }
    ));
    assert!(matches!(
        refused(|s| s.status = 0x1_0000),
        RestoreError::Status { .. }
    ));
    assert!(matches!(
        refused(|s| s.queues[0].used_ring = 1 << 40),
        RestoreError::QueuePlace { queue: 0 }
    ));
    assert!(matches!(
        refused(|s| s.queues[0].size = 3),
        RestoreError::QueuePlace { queue: 0 }
    ));
}

#[test]
fn a_queue_that_is_never_empty_is_left_for_the_event_loop() {
    struct Endless(u16);
    impl VirtioDevice for Endless {
        type State = ();
        fn id(&self) -> u32 {
            4
        }
        fn queue_sizes(&self) -> &'static [u16] {
            &[64]
        }
        fn activate(&mut self, _: &mut Queues<'_>) -> Result<(), Fault> {
            Ok(())
        }
        fn notified(&mut self, _: u16, queues: &mut Queues<'_>) -> Result<(), Fault> {
            // As a second vCPU would: one more chain for each that is served.
            queues.serve_later(0, |queues, chain| {
                self.0 = self.0.wrapping_add(1);
                let index = GuestAddress(Driver::<Self>::avail(0) + 2);
                queues.memory().write_obj(self.0 + 1, index).unwrap();
                queues.put_used(0, chain.head(), 0)?;
                Ok(true)
            })
        }
        fn reset(&mut self) {}
        fn save(&self) {}
        fn restore(&mut self, (): ()) {}
    }
    let mut driver = Driver::new(Endless(0));
    driver.start(0);
    driver.descriptor(0, 0, (0x30_0000, 1), 2, 0);
    driver.offer(0, 0);
    driver.notify(0);
    assert_eq!(driver.transport.device().0, 1024);
    driver.ready(AGAIN_TOKEN, EventSet::IN);
    assert_eq!(driver.transport.device().0, 2048);
    assert!(driver.fault().is_none());
}

#[test]
fn garbage_in_every_register_does_no_harm() {
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut driver = Driver::new(Rng);
    let guard: u64 = 0x5a5a_5a5a_5a5a_5a5a;
    driver
        .memory
        .write_obj(guard, GuestAddress(0x50_0000))
        .unwrap();
    for round in 0..20_000u32 {
        if round % 64 == 0 {
            driver.start(0);
        }
        let bytes = next().to_le_bytes();
        let len = [1, 2, 4, 4, 4, 8][usize::try_from(next() % 6).unwrap()];
        let offset = next() % 0x200;
        driver.transport.write(offset, &bytes[..len]).unwrap();
        driver.transport.read(offset, &mut [0; 8][..len]).unwrap();
    }
    let found: u64 = driver.memory.read_obj(GuestAddress(0x50_0000)).unwrap();
    assert_eq!(found, guard);
}

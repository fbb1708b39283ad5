//! Threads that do nothing but pass the gate.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;

use super::*;

const SOON: Patience = Patience {
    park: Duration::from_secs(10),
    drain: Duration::from_secs(10),
};

/// Threads that pass until the end, counting.
fn workers(
    gate: &Arc<Gate>,
    kind: ThreadKind,
    count: usize,
) -> (Arc<AtomicUsize>, Vec<JoinHandle<()>>) {
    let steps = Arc::new(AtomicUsize::new(0));
    let threads = (0..count).map(|_| {
        gate.enroll(kind);
        let (gate, steps) = (Arc::clone(gate), Arc::clone(&steps));
        std::thread::spawn(move || {
            while gate.pass(kind) == Next::Go {
                steps.fetch_add(1, Ordering::SeqCst);
            }
            gate.leave(kind, "worker", false);
        })
    });
    (Arc::clone(&steps), threads.collect())
}

/// The threads here come to the gate by themselves.
fn nobody(_: ThreadKind) {}

fn pause(gate: &Gate) -> Result<(), PauseError> {
    gate.pause(SOON, nobody, || true)
}

#[test]
fn nothing_moves_between_pause_and_resume() {
    let gate = Arc::new(Gate::closed().unwrap());
    let (vcpu_steps, mut threads) = workers(&gate, ThreadKind::Vcpu, 3);
    let (device_steps, device) = workers(&gate, ThreadKind::Devices, 1);
    threads.extend(device);
    let count = || vcpu_steps.load(Ordering::SeqCst) + device_steps.load(Ordering::SeqCst);
    assert_eq!(gate.wait_until_parked(SOON.park), Ok(()));
    assert_eq!(count(), 0);
    for _ in 0..20 {
        assert!(gate.resume());
        assert!(!gate.is_paused());
        assert_eq!(pause(&gate), Ok(()));
        assert!(gate.is_paused());
        let before = count();
        std::thread::yield_now();
        assert_eq!(count(), before);
        assert_eq!(pause(&gate), Ok(()), "what is paused");
    }
    gate.end(Exit::Stopped);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(pause(&gate), Err(PauseError::Ended));
    assert!(!gate.resume());
    assert!(!gate.is_paused());
}

#[test]
fn while_a_pause_drains_the_vcpus_are_held_and_the_devices_thread_works() {
    let gate = Arc::new(Gate::closed().unwrap());
    let (vcpu_steps, mut threads) = workers(&gate, ThreadKind::Vcpu, 2);
    let (device_steps, device) = workers(&gate, ThreadKind::Devices, 1);
    threads.extend(device);
    assert!(gate.resume());
    let first = Cell::new(None);
    let drained = || {
        let vcpu = vcpu_steps.load(Ordering::SeqCst);
        let device = device_steps.load(Ordering::SeqCst);
        let (vcpu_first, device_first) = first.get().unwrap_or((vcpu, device));
        first.set(Some((vcpu_first, device_first)));
        assert_eq!(vcpu, vcpu_first, "a vCPU moved");
        device >= device_first + 100
    };
    assert_eq!(gate.pause(SOON, nobody, drained), Ok(()));
    assert!(gate.is_paused());
    gate.end(Exit::Stopped);
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn what_does_not_drain_in_time_does_not_keep_a_machine_from_its_pause() {
    let gate = Arc::new(Gate::closed().unwrap());
    let (_, threads) = workers(&gate, ThreadKind::Vcpu, 1);
    assert!(gate.resume());
    let patience = Patience {
        drain: Duration::from_millis(20),
        ..SOON
    };
    let start = Instant::now();
    assert_eq!(gate.pause(patience, nobody, || false), Ok(()));
    assert!(start.elapsed() >= patience.drain);
    assert!(gate.is_paused());
    gate.end(Exit::Stopped);
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_pause_that_a_thread_does_not_come_to_fails_and_the_others_run_on() {
    let short = Patience {
        park: Duration::from_millis(20),
        ..SOON
    };
    for stuck in [ThreadKind::Vcpu, ThreadKind::Devices] {
        let gate = Arc::new(Gate::closed().unwrap());
        let (steps, threads) = workers(&gate, ThreadKind::Vcpu, 2);
        assert!(gate.resume());
        gate.enroll(stuck);
        let result = gate.pause(short, nobody, || true);
        assert_eq!(result, Err(PauseError::Stuck));
        assert!(!gate.is_paused());
        assert_eq!(gate.pass(stuck), Next::Go, "the gate is open");
        let before = steps.load(Ordering::SeqCst);
        let deadline = Instant::now() + SOON.park;
        while steps.load(Ordering::SeqCst) == before {
            assert!(Instant::now() < deadline, "they are still held");
            std::thread::yield_now();
        }
        gate.leave(stuck, "stuck", false);
        assert_eq!(pause(&gate), Ok(()), "without it");
        gate.end(Exit::Stopped);
        for thread in threads {
            thread.join().unwrap();
        }
    }
}

#[test]
fn a_machine_that_ends_while_it_drains_is_not_waited_for() {
    let gate = Arc::new(Gate::closed().unwrap());
    let (_, threads) = workers(&gate, ThreadKind::Vcpu, 1);
    assert!(gate.resume());
    let drained = || {
        gate.request(PowerRequest::Off);
        false
    };
    let start = Instant::now();
    assert_eq!(gate.pause(SOON, nobody, drained), Err(PauseError::Ended));
    assert!(start.elapsed() < SOON.drain);
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn the_first_reason_counts() {
    let gate = Gate::closed().unwrap();
    assert!(!gate.wait_for_end(Some(Instant::now())));
    gate.request(PowerRequest::Reset);
    gate.end(Exit::Stopped);
    assert!(gate.wait_for_end(None));
    assert!(matches!(gate.take_exit(), Some(Exit::Reset)));
}

#[test]
fn a_panic_of_a_thread_ends_the_machine() {
    let gate = Gate::closed().unwrap();
    gate.enroll(ThreadKind::Vcpu);
    gate.leave(ThreadKind::Vcpu, "vcpu0", true);
    assert!(gate.wait_for_end(None));
    assert_eq!(
        gate.take_exit().unwrap().to_string(),
        "the monitor's thread vcpu0 panicked"
    );
}

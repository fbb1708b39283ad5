//! The chip against a sink that notes its messages.

use super::*;

#[derive(Default)]
struct Sent(Mutex<Vec<(u32, u32)>>);

impl MsiSink for Sent {
    fn send(&self, address: u32, data: u32) -> std::io::Result<()> {
        self.0.lock().unwrap().push((address, data));
        Ok(())
    }
}

fn chip() -> (Arc<Sent>, IoApic) {
    let sent = Arc::new(Sent::default());
    (Arc::clone(&sent), IoApic::new(sent))
}

fn set(chip: &mut IoApic, index: u8, value: u32) {
    chip.write(INDEX, &u32::from(index).to_le_bytes()).unwrap();
    chip.write(WINDOW, &value.to_le_bytes()).unwrap();
}

fn get(chip: &mut IoApic, index: u8) -> u32 {
    chip.write(INDEX, &u32::from(index).to_le_bytes()).unwrap();
    let mut data = [0; 4];
    chip.read(WINDOW, &mut data).unwrap();
    u32::from_le_bytes(data)
}

#[test]
fn a_line_is_sent_as_a_message_to_its_destination() {
    let (sent, mut chip) = chip();
    set(&mut chip, 0x11 + 2 * 5, 3 << 24);
    set(&mut chip, 0x10 + 2 * 5, 0x31 | 1 << 8 | 1 << 11);
    chip.raise(5);
    assert_eq!(
        *sent.0.lock().unwrap(),
        [(0xfee0_0000 | 3 << 12 | 1 << 3 | 1 << 2, 0x131)]
    );
}

#[test]
fn a_masked_line_is_delivered_once_when_unmasked() {
    let (sent, mut chip) = chip();
    chip.raise(4);
    chip.raise(4);
    assert!(sent.0.lock().unwrap().is_empty());
    set(&mut chip, 0x18, 0x24);
    set(&mut chip, 0x18, 0x24);
    assert_eq!(*sent.0.lock().unwrap(), [(0xfee0_0000, 0x24)]);
}

#[test]
fn a_level_triggered_entry_is_delivered_as_an_edge() {
    let (sent, mut chip) = chip();
    set(&mut chip, 0x10, 0x20 | 1 << 15);
    chip.raise(0);
    chip.raise(0);
    assert_eq!(
        *sent.0.lock().unwrap(),
        [(0xfee0_0000, 0x20), (0xfee0_0000, 0x20)]
    );
}

#[test]
fn registers_read_back_and_read_only_ones_do_not_change() {
    let (_, mut chip) = chip();
    set(&mut chip, REG_VERSION, u32::MAX);
    assert_eq!(get(&mut chip, REG_VERSION), 0x0017_0011);
    set(&mut chip, REG_ID, 0xff00_0000);
    assert_eq!(get(&mut chip, REG_ID), 0x0f00_0000);
    set(&mut chip, 0x10, u32::MAX);
    assert_eq!(get(&mut chip, 0x10), 0x0001_afff);
    set(&mut chip, 0xff, u32::MAX);
    assert_eq!(get(&mut chip, 0xff), 0);
}

#[test]
fn writes_of_odd_sizes_and_places_change_nothing() {
    let (_, mut chip) = chip();
    let before = chip.save();
    for offset in 0..64 {
        for len in [0, 1, 2, 3, 5, 8] {
            chip.write(offset, &[0xff; 8][..len]).unwrap();
        }
    }
    chip.raise(24);
    chip.raise(255);
    assert_eq!(chip.save(), before);
}

#[test]
fn a_saved_chip_delivers_what_was_pending() {
    let (_, mut first) = chip();
    set(&mut first, 0x2e, 0x55 | 1 << 16);
    first.raise(15);
    let mut state = first.save();
    let (sent, mut second) = chip();
    second.restore(state.clone());
    assert_eq!(second.save(), state);
    assert!(sent.0.lock().unwrap().is_empty());
    state.entries[15] &= !MASKED;
    second.restore(state);
    assert_eq!(*sent.0.lock().unwrap(), [(0xfee0_0000, 0x55)]);
}

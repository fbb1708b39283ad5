//! Power-off and reset: the registers of a hardware-reduced ACPI machine, and the keyboard
//! controller's reset line, which kernels fall back to (`reboot=k`).
//!
//! Neither device has state: a write either ends the machine or is ignored, so there is nothing to
//! save.

use std::sync::Arc;

use super::bus::{BusDevice, BusError, fill};

/// What a guest asked of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerRequest {
    /// To be switched off (ACPI state S5).
    Off,
    /// To start again.
    Reset,
}

/// Who carries the guest's request out.
pub trait PowerSink: Send + Sync {
    /// Called by the vCPU that made the request, which goes on until it is stopped.
    fn request(&self, request: PowerRequest);
}

/// Offset of the sleep control register (ACPI 6.5, section 4.8.3.7).
const SLEEP_CONTROL: u64 = 0;
/// Offset of the reset register (ACPI 6.5, section 4.8.3.6), after the sleep status register, which
/// reads zero: this machine never woke from sleep.
const RESET: u64 = 2;
/// Sleep type that the DSDT gives for S5.
pub const SLEEP_TYPE_OFF: u8 = 5;
/// The FADT's reset value.
pub const RESET_VALUE: u8 = 1;
const SLEEP_ENABLE: u8 = 1 << 5;
const SLEEP_TYPE_SHIFT: u8 = 2;
const SLEEP_TYPE_MASK: u8 = 0x7;

/// The ACPI sleep and reset registers.
pub struct AcpiPower {
    sink: Arc<dyn PowerSink>,
}

impl AcpiPower {
    /// Registers that report to `sink`.
    #[must_use]
    pub fn new(sink: Arc<dyn PowerSink>) -> Self {
        Self { sink }
    }
}

impl BusDevice for AcpiPower {
    fn read(&mut self, _offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        fill(data, &[]);
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), BusError> {
        let &[value] = data else { return Ok(()) };
        let sleep_type = value >> SLEEP_TYPE_SHIFT & SLEEP_TYPE_MASK;
        match offset {
            SLEEP_CONTROL if value & SLEEP_ENABLE != 0 && sleep_type == SLEEP_TYPE_OFF => {
                self.sink.request(PowerRequest::Off);
            }
            RESET if value == RESET_VALUE => self.sink.request(PowerRequest::Reset),
            _ => {}
        }
        Ok(())
    }
}

/// "Pulse output line 0" of the 8042: the processor's reset line.
const I8042_RESET: u8 = 0xfe;

/// The command and status port of an 8042 without keyboard.
pub struct I8042 {
    sink: Arc<dyn PowerSink>,
}

impl I8042 {
    /// A controller that reports to `sink`.
    #[must_use]
    pub fn new(sink: Arc<dyn PowerSink>) -> Self {
        Self { sink }
    }
}

impl BusDevice for I8042 {
    fn read(&mut self, _offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        // Nothing to read, ready for a command.
        fill(data, &[]);
        Ok(())
    }

    fn write(&mut self, _offset: u64, data: &[u8]) -> Result<(), BusError> {
        if data == [I8042_RESET] {
            self.sink.request(PowerRequest::Reset);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Asked(Mutex<Vec<PowerRequest>>);

    impl PowerSink for Asked {
        fn request(&self, request: PowerRequest) {
            self.0.lock().unwrap().push(request);
        }
    }

    #[test]
    fn only_the_right_byte_at_the_right_register_switches_off() {
        let asked = Arc::new(Asked::default());
        let mut power = AcpiPower::new(asked.clone());
        for value in 0..=u8::MAX {
            power.write(SLEEP_CONTROL, &[value]).unwrap();
            power.write(1, &[value]).unwrap();
        }
        power.write(SLEEP_CONTROL, &[0x34, 0]).unwrap();
        let off = asked.0.lock().unwrap().drain(..).count();
        assert_eq!(
            off, 16,
            "type 5 with SLP_EN, the four reserved bits being ignored"
        );
        power.write(RESET, &[RESET_VALUE]).unwrap();
        power.write(RESET, &[0]).unwrap();
        assert_eq!(*asked.0.lock().unwrap(), [PowerRequest::Reset]);
    }

    #[test]
    fn the_keyboard_controller_resets_and_is_otherwise_silent() {
        let asked = Arc::new(Asked::default());
        let mut keyboard = I8042::new(asked.clone());
        for value in 0..=u8::MAX {
            keyboard.write(0, &[value]).unwrap();
        }
        let mut status = [0xff];
        keyboard.read(0, &mut status).unwrap();
        assert_eq!(status, [0]);
        assert_eq!(*asked.0.lock().unwrap(), [PowerRequest::Reset]);
    }
}

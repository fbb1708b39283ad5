//! The serial console: a 16550 at COM1 (the chip is `vm-superio`'s) whose output is a [`Console`].

mod console;
mod state;

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vm_superio::Serial;
use vm_superio::serial::NoEvents;

pub use console::{CLIENTS_MAX, Console, KEPT_BYTES, LOG_LIMIT_MIN};
pub use state::SerialState;

use super::bus::{BusDevice, BusError};
use super::ioapic::IrqLine;

/// The console as the port and the monitor share it.
#[derive(Clone, Debug, Default)]
pub struct SharedConsole(Arc<Mutex<Console>>);

impl SharedConsole {
    /// Shares `console`.
    #[must_use]
    pub fn new(console: Console) -> Self {
        Self(Arc::new(Mutex::new(console)))
    }

    /// The console, for reading its end or attaching a client.
    pub fn lock(&self) -> MutexGuard<'_, Console> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for SharedConsole {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type Port = Serial<IrqLine, NoEvents, SharedConsole>;

/// The port.
pub struct SerialPort {
    port: Port,
    line: IrqLine,
    console: SharedConsole,
}

impl std::fmt::Debug for SerialPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SerialPort").finish_non_exhaustive()
    }
}

impl SerialPort {
    /// A port after reset.
    #[must_use]
    pub fn new(line: IrqLine, console: SharedConsole) -> Self {
        Self {
            port: Serial::new(line.clone(), console.clone()),
            line,
            console,
        }
    }

    /// Gives the guest input, as if typed. Returns how many bytes fitted into the port's queue; the
    /// rest has to be offered again later.
    pub fn input(&mut self, bytes: &[u8]) -> usize {
        let room = self.port.fifo_capacity().min(bytes.len());
        if room == 0 {
            return 0;
        }
        // The queue has room and the interrupt line cannot fail; a port in loopback takes nothing.
        self.port.enqueue_raw_bytes(&bytes[..room]).unwrap_or(0)
    }

    /// What has to be kept of the port.
    #[must_use]
    pub fn save(&self) -> SerialState {
        SerialState::from(self.port.state())
    }

    /// Sets the port to a saved state.
    ///
    /// # Errors
    /// When the state holds more input than the port can.
    pub fn restore(&mut self, state: &SerialState) -> io::Result<()> {
        self.port = Serial::from_state(
            &state.to_port(),
            self.line.clone(),
            NoEvents,
            self.console.clone(),
        )
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{error:?}")))?;
        Ok(())
    }
}

impl BusDevice for SerialPort {
    fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        let offset = register(offset);
        for byte in data {
            *byte = self.port.read(offset);
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), BusError> {
        let offset = register(offset);
        for byte in data {
            // A console takes every byte and a line cannot fail; what is left is input that a port
            // in loopback sends itself with its queue full, which a 16550 drops as well.
            if let Err(error) = self.port.write(offset, *byte) {
                tracing::trace!(?error, "the serial port drops a byte");
            }
        }
        Ok(())
    }
}

/// The bus passes offsets inside the eight ports only.
fn register(offset: u64) -> u8 {
    offset.to_le_bytes()[0] & 7
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::ioapic::{IoApic, MsiSink};

    struct Nowhere;

    impl MsiSink for Nowhere {
        fn send(&self, _: u32, _: u32) -> io::Result<()> {
            Ok(())
        }
    }

    fn port() -> (SharedConsole, SerialPort) {
        let console = SharedConsole::default();
        let chip = Arc::new(Mutex::new(IoApic::new(Arc::new(Nowhere))));
        let port = SerialPort::new(IrqLine::new(chip, 4), console.clone());
        (console, port)
    }

    #[test]
    fn output_reaches_the_console() {
        let (console, mut port) = port();
        port.write(0, b"h").unwrap();
        port.write(0, b"i\n").unwrap();
        assert_eq!(console.lock().last_lines(1), ["hi"]);
    }

    #[test]
    fn input_is_taken_as_far_as_it_fits_and_survives_a_save() {
        let (_, mut first) = port();
        let fitted = first.input(&[b'a'; 4096]);
        assert!(fitted > 0 && fitted < 4096);
        assert_eq!(first.input(b"b"), 0);
        let state = first.save();
        let (_, mut second) = port();
        second.restore(&state).unwrap();
        assert_eq!(second.save(), state);
        let mut data = [0];
        second.read(5, &mut data).unwrap();
        assert_eq!(data[0] & 1, 1, "data is ready");
        second.read(0, &mut data).unwrap();
        assert_eq!(&data, b"a");
    }

    #[test]
    fn a_saved_port_with_too_much_input_is_refused() {
        let (_, mut port) = port();
        let mut state = port.save();
        state.input = vec![0; 1 << 20];
        assert!(port.restore(&state).is_err());
    }

    #[test]
    fn garbage_in_every_register_does_no_harm() {
        let (console, mut port) = port();
        for value in 0..=u8::MAX {
            for offset in 0..8 {
                port.write(offset, &[value; 8]).unwrap();
                port.read(offset, &mut [0; 8]).unwrap();
            }
        }
        assert!(console.lock().panic().is_none());
    }
}

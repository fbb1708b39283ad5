//! The saved form of the serial port.

use serde::{Deserialize, Serialize};

/// The registers of a 16550 and the input it has not handed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SerialState {
    /// Divisor latch, low byte.
    pub baud_divisor_low: u8,
    /// Divisor latch, high byte.
    pub baud_divisor_high: u8,
    /// Interrupt enable register.
    pub interrupt_enable: u8,
    /// Interrupt identification register.
    pub interrupt_identification: u8,
    /// Line control register.
    pub line_control: u8,
    /// Line status register.
    pub line_status: u8,
    /// Modem control register.
    pub modem_control: u8,
    /// Modem status register.
    pub modem_status: u8,
    /// Scratch register.
    pub scratch: u8,
    /// Input that waits for the guest.
    pub input: Vec<u8>,
}

impl From<vm_superio::SerialState> for SerialState {
    fn from(port: vm_superio::SerialState) -> Self {
        Self {
            baud_divisor_low: port.baud_divisor_low,
            baud_divisor_high: port.baud_divisor_high,
            interrupt_enable: port.interrupt_enable,
            interrupt_identification: port.interrupt_identification,
            line_control: port.line_control,
            line_status: port.line_status,
            modem_control: port.modem_control,
            modem_status: port.modem_status,
            scratch: port.scratch,
            input: port.in_buffer,
        }
    }
}

impl SerialState {
    pub(super) fn to_port(&self) -> vm_superio::SerialState {
        vm_superio::SerialState {
            baud_divisor_low: self.baud_divisor_low,
            baud_divisor_high: self.baud_divisor_high,
            interrupt_enable: self.interrupt_enable,
            interrupt_identification: self.interrupt_identification,
            line_control: self.line_control,
            line_status: self.line_status,
            modem_control: self.modem_control,
            modem_status: self.modem_status,
            scratch: self.scratch,
            in_buffer: self.input.clone(),
        }
    }
}

//! The DSDT: what the machine is made of, in ACPI's machine language.

use acpi_tables::Aml;
use acpi_tables::aml::{
    Arg, Device, EISAName, Equal, IO, If, Interrupt, Memory32Fixed, Method, Name, Notify, ONE,
    Package, Path, ResourceTemplate, Scope, ZERO,
};

use crate::devices::power::SLEEP_TYPE_OFF;
use crate::machine::layout::{
    EVENT_IRQ, GENERATION_PAGE, SERIAL_IRQ, SERIAL_PORT, SERIAL_PORTS, VIRTIO_IRQ, VIRTIO_MMIO,
    VIRTIO_MMIO_SIZE,
};
use crate::machine::memory::VcpuCount;

/// "VM generation id changed", as the VMGENID specification has it.
const GENERATION_CHANGED: u8 = 0x80;

/// The definition block's body.
pub(super) fn devices(vcpus: VcpuCount, windows: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for id in 0..vcpus.get() {
        processor(id, &mut bytes);
    }
    serial(&mut bytes);
    for window in (0u8..).take(windows) {
        virtio(
            window,
            VIRTIO_MMIO + u64::from(window) * VIRTIO_MMIO_SIZE,
            &mut bytes,
        );
    }
    generation(&mut bytes);
    // Only S5: this machine does not sleep.
    Name::new(
        "\\_S5_".into(),
        &Package::new(vec![&SLEEP_TYPE_OFF, &ZERO, &ZERO, &ZERO]),
    )
    .to_aml_bytes(&mut bytes);
    bytes
}

/// Puts `children` into a device of the system bus.
fn device(name: &str, children: Vec<&dyn Aml>, bytes: &mut Vec<u8>) {
    let device = Device::new(name.into(), children);
    Scope::new(Path::new("\\_SB_"), vec![&device]).to_aml_bytes(bytes);
}

/// Edge-triggered, active high, not shared: what the IOAPIC delivers.
fn interrupt(line: u8) -> Interrupt {
    Interrupt::new(true, true, false, false, u32::from(line))
}

fn processor(id: u8, bytes: &mut Vec<u8>) {
    device(
        &format!("C{id:03}"),
        vec![
            &Name::new("_HID".into(), &"ACPI0007"),
            &Name::new("_UID".into(), &id),
        ],
        bytes,
    );
}

fn serial(bytes: &mut Vec<u8>) {
    let ports = u8::try_from(SERIAL_PORTS).unwrap_or(8);
    device(
        "COM1",
        vec![
            &Name::new("_HID".into(), &EISAName::new("PNP0501")),
            &Name::new("_UID".into(), &ZERO),
            &Name::new("_DDN".into(), &"COM1"),
            &Name::new(
                "_CRS".into(),
                &ResourceTemplate::new(vec![
                    &interrupt(SERIAL_IRQ),
                    &IO::new(SERIAL_PORT, SERIAL_PORT, 0, ports),
                ]),
            ),
        ],
        bytes,
    );
}

fn virtio(window: u8, address: u64, bytes: &mut Vec<u8>) {
    // Inside the hole below 4 GiB by the layout.
    let address = u32::try_from(address).unwrap_or(0);
    let len = u32::try_from(VIRTIO_MMIO_SIZE).unwrap_or(0);
    device(
        &format!("V{window:03}"),
        vec![
            &Name::new("_HID".into(), &"LNRO0005"),
            &Name::new("_UID".into(), &window),
            &Name::new("_CCA".into(), &ONE),
            &Name::new(
                "_CRS".into(),
                &ResourceTemplate::new(vec![
                    &Memory32Fixed::new(true, address, len),
                    &interrupt(VIRTIO_IRQ + window),
                ]),
            ),
        ],
        bytes,
    );
}

/// The generation id, and the event device that announces a new one.
fn generation(bytes: &mut Vec<u8>) {
    let low = u32::try_from(GENERATION_PAGE).unwrap_or(0);
    device(
        "VGEN",
        vec![
            &Name::new("_HID".into(), &"FLOE0001"),
            &Name::new("_CID".into(), &"VM_Gen_Counter"),
            &Name::new("_DDN".into(), &"VM_Gen_Counter"),
            &Name::new("ADDR".into(), &Package::new(vec![&low, &ZERO])),
        ],
        bytes,
    );
    device(
        "GED_",
        vec![
            &Name::new("_HID".into(), &"ACPI0013"),
            &Name::new("_UID".into(), &ZERO),
            &Name::new(
                "_CRS".into(),
                &ResourceTemplate::new(vec![&interrupt(EVENT_IRQ)]),
            ),
            &Method::new(
                "_EVT".into(),
                1,
                true,
                vec![&If::new(
                    &Equal::new(&Arg(0), &EVENT_IRQ),
                    vec![&Notify::new(&Path::new("\\_SB_.VGEN"), &GENERATION_CHANGED)],
                )],
            ),
        ],
        bytes,
    );
}

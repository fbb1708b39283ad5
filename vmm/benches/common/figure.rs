//! What benches print: the distribution of each figure, and the machine that it was measured on.

use std::time::Duration;

/// What was measured, in a unit, sorted.
pub struct Figure {
    name: String,
    unit: &'static str,
    values: Vec<f64>,
}

impl Figure {
    /// Of durations.
    pub fn micros(name: impl Into<String>, values: Vec<f64>) -> Self {
        Self::new(name, "us", values)
    }

    /// Of anything.
    pub fn new(name: impl Into<String>, unit: &'static str, mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self {
            name: name.into(),
            unit,
            values,
        }
    }

    fn percentile(&self, percent: usize) -> f64 {
        self.values[(self.values.len() - 1) * percent / 100]
    }
}

/// Prints all figures, and `note` below them; with `--json` one object of them.
pub fn report(figures: &[Figure], note: &str) {
    if std::env::args().any(|arg| arg == "--json") {
        let object: serde_json::Map<String, serde_json::Value> = figures
            .iter()
            .map(|figure| {
                let value = serde_json::json!({
                    "unit": figure.unit, "n": figure.values.len(), "p50": figure.percentile(50),
                    "p99": figure.percentile(99), "max": figure.percentile(100),
                });
                (figure.name.clone(), value)
            })
            .collect();
        println!("{}", serde_json::Value::Object(object));
        return;
    }
    println!("{}", machine());
    println!(
        "{:44} {:>6} {:>12} {:>12} {:>12}",
        "", "n", "p50", "p99", "max"
    );
    for figure in figures {
        println!(
            "{:44} {:>6} {:>12.1} {:>12.1} {:>12.1}  {}",
            figure.name,
            figure.values.len(),
            figure.percentile(50),
            figure.percentile(99),
            figure.percentile(100),
            figure.unit,
        );
    }
    println!("{note}");
}

/// The machine that it was measured on.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("unknown", |rest| rest.trim_start_matches([' ', '\t', ':']));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let kvm = ["kvm_amd", "kvm_intel", "kvm_pvm"]
        .into_iter()
        .find(|module| std::path::Path::new("/sys/module").join(module).exists())
        .unwrap_or("kvm");
    let kernel = read("/proc/sys/kernel/osrelease");
    format!(
        "{threads} processors ({model}), kernel {}, {kvm}",
        kernel.trim()
    )
}

/// In microseconds.
pub fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

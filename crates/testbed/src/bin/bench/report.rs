//! The results as files: JSON for machines, Markdown for people.

use anyhow::Result;
use serde_json::Value;
use testbed::build_dir;

fn value(results: &Value, path: &str) -> f64 {
    results.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

fn markdown(results: &Value) -> String {
    let number = |path: &str, digits: usize| format!("{:.digits$}", value(results, path));
    let machine = &results["machine"];
    let compared = [
        ("TCP, Gb/s", "gigabits_per_second", 2),
        ("Ping round trip, ms", "round_trip_ms", 3),
        (
            "CPU seconds per GB, guests included",
            "cpu_seconds_per_gigabyte",
            2,
        ),
    ];
    let mut text = format!(
        "# Measurements\n\nWritten by `make bench` on {} ({} cores, Linux {}). Absolute numbers of a shared machine mean \
         little; the ratios come from interleaved rounds.\n\n## Between two User Mode Linux guests\n\n\
         | | Hyper-Switch | Linux bridge and TAP | ratio |\n|---|---|---|---|\n",
        machine["processor"].as_str().unwrap_or("an unknown processor"),
        machine["cores"],
        machine["kernel"].as_str().unwrap_or("?"),
    );
    for (title, key, digits) in compared {
        let cell = |who: &str, digits| number(&format!("/guest_to_guest/{who}/{key}"), digits);
        text += &format!(
            "| {title} | {} | {} | {} |\n",
            cell("hyperswitch", digits),
            cell("bridge", digits),
            cell("ratio", 2)
        );
    }
    text += "\n## Packet loop through DPDK testpmd (two virtio-user ports, one forwarding thread)\n\n\
             | frame bytes | million packets/s | cores used by the switch |\n|---|---|---|\n";
    for size in ["64", "512", "1500"] {
        text += &format!(
            "| {size} | {} | {} |\n",
            number(&format!("/packet_loop/{size}/million_packets_per_second"), 2),
            number(&format!("/packet_loop/{size}/switch_cpu_seconds_per_second"), 2)
        );
    }
    text += "\n## Idle, 100 ports\n\n| | no ports | unused | connected |\n|---|---|---|---|\n";
    text += &format!(
        "| % of one core | {} | {} | {} |\n| KiB | {} in all | {} per port | {} per port |\n",
        number("/idle/cpu_percent_without_ports", 2),
        number("/idle/cpu_percent_unused_ports", 2),
        number("/idle/cpu_percent_connected_ports", 2),
        number("/idle/memory_kib_without_ports", 0),
        number("/idle/memory_kib_per_unused_port", 0),
        number("/idle/memory_kib_per_connected_port", 0),
    );
    text
}

/// Writes both files and prints the second.
pub fn write(results: &Value) -> Result<()> {
    let directory = build_dir::workspace().join("docs/performance");
    build_dir::write(
        &directory.join("latest.json"),
        format!("{results:#}\n").as_bytes(),
    )?;
    let text = markdown(results);
    build_dir::write(&directory.join("latest.md"), text.as_bytes())?;
    println!("\n{text}");
    Ok(())
}

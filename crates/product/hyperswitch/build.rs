//! What the linker does to make the program small.
//!
//! `--icf=all` keeps one of functions with the same instructions: crates that read the same types have copies
//! of the same generic functions, and nothing here compares addresses of functions. lld, with which rustc
//! links for x86-64 by itself, knows the option, and so do mold and gold; GNU ld does not.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    if is("PROFILE", "release") && is("TARGET", "x86_64-unknown-linux-gnu") {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}

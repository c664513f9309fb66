//! What the linker does to make the program small.
//!
//! `--icf=all` keeps one of functions with the same instructions: crates that read the same types have copies
//! of the same generic functions, and nothing here compares addresses of functions. lld, with which rustc
//! links for x86-64 by itself, knows the option, and so do mold and gold; GNU ld does not.
//!
//! `pack-relative-relocs` writes down in bits which addresses are relocated when the program starts, where 24
//! bytes each are usual: glibc reads that from 2.36 on, the oldest one that is supported. mold before 2.0
//! forgets to say so in the program, which then does not start; so mold is not asked for it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    if is("PROFILE", "release") && is("TARGET", "x86_64-unknown-linux-gnu") {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
        // By a flag, or by `mold -run`.
        let names_mold = |name| std::env::var(name).is_ok_and(|value| value.contains("mold"));
        if !["CARGO_ENCODED_RUSTFLAGS", "LD_PRELOAD"]
            .into_iter()
            .any(names_mold)
        {
            println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
        }
    }
}

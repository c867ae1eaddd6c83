#![no_main]
#[path = "../checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::run(env!("CARGO_BIN_NAME"), data));

//! `rankpin completions` and `rankpin man`: made from the commands themselves.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::CommandFactory as _;

use super::{Cli, output};

/// Print completions for a shell
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

const EXAMPLES: &str = "\
Examples:
  rankpin completions bash > /etc/bash_completion.d/rankpin
  rankpin completions zsh > \"${fpath[1]}/_rankpin\"
  rankpin completions fish > ~/.config/fish/completions/rankpin.fish";

/// Write man pages, one for each command
#[derive(Debug, clap::Args)]
#[command(after_long_help = MAN_EXAMPLES)]
pub struct ManArgs {
    /// Directory to write them to, made where it is missing
    #[arg(long, value_name = "DIR", required = true)]
    out: PathBuf,
}

const MAN_EXAMPLES: &str = "\
Examples:
  rankpin man --out /usr/local/share/man/man1
  rankpin man --out man && man -l man/rankpin-pins-move.1";

/// Prints the script.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "rankpin", &mut script);
    output::text(&String::from_utf8(script).context("completions are text")?)
}

/// Writes the pages.
pub(super) fn man(args: &ManArgs) -> anyhow::Result<()> {
    let dir = &args.out;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make the directory {}", dir.display()))?;
    let written = clap_mangen::generate_to(Cli::command(), dir);
    written.with_context(|| format!("cannot write to {}", dir.display()))
}

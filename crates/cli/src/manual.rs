//! What people look things up in: examples under every `--help`, completions for shells, and manual pages.
//!
//! All three come from the same definition as the parser, so that none of them can name an option that there is not.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Subcommand};
use clap_complete::Shell;

use crate::{Arguments, Visible, complain, written};

/// Print the completions of a shell, to be put where that shell looks for them
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArguments {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Write a manual page for each command into a folder
#[derive(Debug, clap::Args)]
pub(crate) struct ManArguments {
    /// The folder, such as /usr/local/share/man/man1; it is made if there is none
    folder: PathBuf,
}

/// The arguments of this process.
///
/// # Errors
/// clap's, for [`crate::one_line::report`].
pub(crate) fn parse() -> Result<Arguments, clap::Error> {
    let mut command = with_examples(Arguments::command());
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Arguments::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

pub(crate) fn completions(arguments: &CompletionsArguments) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut visible(), "overfly", &mut script);
    // clap writes UTF-8, and escapes of zsh's are printable.
    written(overfly_terminal::print(&String::from_utf8_lossy(&script)))
}

pub(crate) fn man(arguments: &ManArguments) -> ExitCode {
    match write_pages(&arguments.folder) {
        Ok(count) => {
            let text = format!("{count} pages in {}\n", arguments.folder.display());
            written(overfly_terminal::print(&text))
        }
        Err(error) => {
            complain(format_args!("{}: {error}", arguments.folder.display()));
            ExitCode::FAILURE
        }
    }
}

/// How many there are.
fn write_pages(folder: &Path) -> std::io::Result<usize> {
    std::fs::create_dir_all(folder)?;
    let pages = pages(&built())?;
    for (name, page) in &pages {
        std::fs::write(folder.join(name), page)?;
    }
    Ok(pages.len())
}

/// The page of a command and those of its subcommands, by file name.
fn pages(command: &clap::Command) -> std::io::Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    for subcommand in command.get_subcommands() {
        all.extend(pages(subcommand)?);
    }
    let page = clap_mangen::Man::new(command.clone()).manual("Overfly");
    let mut text = Vec::new();
    page.render(&mut text)?;
    // clap_mangen's name for what stands behind the options.
    let text = String::from_utf8_lossy(&text).replace("\n.SH EXTRA\n", "\n.SH EXAMPLES\n");
    all.push((page.get_filename(), text));
    Ok(all)
}

/// The command without what only `overfly` itself calls, and without a `help` command in each group.
fn visible() -> clap::Command {
    let about = Arguments::command().get_about().cloned().unwrap_or_default();
    let command = clap::Command::new("overfly").version(env!("CARGO_PKG_VERSION")).about(about);
    with_examples(Visible::augment_subcommands(command.subcommand_required(true)))
        .disable_help_subcommand(true)
}

fn built() -> clap::Command {
    let mut command = visible();
    command.build();
    command
}

/// Adds [`EXAMPLES`] to the help of each command that has some and says nothing there itself.
fn with_examples(command: clap::Command) -> clap::Command {
    add_examples(command, "")
}

fn add_examples(command: clap::Command, path: &str) -> clap::Command {
    let lines = EXAMPLES.iter().filter(|(of, _)| *of == path).map(|(_, example)| format!("\n  {example}"));
    let text: String = lines.collect();
    let command = match command.get_after_help() {
        None if !text.is_empty() => command.after_help(format!("Examples:{text}")),
        _ => command,
    };
    command.mut_subcommands(|subcommand| {
        let path = format!("{path} {}", subcommand.get_name());
        add_examples(subcommand, path.trim_start())
    })
}

/// What people type, by command. A test parses each of them.
const EXAMPLES: &[(&str, &str)] = &[
    ("", "overfly run -- nginx -g 'daemon off;'"),
    ("", "overfly load http -c 64 -d 10s http://10.0.0.1/"),
    ("", "overfly doctor"),
    ("run", "overfly run -- nginx -g 'daemon off;'"),
    ("run", "overfly run -p latency -i eth0 -- redis-server --port 6379"),
    ("run", "overfly run --link memif:/tmp/web.sock -- python3 -m http.server 8080"),
    ("bench", "overfly bench cookbooks/quickstart.toml"),
    ("bench", "overfly bench --smoke cookbooks/quickstart-memif.toml"),
    ("bench", "overfly bench --resume cookbooks/quickstart.toml"),
    ("report", "overfly report results/quickstart"),
    ("report", "overfly report diff results/before results/after"),
    ("report diff", "overfly report diff results/before results/after"),
    ("doctor", "overfly doctor"),
    ("doctor", "overfly doctor --json"),
    ("profile", "overfly profile list"),
    ("profile", "overfly profile show latency"),
    ("profile list", "overfly profile list"),
    ("profile show", "overfly profile show latency"),
    ("profile options", "overfly profile options"),
    ("broker", "overfly broker --interface eth0"),
    ("broker", "overfly broker --check --policy broker.toml"),
    ("broker", "overfly broker -i eth0 --policy broker.toml --metrics 127.0.0.1:9477"),
    ("top", "overfly top"),
    ("top", "overfly top --metrics 127.0.0.1:9477"),
    ("top", "overfly top --once"),
    ("top", "overfly top --json -n 10 --interval 0.5"),
    ("sockets", "overfly sockets"),
    ("dump", "overfly dump -w frames.pcapng"),
    ("lab", "overfly lab up"),
    ("lab", "overfly lab exec client -- curl -s http://10.77.0.1/"),
    ("lab", "overfly lab down"),
    ("lab up", "overfly lab up"),
    ("lab exec", "overfly lab exec client -- curl -s http://10.77.0.1/"),
    ("lab down", "overfly lab down"),
    ("tune", "overfly tune check"),
    ("tune check", "overfly tune check"),
    ("tune apply", "overfly tune apply"),
    ("tune hold", "overfly tune hold --interface eth0"),
    ("tune revert", "overfly tune revert"),
    ("load", "overfly load http -c 64 -d 10s http://10.0.0.1/"),
    ("load", "overfly load serve --port 8080"),
    ("load", "overfly load wrk -t 2 -c 64 -d 10s --latency http://10.0.0.1/"),
    ("load serve", "overfly load serve --port 8080"),
    ("load serve", "overfly load serve --port 8080 --link memif:/tmp/serve.sock"),
    ("load gather", "overfly load gather -g 2 -l 0.0.0.0:7000"),
    ("load merge", "overfly load merge one.json two.json"),
    ("load wrk", "overfly load wrk -t 2 -c 64 -d 10s -L http://10.0.0.1/"),
    ("load wrk", "overfly load wrk -c 64 -s post.lua http://10.0.0.1/"),
    ("load wrk2", "overfly load wrk2 -R 5000 -t 2 -c 64 -d 10s -L http://10.0.0.1/"),
    ("load ab", "overfly load ab -n 10000 -c 64 -k http://10.0.0.1/"),
    ("load vod", "overfly load vod http://10.0.0.1/video.mp4"),
    ("load astf", "overfly load astf http_simple.py"),
    ("completions", "overfly completions bash > /etc/bash_completion.d/overfly"),
    ("completions", "overfly completions zsh > /usr/local/share/zsh/site-functions/_overfly"),
    ("completions", "overfly completions fish > ~/.config/fish/completions/overfly.fish"),
    ("man", "overfly man /usr/local/share/man/man1"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Every visible command, by its path, itself included.
    fn all(command: &clap::Command, path: &str, found: &mut Vec<(String, clap::Command)>) {
        found.push((path.to_owned(), command.clone()));
        for subcommand in command.get_subcommands() {
            all(subcommand, format!("{path} {}", subcommand.get_name()).trim_start(), found);
        }
    }

    fn every() -> Vec<(String, clap::Command)> {
        let mut found = Vec::new();
        all(&built(), "", &mut found);
        assert!(found.len() > 25, "{} commands", found.len());
        found
    }

    /// As a shell splits it, as far as the examples go.
    fn words(line: &str) -> Vec<String> {
        let line = line.split(" > ").next().unwrap_or(line);
        let mut words = Vec::new();
        for (index, part) in line.split('\'').enumerate() {
            if index % 2 == 1 {
                words.push(part.to_owned());
            } else {
                words.extend(part.split_ascii_whitespace().map(str::to_owned));
            }
        }
        words
    }

    #[test]
    fn every_help_has_examples() {
        for (path, mut command) in every() {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Examples:\n  overfly"), "overfly {path} --help:\n{help}");
        }
    }

    #[test]
    fn every_example_is_a_command_that_is_understood() {
        let paths: Vec<String> = every().into_iter().map(|(path, _)| path).collect();
        for (path, example) in EXAMPLES {
            assert!(paths.iter().any(|known| known == path), "no command {path}");
            assert!(example.len() <= 90, "{example} is broken in two on a terminal");
            assert!(path.is_empty() || example.starts_with(&format!("overfly {path}")), "{example}");
            let parsed = Arguments::command().try_get_matches_from(words(example));
            assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
        }
    }

    #[test]
    fn every_command_has_a_manual_page() {
        let folder = tempfile::tempdir().unwrap();
        let count = write_pages(&folder.path().join("man1")).unwrap();
        assert_eq!(count, every().len());
        for (path, command) in every() {
            let name = format!("overfly {path}").trim_end().replace(' ', "-");
            let page = std::fs::read_to_string(folder.path().join(format!("man1/{name}.1"))).unwrap();
            assert!(page.contains(".SH NAME") && page.contains(".SH EXAMPLES"), "{name}:\n{page}");
            for option in command.get_arguments().filter_map(clap::Arg::get_long) {
                let escaped = option.replace('-', "\\-");
                assert!(page.contains(&escaped), "{name} lacks --{option}");
            }
        }
        assert!(!folder.path().join("man1/overfly-__warden.1").exists());
    }

    #[test]
    fn every_shell_has_completions_of_every_command() {
        for shell in [Shell::Bash, Shell::Elvish, Shell::Fish, Shell::PowerShell, Shell::Zsh] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut visible(), "overfly", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert_eq!(overfly_terminal::shown(&script), script, "{shell}: what is printed is what was made");
            for word in ["wrk2", "completions", "find-max", "interface", "gather"] {
                assert!(script.contains(word), "{shell} lacks {word}");
            }
            assert!(!script.contains("__warden"), "{shell}");
        }
    }
}

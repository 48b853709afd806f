//! Wrong arguments get one line that names what is wrong and what was expected.

use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use overfly_terminal::Unwritten;

/// Prints clap's help as it is, its errors in one line. The exit status is 2 for an error.
///
/// Where no command was given at all, the help is what was missing: it goes to standard error, with status 2, so that a
/// script whose command got lost does not go on.
pub(crate) fn report(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let written = error.print().and_then(|()| std::io::stdout().flush());
        return crate::written(written.map_err(Unwritten::from));
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        overfly_terminal::tell(error.to_string().trim_end());
        return ExitCode::from(2);
    }
    crate::complain(message(error));
    ExitCode::from(2)
}

fn message(error: &clap::Error) -> String {
    let text = error.to_string();
    let text = text.split("\nUsage:").next().unwrap_or(&text);
    let text = text.split("\nFor more information").next().unwrap_or(text);
    // A word that begins with a minus is no value: nobody who mistyped an option means it as one.
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("tip: to pass '"));
    let words: Vec<&str> = lines.flat_map(str::split_ascii_whitespace).collect();
    let said = words.join(" ").trim_start_matches("error: ").replace(" tip: ", "; ");
    match error.kind() {
        ErrorKind::MissingSubcommand => "no command was given; `overfly --help` lists them".to_owned(),
        ErrorKind::MissingRequiredArgument if said.contains("<PROGRAM>") => {
            "no program was given: try `overfly run -- nginx -g 'daemon off;'`, or `overfly run --help`; \
             `overfly doctor` says what this machine can do"
                .to_owned()
        }
        ErrorKind::MissingRequiredArgument => format!("{said}; `--help` has examples"),
        ErrorKind::InvalidSubcommand => format!("{said}; `overfly --help` lists the commands"),
        ErrorKind::UnknownArgument => format!("{said}; `--help` lists the options"),
        _ => said,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::message;

    fn complaint(arguments: &[&str]) -> String {
        message(&crate::Arguments::try_parse_from(arguments).unwrap_err())
    }

    #[test]
    fn an_error_is_one_line_that_names_the_argument() {
        for (arguments, named) in [
            (&["overfly", "fly"][..], "'fly'"),
            (&["overfly", "run", "--interfaces", "eth0", "true"], "'--interfaces'"),
            (&["overfly", "run"], "try `overfly run -- nginx"),
            (&["overfly", "run", "-p", "latency"], "`overfly run --help`"),
            (&["overfly", "load", "http"], "`--help` has examples"),
            (&["overfly", "lab", "exec", "server"], "<COMMAND>"),
        ] {
            let line = complaint(arguments);
            assert!(line.contains(named), "{line}");
            assert!(!line.contains('\n'), "{line}");
            assert!(!line.contains("tip:"), "{line}");
        }
    }

    #[test]
    fn an_option_that_is_not_there_is_not_taken_for_a_value() {
        let line = complaint(&["overfly", "load", "wrk", "-R", "5", "http://a/"]);
        assert_eq!(line, "unexpected argument '-R' found; `--help` lists the options");
        let line = complaint(&["overfly", "run", "--interfaces", "eth0", "true"]);
        assert!(line.contains("found; a similar argument exists: '--interface'"), "{line}");
    }
}

//! `reservoir manual`: manual pages, generated from the options.

use crate::{FAILED, fail};
use clap::{Args, Command};
use clap_mangen::Man;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

/// Print the manual page, or write all pages into a folder
///
/// `reservoir manual | man -l -` shows the page of the program. With --into FOLDER, each command has a page too:
/// reservoir.1, reservoir-copy.1 and so on.
#[derive(Debug, Args)]
pub(crate) struct ManualOptions {
    /// Folder for the pages
    #[arg(long, value_name = "FOLDER")]
    into: Option<PathBuf>,
}

pub(crate) fn run(options: &ManualOptions, command: Command) -> ExitCode {
    let written = match &options.into {
        None => page(command).and_then(|page| offload_console::write_out(&String::from_utf8_lossy(&page))),
        Some(folder) => pages(command)
            .and_then(|pages| pages.into_iter().try_for_each(|(name, page)| std::fs::write(folder.join(name), page))),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&format!("the manual: {error}"), FAILED),
    }
}

/// Returns the manual page of each command with its file name.
fn pages(mut command: Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    command.build();
    let name = command.get_name().to_owned();
    let mut pages = vec![(format!("{name}.1"), page(command.clone())?)];
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let title = format!("{name}-{}", sub.get_name());
        // man finds pages by one word; the usage line has two.
        let sub = sub.clone().display_name(title.clone());
        pages.push((format!("{title}.1"), page(sub)?));
    }
    Ok(pages)
}

fn page(command: Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn each_command_has_a_page_with_its_options() {
        let pages = pages(crate::Options::command()).unwrap();
        let text = |name: &str| {
            let (_, page) = pages.iter().find(|(file, _)| file == name).unwrap_or_else(|| panic!("no {name}"));
            String::from_utf8(page.clone()).unwrap().replace("\\-", "-")
        };
        assert!(text("reservoir.1").contains("Exit status") && text("reservoir-serve.1").contains("--max-uploads"));
        assert_eq!(text("reservoir-serve.1").contains("--tpc-allow"), cfg!(feature = "third-party"));
        assert!(text("reservoir-copy.1").contains("--resume") && text("reservoir-plan.1").contains("--parts"));
    }
}

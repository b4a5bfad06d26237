//! `nicbench sweep --submit`: runs the parts of a sweep as tasks of a cluster's scheduler: an array job of Slurm or
//! HyperQueue, or an indexed job of Kubernetes. The job is a readable script or manifest, which can also be printed
//! without submitting.

use super::merge::{NotMerged, merge};
use super::sweep::{SweepOptions, part_file};
use crate::shard::{MAX_SHARDS, Shard};
use clap::{Args, ValueEnum};
use core::time::Duration;
use indicatif::{ProgressBar, ProgressStyle};
use offload_cli::program::{self, FAILED, UNUSABLE};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

/// A scheduler of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scheduler {
    /// An array job, by sbatch
    Slurm,
    /// A task array of HyperQueue, by hq
    Hq,
    /// An indexed job, by kubectl
    K8s,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct SubmitOptions {
    /// Run the sweep's parts by a scheduler, wait for them, and merge them
    #[arg(long, value_enum, value_name = "SCHEDULER", conflicts_with = "shard", requires = "shards")]
    submit: Option<Scheduler>,
    /// With --submit: the number of parts
    #[arg(long, value_name = "N", requires = "submit", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SHARDS)))]
    shards: Option<u32>,
    /// With --submit: print the job without submitting it
    #[arg(long, requires = "submit")]
    print: bool,
    /// With --submit k8s: the container image that has nicbench
    #[arg(long, value_name = "IMAGE", default_value = "nicbench")]
    image: String,
    /// With --submit k8s: the persistent volume claim that holds the grid and gets the results. Its root is /results in the tasks
    #[arg(long, value_name = "CLAIM", default_value = "nicbench")]
    claim: String,
}

impl SubmitOptions {
    pub(crate) fn scheduler(&self) -> Option<Scheduler> {
        self.submit
    }
}

pub(crate) fn run(scheduler: Scheduler, options: &SweepOptions) -> ExitCode {
    match submit(scheduler, options) {
        Ok(told) => program::write_out("nicbench", &told),
        Err(NotMerged::Unusable(message)) => program::fail("nicbench", &message, UNUSABLE),
        Err(NotMerged::Failed(message)) => program::fail("nicbench", &message, FAILED),
    }
}

fn submit(scheduler: Scheduler, options: &SweepOptions) -> Result<String, NotMerged> {
    // A bad grid is reported here once, instead of by every task.
    options.check().map_err(NotMerged::Unusable)?;
    let own = options.submission();
    let shards = own.shards.unwrap_or(1);
    let program = std::env::current_exe().map_err(|error| NotMerged::Unusable(format!("this program: {error}")))?;
    let script = match scheduler {
        Scheduler::Slurm => slurm(&program, options, shards),
        Scheduler::Hq => hyperqueue(&program, options, shards),
        Scheduler::K8s => kubernetes(options, shards, own),
    };
    // Printing comes before anything that needs a scheduler, so that a script can be made on any machine.
    if own.print {
        return Ok(script);
    }
    let out = options.results_file();
    let files: Vec<PathBuf> = (1..=shards).map(|number| part_file(&out, Shard { number, of: shards })).collect();
    match scheduler {
        // `--wait` makes sbatch return only after the whole array job, like the other schedulers' commands here.
        Scheduler::Slurm => wait(feed(Command::new("sbatch").args(["--wait", "--parsable"]), &script)?, &files)?,
        Scheduler::Hq => wait(feed(&mut Command::new("sh"), &script)?, &files)?,
        Scheduler::K8s => {
            // `apply` returns at once, so a second command waits for the job.
            wait(feed(Command::new("kubectl").args(["apply", "-f", "-"]), &script)?, &[])?;
            let name = format!("job/{}", job_name(options));
            let mut wait_for = Command::new("kubectl");
            wait_for.args(["wait", "--for=condition=complete", "--timeout=-1s", &name]);
            wait(feed(&mut wait_for, "")?, &files)?;
            // The claim may be mounted elsewhere; then this program cannot merge the files.
            if files.iter().any(|file| !file.exists()) {
                return Ok(format!(
                    "the job is done; where the claim is mounted: nicbench merge *-of-{shards}.jsonl --out FILE\n"
                ));
            }
        }
    }
    Ok(format!("{}: {}\n", out.display(), merge(&files, &out)?))
}

/// Returns a script for sbatch.
fn slurm(program: &Path, options: &SweepOptions, shards: u32) -> String {
    let name = job_name(options);
    let log = options.results_file().with_extension("%a.log");
    let command = shell_line(&program.display().to_string(), &options.part_arguments("auto"));
    format!(
        "#!/bin/sh\n#SBATCH --job-name={name}\n#SBATCH --array=0-{}\n#SBATCH --ntasks=1\n#SBATCH --cpus-per-task=1\n#SBATCH --output={}\nexec {command}\n",
        shards - 1,
        log.display()
    )
}

/// Returns a script that submits to HyperQueue, which does not tell its tasks the number of tasks.
fn hyperqueue(program: &Path, options: &SweepOptions, shards: u32) -> String {
    let command = shell_line(&program.display().to_string(), &options.part_arguments(&format!("auto/{shards}")));
    let name = job_name(options);
    format!("#!/bin/sh\nexec hq submit --wait --name {name} --cpus 1 --array 0-{} -- {command}\n", shards - 1)
}

/// Returns a manifest of an indexed job. A failed task is retried twice and continues its results file.
fn kubernetes(options: &SweepOptions, shards: u32, own: &SubmitOptions) -> String {
    let inside = options.inside(Path::new("/results"));
    let arguments = inside.part_arguments(&format!("auto/{shards}"));
    let arguments: Vec<String> = arguments.iter().map(|argument| quoted(argument)).collect();
    format!(
        "apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
  completionMode: Indexed
  completions: {shards}
  parallelism: {shards}
  backoffLimitPerIndex: 2
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: nicbench
        image: {image}
        command: [\"nicbench\"]
        args: [{arguments}]
        resources:
          requests:
            cpu: \"1\"
        volumeMounts:
        - name: results
          mountPath: /results
      volumes:
      - name: results
        persistentVolumeClaim:
          claimName: {claim}
",
        name = job_name(options),
        image = quoted(&own.image),
        claim = quoted(&own.claim),
        arguments = arguments.join(", "),
    )
}

/// Quotes a text as JSON, which is valid YAML.
fn quoted(text: &str) -> String {
    serde_json::Value::String(text.into()).to_string()
}

/// Returns a job name that all schedulers accept (an RFC 1123 label), derived from the grid's name.
fn job_name(options: &SweepOptions) -> String {
    let stem = options.grid_file().file_stem().map(|stem| stem.to_string_lossy().to_lowercase()).unwrap_or_default();
    let fit = |letter: char| if letter.is_ascii_lowercase() || letter.is_ascii_digit() { letter } else { '-' };
    let name: String = stem.chars().map(fit).take(40).collect();
    format!("nicbench-{}", name.trim_matches('-')).trim_end_matches('-').to_string()
}

/// Formats a shell command line of a program and its arguments.
pub(crate) fn shell_line(program: &str, arguments: &[String]) -> String {
    let plain = |text: &str| {
        !text.is_empty() && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_./=:,{}+@%".contains(letter))
    };
    let word = |text: &str| if plain(text) { text.to_string() } else { format!("'{}'", text.replace('\'', r"'\''")) };
    core::iter::once(program).chain(arguments.iter().map(String::as_str)).map(word).collect::<Vec<_>>().join(" ")
}

/// Starts a command and writes its input.
fn feed(command: &mut Command, input: &str) -> Result<Child, NotMerged> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed =
        |error: std::io::Error| NotMerged::Unusable(format!("{name}: {error}; --print shows what would be submitted"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().map_err(failed)?;
    match child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes())) {
        // A command that ended without reading its input reports its own error.
        Some(Err(error)) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(failed(error)),
        _ => Ok(child),
    }
}

/// Waits for the command, and shows the number of points in the files meanwhile.
fn wait(mut child: Child, files: &[PathBuf]) -> Result<(), NotMerged> {
    let style = ProgressStyle::with_template("{elapsed_precise} {pos} points are there");
    let bar = style.map_or_else(|_| ProgressBar::hidden(), |style| ProgressBar::no_length().with_style(style));
    loop {
        let ended =
            child.try_wait().map_err(|error| NotMerged::Unusable(format!("the scheduler's command: {error}")))?;
        if let Some(status) = ended {
            bar.finish_and_clear();
            // If tasks failed, the merge reports the missing points with the commands that make them.
            let there = files.iter().any(|file| file.exists());
            return if status.success() || there {
                Ok(())
            } else {
                Err(NotMerged::Failed(format!("the scheduler's command: {status}")))
            };
        }
        // The position counts rows on disk, because schedulers do not report progress.
        if !files.is_empty() {
            bar.set_position(files.iter().map(|file| lines(file)).sum());
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
}

/// Returns the number of runs in a part's file: one line each, after the first line.
fn lines(file: &Path) -> u64 {
    let Ok(file) = std::fs::File::open(file) else { return 0 };
    (BufReader::new(file).split(b'\n').count() as u64).saturating_sub(1)
}

const BETWEEN_LOOKS: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct SweepCommandLine {
        #[command(flatten)]
        sweep: SweepOptions,
    }

    fn options(line: &str) -> SweepOptions {
        SweepCommandLine::try_parse_from(line.split(' ')).unwrap().sweep
    }

    #[test]
    fn slurm_and_hyperqueue_get_a_script_to_read() {
        let options = options("x /data/my_Grid.toml --submit slurm --shards 64 --overlap 0.05 --timed");
        assert_eq!(
            slurm(Path::new("/opt/nicbench"), &options, 64),
            "#!/bin/sh\n#SBATCH --job-name=nicbench-my-grid\n#SBATCH --array=0-63\n#SBATCH --ntasks=1\n#SBATCH --cpus-per-task=1\n\
             #SBATCH --output=/data/my_Grid.%a.log\nexec /opt/nicbench sweep /data/my_Grid.toml --shard auto --out /data/my_Grid.jsonl \
             --overlap 0.05 --timed\n"
        );
        assert!(hyperqueue(Path::new("/opt/it's one"), &options, 64).contains(
            "hq submit --wait --name nicbench-my-grid --cpus 1 --array 0-63 -- '/opt/it'\\''s one' sweep /data/my_Grid.toml --shard auto/64 "
        ));
    }

    #[test]
    fn kubernetes_finds_all_in_its_claim() {
        let options = options("x grids/quick.toml --submit k8s --shards 8 --image r/nicbench:1 --out far/away.jsonl");
        let manifest = kubernetes(&options, 8, options.submission());
        let arguments =
            r#"args: ["sweep", "/results/quick.toml", "--shard", "auto/8", "--out", "/results/away.jsonl"]"#;
        assert!(manifest.contains(arguments) && manifest.contains("image: \"r/nicbench:1\""), "{manifest}");
        assert!(manifest.contains("completions: 8\n") && manifest.contains("name: nicbench-quick\n"), "{manifest}");
    }
}

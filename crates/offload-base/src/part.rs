//! The share of one process in a job that is divided over machines or over the tasks of a scheduler.
//!
//! Slurm, HyperQueue, Kubernetes, PBS, LSF and SGE pass an array task its index in environment variables.

/// One part of a job: `3/64` is the third of 64.
///
/// See [`PartArgument`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkPart {
    /// Index of the part, from 1.
    pub number: u32,
    /// Number of parts.
    pub of: u32,
}

/// A part argument of a command line.
///
/// ```
/// use offload_base::part::{PartArgument, WorkPart};
///
/// assert_eq!("3/64".parse(), Ok(PartArgument::This(WorkPart { number: 3, of: 64 })));
/// assert_eq!("auto".parse(), Ok(PartArgument::Auto(None)));
/// assert!("0/64".parse::<PartArgument>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartArgument {
    /// An explicit part.
    This(WorkPart),
    /// The part named by the scheduler's variables. The number of parts is needed if the scheduler does not tell it.
    Auto(Option<u32>),
}

impl core::str::FromStr for PartArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<PartArgument, String> {
        let number = |text: &str| text.parse::<u32>().map_err(|_| format!("`{text}` is not a number of parts"));
        // The number of parts is checked before `auto`, so that `auto/0` is refused like `1/0`.
        let (part, of) = match text.split_once('/') {
            None if text == "auto" => return Ok(PartArgument::Auto(None)),
            None => return Err("a part is I/N, such as 3/64, or auto, or auto/N".into()),
            Some((part, of)) => (part, number(of)?),
        };
        if !(1..=MAX_PARTS).contains(&of) {
            return Err(format!("there are 1 to {MAX_PARTS} parts, not {of}"));
        }
        if part == "auto" {
            return Ok(PartArgument::Auto(Some(of)));
        }
        let number = number(part)?;
        if !(1..=of).contains(&number) {
            return Err(format!("parts are numbered from 1 to {of}: there is no {number}"));
        }
        Ok(PartArgument::This(WorkPart { number, of }))
    }
}

impl PartArgument {
    /// Returns the part, read from the environment of this process if it is `Auto`.
    ///
    /// # Errors
    /// If no scheduler is found, or if its variables do not yield the part. The text names the variables.
    pub fn part(self) -> Result<WorkPart, String> {
        match self {
            PartArgument::This(part) => Ok(part),
            PartArgument::Auto(of) => from_variables(of, |name| std::env::var(name).ok()),
        }
    }
}

/// The environment variables in which a scheduler describes an array task.
struct Variables {
    scheduler: &'static str,
    index: &'static str,
    /// Index of the first task. `None` if arrays always begin with 0 (LSF: 1).
    first: Option<&'static str>,
    /// Distance between two indices. `None` if the distance is always 1.
    step: Option<&'static str>,
    /// Number of tasks. Some schedulers set `last`, the index of the last task, instead.
    count: Option<&'static str>,
    last: Option<&'static str>,
}

const SCHEDULERS: [Variables; 6] = [
    Variables {
        scheduler: "Slurm",
        index: "SLURM_ARRAY_TASK_ID",
        first: Some("SLURM_ARRAY_TASK_MIN"),
        step: Some("SLURM_ARRAY_TASK_STEP"),
        count: Some("SLURM_ARRAY_TASK_COUNT"),
        last: None,
    },
    Variables { scheduler: "HyperQueue", index: "HQ_TASK_ID", first: None, step: None, count: None, last: None },
    Variables {
        scheduler: "Kubernetes",
        index: "JOB_COMPLETION_INDEX",
        first: None,
        step: None,
        count: None,
        last: None,
    },
    Variables { scheduler: "PBS", index: "PBS_ARRAY_INDEX", first: None, step: None, count: None, last: None },
    // LSF numbers its tasks from 1, but sets no variable for the first index.
    Variables {
        scheduler: "LSF",
        index: "LSB_JOBINDEX",
        first: None,
        step: Some("LSB_JOBINDEX_STEP"),
        count: None,
        last: Some("LSB_JOBINDEX_END"),
    },
    Variables {
        scheduler: "SGE",
        index: "SGE_TASK_ID",
        first: Some("SGE_TASK_FIRST"),
        step: Some("SGE_TASK_STEPSIZE"),
        count: None,
        last: Some("SGE_TASK_LAST"),
    },
];

fn from_variables(of: Option<u32>, variable: impl Fn(&str) -> Option<String>) -> Result<WorkPart, String> {
    // LSF and SGE also set their index, to 0 or `undefined`, for a job that is not an array.
    let number = |name: &str| variable(name).and_then(|text| text.parse::<u32>().ok());
    let present = |of: &&Variables| match of.scheduler {
        "LSF" | "SGE" => number(of.index).is_some_and(|index| index > 0),
        _ => variable(of.index).is_some(),
    };
    let Some(task) = SCHEDULERS.iter().find(present) else {
        let names: Vec<_> = SCHEDULERS.iter().map(|known| known.index).collect();
        return Err(format!("no scheduler says which part this is: none of {} is set", names.join(", ")));
    };
    let wrong = |name: &str| format!("{}: {name} is not a number", task.scheduler);
    let optional =
        |name: Option<&str>, otherwise: u32| match name.and_then(|name| variable(name).map(|text| (name, text))) {
            Some((name, text)) => text.parse::<u32>().map_err(|_| wrong(name)),
            None => Ok(otherwise),
        };
    let index = number(task.index).ok_or_else(|| wrong(task.index))?;
    let first = optional(task.first, if task.scheduler == "LSF" { 1 } else { 0 })?;
    let step = optional(task.step, 1)?.max(1);
    // HyperQueue and PBS tell neither a count nor a last index, so the user has to. LSF and SGE tell the last index.
    // With a step, the last index need not be a multiple of the step, so the division rounds down.
    let told = match (task.count.and_then(&number), task.last.and_then(&number)) {
        (Some(count), _) => Some(count),
        (None, Some(last)) if last >= first => Some((last - first) / step + 1),
        (None, _) => None,
    };
    let of = match (of, told) {
        // A contradiction means that the job was submitted with another array size. Working on would leave parts
        // undone.
        (Some(of), Some(told)) if of != told => {
            return Err(format!("{} has an array of {told} tasks, not {of}", task.scheduler));
        }
        (of, told) => of
            .or(told)
            .ok_or_else(|| format!("{} does not tell how many parts there are: say auto/N", task.scheduler))?,
    };
    // An index below the first one, or past the last, comes from variables of another job.
    let place = index.checked_sub(first).map(|behind| behind / step).filter(|place| *place < of && of <= MAX_PARTS);
    let place = place
        .ok_or_else(|| format!("{}: {} is {index}, and {of} parts begin with {first}", task.scheduler, task.index))?;
    Ok(WorkPart { number: place + 1, of })
}

/// Maximum number of parts. A larger number is taken for a typing error.
pub const MAX_PARTS: u32 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn part_arguments_are_parsed() {
        let asked = |text: &str| text.parse::<PartArgument>();
        assert_eq!(asked("3/64"), Ok(PartArgument::This(WorkPart { number: 3, of: 64 })));
        assert_eq!((asked("auto"), asked("auto/8")), (Ok(PartArgument::Auto(None)), Ok(PartArgument::Auto(Some(8)))));
        for wrong in ["0/4", "5/4", "1/0", "4", "1/2/3", "-1/2", "auto/0", "auto/x", "", "1/9999999999"] {
            assert!(asked(wrong).is_err(), "{wrong}");
        }
    }

    /// Parses the variables that each scheduler sets for an array task.
    #[test]
    fn variables_of_each_scheduler_are_parsed() {
        let of_task = |of: Option<u32>, variables: &[(&str, &str)]| {
            let variables: HashMap<&str, &str> = variables.iter().copied().collect();
            from_variables(of, |name| variables.get(name).map(ToString::to_string))
        };
        let part = |number, of| Ok(WorkPart { number, of });
        let slurm = [
            ("SLURM_ARRAY_TASK_ID", "14"),
            ("SLURM_ARRAY_TASK_MIN", "10"),
            ("SLURM_ARRAY_TASK_STEP", "2"),
            ("SLURM_ARRAY_TASK_COUNT", "4"),
        ];
        assert_eq!(of_task(None, &slurm), part(3, 4));
        assert_eq!(of_task(Some(4), &slurm), part(3, 4));
        assert!(of_task(Some(5), &slurm).unwrap_err().contains("an array of 4 tasks, not 5"));
        let sge = [("SGE_TASK_ID", "3"), ("SGE_TASK_FIRST", "1"), ("SGE_TASK_LAST", "5"), ("SGE_TASK_STEPSIZE", "2")];
        assert_eq!(of_task(None, &sge), part(2, 3));
        assert_eq!(of_task(None, &[("LSB_JOBINDEX", "8"), ("LSB_JOBINDEX_END", "8")]), part(8, 8));
        for index in ["HQ_TASK_ID", "JOB_COMPLETION_INDEX", "PBS_ARRAY_INDEX"] {
            assert_eq!(of_task(Some(64), &[(index, "63")]), part(64, 64));
            assert!(of_task(None, &[(index, "0")]).unwrap_err().contains("say auto/N"));
            assert!(of_task(Some(64), &[(index, "64")]).unwrap_err().contains("64 parts begin with 0"));
            assert!(of_task(Some(64), &[(index, "x")]).unwrap_err().contains("is not a number"));
        }
        // LSF and SGE jobs that are not arrays.
        let none = [("LSB_JOBINDEX", "0"), ("SGE_TASK_ID", "undefined")];
        assert!(of_task(Some(2), &none).unwrap_err().contains("no scheduler"));
    }
}

//! A few jobs at a time, each with its output as a whole.

use std::collections::VecDeque;
use std::fs;
use std::sync::mpsc;
use std::thread;

use anyhow::{Context, Result};
use parking_lot::Mutex;

use super::jobs::Job;
use super::outcome::{self, Outcome};

/// A control plane needs a core to start and next to nothing later; each program of tests runs two tests at a time.
const LANES: usize = 3;
/// A node is a control plane, a kubelet and pods: no more than this many at a time.
const LANES_WITH_NODES: usize = 2;

/// Jobs that have not started.
struct Queue {
    nodes: VecDeque<Job>,
    others: VecDeque<Job>,
}

/// Runs all of them, whatever becomes of the others.
pub(crate) fn run(jobs: Vec<Job>) -> Result<Vec<Outcome>> {
    fs::create_dir_all(outcome::folder()).context("cannot write into the target folder")?;
    let queue = Mutex::new(Queue::of(jobs));
    let (reported, outcomes) = mpsc::channel();
    let outcomes = thread::scope(|scope| {
        for lane in 0..LANES {
            let (reported, queue) = (reported.clone(), &queue);
            scope.spawn(move || {
                while let Some(job) = next(queue, lane) {
                    let _ = reported.send(Outcome::of(job));
                }
            });
        }
        drop(reported);
        outcomes.iter().inspect(Outcome::print).collect()
    });
    Ok(outcomes)
}

fn next(queue: &Mutex<Queue>, lane: usize) -> Option<Job> {
    queue.lock().next(lane)
}

impl Queue {
    fn of(jobs: Vec<Job>) -> Self {
        let (mut nodes, others): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(|job| job.node.is_some());
        nodes.sort_by_key(|job| job.node);
        Self {
            nodes: nodes.into(),
            others: others.into(),
        }
    }

    /// The first lane has the nodes, which take longest, and then helps the others; when these have nothing left, one more
    /// helps with nodes.
    fn next(&mut self, lane: usize) -> Option<Job> {
        let node = |queue: &mut Self| queue.nodes.pop_front();
        if lane == 0 {
            return node(self).or_else(|| self.others.pop_front());
        }
        let other = self.others.pop_front();
        other.or_else(|| (lane < LANES_WITH_NODES).then(|| node(self)).flatten())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn job(name: &str, node: Option<usize>) -> Job {
        Job {
            name: name.to_owned(),
            command: Command::new(name),
            node,
        }
    }

    fn taken(queue: &mut Queue, lanes: &[usize]) -> Vec<String> {
        let names = lanes
            .iter()
            .map(|lane| queue.next(*lane).map_or_else(|| "-".to_owned(), |job| job.name));
        names.collect()
    }

    #[test]
    fn nodes_are_in_two_lanes_at_most_and_the_longest_first() {
        let jobs = || {
            vec![
                job("a", None),
                job("late", Some(1)),
                job("early", Some(0)),
                job("b", None),
            ]
        };
        assert_eq!(
            taken(&mut Queue::of(jobs()), &[0, 1, 2, 0]),
            ["early", "a", "b", "late"]
        );
        assert_eq!(taken(&mut Queue::of(jobs()), &[2, 2, 2, 1]), ["a", "b", "-", "early"]);
        assert_eq!(
            taken(&mut Queue::of(jobs()), &[0, 0, 0, 0, 0]),
            ["early", "late", "a", "b", "-"]
        );
    }
}

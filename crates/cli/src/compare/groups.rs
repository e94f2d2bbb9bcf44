//! The tests, and the groups of them that a command line can name.

use std::ffi::OsString;

use anyhow::Result;

use super::rows::Test;
use crate::args::{CompareArgs, numbers};
use crate::exit::usage;

/// Returns the tests, in the order that both programs run them.
pub fn tests(args: &CompareArgs) -> Result<Vec<Test>> {
    let list = |numbers: Vec<usize>| numbers.into_iter().map(|n| n as u64);
    let mut tests = Vec::new();
    for n_depth in list(numbers(&args.n_depth, 0)) {
        let of = |n_prompt, n_gen| Test {
            n_prompt,
            n_gen,
            n_depth,
        };
        let prompts = list(numbers(&args.n_prompt, 512)).map(|n| of(n, 0));
        let gens = list(numbers(&args.n_gen, 128)).map(|n| of(0, n));
        for test in prompts.chain(gens) {
            if test.n_prompt + test.n_gen > 0 && !tests.contains(&test) {
                tests.push(test);
            }
        }
    }
    if tests.is_empty() {
        return Err(usage(
            "nothing to measure: -p and -n are 0; set one of them",
        ));
    }
    Ok(tests)
}

/// Tests that one command runs: every length at every depth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    n_prompts: Vec<u64>,
    n_gens: Vec<u64>,
    n_depths: Vec<u64>,
}

impl Group {
    /// Splits tests into as few groups as their depths allow.
    pub fn of(tests: &[Test]) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for (i, test) in tests.iter().enumerate() {
            let n_depth = test.n_depth;
            if tests[..i].iter().any(|before| before.n_depth == n_depth) {
                continue;
            }
            let here = || tests.iter().filter(|test| test.n_depth == n_depth);
            let n_prompts: Vec<u64> = here().map(|test| test.n_prompt).filter(is_run).collect();
            let n_gens: Vec<u64> = here().map(|test| test.n_gen).filter(is_run).collect();
            let same = { groups.iter_mut() }
                .find(|group| group.n_prompts == n_prompts && group.n_gens == n_gens);
            match same {
                Some(group) => group.n_depths.push(n_depth),
                None => groups.push(Group {
                    n_prompts,
                    n_gens,
                    n_depths: vec![n_depth],
                }),
            }
        }
        groups
    }

    /// Returns whether this is a group of the test's.
    pub fn has(&self, test: &Test) -> bool {
        let lengths = match test.n_gen {
            0 => self.n_prompts.contains(&test.n_prompt),
            n_gen => self.n_gens.contains(&n_gen),
        };
        lengths && self.n_depths.contains(&test.n_depth)
    }

    /// Returns the arguments that name the tests.
    pub fn args(&self) -> Vec<OsString> {
        let flags = [
            ("-p", &self.n_prompts),
            ("-n", &self.n_gens),
            ("-d", &self.n_depths),
        ];
        let text = |numbers: &[u64]| {
            let texts: Vec<String> = numbers.iter().map(u64::to_string).collect();
            match texts.is_empty() {
                true => "0".to_string(),
                false => texts.join(","),
            }
        };
        flags
            .into_iter()
            .flat_map(|(flag, numbers)| [flag.into(), text(numbers).into()])
            .collect()
    }
}

fn is_run(n: &u64) -> bool {
    *n > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests as (prompt, generated, depth), and the commands that run them.
    fn check(tests: &[(u64, u64, u64)], expected: &[&str]) {
        let of = |&(n_prompt, n_gen, n_depth): &(u64, u64, u64)| Test {
            n_prompt,
            n_gen,
            n_depth,
        };
        let tests: Vec<Test> = tests.iter().map(of).collect();
        let groups = Group::of(&tests);
        let texts = groups.iter().map(|group| {
            let args = group.args();
            let args: Vec<&str> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
            args.join(" ")
        });
        assert_eq!(texts.collect::<Vec<_>>(), expected);
        for test in &tests {
            let in_groups = groups.iter().filter(|group| group.has(test)).count();
            assert_eq!(in_groups, 1, "{}", test.name());
        }
    }

    #[test]
    fn groups_tests_by_command() {
        check(&[(512, 0, 0), (0, 64, 0)], &["-p 512 -n 64 -d 0"]);
        check(
            &[(16, 0, 0), (0, 4, 0), (16, 0, 32), (0, 4, 32)],
            &["-p 16 -n 4 -d 0,32"],
        );
        check(
            &[(16, 0, 0), (32, 0, 0), (0, 4, 32), (16, 0, 64), (32, 0, 64)],
            &["-p 16,32 -n 0 -d 0,64", "-p 0 -n 4 -d 32"],
        );
        check(&[], &[]);
    }
}

//! Examples that end each `--help`.

use crate::args::file_types;

pub const TOP: &str = "\
Examples:
  rocmforge generate -p \"Once upon a time\"
      A story from the model inside this program; nothing to download.
  rocmforge chat -m qwen2.5-1.5b-instruct-q4_k_m.gguf
      Talk with a model of your own.
  rocmforge generate -m model.gguf --chat -p \"Why is the sky blue?\" --temp 0
      One answer, the same every time.
  rocmforge inspect model.gguf
      What is in the file, and how much memory it needs.

Every command has examples of its own: rocmforge generate --help
Environment variables that start with ROCMFORGE_ set defaults; each flag's help names its variable.";

pub const GENERATE: &str = "\
Examples:
  rocmforge generate -p \"Once upon a time\"
      Continue a text.
  rocmforge generate --chat -p \"Who are you?\" --system \"You are a pirate.\"
      Answer a message, through the chat template in the model's file.
  cat notes.txt | rocmforge generate -m model.gguf --chat > summary.txt
      The prompt from a pipe (one newline at its end is left out); only the answer goes to stdout.
  rocmforge generate -m model.gguf -p \"A list:\" -n 100 --stop $'\\n\\n' --seed 7
      At most 100 tokens, ended by an empty line, the same every time.
  rocmforge generate -m model.gguf --ids 1,2,3 -n 5 --temp 0 --json --logprobs 5
      Token ids in, JSON out, for scripts.

The answer goes to stdout as it is made; everything else goes to stderr. Ctrl-C stops the answer.
Exit codes: 0 success, 1 failure, 2 wrong usage, 130 stopped by Ctrl-C.";

pub const CHAT: &str = "\
Examples:
  rocmforge chat
      Talk with the model inside this program.
  rocmforge chat -m model.gguf --system \"Answer in one sentence.\" --temp 0.3
  rocmforge chat -m qwen3-1.7b-q8_0.gguf --think off
  printf 'My name is Ada.\\nWhat is my name?\\n' | rocmforge chat --temp 0
      One message a line; only the answers go to stdout.

In the chat: /help lists the commands, Ctrl-C stops an answer, Ctrl-D ends the chat. A line that ends
with a backslash goes on in the next one; \"\"\" begins and ends a message of many lines.";

pub const INSPECT: &str = "\
Examples:
  rocmforge inspect model.gguf
  rocmforge inspect model.gguf --ctx 32768
      The memory it needs with a context of 32768 tokens.
  rocmforge inspect model.gguf --json | jq '.metadata[\"tokenizer.chat_template\"]'

Works for every GGUF file, also for those that cannot be run.";

pub const TOKENIZE: &str = "\
Examples:
  rocmforge tokenize -p \"Hello, world\"
      A table of the tokens.
  rocmforge tokenize -m model.gguf -f book.txt --ids > ids.json
  rocmforge tokenize -m model.gguf -p \"<|im_start|>user\" --parse-special

Works for files that hold only a vocabulary.";

pub const PERPLEXITY: &str = "\
Examples:
  rocmforge perplexity -m model.gguf -f wiki.test.raw
  rocmforge perplexity -m model.gguf -f wiki.test.raw --ctx 2048 --chunks 20 --json

Lower is better. The text is cut into windows of --ctx tokens and the second half of each is scored,
given all before it, as llama-perplexity does; so results of both can be compared.";

/// Examples of `quantize`, and its file types.
pub fn quantize() -> String {
    const EXAMPLES: &str = "\
Examples:
  rocmforge quantize model-F16.gguf model-Q4_K_M.gguf Q4_K_M
  rocmforge quantize model-F16.gguf Q4_K_M --dry-run
      What would become of each tensor, and the size of the file.
  rocmforge quantize model-F16.gguf small.gguf IQ4_XS --imatrix imatrix.gguf
      With an importance matrix: fewer errors where they matter.
  rocmforge quantize model-F16.gguf mine.gguf Q4_K_M --tensor-type 'ffn_down=Q6_K' --tensor-type 'blk\\.[01]\\.=Q8_0'

The file appears under its name when it is complete. The error of a tensor is the root mean squared
difference of its values (RMSE), and that relative to the values themselves.";
    format!("{EXAMPLES}\n\n{}", file_types())
}

pub const IMATRIX: &str = "\
Examples:
  rocmforge imatrix -m model-F16.gguf -f calibration.txt -o imatrix.gguf
  rocmforge imatrix -m model-F16.gguf -f calibration.txt -o imatrix.gguf --chunks 100 --ctx 512

The text is cut into windows of --ctx tokens, as perplexity does. The file is in the form that
llama.cpp reads, and rocmforge quantize --imatrix.";

pub const BENCH: &str = "\
Examples:
  rocmforge bench -m model.gguf
      Prompts of 512 tokens and 128 tokens of generation, five times each.
  rocmforge bench -m a.gguf -m b.gguf -p 512 -n 128 -d 0,4096 -t 1,2
      Every combination; -d is the number of tokens in the cache before.
  rocmforge bench -m model.gguf -p 0 -n 64 -b 1,4,8
      Sequences decoded together; the tokens of all of them count.
  rocmforge bench -m model.gguf -o json | jq '.[] | {n_prompt, n_gen, avg_ts, roofline_share}'
  rocmforge bench --synthetic llama-3.1-8b:Q4_K_M
      What speed a model of that shape would have; nothing to download.
  rocmforge bench matmul --filter Q4_K
      One of the suites that measure parts of the program: matmul, attention, dequant, inference, memory, batch.

Rows and fields are llama-bench's. The roofline is the least time that the machine allows: weights and
cache at the read bandwidth, products at the peak of its arithmetic, both measured in the same run.
A model that fits in the processor's caches may exceed it.";

pub const SUITE: &str = "\
Examples:
  rocmforge bench matmul
      Every case, on the CPU and on every GPU.
  rocmforge bench matmul --filter 'quantized/Q4_K/1x' --device cpu -t 1
      Rows of this name, with one thread.
  rocmforge bench inference --synthetic llama-3.1-8b:Q4_K_M -o markdown
      A model of that shape and type with random weights, made in memory.
  rocmforge bench dequant -o json | jq -r '.[] | [.name, .p50_ms, .bandwidth_roofline_share] | @tsv'

A row is printed when it is measured, and Ctrl-C leaves those that were. Rates are those of the median. \"of BW\"
and \"of peak\" are shares of the read bandwidth and of the peak of the arithmetic, measured in the same run; what
stays in a cache may exceed the first. A CPU that plays a GPU has no shares, and its times mean nothing.";

pub const BASELINE: &str = "\
Examples:
  rocmforge bench -m model.gguf -r 20 --save-baseline main
      Keep what was measured.
  rocmforge bench -m model.gguf -r 20 --compare-baseline main
      Measure again and compare: exit code 3 if anything got worse by 10 % or more.
  rocmforge baseline compare main mine --threshold 5 --format junit -o report.xml
  rocmforge baseline compare baselines/h200.json mine --allow-other-hardware
      A file instead of a name: anything with a slash or .json at its end.
  rocmforge baseline trend -o trend.html
      All baselines over time, as charts.

A change counts when it is no noise (ranks of the samples, 99 % confidence) and when a loss of the threshold is not
excluded. Where noise hides that, more samples are asked for: 6 will do where they deviate by 2 % of their
mean, 14 at 5 %, 50 at 10 %.
Exit codes: 0 nothing is worse, 3 something is, 4 the baseline is of other hardware, 1 failure, 2 wrong usage.";

pub const COMPARE: &str = "\
Examples:
  rocmforge compare --with llama-bench ~/llama.cpp/build/bin/llama-bench -m model.gguf
      Five pairs of runs, prompts of 512 tokens and 128 tokens of generation.
  rocmforge compare --with llama-bench ./llama-bench -m model.gguf -p 0 -n 64 -d 0,4096 -t 8 --pairs 9 --json
  rocmforge compare --with llama-bench ./llama-bench -m model.gguf --device cpu -- -ngl 0
      What stands after -- goes to llama-bench.

Each pair is a process of each program, one after the other, the order turning with every pair: whatever the machine
does besides meets both. The ratio is ours over theirs, its median over the pairs with a 95 % bootstrap interval.";

pub const PROFILE: &str = "\
Examples:
  rocmforge profile -m model.gguf
      A prompt of 512 random tokens and 64 tokens after it: where the time goes, and what would help.
  rocmforge profile -m model.gguf -p \"Why is the sky blue?\" -n 200 --runs 5
  rocmforge profile -m model.gguf --device gpu --json > profile.json
  rocmforge profile -m model.gguf --json | jq '.advice[0]'
  rocmforge profile -m model.gguf --html report.html --trace trace.json --flamegraph ops.svg
      A page for a browser, a trace for Perfetto, and where the time goes as one picture.

Runs with and without the observer take turns, and both are shown. On a GPU, tokens run as graphs without
it, and kernel by kernel with events between them with it.";

pub const PROFILE_WITH: &str = "\
Examples:
  rocmforge profile-with --list
      The tools, which of them are on this machine, and what became of those with other names.
  rocmforge profile-with perf -o out -- rocmforge bench -m model.gguf -p 0 -n 64
      The functions that took the CPU's time. With --counters cache: hits and misses.
  rocmforge profile-with rocprofv3 --counters memory,stalls -o out -- rocmforge generate -m model.gguf -p Hello
      Kernels, calls and counters of an AMD GPU. The command runs once for the times and once for each set of
      counters.
  rocmforge profile-with ncu --counters memory --dry-run -- rocmforge bench -m model.gguf
      What would be run.

What the tool wrote stays in the folder, which should be empty before. Exit codes: 0 success, 1 the tool is not
there, failed or may not count, 2 wrong usage, 130 stopped by Ctrl-C.";

pub const TUNE: &str = "\
Examples:
  rocmforge tune -m model.gguf
      Measure the launches of this model on the first GPU; seconds for most models.
  rocmforge tune -m model.gguf --again --dry-run --json
      Measure all again and only show it.
  rocmforge bench -m model.gguf --kernel-variant tuning=off
      What the model does without.

Only what cannot change a result is chosen: each way to make a launch gives the same bits, which is checked before
it is measured. What was found is used by every command from its next start on, for any model with the same shapes,
until the driver or the program changes. A chat measures, too, while it waits for its user.";

pub const CHECK: &str = "\
Examples:
  rocmforge check -m model.gguf
      One operation of each kind, shape and format.
  rocmforge check -m model.gguf --all --depth 2000 --json
      Every operation, with 2000 tokens in the cache.

The vector kernels of this processor and the scalar path compute the same parts of a text from the same
inputs, operation by operation. The first operation that differs by more than rounding is named and the
exit code is 1. The scalar path is slow: a model of 8 billion parameters takes about a minute.";

pub const DEVICES: &str = "\
Examples:
  rocmforge devices
  rocmforge devices --json | jq -r '.devices[0].isa'";

pub const MODELS: &str = "\
Examples:
  rocmforge models
  rocmforge models --json | jq -r '.models[].name'
  rocmforge models rm OWNER/REPO:Q4_K_M

The first column is what -m takes. Any .gguf file below the folder counts, however it came there.";

#[cfg(feature = "pull")]
pub const PULL: &str = "\
Examples:
  rocmforge pull hf:OWNER/REPO
      The Q4_K_M file of the repository, else Q4_0, else its only model.
  rocmforge pull hf:OWNER/REPO:Q8_0
  rocmforge pull hf:OWNER/REPO/FOLDER/FILE.gguf@v1.0
      One file, of a branch, tag or commit.
  rocmforge chat -m OWNER/REPO
      Use it.

What was fetched is kept when a pull is stopped or fails; the same command goes on from there. The path of the
file goes to stdout. For gated and private models set HF_TOKEN or ROCMFORGE_HUB_TOKEN.";

pub const COMPLETIONS: &str = "\
Examples:
  rocmforge completions bash > ~/.local/share/bash-completion/completions/rocmforge
  rocmforge completions zsh > ~/.zfunc/_rocmforge
      With ~/.zfunc in fpath, before compinit.
  rocmforge completions fish > ~/.config/fish/completions/rocmforge.fish";

pub const MAN: &str = "\
Examples:
  rocmforge man --dir ~/.local/share/man/man1
      From then on: man rocmforge-generate
  rocmforge man generate | man -l -";

//! What `-h` leaves out, and the examples and notes at the end of each command's `--help`.

use std::ffi::OsString;

use clap::builder::{Resettable, StyledStr};
use clap::error::ErrorKind;
use clap::{Arg, Command};

/// Options of long groups that `-h` shows.
const USUAL: &[&str] = &["device", "threads", "ctx", "temp", "seed"];

/// Groups of which `-h` shows only the usual options.
const LONG_GROUPS: &[&str] = &["Device", "Sampling", "Baselines", "Structured output"];

/// Options outside of these groups that `-h` leaves out.
const RARE: &[&str] = &[
    "roofline",
    "no_mmap",
    "models_dir",
    "pre",
    "lora",
    "lora_scaled",
    "special",
    "ignore_eos",
    "logprobs",
    "prompt_logprobs",
    "parse_special",
    "ids",
    "think",
    "delay",
    "no_warmup",
    "no_sensors",
    "pg",
    "kv_type",
    "kv_type_k",
    "kv_type_v",
    "batch_invariant",
    "all_models",
    "memory",
    "idle_unload",
    "config",
    "itl_target",
    "ttft_target",
    "kv_tokens",
    "queue_timeout",
    "answer_timeout",
    "resume_timeout",
    "read_timeout",
    "write_timeout",
    "max_body",
    "max_connections",
    "max_choices",
    "step_timeout",
    "max_queue",
    "max_queue_tokens",
    "drain_timeout",
    "otlp",
    "access_log",
    "log_content",
    "cors",
    "tls_cert",
    "tls_key",
    "context_policy",
    "context_sinks",
    "gpu_layers",
    "output_tensor_type",
    "token_embedding_type",
    "fail_inconclusive",
];

/// Which help the command line asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Screen {
    /// `-h`: what most users need, on a screen.
    Short,
    /// `--help`: everything, in the compact layout of `-h`.
    Whole,
}

/// Prepares the help that `words`, the command line, may ask for.
pub fn with_screens(top: Command, words: &[OsString]) -> Command {
    let screen = match words.iter().any(|word| word == "-h") {
        true => Screen::Short,
        false => Screen::Whole,
    };
    prepared(top, screen)
}

fn prepared(command: Command, screen: Screen) -> Command {
    let examples = unfolded(command.get_after_help());
    let command = match screen {
        _ if examples.is_empty() => command,
        Screen::Short => {
            let more = match command.get_name() {
                "rocmforge" => {
                    "Options of a command: rocmforge COMMAND -h\nExamples: rocmforge --help"
                }
                _ => "All options and examples: --help",
            };
            command.after_help(more).after_long_help(examples)
        }
        Screen::Whole => command.after_help(examples),
    };
    command
        .mut_args(|arg| shown_in(arg, screen))
        .mut_subcommands(|command| prepared(command, screen))
}

/// clap's own long layout takes four lines for an option, so its first and further sentences become one text.
fn shown_in(arg: Arg, screen: Screen) -> Arg {
    match screen {
        Screen::Short => {
            let hidden = is_rare(&arg);
            arg.hide_short_help(hidden)
        }
        Screen::Whole => {
            let Some(long) = arg.get_long_help().map(ToString::to_string) else {
                return arg;
            };
            let whole = long.split("\n\n").map(|part| part.trim_end_matches('.'));
            let whole = whole.collect::<Vec<_>>().join(". ");
            arg.help(whole).long_help(Resettable::<StyledStr>::Reset)
        }
    }
}

/// Joins the lines of each paragraph, so that clap breaks it at the width of the terminal. Examples and lists keep
/// their lines.
fn unfolded(text: Option<&StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    let paragraph = |block: &str| match block.lines().any(|line| line.starts_with(' ')) {
        true => block.to_string(),
        false => block.replace('\n', " "),
    };
    let blocks: Vec<String> = text.split("\n\n").map(paragraph).collect();
    blocks.join("\n\n")
}

/// Returns clap's message of wrong usage in two lines: what is wrong, and what to do. `words` is the command line.
pub fn wrong_usage(error: &clap::Error, top: &Command, words: &[OsString]) -> String {
    let mut command = top;
    let mut path = top.get_name().to_string();
    for word in words.iter().skip(1) {
        match command.find_subcommand(word) {
            Some(sub) => {
                path = format!("{path} {}", sub.get_name());
                command = sub;
            }
            // Options of the program may stand before its command.
            None if path == top.get_name() && word.to_string_lossy().starts_with('-') => {}
            None => break,
        }
    }
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim);
    let lines =
        lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let (tips, message): (Vec<&str>, Vec<&str>) = lines
        .filter(|line| !line.is_empty())
        .partition(|line| line.starts_with("tip: "));
    let has_suggestion = |tip: &&&str| tip.contains("similar");
    let tip = match tips.iter().find(has_suggestion) {
        Some(tip) => tip.trim_start_matches("tip: ").to_string(),
        None if error.kind() == ErrorKind::InvalidSubcommand => {
            let known = command.get_subcommands().filter(|sub| !sub.is_hide_set());
            let known: Vec<&str> = known.map(Command::get_name).collect();
            format!("use one of: {}", known.join(", "))
        }
        None => {
            return format!("{}\ntip: see {path} -h", message.join(" "));
        }
    };
    format!("{}\ntip: {tip}; see {path} -h", message.join(" "))
}

fn is_rare(arg: &Arg) -> bool {
    let id = arg.get_id().as_str();
    let in_long_group = arg
        .get_help_heading()
        .is_some_and(|heading| LONG_GROUPS.contains(&heading));
    RARE.contains(&id) || (in_long_group && !USUAL.contains(&id))
}

pub const TOP: &str = "\
Examples:
  rocmforge generate -p \"Once upon a time\"
      Run the built-in model; no download needed.
  rocmforge chat -m qwen2.5-1.5b-instruct-q4_k_m.gguf
      Chat with a model.
  rocmforge generate -m model.gguf --chat -p \"Why is the sky blue?\" --temp 0
      Answer one message, deterministically.
  rocmforge inspect model.gguf
      Show a file's contents and memory requirements.

For a command's options and examples: rocmforge COMMAND --help

Environment variables named ROCMFORGE_* set defaults; each option's help names its variable.";

pub const GENERATE: &str = "\
Examples:
  rocmforge generate -p \"Once upon a time\"
      Complete a text.
  rocmforge generate --chat -p \"Who are you?\" --system \"You are a pirate.\"
      Answer a message, using the model's chat template.
  cat notes.txt | rocmforge generate -m model.gguf --chat > summary.txt
      Read the prompt from a pipe, without its last newline.
  rocmforge generate -m model.gguf -p \"A list:\" -n 100 --stop '\\n\\n' --seed 7
      At most 100 tokens, up to an empty line, with a fixed seed.
  rocmforge generate -m model.gguf --ids 1,2,3 -n 5 --temp 0 --json \\
    --logprobs 5
      Token ids in, JSON out, for scripts.

The answer is streamed to stdout; everything else goes to stderr. Ctrl-C stops the answer.
Exit codes: 0 success, 1 failure, 2 wrong usage, 130 stopped by Ctrl-C.";

pub const CHAT: &str = "\
Examples:
  rocmforge chat
      Chat with the built-in model.
  rocmforge chat -m model.gguf --system \"Answer in one sentence.\" --temp 0.3
  rocmforge chat -m qwen3-1.7b-q8_0.gguf --think off
  printf 'My name is Ada.\\nWhat is my name?\\n' | rocmforge chat --temp 0
      One message per line; only the answers go to stdout.

In a chat, /help lists the commands, Ctrl-C stops an answer and Ctrl-D ends the chat. A backslash at the
end of a line continues it on the next; \"\"\" starts and ends a message of several lines.";

pub const INSPECT: &str = "\
Examples:
  rocmforge inspect model.gguf
  rocmforge inspect model.gguf --ctx 32768
      Memory requirements for a context of 32768 tokens.
  rocmforge inspect model.gguf --json \\
    | jq '.metadata[\"tokenizer.chat_template\"]'

Works for every GGUF file, including unsupported models.";

pub const SERVE: &str = "\
Examples:
  rocmforge serve
      Serve the built-in model at http://127.0.0.1:8080.
  rocmforge serve -m qwen3-8b-q4_k_m.gguf --ctx 16384
  rocmforge serve --all-models --memory 20000
      Serve all downloaded models, with as many in memory as fit into 20,000 MiB.
  rocmforge serve --new-key alice
      Print a key for alice, and her line for the keys file.
  rocmforge serve -m model.gguf --host 0.0.0.0 --keys keys.txt

  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"stream\": true}'

A line of the keys file is name:sha256[:scope,scope][:limit=value,...]. Scopes: infer, metrics. Limits: requests
(at the same time), tokens_per_minute, priority.";

pub const BENCH_SERVE: &str = "\
Examples:
  rocmforge bench serve --url http://127.0.0.1:8080 --concurrency 32 -n 500
  rocmforge bench serve --url http://127.0.0.1:8080 --rate 20 -n 1000 --slo ttft_ms=500,itl_ms=60
  rocmforge bench serve --url http://127.0.0.1:8080/v1 -m NAME --rate 5 -o json
  rocmforge bench serve --url http://127.0.0.1:8080 --concurrency 8 -n 8 --turns 20 --turn-tokens 1500 --tools 4
      8 agents, whose conversations grow to about 32,000 tokens.

Works with every server that has OpenAI's /v1/completions, for --turns /v1/chat/completions. Prompts are random words,
different for each request, so no prefix cache shortens them; a conversation finds its own earlier turns there. Answers
to single prompts ignore the end token where the server can.";

pub const EMBED: &str = "\
Examples:
  rocmforge embed -m embedding.gguf -p \"A text about cats\" --json
  rocmforge embed -m embedding.gguf -f titles.txt --lines --json > titles.jsonl
  rocmforge embed -m model.gguf -p \"Any model has embeddings\" --pooling mean

An embedding has length 1, so the product of two is their cosine similarity. Many models want a text
before each query or document, such as \"query: \"; see the model's card.";

pub const RERANK: &str = "\
Examples:
  rocmforge rerank -m reranker.gguf -q \"What do pandas eat?\" -p \"Bamboo\" -p \"Rust\"
  rocmforge rerank -m reranker.gguf -q \"What do pandas eat?\" -f answers.txt --lines --json

The model needs a classifier (pooling rank). Scores of different models cannot be compared.";

pub const TOKENIZE: &str = "\
Examples:
  rocmforge tokenize -p \"Hello, world\"
      Print a table of tokens.
  rocmforge tokenize -m model.gguf -f book.txt --ids > ids.json
  rocmforge tokenize -m model.gguf -p \"<|im_start|>user\" --parse-special

Vocabulary-only files are enough.";

pub const PERPLEXITY: &str = "\
Examples:
  rocmforge perplexity -m model.gguf -f wiki.test.raw
  rocmforge perplexity -m model.gguf -f wiki.test.raw --ctx 2048 --chunks 20 \\
    --json
  rocmforge perplexity -m model-F16.gguf -f wiki.test.raw --save-logits f16.kld
  rocmforge perplexity -m model-Q4_K_M.gguf --kl-base f16.kld
      How much quantization changes what the model predicts.
  rocmforge perplexity -m model.gguf --kl-base f16.kld --kv-type q4_0
      The same of a smaller KV cache.

Lower is better. The text is split into windows of --ctx tokens; the second half of each window is scored
given everything before it in the window. llama-perplexity does the same, so results are comparable, and
has the same files of log-probabilities (--kl-divergence-base). They are large: for each scored token, two
bytes for each token of the vocabulary.";

/// Examples of `quantize`; its file types follow.
pub const QUANTIZE: &str = "\
Examples:
  rocmforge quantize model-F16.gguf model-Q4_K_M.gguf Q4_K_M
  rocmforge quantize model-F16.gguf Q4_K_M --dry-run
      Show each tensor's type and the file size, and write nothing.
  rocmforge quantize model-F16.gguf small.gguf IQ4_XS --imatrix imatrix.gguf
      Use an importance matrix, for smaller errors in the weights that matter.
  rocmforge quantize model-F16.gguf mine.gguf Q4_K_M \\
    --tensor-type 'ffn_down=Q6_K' --tensor-type 'blk\\.[01]\\.=Q8_0'

The output file appears only when it is complete. The error of a tensor is the root mean squared error
(RMSE) of its values, absolute and relative to the values.";

pub const IMATRIX: &str = "\
Examples:
  rocmforge imatrix -m model-F16.gguf -f calibration.txt -o imatrix.gguf
  rocmforge imatrix -m model-F16.gguf -f calibration.txt -o imatrix.gguf \\
    --chunks 100 --ctx 512

The text is split into windows of --ctx tokens, as in perplexity. The file has llama.cpp's format and is
the input of rocmforge quantize --imatrix.";

pub const BENCH: &str = "\
Examples:
  rocmforge bench -m model.gguf
      Prefill of 512 tokens and generation of 128, five times each.
  rocmforge bench -m a.gguf -m b.gguf -p 512 -n 128 -d 0,4096 -t 1,2
      All combinations; -d is the number of tokens already in the KV cache.
  rocmforge bench -m model.gguf -p 0 -n 64 -b 1,4,8
      Decode several sequences together; the rate counts the tokens of all.
  rocmforge bench -m model.gguf -o json | \\
    jq '.[] | {n_prompt, n_gen, avg_ts, roofline_share}'
  rocmforge bench -m model.gguf --target ttft_ms=200,tokens_s=40
      Exit code 7 if the prompt takes longer, or the generation is slower.
  rocmforge bench --synthetic llama-3.1-8b:Q4_K_M
      Random weights in the shape of that model; no download needed.
  rocmforge bench matmul --filter Q4_K
      Run a micro-benchmark suite: matmul, attention, dequant, inference, memory or batch.

Rows and fields follow llama-bench. The roofline is the shortest possible time on this machine: weights and
KV cache at the read bandwidth, or GEMMs at peak arithmetic, both measured in the same run. A model that
fits in the processor's caches may exceed it.";

pub const SUITE: &str = "\
Examples:
  rocmforge bench matmul
      All cases, on the CPU and on every GPU.
  rocmforge bench matmul --filter 'quantized/Q4_K/1x' --device cpu -t 1
      Only rows with this name, on one thread.
  rocmforge bench inference --synthetic llama-3.1-8b:Q4_K_M -o markdown
      Random weights in the shape of that model.
  rocmforge bench dequant -o json | \\
    jq -r '.[] | [.name, .p50_ms, .bandwidth_roofline_share] | @tsv'

Rows are printed as they are measured; after Ctrl-C, the finished ones remain. Rates are computed from the
median. \"of BW\" and \"of peak\" are shares of the read bandwidth and peak arithmetic measured in the same
run; data that stays in a cache may exceed the bandwidth. Emulated GPUs have no shares, and their times say
nothing about a real GPU.";

pub const BASELINE: &str = "\
Examples:
  rocmforge bench -m model.gguf -r 20 --save-baseline main
      Save the results.
  rocmforge bench -m model.gguf -r 20 --compare-baseline main
      Measure again and compare; exit code 3 if anything is slower by 10 % or more.
  rocmforge baseline compare main mine --threshold 5 --format junit \\
    -o report.xml
  rocmforge baseline compare baselines/h200.json mine --allow-other-hardware
      Use a file: any name with a slash or ending in .json.
  rocmforge baseline trend -o trend.html
      Chart all baselines over time.

A regression must be significant (rank test, 99 % confidence) and its interval must reach the threshold. If
noise hides it, take more samples: a loss of 10 % needs 6 samples at a relative deviation of 2 %, 14 at 5 %
and 50 at 10 %. On a machine that other programs use, only losses by a factor above 2 are judged; keep the
old program and run rocmforge compare --with rocmforge OLD_PROGRAM there.
Exit codes: 0 no regression, 3 regression, 4 other hardware or model, 5 not judged (--fail-inconclusive),
1 failure, 2 wrong usage.";

pub const COMPARE: &str = "\
Examples:
  rocmforge compare --with llama-bench ~/llama.cpp/build/bin/llama-bench \\
    -m model.gguf
      Five pairs of runs: prefill of 512 tokens and generation of 128.
  rocmforge compare --with llama-bench ./llama-bench -m model.gguf -p 0 \\
    -n 64 -d 0,4096 -t 8 --pairs 9 --json
  rocmforge compare --with llama-bench ./llama-bench -m model.gguf \\
    --device cpu -- -ngl 0
      Arguments after -- go to llama-bench.
  rocmforge compare --with llama-bench ./build-a/bin/llama-bench --with llama-bench ./build-b/bin/llama-bench -m model.gguf
      The better of two builds for each test.
  rocmforge compare --with rocmforge ./rocmforge-old -m model.gguf
      Ten pairs with another build; exit code 3 if this one is slower by 10 % or more.

Each pair runs both programs, one process each, in alternating order, so that other load on the machine
affects both. The ratio is ours over theirs: the median over the pairs with a 95 % interval, or with the
smallest and the largest ratio for fewer than 6 pairs.

llama-bench first tries -fa, -ub, threads and its builds in short runs, and each test meets the best
for it. A setting among the arguments after -- is not tried; --fixed tries none.";

pub const PROFILE: &str = "\
Examples:
  rocmforge profile -m model.gguf
      Where the time goes for a random prompt of 512 tokens and 64 generated tokens, with advice.
  rocmforge profile -m model.gguf -p \"Why is the sky blue?\" -n 200 --runs 5
  rocmforge profile -m model.gguf --device gpu --json > profile.json
  rocmforge profile -m model.gguf --json | jq '.advice[0]'
  rocmforge profile -m model.gguf --html report.html --trace trace.json \\
    --flamegraph ops.svg
      Write a report for the browser, a trace for Perfetto and a flame graph.

Runs with and without profiling alternate, and both are shown. On a GPU, decode steps run as graphs; with
profiling, each kernel is launched separately between two events.";

pub const PROFILE_WITH: &str = "\
Examples:
  rocmforge profile-with --list
      Show the supported tools, which are installed, and replacements of retired tools.
  rocmforge profile-with perf -o out -- rocmforge bench -m model.gguf -p 0 \\
    -n 64
      CPU time by function; with --counters cache, hits and misses.
  rocmforge profile-with rocprofv3 --counters memory,stalls -o out \\
    -- rocmforge generate -m model.gguf -p Hello
      Kernels, API calls and counters of an AMD GPU. The command runs once for times and once for each set of
      counters.
  rocmforge profile-with rocprofv3 --read out
      Print the results in a folder again, also those that rocprofv3 wrote by itself.
  rocmforge profile-with ncu --counters memory --dry-run -- rocmforge bench \\
    -m model.gguf
      Show the commands without running them.

The tool's own files stay in the output folder, which should be empty before.
Exit codes: 0 success, 1 tool missing, failed or without permission, 2 wrong usage, 130 stopped by Ctrl-C.";

pub const TUNE: &str = "\
Examples:
  rocmforge tune -m model.gguf
      Tune the launches of this model on the best GPU; takes seconds for most models.
  rocmforge tune -m model.gguf --again --dry-run --json
      Measure everything again and save nothing.
  rocmforge bench -m model.gguf --kernel-variant tuning=off
      Measure without tuned launches.

Tuning never changes results: every candidate must give the same bits, which is checked before it is timed.
Results apply to all models with the same shapes, from each command's next start on, until the driver or the
program changes. A chat also tunes while it waits for input.";

pub const CHECK: &str = "\
Examples:
  rocmforge check -m model.gguf
      One operation of each kind, shape and format.
  rocmforge check -m model.gguf --all --depth 2000 --json
      Every operation, with 2000 tokens in the KV cache.

Runs each operation with the vector kernels of this CPU and with the scalar reference on the same inputs. If
a difference exceeds rounding, the first such operation is printed and the exit code is 1. The scalar
reference is slow: a model of 8 billion parameters takes about a minute.";

pub const DEVICES: &str = "\
Examples:
  rocmforge devices
  rocmforge devices --json | jq -r '.devices[0].isa'";

pub const DOCTOR: &str = "\
Examples:
  rocmforge doctor
  rocmforge doctor --json | jq '.checks[] | select(.status == \"failed\")'
  rocmforge doctor --bundle doctor.tar
      Also write what a report needs, without your name and home folder.

Checks the system, drivers and permissions, the GPU kernels of this build, and the results of each class of kernels on
each device against the scalar reference. Exit code 0 unless the verdict is failed: results are wrong, or the program is damaged.";

pub const MODELS: &str = "\
Examples:
  rocmforge models
  rocmforge models --json | jq -r '.models[].name'
  rocmforge models rm OWNER/REPO:Q4_K_M
  rocmforge models --supported --json | jq .architectures

Use a name from the first column with -m. All .gguf files below the models folder are listed.";

#[cfg(feature = "pull")]
pub const PULL: &str = "\
Examples:
  rocmforge pull hf:OWNER/REPO
      The Q4_K_M model of the repository, else Q4_0, else its only model.
  rocmforge pull hf:OWNER/REPO:Q8_0
  rocmforge pull hf:OWNER/REPO/FOLDER/FILE.gguf@v1.0
      One file of a branch, tag or commit.
  rocmforge chat -m OWNER/REPO
      Use it.

Run the same command again to resume a stopped or failed download. The path of the file is printed on
stdout. For gated and private models, set HF_TOKEN or ROCMFORGE_HUB_TOKEN.";

pub const COMPLETIONS: &str = "\
Examples:
  rocmforge completions bash \\
    > ~/.local/share/bash-completion/completions/rocmforge
  rocmforge completions zsh > ~/.zfunc/_rocmforge
      Requires ~/.zfunc in fpath, before compinit.
  rocmforge completions fish > ~/.config/fish/completions/rocmforge.fish";

pub const MAN: &str = "\
Examples:
  rocmforge man --dir ~/.local/share/man/man1
      Install the pages; then: man rocmforge-generate
  rocmforge man generate | man -l -";

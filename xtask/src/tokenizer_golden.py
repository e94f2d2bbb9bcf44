"""tokenizer_golden.py: prints llama.cpp's tokens of nasty texts with small vocabularies, as JSON on stdout.

Arguments: number of random texts. Packages: llama-cpp-python, gguf, tokenizers, sentencepiece, protobuf.

- "pre": for every value of tokenizer.ggml.pre, the tokens of each text with a vocabulary whose merges cross every kind of
  boundary, so that another cut gives other tokens. Names with equal tokens share a row. Where llama.cpp approximates the
  model's expression, the row has the tokens of Hugging Face tokenizers with the original one as "reference".
- "models": bert (tokens of Hugging Face tokenizers, too), t5 (also of SentencePiece), rwkv and plamo2.
"""
import ctypes
import json
import os
import random
import re
import sys
import tempfile
from collections import Counter

import gguf
import llama_cpp
import sentencepiece
import tokenizers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
QUIET = llama_cpp.llama_log_callback(lambda level, text, data: None)
llama_cpp.llama_log_set(QUIET, None)
llama_cpp.llama_backend_init()
FOLDER = tempfile.mkdtemp()

PARTS = [
    " ", "  ", "     ", "\t", "\n", "\r\n", "\n\n", "\n\n\n", "\u00a0", "\u3000", "'s", "'S", "'LL", "'ve", "'", "I'm",
    "don't", "we'LL", "1", "12", "123", "1234567", "1234567a", "٣٤٥٦", "½Ⅷ", "3.14", "été", "e\u0301", "\u0300", "Ünï",
    "ABc", "aBC", "HTTPServer", "Hello", "hello world", " the", "The", "你好", "日本語テスト", "カタカナ", "한국어", "नमस्ते",
    "ไทย", "Привет", "ΑΒγ", "🚀", "\u200b", "\u00ad", "==", "!?", "…", "/*", "//\n", "(x)", "_", "a_b", "$€", "|", "«»",
    "。", "，", "（", "\0", "\u0085", "\f", "<sentinel:12>", "豈", "ﬁ", "Ａ１", "``", "#include", "foo(bar)", "x=1;", "ǅ", "ʰ",
    "q" * 40, "İ", "ß", "ẞ", "~", "\u2581", "\ufffd", "\u200d", "👩\u200d🚀", "𠀀", "\ue000", "e\u0301\u0323",
]


WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+SUFFIX"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*SUFFIX"
    r"|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O = [WORDS.replace("SUFFIX", CONTRACTION).replace("DIGITS", r"\p{N}{1,3}")]
# The expressions of the models' tokenizer.json that llama.cpp approximates, as its source quotes them.
ORIGINAL = {
    "tekken": [WORDS.replace("SUFFIX", "").replace("DIGITS", r"\p{N}")],
    **dict.fromkeys(["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2", "granite-embed-multi-97m"], GPT4O),
    "youtu": [
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
        WORDS.replace("SUFFIX", CONTRACTION).replace("DIGITS", r"\p{N}"),
    ],
}
AYA_DIGITS = r"\d{1,3}(?=(?:\d{3})*\b)"
ORIGINAL |= dict.fromkeys(["tiny_aya", "cohere2moe"], [AYA_DIGITS, *GPT4O])
ORIGINAL["superbpe"] = [r"\p{N}+", r"(?=(\d{3})+(?!\d))"]
# tokenization_kimi.py of moonshotai/Kimi-K2-Instruct.
KIMI = GPT4O[0].replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace("[\\r\\n/]*", "[\\r\\n]*")
ORIGINAL["kimi-k2"] = [r"[\p{Han}]+|" + KIMI]
IGNORE_MERGES = ["tekken", "youtu", "granite-embed-multi-97m"]


def texts(n_random):
    choose = random.Random(17)
    made = [part for part in PARTS]
    made += ["".join(choose.choice(PARTS) for _ in range(choose.randint(2, 9))) for _ in range(n_random)]
    return list(dict.fromkeys(made))


def byte_chars():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    chars, free = {}, 0x100
    for b in range(256):
        if b in printable:
            chars[b] = chr(b)
        else:
            chars[b] = chr(free)
            free += 1
    return chars


CHARS = byte_chars()


def spell(text):
    return "".join(CHARS[b] for b in text.encode())


def train(corpus, n_merges):
    """Merges of the most frequent pairs, across all boundaries."""
    symbols = [list(text) for text in corpus]
    merges = []
    for _ in range(n_merges):
        pairs = Counter(pair for text in symbols for pair in zip(text, text[1:]) if " " not in pair[0] + pair[1])
        if not pairs:
            break
        best = max(pairs.items(), key=lambda item: (item[1], item[0]))[0]
        merges.append(best)
        for text in symbols:
            i = 0
            while i + 1 < len(text):
                if (text[i], text[i + 1]) == best:
                    text[i : i + 2] = ["".join(best)]
                i += 1
    return merges


def write(metadata):
    """Writes a file of a vocabulary; the keys lack `tokenizer.ggml.`."""
    path = os.path.join(FOLDER, "vocab.gguf")
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        key = "tokenizer.ggml." + key
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif key.endswith("charsmap"):
            writer.add_array(key, bytes(value))
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


class Vocab:
    def __init__(self, metadata):
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(write(metadata).encode(), params)
        assert self.model, metadata.get("pre", metadata["model"])
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)

    def encode(self, text, add_special=False):
        raw = text.encode()
        buffer = (llama_cpp.llama_token * (4 * len(raw) + 16))()
        n = llama_cpp.llama_tokenize(self.vocab, raw, len(raw), buffer, len(buffer), add_special, False)
        assert n >= 0
        return list(buffer[:n])

    def decode(self, ids):
        tokens = (llama_cpp.llama_token * max(1, len(ids)))(*ids)
        buffer = ctypes.create_string_buffer(64 * len(ids) + 64)
        n = llama_cpp.llama_detokenize(self.vocab, tokens, len(ids), buffer, len(buffer), False, False)
        assert n >= 0
        return buffer.raw[:n].decode(errors="replace")

    def close(self):
        llama_cpp.llama_model_free(self.model)


def original_ids(name, vocabulary, all_texts):
    """Tokens by Hugging Face tokenizers with the original expressions."""
    ids = {token: i for i, token in enumerate(vocabulary["tokens"])}
    merges = [tuple(merge.split(" ")) for merge in vocabulary["merges"]]
    hf = tokenizers.Tokenizer(tokenizers.models.BPE(ids, merges, ignore_merges=name in IGNORE_MERGES))
    split = lambda regex: tokenizers.pre_tokenizers.Split(tokenizers.Regex(regex), "isolated")
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    hf.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([*map(split, ORIGINAL[name]), byte_level])
    return [hf.encode(text).ids for text in all_texts]


def pre_rows(all_texts):
    source = sys.argv[2]
    names = list(dict.fromkeys(re.findall(r'tokenizer_pre == "([^"]+)"', open(source).read())))
    names = [name for name in names if name != "kimi-k2"] + ["kimi-k2"]
    # Tokens that only whole pieces can become.
    whole = ["Hello", " the", "123", "été", "你好", "\n\n\n", "Привет"]
    bytes_merges = train([spell(text) for text in all_texts], 700)
    bytes_tokens = list(CHARS.values()) + ["".join(merge) for merge in bytes_merges]
    bytes_tokens = list(dict.fromkeys(bytes_tokens + [spell(text) for text in whole]))
    # GGUF readers in C cannot hold a token with NUL.
    blocks = [text.replace(" ", "▁").replace("\0", "") for text in all_texts]
    chars_merges = train(blocks, 400)
    chars = sorted({c for text in blocks for c in text})
    chars_tokens = ["<s>"] + [f"<0x{b:02X}>" for b in range(256)] + chars + ["".join(merge) for merge in chars_merges]
    chars_tokens = list(dict.fromkeys(chars_tokens))
    kind = lambda token: CONTROL if token == "<s>" else BYTE if re.fullmatch("<0x..>", token) else NORMAL
    vocabularies = {
        "bytes": {"tokens": bytes_tokens, "merges": [" ".join(m) for m in bytes_merges]},
        "chars": {
            "tokens": chars_tokens,
            "token_type": [kind(token) for token in chars_tokens],
            "merges": [" ".join(m) for m in chars_merges if "\n" not in m[0] + m[1]],
        },
    }
    for vocabulary in vocabularies.values():
        vocabulary.setdefault("token_type", [NORMAL] * len(vocabulary["tokens"]))
        vocabulary |= {"bos_token_id": 0, "eos_token_id": 1}
    rows = {}
    for name in names:
        of_chars = name in ("gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace")
        kind = "chars" if of_chars else "bytes"
        model = {"gemma4": "gemma4", "whitespace": "whitespace"}.get(name, "gpt2")
        vocab = Vocab({"model": model, "pre": name, **vocabularies[kind]})
        ids = [vocab.encode(text) for text in all_texts]
        add_bos = bool(llama_cpp.llama_vocab_get_add_bos(vocab.vocab))
        vocab.close()
        reference = original_ids(name, vocabularies[kind], all_texts) if name in ORIGINAL else None
        key = json.dumps([kind, model, add_bos, ids, reference])
        rows.setdefault(key, []).append(name)
    table = []
    for key, names in rows.items():
        kind, model, add_bos, ids, reference = json.loads(key)
        table.append({"names": names, "vocabulary": kind, "model": model, "add_bos": add_bos, "ids": ids})
        if reference is not None:
            table[-1]["reference"] = reference
    return {"vocabularies": vocabularies, "rows": table}


def cases(metadata, all_texts, reference):
    vocab = Vocab(metadata)
    rows = []
    for text in all_texts:
        ids = vocab.encode(text)
        row = {"text": text, "ids": ids, "added": vocab.encode(text, True), "decoded": vocab.decode(ids)}
        if reference is not None:
            row["reference"] = reference(text)
        rows.append(row)
    vocab.close()
    return {"metadata": metadata, "cases": rows}


def bert(all_texts, lowercase):
    hf = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=10**6))
    hf.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    hf.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=700, special_tokens=special, show_progress=False)
    hf.train_from_iterator(sorted(text for text in all_texts if "q" * 9 not in text and "▁" not in text), trainer)
    vocabulary = sorted(hf.get_vocab().items(), key=lambda item: item[1])
    # As llama.cpp's converter writes them.
    tokens = []
    for token, _ in vocabulary:
        if token in special:
            tokens.append(token)
        else:
            tokens.append(token[2:] if token.startswith("##") else "▁" + token)
    keep = [i for i, token in enumerate(tokens) if token not in tokens[:i]]
    assert len(keep) == len(tokens)
    metadata = {
        "model": "bert",
        "tokens": tokens,
        "token_type": [CONTROL if token in special else NORMAL for token in tokens],
        "unknown_token_id": 1,
        "bos_token_id": 2,
        "cls_token_id": 2,
        "seperator_token_id": 3,
        "padding_token_id": 0,
        "mask_token_id": 4,
    }
    if not lowercase:
        metadata["normalizer.lowercase"] = False
    return cases(metadata, all_texts, lambda text: hf.encode(text, add_special_tokens=False).ids)


def t5(all_texts, options):
    """A model trained on the texts, with few rules, or all of NFKC if `rules` is not given."""
    corpus = os.path.join(FOLDER, "corpus.txt")
    with open(corpus, "w") as file:
        for text in all_texts:
            text = re.sub(r"[\0\r\n\u0085\u2028\f]", " ", text).strip()
            if text and "\u2581" not in text:
                file.write(text + "\n")
    prefix = os.path.join(FOLDER, "spm")
    arguments = dict(model_type="unigram", vocab_size=500, hard_vocab_limit=False, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    arguments |= dict(character_coverage=0.98, minloglevel=2, user_defined_symbols=["<extra_id_0>"], **options)
    if arguments.pop("rules", True):
        rules = os.path.join(FOLDER, "rules.tsv")
        with open(rules, "w") as file:
            pairs = [("ﬁ", "fi"), ("Ａ", "A"), ("１", "1"), ("é", "e\u0301"), ("e\u0301\u0323", "E"), ("\u3000", " ")]
            pairs += [("\u200b", ""), ("…", "..."), ("\t", " "), ("\n", " "), ("½", "1⁄2"), ("\u00a0", " ")]
            for a, b in pairs:
                hexes = lambda s: " ".join(f"{ord(c):X}" for c in s)
                file.write(f"{hexes(a)}\t{hexes(b)}\n")
        arguments["normalization_rule_tsv"] = rules
    sentencepiece.SentencePieceTrainer.train(input=corpus, model_prefix=prefix, **arguments)
    sp = sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")
    from sentencepiece import sentencepiece_model_pb2 as pb

    proto = pb.ModelProto()
    proto.ParseFromString(open(prefix + ".model", "rb").read())
    kinds = {1: NORMAL, 2: UNKNOWN, 3: CONTROL, 4: USER_DEFINED, 5: UNUSED, 6: BYTE}
    metadata = {
        "model": "t5",
        "tokens": [piece.piece for piece in proto.pieces],
        "scores": [piece.score for piece in proto.pieces],
        "token_type": [kinds[piece.type] for piece in proto.pieces],
        "eos_token_id": 1,
        "unknown_token_id": 2,
        "padding_token_id": 0,
        "add_space_prefix": proto.normalizer_spec.add_dummy_prefix,
        "remove_extra_whitespaces": proto.normalizer_spec.remove_extra_whitespaces,
    }
    if proto.normalizer_spec.precompiled_charsmap:
        metadata["precompiled_charsmap"] = list(proto.normalizer_spec.precompiled_charsmap)
    return cases(metadata, all_texts, lambda text: sp.encode(text))


def rwkv(all_texts):
    """Every byte, and parts of the texts, some of which end inside a character."""
    choose = random.Random(3)
    tokens = {bytes([b]) for b in range(256)}
    for text in all_texts:
        raw = text.encode()
        for _ in range(4):
            start = choose.randrange(len(raw)) if raw else 0
            tokens.add(raw[start : start + choose.randint(1, 9)])
    tokens.discard(b"")
    written = ["<s>"] + [repr(token)[2:-1] for token in sorted(tokens)]
    written = list(dict.fromkeys(written))
    metadata = {"model": "rwkv", "tokens": written, "token_type": [CONTROL] + [NORMAL] * (len(written) - 1)}
    return cases(metadata, all_texts, None)


def plamo2(all_texts):
    """Every byte, and parts of the texts with few different scores, so that many sums are equal."""
    choose = random.Random(5)
    control = [f"<|plamo:{name}|>" for name in ("unk", "bos", "eos", "pad", "op")]
    parts = set()
    for text in all_texts:
        # GGUF readers in C cannot hold a token with NUL.
        text = text.replace("\0", " ")
        for longest in (1, 2, 4, 9):
            start = choose.randrange(len(text))
            parts.add(text[start : start + choose.randint(1, longest)])
    parts = sorted(parts)
    metadata = {
        "model": "plamo2",
        "tokens": control + [f"<0x{b:02X}>" for b in range(256)] + parts,
        "scores": [0.0] * len(control) + [-100.0] * 256 + [-choose.choice([1.5, 3.0, 4.5, 1999.0, 2000.0]) for _ in parts],
        "token_type": [UNKNOWN] + [CONTROL] * (len(control) - 1) + [BYTE] * 256 + [NORMAL] * len(parts),
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "padding_token_id": 3,
        "eot_token_id": 4,
        "add_space_prefix": False,
    }
    return cases(metadata, all_texts, None)


def main():
    # sentencepiece writes to standard output.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    all_texts = texts(int(sys.argv[1]))
    models = [bert(all_texts, True), bert(all_texts, False), rwkv(all_texts), plamo2(all_texts)]
    models += [t5(all_texts, {}), t5(all_texts, {"remove_extra_whitespaces": False, "add_dummy_prefix": False})]
    if len(sys.argv) > 3:
        models += [t5(all_texts, {"rules": False, "normalization_rule_name": name}) for name in ("nmt_nfkc", "nmt_nfkc_cf")]
    json.dump({"texts": all_texts, "pre": pre_rows(all_texts), "models": models}, out, ensure_ascii=False, separators=(",", ":"))


main()

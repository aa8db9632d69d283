# Run as `python3 -c THIS FOLDER`. Writes what Dynamo's frontend and mocker read of a model in Hugging Face's format: no weights.
#
# The mocker answers with random tokens from 1000 to 1999 (ai-dynamo 1.6.1), so each of these is a word.
import json, pathlib, sys

folder = pathlib.Path(sys.argv[1])
printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
others = [byte for byte in range(256) if byte not in printable]
# The alphabet of byte-level BPE: bytes that cannot be printed are the letters from U+0100 on.
alphabet = [chr(byte) for byte in printable] + [chr(0x100 + n) for n in range(len(others))]
space = chr(0x100 + others.index(ord(" ")))
special = ["<s>", "</s>", "<unk>"]
tokens = special + alphabet
tokens += [f"{space}word-{number}" for number in range(len(tokens), 2000)]
byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def write(name, content):
    (folder / name).write_text(json.dumps(content))


write("tokenizer.json", {
    "version": "1.0",
    "added_tokens": [
        {"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for number, token in enumerate(special)
    ],
    "normalizer": None,
    "pre_tokenizer": byte_level,
    "post_processor": None,
    "decoder": byte_level,
    "model": {
        "type": "BPE",
        "unk_token": "<unk>",
        "vocab": {token: number for number, token in enumerate(tokens)},
        "merges": [],
    },
})
write("tokenizer_config.json", {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "chat_template": "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:",
})
write("config.json", {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": len(tokens),
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
})
write("generation_config.json", {"bos_token_id": 0, "eos_token_id": 1})

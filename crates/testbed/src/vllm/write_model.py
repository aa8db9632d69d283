"""Writes a model in Hugging Face's format whose weights are set by hand, so that it answers one sentence.

The argument is the folder, standard input a JSON list of the pieces of the sentence. As in `engine/model.rs`, each piece has a
dimension of its own, all other tokens share the first one, and the output matrix leads from each dimension to the piece that
follows. The layer does nothing.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

END = "<|end|>"
CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
# Of a normalized one-hot vector that makes logits of thousands: no temperature makes another token likely.
CERTAINTY = 1000.0
# The size of one attention head, which vLLM has code for; with room for every piece.
WIDTH = 64

folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
pieces = json.load(sys.stdin)

spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
texts = [END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
first = len(texts)
for piece in pieces:
    ((text, _),) = spell.pre_tokenize_str(piece)
    texts.append(text)
tokenizer = Tokenizer(models.BPE(vocab={text: index for index, text in enumerate(texts)}, merges=[]))
tokenizer.pre_tokenizer = spell
tokenizer.decoder = decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, bos_token=END)
tokenizer.chat_template = CHAT_TEMPLATE
tokenizer.save_pretrained(folder)

config = LlamaConfig(
    architectures=["LlamaForCausalLM"],
    vocab_size=len(texts),
    hidden_size=WIDTH,
    intermediate_size=WIDTH,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    max_position_embeddings=4096,
    bos_token_id=0,
    eos_token_id=0,
    dtype="float32",
)
config.save_pretrained(folder)


def dimension(token):
    return max(0, token + 1 - first)


embedding = torch.zeros(len(texts), WIDTH)
output = torch.zeros(len(texts), WIDTH)
for token in range(len(texts)):
    embedding[token, dimension(token)] = 1.0
    if token >= first:
        output[token, dimension(token) - 1] = CERTAINTY
output[0, dimension(len(texts) - 1)] = CERTAINTY
weights = {
    "model.embed_tokens.weight": embedding,
    "lm_head.weight": output,
    "model.norm.weight": torch.ones(WIDTH),
}
layer = "model.layers.0"
for norm in ["input_layernorm", "post_attention_layernorm"]:
    weights[f"{layer}.{norm}.weight"] = torch.ones(WIDTH)
for idle in [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
]:
    weights[f"{layer}.{idle}.weight"] = torch.zeros(WIDTH, WIDTH)
save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
json.dump(None, sys.stdout)

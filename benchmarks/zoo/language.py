"""Sequence models of the zoo, as transformers implements them, with random weights."""

from __future__ import annotations

import torch
import transformers as hf
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from . import Workload, cross_entropy

VOCABULARY = 8192


class Logits(nn.Module):
    """Inputs by the names that the model knows them by, to logits, without a cache or an output object."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], **options: object) -> None:
        super().__init__()
        self.model = model
        self.names = names
        self.options = options

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.model(**dict(zip(self.names, inputs)), **self.options).logits


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, VOCABULARY, shape)


def causal(model: nn.Module, batch: int, length: int) -> Workload:
    module = Logits(model, ("input_ids",), use_cache=False)
    return Workload(module, (tokens(batch, length),), tokens(batch, length), cross_entropy)


def bert(small: bool) -> Workload:
    batch, length, layers = (2, 32, 2) if small else (16, 128, 6)
    config = hf.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=384,
        num_hidden_layers=layers,
        num_attention_heads=6,
        intermediate_size=1536,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    lengths = torch.linspace(length // 2, length, batch).long()
    mask = (torch.arange(length) < lengths[:, None]).long()
    module = Logits(hf.BertForMaskedLM(config), ("input_ids", "attention_mask"))
    return Workload(module, (tokens(batch, length), mask), tokens(batch, length), cross_entropy)


def gpt2(small: bool) -> Workload:
    batch, length, layers = (2, 32, 2) if small else (8, 256, 6)
    config = hf.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=384,
        n_layer=layers,
        n_head=6,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return causal(hf.GPT2LMHeadModel(config), batch, length)


def llama(small: bool) -> Workload:
    batch, length, layers = (2, 32, 2) if small else (8, 256, 6)
    config = hf.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=layers,
        num_attention_heads=6,
        num_key_value_heads=2,
    )
    return causal(hf.LlamaForCausalLM(config), batch, length)


def sorted_experts(experts: nn.Module, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Tokens sorted by expert, one grouped matmul per projection.

    Where an expert's tokens end is found by binary search: transformers counts them with histc over integers,
    which only CUDA has.
    """
    ids, order = torch.sort(chosen.flatten())
    ends = torch.searchsorted(ids, torch.arange(experts.num_experts, device=ids.device), right=True).int()
    tokens_of = order // chosen.shape[-1]
    projected = F.grouped_mm(hidden[tokens_of], experts.gate_up_proj.transpose(1, 2), offs=ends)
    gate, up = projected.chunk(2, dim=-1)
    out = F.grouped_mm(experts.act_fn(gate) * up, experts.down_proj.transpose(1, 2), offs=ends)
    return torch.zeros_like(hidden).index_add(0, tokens_of, out * weights.flatten()[order, None])


ALL_EXPERTS_FUNCTIONS.register("sorted", sorted_experts)


def moe(small: bool) -> Workload:
    batch, length, layers = (2, 32, 1) if small else (8, 192, 4)
    config = hf.MixtralConfig(
        vocab_size=VOCABULARY,
        hidden_size=384,
        intermediate_size=512,
        num_hidden_layers=layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        num_local_experts=8,
        experts_implementation="sorted",  # the default loops over nonzero(), which waits for the device
    )
    return causal(hf.MixtralForCausalLM(config), batch, length)


def t5(small: bool) -> Workload:
    batch, length, layers = (2, 32, 1) if small else (8, 160, 4)
    config = hf.T5Config(
        vocab_size=VOCABULARY,
        d_model=384,
        d_kv=64,
        d_ff=1024,
        num_layers=layers,
        num_heads=6,
        dropout_rate=0.0,
    )
    module = Logits(
        hf.T5ForConditionalGeneration(config), ("input_ids", "decoder_input_ids"), use_cache=False
    )
    inputs = (tokens(batch, length), tokens(batch, length // 2))
    return Workload(module, inputs, tokens(batch, length // 2), cross_entropy)


def whisper(small: bool) -> Workload:
    batch, frames, layers, written = (1, 100, 1, 16) if small else (4, 800, 4, 64)
    config = hf.WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=384,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
        max_source_positions=frames // 2,
        dropout=0.0,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        decoder_start_token_id=0,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    names = ("input_features", "decoder_input_ids")
    module = Logits(hf.WhisperForConditionalGeneration(config), names, use_cache=False)
    return Workload(
        module,
        (torch.randn(batch, 80, frames), tokens(batch, written)),
        tokens(batch, written),
        cross_entropy,
    )


def mamba(small: bool) -> Workload:
    batch, length, layers = (2, 32, 1) if small else (4, 128, 4)
    config = hf.Mamba2Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_hidden_layers=layers,
        head_dim=64,
        num_heads=8,
        n_groups=1,
        state_size=64,
        chunk_size=32,
    )
    return causal(hf.Mamba2ForCausalLM(config), batch, length)
